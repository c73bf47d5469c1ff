package firmware_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/espimage/esptest"
	"fleetd/fleet/firmware"
)

// polls records enrolled devices, as their boot polls would.
func (b *firmwareBench) polls(n int, change func(i int, p *enrolment.PollRecord)) []fleet.DeviceID {
	b.t.Helper()
	var all []enrolment.PollRecord
	var ids []fleet.DeviceID
	for i := range n {
		id := fleet.DeviceID(fmt.Sprintf("a085e3%06x", i))
		p := enrolment.PollRecord{
			Poll: enrolment.BootPoll{Device: id, ClientID: "c1", Board: "bread-compact-wifi", Chip: "esp32s3", Version: "2.4.0",
				ELFSHA256: "9f2c",
				Slot:      "ota_0", At: time.Now().UTC().Truncate(time.Microsecond), Facts: []byte(`{}`),
				Layout: &fleet.FlashLayout{SlotSize: 4128768, Labels: []string{"ota_0", "ota_1", "assets"}, ChipRev: 2}},
			Admission: enrolment.Admission{Device: id, Enrolment: fleet.EnrolmentEnrolled, ClientID: "c1"},
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
	b := newFirmware(t, func(o *firmware.Options) {
		o.Unavailable = campaign.Unavailable(takers{busy: &busy, quarantined: &quarantined})
	})
	img := b.image(esptest.App{Size: 100_000}, "")
	ids := b.polls(2000, func(i int, p *enrolment.PollRecord) {
		switch {
		case i < 2: // of one board, with two chips
			p.Poll.Chip = []string{"esp32", "esp32c3"}[i]
		case i == 2:
			p.Poll.Board, p.Poll.Chip = "lichuang-c3-dev", "esp32c3"
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
	if err := b.store.SetHold(t.Context(), anOperator, ids[9], &fleet.Hold{Reason: "loan", By: anOperator,
		Since: time.Now().UTC()}); err != nil {
		t.Fatal(err)
	}
	const wifi = "bread-compact-wifi"
	otherChip := func(chip string) fleet.Reason {
		return fleet.Because(firmware.FitChip, "chip", "esp32s3", "other", chip)
	}
	want := firmware.FitReport{Matched: 2000, Fit: 1988, Sample: ids[10:15], Misfits: []firmware.Misfits{
		{Reason: firmware.SkipChip, Board: wifi, Chip: "esp32", Detail: otherChip("esp32"), Count: 1, Sample: ids[:1]},
		{Reason: firmware.SkipChip, Board: wifi, Chip: "esp32c3", Detail: otherChip("esp32c3"), Count: 1, Sample: ids[1:2]},
		{Reason: firmware.SkipChip, Board: "lichuang-c3-dev", Chip: "esp32c3", Detail: otherChip("esp32c3"), Count: 1, Sample: ids[2:3]},
		{Reason: firmware.SkipTooLarge, Board: wifi, Detail: fleet.Because(firmware.FitSlot, "slot_kib", 64, "image_kib", 98), Count: 2, Sample: ids[3:5]},
		{Reason: firmware.SkipInstalled, Board: wifi, Detail: fleet.Because(firmware.FitRuns, "version", "2.4.0"), Count: 1, Sample: ids[5:6]},
		{Reason: firmware.SkipHeld, Board: wifi, Detail: fleet.Because(firmware.FitHeld, "name", "bo", "detail", "loan"), Count: 1, Sample: ids[9:10]},
		{Reason: firmware.SkipNotEnrolled, Board: wifi, Count: 1, Sample: ids[7:8]},
		{Reason: firmware.SkipBusy, Board: wifi, Detail: fleet.Because(campaign.ReasonFitBusy, "name", "spring"), Count: 1, Sample: ids[1500:1501]},
		{Reason: firmware.SkipNewer, Board: wifi, Detail: fleet.Because(firmware.FitNewer, "version", "2.5.0", "other", "2.4.3"), Count: 1, Sample: ids[8:9]},
		{Reason: firmware.SkipUnknown, Board: wifi, Detail: fleet.Because(firmware.FitUnknown), Count: 1, Sample: ids[6:7]},
		{Reason: firmware.SkipQuarantined, Board: wifi, Detail: fleet.Because(campaign.ReasonLegacyText, "detail", "fails"),
			Count: 1, Sample: ids[1501:1502]},
	}}
	got, err := b.Fit(t.Context(), firmware.FitQuery{Image: img.SHA256})
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" || err != nil {
		t.Error(err, diff)
	}
	r, err := b.Create(t.Context(), anOperator, firmware.ReleaseRequest{Images: []string{img.SHA256}})
	if err != nil {
		t.Fatal(err)
	}
	for i, chip := range []string{"esp32", "esp32c3", "esp32c3"} { // each board and chip with its own reason
		m := &want.Misfits[i]
		m.Reason, m.Detail = firmware.SkipNoImage, fleet.Because(firmware.FitRelease, "version", "2.4.3", "board", m.Board,
			"chip", chip)
	}
	got, err = b.Fit(t.Context(), firmware.FitQuery{Release: r.ID})
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" || err != nil {
		t.Error(err, diff)
	}
	got, err = b.Fit(t.Context(), firmware.FitQuery{Release: r.ID, Query: "chip:esp32c3"})
	if err != nil || got.Matched != 2 || got.Fit != 0 {
		t.Errorf("of a query: %+v, %v", got, err)
	}
}

// takers make one device busy and one quarantined.
type takers struct{ busy, quarantined *fleet.DeviceID }

func (t takers) Conflicts(context.Context, uuid.UUID, []fleet.DeviceID) ([]campaign.DeploymentConflict, error) {
	return []campaign.DeploymentConflict{{Device: *t.busy, Name: "spring"}}, nil
}

func (t takers) QuarantinesOf(context.Context, []fleet.DeviceID, time.Time) (map[fleet.DeviceID]campaign.Quarantine,
	error) {
	return map[fleet.DeviceID]campaign.Quarantine{*t.quarantined: {Device: *t.quarantined,
		Reason: fleet.Because("legacy", "detail", "fails")}}, nil
}

// TestFitByPush: an upgrade can be pushed only to a device that lists the tool.
func TestFitByPush(t *testing.T) {
	b := newFirmware(t)
	img := b.image(esptest.App{}, "")
	ids := b.polls(3, func(int, *enrolment.PollRecord) {})
	for i, tool := range []string{fleet.ToolUpgradeFirmware, "self.get_device_status"} {
		inventory := fleet.Inventory{ID: tool, Tools: []fleet.Tool{{Name: tool, InputSchema: []byte(`{}`)}}}
		if err := b.store.SaveListing(t.Context(), fleet.ToolListing{Device: ids[i], Inventory: inventory,
			At: time.Now().UTC()}); err != nil {
			t.Fatal(err)
		}
	}
	for mode, want := range map[firmware.DispatchMode]int{firmware.ModePush: 1, firmware.ModePull: 3, firmware.ModeAuto: 3,
		"": 3} {
		got, err := b.Fit(t.Context(), firmware.FitQuery{Image: img.SHA256, Options: firmware.FitOptions{Mode: mode}})
		if err != nil || got.Fit != want || got.Matched != 3 {
			t.Errorf("mode %q: %+v, %v", mode, got, err)
		}
		if want == 1 && (len(got.Misfits) != 1 || got.Misfits[0].Reason != firmware.SkipNoTool) {
			t.Errorf("mode %q: %+v", mode, got.Misfits)
		}
	}
}

func TestFitRefuses(t *testing.T) {
	b := newFirmware(t)
	img := b.image(esptest.App{}, "")
	for name, tt := range map[string]struct {
		q    firmware.FitQuery
		code string
	}{
		"neither": {firmware.FitQuery{}, "invalid_fit"},
		"both":    {firmware.FitQuery{Image: img.SHA256, Release: uuid.Must(uuid.NewV7())}, "invalid_fit"},
		"mode":    {firmware.FitQuery{Image: img.SHA256, Options: firmware.FitOptions{Mode: "shove"}}, "invalid_mode"},
		"query":   {firmware.FitQuery{Image: img.SHA256, Query: "colour:red"}, "unknown_field"},
	} {
		_, err := b.Fit(t.Context(), tt.q)
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		wantCode(t, err, fleet.ErrInvalid, tt.code)
	}
}
