package fleet_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/espimage/esptest"
)

// polls puts enrolled devices on record, as their boot polls tell.
func (b *firmwareBench) polls(n int, change func(i int, p *fleet.PollRecord)) []fleet.DeviceID {
	b.t.Helper()
	var all []fleet.PollRecord
	var ids []fleet.DeviceID
	for i := range n {
		id := fleet.DeviceID(fmt.Sprintf("a085e3%06x", i))
		p := fleet.PollRecord{
			Poll: fleet.BootPoll{Device: id, ClientID: "c1", Board: "bread-compact-wifi", Chip: "esp32s3", Version: "2.4.0", ELFSHA256: "9f2c",
				Slot: "ota_0", At: time.Now().UTC().Truncate(time.Microsecond), Facts: []byte(`{}`),
				Layout: &fleet.FlashLayout{SlotSize: 4128768, Labels: []string{"ota_0", "ota_1", "assets"}, ChipRev: 2}},
			Admission: fleet.Admission{Device: id, Enrolment: fleet.EnrolmentEnrolled, ClientID: "c1"},
		}
		change(i, &p)
		all, ids = append(all, p), append(ids, id)
	}
	if err := b.store.SavePolls(b.t.Context(), all); err != nil {
		b.t.Fatal(err)
	}
	return ids
}

func TestFitReport(t *testing.T) {
	var busy, quarantined fleet.DeviceID
	b := newFirmware(t, func(o *fleet.FirmwareOptions) {
		o.Busy = func(_ context.Context, ids []fleet.DeviceID) ([]fleet.DeploymentConflict, error) {
			return []fleet.DeploymentConflict{{Device: busy, Name: "spring"}}, nil
		}
		o.Quarantines = quarantines{device: &quarantined}
	})
	img := b.image(esptest.App{Size: 100_000}, "")
	ids := b.polls(2000, func(i int, p *fleet.PollRecord) {
		switch {
		case i < 3:
			p.Poll.Chip = "esp32c3"
		case i < 5:
			p.Poll.Layout.SlotSize = 64 << 10
		case i == 5:
			p.Poll.ELFSHA256 = img.ELFSHA256
		case i == 6:
			p.Poll.Layout = nil
		case i == 7:
			p.Admission.Enrolment = fleet.EnrolmentWaiting
		case i == 8:
			p.Poll.Version = "2.5.0"
		}
	})
	busy, quarantined = ids[1500], ids[1501]
	if err := b.store.SetHold(t.Context(), anOperator, ids[9], &fleet.Hold{Reason: "loan", By: anOperator, Since: time.Now().UTC()}); err != nil {
		t.Fatal(err)
	}
	want := fleet.FitReport{Matched: 2000, Fit: 1988, Sample: ids[10:15], Misfits: []fleet.Misfits{
		{Reason: fleet.SkipChip, Detail: "the image is for esp32s3, the device has esp32c3", Count: 3, Sample: ids[:3]},
		{Reason: fleet.SkipTooLarge, Detail: "slot of 64 KiB, image of 98 KiB", Count: 2, Sample: ids[3:5]},
		{Reason: fleet.SkipInstalled, Detail: "runs 2.4.0", Count: 1, Sample: ids[5:6]},
		{Reason: fleet.SkipUnknown, Detail: "no boot poll told its chip and partitions", Count: 1, Sample: ids[6:7]},
		{Reason: fleet.SkipNotEnrolled, Count: 1, Sample: ids[7:8]},
		{Reason: fleet.SkipNewer, Detail: "runs 2.5.0, newer than 2.4.3", Count: 1, Sample: ids[8:9]},
		{Reason: fleet.SkipHeld, Detail: "held by bo: loan", Count: 1, Sample: ids[9:10]},
		{Reason: fleet.SkipBusy, Detail: "has a part in the campaign spring", Count: 1, Sample: ids[1500:1501]},
		{Reason: fleet.SkipQuarantined, Detail: "fails", Count: 1, Sample: ids[1501:1502]},
	}}
	got, err := b.Fit(t.Context(), fleet.FitQuery{Image: img.SHA256})
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" || err != nil {
		t.Error(err, diff)
	}
	r, err := b.Create(t.Context(), anOperator, fleet.ReleaseRequest{Images: []string{img.SHA256}})
	if err != nil {
		t.Fatal(err)
	}
	want.Misfits[0] = fleet.Misfits{Reason: fleet.SkipNoImage, Detail: "release 2.4.3 has no image for bread-compact-wifi with esp32c3", Count: 3, Sample: ids[:3]}
	got, err = b.Fit(t.Context(), fleet.FitQuery{Release: r.ID})
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" || err != nil {
		t.Error(err, diff)
	}
	got, err = b.Fit(t.Context(), fleet.FitQuery{Release: r.ID, Query: "chip:esp32c3"})
	if err != nil || got.Matched != 3 || got.Fit != 0 {
		t.Errorf("of a query: %+v, %v", got, err)
	}
}

// quarantines keeps one device.
type quarantines struct {
	fleet.QuarantineStore // what tests do not use panics
	device                *fleet.DeviceID
}

func (q quarantines) QuarantinesOf(context.Context, []fleet.DeviceID, time.Time) (map[fleet.DeviceID]fleet.Quarantine, error) {
	return map[fleet.DeviceID]fleet.Quarantine{*q.device: {Device: *q.device, Reason: "fails"}}, nil
}

// TestFitByPush: a device can only be pushed to if it listed the tool.
func TestFitByPush(t *testing.T) {
	b := newFirmware(t)
	img := b.image(esptest.App{}, "")
	ids := b.polls(3, func(int, *fleet.PollRecord) {})
	for i, tool := range []string{fleet.ToolUpgradeFirmware, "self.get_device_status"} {
		inventory := fleet.Inventory{ID: tool, Tools: []fleet.Tool{{Name: tool, InputSchema: []byte(`{}`)}}}
		if err := b.store.SaveListing(t.Context(), fleet.ToolListing{Device: ids[i], Inventory: inventory, At: time.Now().UTC()}); err != nil {
			t.Fatal(err)
		}
	}
	for mode, want := range map[fleet.DispatchMode]int{fleet.ModePush: 1, fleet.ModePull: 3, fleet.ModeAuto: 3, "": 3} {
		got, err := b.Fit(t.Context(), fleet.FitQuery{Image: img.SHA256, Options: fleet.FitOptions{Mode: mode}})
		if err != nil || got.Fit != want || got.Matched != 3 {
			t.Errorf("mode %q: %+v, %v", mode, got, err)
		}
		if want == 1 && (len(got.Misfits) != 1 || got.Misfits[0].Reason != fleet.SkipNoTool) {
			t.Errorf("mode %q: %+v", mode, got.Misfits)
		}
	}
}

func TestFitRefuses(t *testing.T) {
	b := newFirmware(t)
	img := b.image(esptest.App{}, "")
	for name, tt := range map[string]struct {
		q    fleet.FitQuery
		code string
	}{
		"neither": {fleet.FitQuery{}, "invalid_fit"},
		"both":    {fleet.FitQuery{Image: img.SHA256, Release: uuid.Must(uuid.NewV7())}, "invalid_fit"},
		"mode":    {fleet.FitQuery{Image: img.SHA256, Options: fleet.FitOptions{Mode: "shove"}}, "invalid_mode"},
		"query":   {fleet.FitQuery{Image: img.SHA256, Query: "colour:red"}, "unknown_field"},
	} {
		_, err := b.Fit(t.Context(), tt.q)
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		wantCode(t, err, fleet.ErrInvalid, tt.code)
	}
}
