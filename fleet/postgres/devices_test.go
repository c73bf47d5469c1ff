package postgres_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"fleetd/fleet"
	"fleetd/fleet/audit"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/postgres"
)

const unit = fleet.DeviceID("a085e3112233")

func query(t testing.TB, text string) fleet.Query {
	t.Helper()
	q, err := fleet.ParseQuery(text)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func TestPollMakesDevice(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	p := poll(unit, now())
	p.Poll.Facts = []byte(`{"name":"a\u0000b"}`)
	older := poll(unit, p.Poll.At.Add(-time.Minute))
	older.Poll.Version = "1.0.0"
	if err := s.SavePolls(ctx, []enrolment.PollRecord{older, p}); err != nil {
		t.Fatal(err)
	}
	got, err := s.Device(ctx, unit)
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, fleet.Device{ID: unit, Kind: fleet.DeviceESP32, Board: "bread-compact-wifi", BoardType: "wifi",
		Chip: "esp32s3", Version: "2.4.0",
		ELFSHA256: "9f2c", Slot: "ota_0", ClientID: "c1", Presence: fleet.PresencePending, PresenceSince: p.Poll.At,
		LastSeen: &p.Poll.At, LastPoll: &p.Poll.At, RemoteAddr: "192.0.2.1", TransportChoice: fleet.TransportMQTT, Enrolment: fleet.EnrolmentEnrolled,
		EnrolledAt: &p.Poll.At, CreatedAt: p.Poll.At})
	f, err := s.Facts(ctx, unit)
	if err != nil || string(f.Body) != string(p.Poll.Facts) || !f.PolledAt.Equal(p.Poll.At) {
		t.Errorf("facts %+v, %v", f, err)
	}
	_, err = s.Facts(ctx, "nobody")
	wantKind(t, err, fleet.ErrNotFound)
	_, err = s.Device(ctx, "no\x00body")
	wantKind(t, err, fleet.ErrNotFound)
}

// A poll that does not prove its device is not a start of the device, and says nothing about it.
func TestUnprovedPollKeepsTheDevice(t *testing.T) {
	ctx, db := t.Context(), testDB(t)
	s := postgres.New(db, postgres.Options{})
	p := poll(unit, now())
	p.Poll.Facts = []byte(`{"a":1}`)
	stranger := poll(unit, p.Poll.At.Add(time.Minute))
	stranger.Poll = enrolment.BootPoll{Device: unit, At: stranger.Poll.At, RemoteAddr: "192.0.2.66", Kind: enrolment.PollStranger}
	stranger.Admission.NewClientID = "c2"
	before := fleet.Device{}
	for i, r := range []enrolment.PollRecord{p, stranger} {
		if err := s.SavePolls(ctx, []enrolment.PollRecord{r}); err != nil {
			t.Fatal(err)
		}
		d, err := s.Device(ctx, unit)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			before = d
			continue
		}
		before.RemoteAddr, before.NewClientID = "192.0.2.66", "c2"
		same(t, d, before)
	}
	if f, err := s.Facts(ctx, unit); err != nil || string(f.Body) != `{"a":1}` {
		t.Errorf("facts %+v, %v", f, err)
	}
	var boots int
	if err := db.QueryRow(ctx, `SELECT count(*) FROM report_changes`).Scan(&boots); err != nil || boots != 0 {
		t.Errorf("%d restarts on record, %v", boots, err)
	}
}

// A body that does not parse changes neither board nor build.
func TestBrokenPollKeepsFacts(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	addDevices(t, s, unit)
	broken := poll(unit, now())
	broken.Poll = enrolment.BootPoll{Device: unit, Version: "2.4.0", At: now(), Broken: true}
	if err := s.SavePolls(ctx, []enrolment.PollRecord{broken}); err != nil {
		t.Fatal(err)
	}
	if f, err := s.Facts(ctx, unit); err != nil || f.Problem() != fleet.FactsUnreadable || f.Body != nil {
		t.Errorf("facts %+v, %v", f, err)
	}
	d, _ := s.Device(ctx, unit)
	if d.Board != "bread-compact-wifi" || d.ELFSHA256 != "9f2c" || d.Slot != "ota_0" {
		t.Errorf("the same version lost its build: %+v", d)
	}
	broken.Poll.Version, broken.Poll.At = "2.5.0", now()
	if err := s.SavePolls(ctx, []enrolment.PollRecord{broken}); err != nil {
		t.Fatal(err)
	}
	if d, _ = s.Device(ctx, unit); d.Version != "2.5.0" || d.ELFSHA256 != "" || d.Slot != "" || d.Board == "" {
		t.Errorf("another version kept the old build: %+v", d)
	}
}

// What a broken body says before the break counts; everything else stays as it was.
func TestSalvagedPoll(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	first := poll(unit, now())
	broken := poll(unit, now().Add(time.Second))
	broken.Poll = enrolment.BootPoll{Device: unit, At: broken.Poll.At, Version: "2.5.0", ELFSHA256: "beef",
		Chip: "esp32s3", Broken: true,
		Facts: []byte(`{"chip_model_name":"esp32s3"}`), Salvaged: []fleet.PollField{enrolment.PollChip, enrolment.PollVersion,
			enrolment.PollBuild}}
	for _, r := range []enrolment.PollRecord{first, broken} {
		if err := s.SavePolls(ctx, []enrolment.PollRecord{r}); err != nil {
			t.Fatal(err)
		}
	}
	f, err := s.Facts(ctx, unit)
	if err != nil || f.Problem() != fleet.FactsSalvaged || !slices.Equal(f.Salvaged, broken.Poll.Salvaged) ||
		len(f.Body) == 0 {
		t.Errorf("facts %+v, %v", f, err)
	}
	d, err := s.Device(ctx, unit)
	if err != nil || d.ELFSHA256 != "beef" || d.Version != "2.5.0" || d.Board != "bread-compact-wifi" {
		t.Errorf("device %+v, %v", d, err)
	}
}

func TestFirmwareHistory(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	at := now()
	step := func(version, slot, elf string) {
		at = at.Add(time.Second)
		p := poll(unit, at)
		p.Poll.Version, p.Poll.Slot, p.Poll.ELFSHA256 = version, slot, elf
		if err := s.SavePolls(ctx, []enrolment.PollRecord{p}); err != nil {
			t.Fatal(err)
		}
	}
	start := at
	step("1.0", "ota_0", "")
	step("1.0", "ota_0", "aa") // the poll names its build
	step("1.0", "", "")        // the poll names none
	step("1.1", "ota_1", "bb")
	step("1.0", "ota_0", "aa") // rolled back
	got, err := s.FirmwareHistory(ctx, unit)
	if err != nil {
		t.Fatal(err)
	}
	second := func(n int) time.Time { return start.Add(time.Duration(n) * time.Second) }
	same(t, got, []fleet.FirmwareRecord{
		{Version: "1.0", Slot: "ota_0", ELFSHA256: "aa", IDFVersion: "5.5", FirstSeen: second(5), LastSeen: second(5)},
		{Version: "1.1", Slot: "ota_1", ELFSHA256: "bb", IDFVersion: "5.5", FirstSeen: second(4), LastSeen: second(4)},
		{Version: "1.0", Slot: "ota_0", ELFSHA256: "aa", IDFVersion: "5.5", FirstSeen: second(1), LastSeen: second(3)},
	})
}

func TestChangesAreAudited(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	addDevices(t, s, unit, "successor")
	until := now().Add(time.Hour)
	hold := &fleet.Hold{Reason: "bench", By: admin, Since: now(), Until: &until}
	retiredAt := now()
	steps := []struct {
		action string
		do     func(id fleet.DeviceID) error
	}{
		{"device.update", func(id fleet.DeviceID) error {
			return s.UpdateDevice(ctx, admin, id, fleet.DevicePatch{Name: ptr("Front Door"), Notes: ptr("n"),
				Tags: ptr([]string{"lab", "x"}), Transport: ptr(fleet.TransportWebSocket)})
		}},
		{"device.hold", func(id fleet.DeviceID) error { return s.SetHold(ctx, admin, id, hold) }},
		{"device.release", func(id fleet.DeviceID) error { return s.SetHold(ctx, admin, id, nil) }},
		{"device.hold", func(id fleet.DeviceID) error { return s.SetHold(ctx, admin, id, hold) }},
		{"device.approve", func(id fleet.DeviceID) error {
			return s.SaveAdmission(ctx, admin, "device.approve", enrolment.Admission{Device: id,
				Enrolment: fleet.EnrolmentEnrolled, ClientID: "c2", Serial: 3}, now())
		}},
		{"device.replace", func(id fleet.DeviceID) error { return s.ReplaceDevice(ctx, admin, id, "successor", retiredAt) }},
	}
	var want []string
	for _, step := range steps {
		wantKind(t, step.do("nobody"), fleet.ErrNotFound)
		if err := step.do(unit); err != nil {
			t.Fatal(step.action, err)
		}
		want = append([]string{step.action}, want...)
	}
	page, err := s.AuditEntries(ctx, audit.Filter{Subject: string(unit), Limit: 4})
	if err != nil {
		t.Fatal(err)
	}
	rest, err := s.AuditEntries(ctx, audit.Filter{Subject: string(unit), Cursor: page.Next})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range slices.Concat(page.Items, rest.Items) {
		got = append(got, e.Action)
		same(t, e.Actor, admin)
	}
	same(t, got, want)
	if none, _ := s.AuditEntries(ctx, audit.Filter{Subject: "nobody"}); len(none.Items) != 0 {
		t.Errorf("refused changes left %d audit entries", len(none.Items))
	}

	old, _ := s.Device(ctx, unit)
	if old.RetiredAt == nil || !old.RetiredAt.Equal(retiredAt) || old.ReplacedBy != "successor" || old.ClientID != "c2" {
		t.Errorf("the replaced device: %+v", old)
	}
	heir, _ := s.Device(ctx, "successor")
	same(t, heir.Hold, hold)
	if heir.Name != "Front Door" || heir.Notes != "n" || !slices.Equal(heir.Tags, []string{"lab", "x"}) ||
		heir.TransportChoice != fleet.TransportWebSocket {
		t.Errorf("the successor inherits: %+v", heir)
	}
	wantKind(t, s.RetireDevice(ctx, admin, unit, now()), fleet.ErrConflict)
	wantKind(t, s.ReplaceDevice(ctx, admin, "successor", unit, now()), fleet.ErrConflict)
}

func TestDevicePages(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	var ids []fleet.DeviceID
	for i := range 57 {
		ids = append(ids, fleet.DeviceID(fmt.Sprintf("d%02d", i)))
	}
	addDevices(t, s, ids...)
	for i, id := range ids {
		if i%3 == 0 {
			if err := s.UpdateDevice(ctx, admin, id, fleet.DevicePatch{Name: ptr(fmt.Sprintf("Ünit %d", i%9))}); err != nil {
				t.Fatal(err)
			}
		}
		if i%4 == 0 {
			at := now()
			change := fleet.PresenceChange{Device: id, Presence: fleet.PresenceOnline, Since: at,
				LastSeen: at.Add(time.Duration(i%5) * time.Minute)}
			if err := s.SavePresence(ctx, []fleet.PresenceChange{change}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, sort := range []fleet.DeviceSort{fleet.SortName, fleet.SortBoard, fleet.SortVersion, fleet.SortPresence,
		fleet.SortLastSeen, fleet.SortCreated} {
		for _, desc := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s desc=%t", sort, desc), func(t *testing.T) {
				walkPages(t, ids, func(cursor string) fleet.Page[fleet.Device] {
					p, err := s.Devices(ctx, fleet.DeviceFilter{Sort: sort, Desc: desc, Limit: 10, Cursor: cursor})
					if err != nil {
						t.Fatal(err)
					}
					return p
				})
			})
		}
	}
	p, _ := s.Devices(ctx, fleet.DeviceFilter{Sort: fleet.SortLastSeen, Limit: 10})
	_, err := s.Devices(ctx, fleet.DeviceFilter{Sort: fleet.SortName, Limit: 10, Cursor: p.Next})
	wantKind(t, err, fleet.ErrInvalid)
	_, err = s.Devices(ctx, fleet.DeviceFilter{Sort: "colour"})
	wantKind(t, err, fleet.ErrInvalid)
}

// walkPages goes forward through all pages and back: it sees every device once, and the same
// pages both ways.
func walkPages(t *testing.T, ids []fleet.DeviceID, page func(string) fleet.Page[fleet.Device]) {
	t.Helper()
	var forward [][]fleet.Device
	var all []fleet.DeviceID
	p := page("")
	for {
		forward = append(forward, p.Items)
		for _, d := range p.Items {
			all = append(all, d.ID)
		}
		if p.Next == "" {
			break
		}
		p = page(p.Next)
	}
	slices.Sort(all)
	same(t, all, ids)
	for i := len(forward) - 2; i >= 0; i-- {
		if p.Prev == "" {
			t.Fatalf("page %d has no page before it", i+1)
		}
		p = page(p.Prev)
		same(t, p.Items, forward[i])
	}
	if p.Prev != "" {
		t.Error("the first page has one before it")
	}
}

func TestCountBy(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	addDevices(t, s, "a", "b", "c")
	p := poll("d", now())
	p.Poll.Board = "esp-box-3"
	if err := s.SavePolls(ctx, []enrolment.PollRecord{p}); err != nil {
		t.Fatal(err)
	}
	got, err := s.CountBy(ctx, query(t, ""), "board", "presence")
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, [][]fleet.DeviceCount{{{Value: "bread-compact-wifi", Count: 3}, {Value: "esp-box-3", Count: 1}},
		{{Value: "pending", Count: 4}}})
	_, err = s.CountBy(ctx, query(t, ""), "board", "notes")
	wantKind(t, err, fleet.ErrInvalid)
	if n, err := s.CountDevices(ctx, query(t, "board:esp*")); n != 1 || err != nil {
		t.Errorf("CountDevices = %d, %v", n, err)
	}
	list, err := s.DevicesByID(ctx, []fleet.DeviceID{"b", "nobody", "a"})
	if err != nil || len(list) != 2 || list[0].ID != "a" {
		t.Errorf("DevicesByID = %v, %v", list, err)
	}
}

func TestAdmissionsKnowSoftware(t *testing.T) {
	for _, tt := range []struct {
		name string
		poll enrolment.BootPoll
		want bool
	}{
		{"board", enrolment.BootPoll{Chip: "esp32s3", Facts: []byte(`{}`)}, false},
		{"partitions alone", enrolment.BootPoll{Layout: new(fleet.FlashLayout), Facts: []byte(`{}`)}, false},
		{"neither", enrolment.BootPoll{Facts: []byte(`{}`)}, true},
		{"body that cannot be read", enrolment.BootPoll{Broken: true}, false},
		{"claims not taken", enrolment.BootPoll{}, false},
	} {
		s := newStore(t)
		tt.poll.Device, tt.poll.At = unit, now()
		r := enrolment.PollRecord{Poll: tt.poll, Admission: enrolment.Admission{Device: unit,
			Enrolment: fleet.EnrolmentEnrolled}}
		if err := s.SavePolls(t.Context(), []enrolment.PollRecord{r}); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Admissions(t.Context()); err != nil || len(got) != 1 || got[0].Software != tt.want {
			t.Errorf("%s: %+v, %v", tt.name, got, err)
		}
	}
}

func TestAdmissions(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	w := poll(unit, now())
	w.Admission = enrolment.Admission{Device: unit, Enrolment: fleet.EnrolmentWaiting, ClientID: "c1", ClaimCode: "123456",
		Challenge: "x", Serial: 2}
	if err := s.SavePolls(ctx, []enrolment.PollRecord{w}); err != nil {
		t.Fatal(err)
	}
	want := w.Admission
	want.ELFSHA256, want.Version, want.RemoteAddr = "9f2c", "2.4.0", w.Poll.RemoteAddr
	want.Transport = fleet.TransportMQTT
	got, err := s.Admissions(ctx)
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, []enrolment.Admission{want}, cmpopts.EquateApproxTime(0))
	addDevices(t, s, "enrolled")
	gone, err := s.ForgetWaiting(ctx, now().Add(-time.Hour))
	if err != nil || len(gone) != 0 {
		t.Errorf("forgot %v, %v; it polled just now", gone, err)
	}
	gone, err = s.ForgetWaiting(ctx, now().Add(time.Hour))
	if err != nil || !slices.Equal(gone, []fleet.DeviceID{unit}) {
		t.Errorf("forgot %v, %v", gone, err)
	}
	_, err = s.Device(ctx, unit)
	wantKind(t, err, fleet.ErrNotFound)
	wantKind(t, s.SaveAdmission(ctx, admin, "device.claim", w.Admission, now()), fleet.ErrNotFound)
}
