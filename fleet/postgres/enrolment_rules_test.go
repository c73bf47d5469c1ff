package postgres_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetd/fleet"
	"fleetd/fleet/audit"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/postgres"
)

var ruler = fleet.Principal{Kind: fleet.KindOperator, ID: "9", Name: "ruth", Role: fleet.RoleAdmin}

// enrolments is the service over a database, with rules.
func enrolments(t *testing.T, s *postgres.Store, change func(*enrolment.Options)) (*enrolment.Service,
	*enrolment.Rules) {
	t.Helper()
	rules := enrolment.NewRules(s, nil)
	o := enrolment.Options{Store: s, Mode: fleet.EnrolByCode, Key: make([]byte, enrolment.KeySize), Rules: rules}
	if change != nil {
		change(&o)
	}
	e, err := enrolment.New(o)
	if err == nil {
		err = rules.Load(t.Context())
	}
	if err == nil {
		err = e.Load(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return e, rules
}

func TestRulesOutliveARestart(t *testing.T) {
	s := postgres.New(testDB(t), postgres.Options{})
	e, rules := enrolments(t, s, nil)
	ctx, until := t.Context(), time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	lab, err := rules.Create(ctx, ruler, enrolment.Rule{Name: "lab", Enabled: true, Action: enrolment.RuleAccept,
		Boards:   []string{"bread*"},
		Networks: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("2001:db8::/48")}, Until: &until,
		MaxDevices: 2, Tags: []string{"lab", "new"}, Transport: fleet.TransportWebSocket})
	if err != nil {
		t.Fatal(err)
	}
	shut, err := rules.Create(ctx, ruler, enrolment.Rule{Name: "all else", Action: enrolment.RuleRefuse,
		Devices: []fleet.DeviceID{"a085e3112299", "a085e3112211"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rules.Move(ctx, ruler, shut.ID, 0); err != nil {
		t.Fatal(err)
	}

	// A waiting device, which already has a tag, is accepted when it polls again from the network.
	poll := enrolment.BootPoll{Device: "a085e3112233", ClientID: "c", Board: "Bread-Compact", RemoteAddr: "192.0.2.1",
		At: time.Now().UTC()}
	if a, err := e.Poll(poll); err != nil || a.Activation == nil {
		t.Fatalf("it got %+v, %v", a, err)
	}
	ok(t, e.Stored(ctx))
	ok(t, s.UpdateDevice(ctx, ruler, poll.Device, fleet.DevicePatch{Tags: &[]string{"kitchen", "lab"}}))
	poll.RemoteAddr = "10.1.200.7"
	if a, err := e.Poll(poll); err != nil || a.Session == nil {
		t.Fatalf("it got %+v, %v", a, err)
	}
	ok(t, e.Stored(ctx))
	ok(t, e.Stored(ctx))
	d, err := s.Device(ctx, poll.Device)
	if diff := cmp.Diff([]string{"kitchen", "lab", "new"}, d.Tags); err != nil || diff != "" ||
		d.Enrolment != fleet.EnrolmentEnrolled || d.EnrolledAt == nil || d.TransportChoice != fleet.TransportWebSocket ||
		!d.ConnectsForConversations() {
		t.Errorf("%v %+v %s", err, d, diff)
	}
	q, _ := fleet.ParseQuery("tag:new tag:kitchen")
	if n, err := s.CountDevices(ctx, q); err != nil || n != 1 {
		t.Errorf("%d devices have the tags: %v", n, err)
	}

	// An operator's choice outlives later polls and the process.
	ok(t, s.UpdateDevice(ctx, ruler, poll.Device, fleet.DevicePatch{Transport: new(fleet.TransportMQTT)}))
	e.ChooseTransport(poll.Device, fleet.TransportMQTT)
	if d, err = s.Device(ctx, poll.Device); err != nil || d.TransportChoice != fleet.TransportMQTT ||
		!d.ConnectsForConversations() {
		t.Errorf("before its next start: %+v, %v", d, err)
	}
	if a, err := e.Poll(poll); err != nil || a.Transport != fleet.TransportMQTT {
		t.Errorf("it got %+v, %v", a, err)
	}
	ok(t, e.Stored(ctx))
	if d, err = s.Device(ctx, poll.Device); err != nil || d.TransportChoice != fleet.TransportMQTT ||
		d.ConnectsForConversations() {
		t.Errorf("after its start: %+v, %v", d, err)
	}
	ok(t, s.UpdateDevice(ctx, ruler, poll.Device, fleet.DevicePatch{Transport: new(fleet.TransportWebSocket)}))
	e, rules = enrolments(t, s, nil)
	if a, err := e.Poll(poll); err != nil || a.Transport != fleet.TransportWebSocket {
		t.Errorf("after a restart of fleetd it got %+v, %v", a, err)
	}
	got := rules.Rules()
	if len(got) != 2 || got[0].ID != shut.ID || got[1].Accepted != 1 {
		t.Fatalf("after a restart: %+v", got)
	}
	got[1].Position, got[1].Accepted = lab.Position, lab.Accepted
	for _, r := range []*enrolment.RuleRow{&got[1], &lab} {
		r.CreatedAt, r.UpdatedAt = time.Time{}, time.Time{}
	}
	if diff := cmp.Diff(lab, got[1], cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	for i, want := range []bool{true, false} { // one place of two is taken
		poll.Device = fleet.DeviceID([]string{"a085e3112244", "a085e3112255"}[i])
		if a, err := e.Poll(poll); err != nil || (a.Session != nil) != want {
			t.Errorf("%s got %+v, %v", poll.Device, a, err)
		}
	}
	ok(t, e.Stored(ctx))
	ok(t, rules.Delete(ctx, ruler, lab.ID))
	want := map[string]int{"enrolment_rule.create": 2, "enrolment_rule.move": 1, "enrolment_rule.delete": 1,
		"device.accept": 2}
	for action, n := range want {
		page, err := s.AuditEntries(ctx, audit.Filter{Action: action})
		if err != nil || len(page.Items) != n {
			t.Errorf("%s: %d entries, want %d: %v", action, len(page.Items), n, err)
		}
		if action == "device.accept" && len(page.Items) > 0 {
			if x := page.Items[1]; x.Subject != "a085e3112233" || x.Actor.Name != "rule lab" ||
				x.Actor.Kind != fleet.KindSystem || x.Detail["rule"] != lab.ID.String() {
				t.Errorf("the acceptance is on record as %+v", x)
			}
		}
	}
}

// An acceptance counts once, even if its batch is sent twice because its outcome was lost.
func TestAcceptanceIsStoredOnce(t *testing.T) {
	s := postgres.New(testDB(t), postgres.Options{})
	_, rules := enrolments(t, s, nil)
	r, err := rules.Create(t.Context(), ruler, enrolment.Rule{Name: "x", Action: enrolment.RuleRefuse})
	if err != nil {
		t.Fatal(err)
	}
	record := enrolment.PollRecord{Poll: enrolment.BootPoll{Device: "a085e3112233", At: time.Now()},
		Admission: enrolment.Admission{Device: "a085e3112233", Enrolment: fleet.EnrolmentEnrolled},
		Accepted:  &enrolment.RuleAcceptance{ID: r.ID, Rule: r.ID, Name: "x", At: time.Now()}}
	for range 2 {
		ok(t, s.SavePolls(t.Context(), []enrolment.PollRecord{record}))
	}
	page, err := s.AuditEntries(t.Context(), audit.Filter{Action: "device.accept"})
	list, err2 := s.EnrolmentRules(t.Context())
	if err != nil || err2 != nil || len(page.Items) != 1 || list[0].Accepted != 1 {
		t.Errorf("%d entries, rules %+v; %v %v", len(page.Items), list, err, err2)
	}
}

func TestDropWaitingSparesOthers(t *testing.T) {
	s := postgres.New(testDB(t), postgres.Options{})
	var records []enrolment.PollRecord
	ids := []fleet.DeviceID{"a085e3112211", "a085e3112222", "a085e3112233"}
	for i, standing := range []fleet.Enrolment{fleet.EnrolmentWaiting, fleet.EnrolmentEnrolled, fleet.EnrolmentRejected} {
		records = append(records, enrolment.PollRecord{Poll: enrolment.BootPoll{Device: ids[i], Version: "2.4.2",
			At:         time.Now(),
			RemoteAddr: "192.0.2.7"},
			Admission: enrolment.Admission{Device: ids[i], Enrolment: standing, ClaimCode: []string{"123456", "", ""}[i]}})
	}
	ok(t, s.SavePolls(t.Context(), records))
	all, err := s.Admissions(t.Context())
	ok(t, err)
	for _, a := range all {
		if want := map[bool]string{true: "192.0.2.7"}[a.ClaimCode != ""]; a.RemoteAddr != want {
			t.Errorf("%s polled from %q, want %q", a.Device, a.RemoteAddr, want)
		}
	}
	ok(t, s.DropWaiting(t.Context(), ids))
	left, err := s.DevicesByID(t.Context(), ids)
	if err != nil || len(left) != 2 || left[0].ID != ids[1] {
		t.Errorf("left: %v, %v", left, err)
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
