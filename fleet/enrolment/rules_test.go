package enrolment_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/web/i18n"
)

// ruleStore stores rules in memory.
type ruleStore struct{ rules []enrolment.Rule }

func (s *ruleStore) EnrolmentRules(context.Context) ([]enrolment.Rule, error) {
	return s.rules, nil
}

func (s *ruleStore) CreateEnrolmentRule(_ context.Context, _ fleet.Principal, r enrolment.Rule) error {
	s.rules = append(s.rules, r)
	return nil
}

func (s *ruleStore) UpdateEnrolmentRule(_ context.Context, _ fleet.Principal, r enrolment.Rule) error {
	for i := range s.rules {
		if s.rules[i].ID == r.ID {
			s.rules[i] = r
		}
	}
	return nil
}

func (s *ruleStore) DeleteEnrolmentRule(context.Context, fleet.Principal, uuid.UUID) error {
	return nil
}
func (s *ruleStore) OrderEnrolmentRules(context.Context, fleet.Principal, []uuid.UUID, uuid.UUID) error {
	return nil
}

var ruler = fleet.Principal{Kind: fleet.KindOperator, ID: "9", Name: "ruth", Role: fleet.RoleAdmin}

func rulesOf(t testing.TB, rules ...enrolment.Rule) *enrolment.Rules {
	t.Helper()
	s := enrolment.NewRules(&ruleStore{}, nil)
	for _, r := range rules {
		r.Enabled = true
		if r.Name == "" {
			r.Name = "r"
		}
		if _, err := s.Create(t.Context(), ruler, r); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func withRules(rules *enrolment.Rules) func(*enrolment.Options) {
	return func(o *enrolment.Options) { o.Rules = rules }
}

func prefixes(list ...string) (all []netip.Prefix) {
	for _, p := range list {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

func TestRuleDecidesAboutABoard(t *testing.T) {
	at := time.Date(2026, 11, 1, 9, 0, 0, 0, time.UTC)
	hour := func(n int) *time.Time { return new(at.Add(time.Duration(n) * time.Hour)) }
	accept, refuse := enrolment.RuleAccept, enrolment.RuleRefuse
	type rules = []enrolment.Rule
	tests := []struct {
		name  string
		rules rules
		want  string // "joins", "waits", "nothing"
	}{
		{"none", nil, "waits"},
		{"board", rules{{Action: accept, Boards: []string{"Bread-Compact-WiFi"}}}, "joins"},
		{"board by its beginning", rules{{Action: accept, Boards: []string{"x", "bread-*"}}}, "joins"},
		{"another board", rules{{Action: accept, Boards: []string{"bread-compact"}}}, "waits"},
		{"network", rules{{Action: accept, Networks: prefixes("198.51.100.0/24")}}, "joins"},
		{"another network", rules{{Action: accept, Networks: prefixes("198.51.101.0/24", "2001:db8::/32")}}, "waits"},
		{"listed", rules{{Action: accept, Devices: []fleet.DeviceID{"ffffffffffff", unit, "000000000001"}}}, "joins"},
		{"not listed", rules{{Action: accept, Devices: []fleet.DeviceID{"ffffffffffff"}}}, "waits"},
		{"board and network", rules{{Action: accept, Boards: []string{"bread*"}, Networks: prefixes("198.51.100.7/32")}},
			"joins"},
		{"board, but another network", rules{{Action: accept, Boards: []string{"bread*"}, Networks: prefixes("10.0.0.0/8")}},
			"waits"},
		{"within the time", rules{{Action: accept, From: hour(-1), Until: hour(1)}}, "joins"},
		{"before the time", rules{{Action: accept, From: hour(1), Until: hour(2)}}, "waits"},
		{"at the end of the time", rules{{Action: accept, Until: hour(0)}}, "waits"},
		{"refused", rules{{Action: refuse, Boards: []string{"bread*"}}}, "nothing"},
		{"refused first", rules{{Action: refuse, Devices: []fleet.DeviceID{unit}}, {Action: accept,
			Boards: []string{"bread*"}}}, "nothing"},
		{"accepted first", rules{{Action: accept, Boards: []string{"bread*"}}, {Action: refuse}}, "joins"},
		{"everything else refused", rules{{Action: accept, Boards: []string{"esp-box"}}, {Action: refuse}}, "nothing"},
	}
	for _, tt := range tests {
		for _, mode := range []fleet.EnrolmentMode{fleet.EnrolByCode, fleet.EnrolByApproval, fleet.EnrolOpen} {
			t.Run(tt.name+"/"+string(mode), func(t *testing.T) {
				e := newEnrolments(t, new(admissionStore), mode, withRules(rulesOf(t, tt.rules...)))
				a, err := e.Poll(enrolment.BootPoll{Device: unit, ClientID: uuid1, Board: "bread-compact-wifi",
					RemoteAddr: "198.51.100.7", At: at})
				got := "nothing"
				switch {
				case err != nil:
					got = err.Error()
				case a.Session != nil:
					got = "joins"
				case a.Activation != nil:
					got = "waits"
				}
				want := tt.want
				if mode == fleet.EnrolOpen {
					want = "joins" // no rule applies
				}
				if got != want {
					t.Errorf("the board %s, want %s", got, want)
				}
			})
		}
	}
}

func TestRuleNeverAcceptsWhoWasPutOut(t *testing.T) {
	for _, out := range []string{"rejected", "retired"} {
		s := new(admissionStore)
		rules := rulesOf(t, enrolment.Rule{Action: enrolment.RuleAccept, Devices: []fleet.DeviceID{unit}})
		s.put(enrolment.Admission{Device: unit, Enrolment: fleet.EnrolmentEnrolled, ClientID: uuid1,
			Retired: out == "retired"})
		if out == "rejected" {
			s.put(enrolment.Admission{Device: unit, Enrolment: fleet.EnrolmentRejected, ClientID: uuid1})
		}
		e := newEnrolments(t, s, fleet.EnrolByCode, withRules(rules))
		for _, client := range []string{uuid1, uuid2} {
			if a := poll(t, e, client); a != (enrolment.PollAnswer{}) {
				t.Errorf("%s, it got %+v", out, a)
			}
		}
	}
	// A rule does not apply to another unit under the id of an enrolled device either.
	e := newEnrolments(t, new(admissionStore), fleet.EnrolByCode, withRules(rulesOf(t,
		enrolment.Rule{Action: enrolment.RuleAccept, Devices: []fleet.DeviceID{unit}})))
	if a := poll(t, e, uuid1); a.Session == nil {
		t.Fatalf("the listed device got %+v", a)
	}
	if a := poll(t, e, uuid2); a.Session != nil {
		t.Error("a stranger joined by the rule of the device that it poses as")
	}
}

func TestRuleAcceptsSoManyDevices(t *testing.T) {
	s := new(admissionStore)
	rules := rulesOf(t, enrolment.Rule{Action: enrolment.RuleAccept, Boards: []string{"bread"}, MaxDevices: 3,
		Tags: []string{"Lab"}})
	e := newEnrolments(t, s, fleet.EnrolByCode, withRules(rules))
	var joined atomic.Int64
	done := make(chan struct{})
	for i := range 10 {
		go func() {
			defer func() { done <- struct{}{} }()
			for range 2 { // the second poll does not count against the maximum again
				a, err := e.Poll(enrolment.BootPoll{Device: fleet.DeviceID(fmt.Sprintf("d%011x", i)), ClientID: uuid1,
					Board: "bread",
					At:    time.Now()})
				if err == nil && a.Session != nil {
					joined.Add(1)
				}
			}
		}()
	}
	for range 10 {
		<-done
	}
	if n := joined.Load(); n != 6 {
		t.Errorf("%d answers with credentials, want 6 for 3 devices", n)
	}
	if r := rules.Rules()[0]; r.Accepted != 3 {
		t.Errorf("the rule says %d", r.Accepted)
	}
	drain(t, e)
	if s.accepted != 3 {
		t.Errorf("%d acceptances are stored", s.accepted)
	}
}

// A rule decides about a waiting device at its next poll after the rule was made. A refused
// device leaves the list and the store.
func TestRuleMeetsDevicesThatWait(t *testing.T) {
	rules := rulesOf(t)
	s := new(admissionStore)
	e := newEnrolments(t, s, fleet.EnrolByCode, withRules(rules))
	poll(t, e, uuid1)
	other := enrolment.BootPoll{Device: "c00000000001", ClientID: uuid1, Board: "odd", At: time.Now()}
	e.Poll(other)
	must(t, e.Stored(t.Context()))
	if _, err := rules.Create(t.Context(), ruler, enrolment.Rule{Name: "lab", Enabled: true, Action: enrolment.RuleAccept,
		Devices: []fleet.DeviceID{unit}}); err != nil {
		t.Fatal(err)
	}
	if _, err := rules.Create(t.Context(), ruler, enrolment.Rule{Name: "odd", Action: enrolment.RuleRefuse,
		Boards: []string{"odd"}}); err != nil {
		t.Fatal(err)
	}
	got := map[fleet.DeviceID]string{}
	for _, m := range rules.Preview(e.Waiting()) {
		got[m.Device] = fmt.Sprint(m.Name, m.Action, m.Enabled)
	}
	want := map[fleet.DeviceID]string{unit: "lab accept true", "c00000000001": "odd refuse false"}
	for id, w := range want {
		if strings.ReplaceAll(w, " ", "") != strings.ReplaceAll(got[id], " ", "") {
			t.Errorf("%s: %q, want %q", id, got[id], w)
		}
	}
	if poll(t, e, uuid1).Session == nil || !e.Activate(unit, uuid1) {
		t.Error("the listed device was not let in when it asked again")
	}
	if _, err := rules.Update(t.Context(), ruler, rules.Rules()[1].ID,
		func(r *enrolment.Rule) error { r.Enabled = true; return nil }); err != nil {
		t.Fatal(err)
	}
	if a, err := e.Poll(other); err != nil || a != (enrolment.PollAnswer{}) || len(e.Waiting()) != 0 {
		t.Errorf("the refused device got %+v, %v; %d wait", a, err, len(e.Waiting()))
	}
	must(t, e.DropUnlisted(t.Context()))
	if _, ok := s.rows["c00000000001"]; ok {
		t.Error("the refused device is still stored")
	}
}

func TestAcceptanceOutlivesAnOutage(t *testing.T) {
	s := new(admissionStore)
	e := newEnrolments(t, s, fleet.EnrolByCode, withRules(rulesOf(t, enrolment.Rule{Action: enrolment.RuleAccept,
		Devices: []fleet.DeviceID{unit}})))
	s.setAway(true)
	for range 2 {
		if a, err := e.Poll(enrolment.BootPoll{Device: unit, ClientID: uuid1}); !errors.Is(err, fleet.ErrUnavailable) {
			t.Fatalf("while the store is away: %+v, %v", a, err)
		}
	}
	s.setAway(false)
	if poll(t, e, uuid1).Session == nil {
		t.Error("not let in when the store is back")
	}
	poll(t, e, uuid1)
	must(t, e.Stored(t.Context()))
	if s.accepted != 1 {
		t.Errorf("the acceptance was stored %d times", s.accepted)
	}
}

func TestRuleIsChecked(t *testing.T) {
	now := time.Now()
	tests := []struct {
		name, code string
		rule       enrolment.Rule
	}{
		{"no name", "name_missing", enrolment.Rule{Action: enrolment.RuleRefuse}},
		{"no action", "invalid_rule_action", enrolment.Rule{Name: "x"}},
		{"accepts all for ever", "rule_too_wide", enrolment.Rule{Name: "x", Action: enrolment.RuleAccept, MaxDevices: 5}},
		{"a star in the middle", "invalid_board", enrolment.Rule{Name: "x", Action: enrolment.RuleRefuse,
			Boards: []string{"a*b"}}},
		{"time that ends first", "invalid_window", enrolment.Rule{Name: "x", Action: enrolment.RuleRefuse, From: new(now),
			Until: new(now)}},
		{"fewer than none", "invalid_max_devices", enrolment.Rule{Name: "x", Action: enrolment.RuleRefuse, MaxDevices: -1}},
		{"a tag of two words", "invalid_tag", enrolment.Rule{Name: "x", Action: enrolment.RuleRefuse,
			Tags: []string{"a b"}}},
		{"a long list", "too_many_devices", enrolment.Rule{Name: "x", Action: enrolment.RuleRefuse,
			Devices: manyDevices(enrolment.MaxRuleDevices + 1)}},
	}
	s := enrolment.NewRules(&ruleStore{}, nil)
	for _, tt := range tests {
		var e *fleet.Error
		if _, err := s.Create(t.Context(), ruler, tt.rule); !errors.As(err, &e) || e.Code != tt.code {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.code)
		}
	}
	if _, err := s.Create(t.Context(), ann, enrolment.Rule{Name: "x", Action: enrolment.RuleRefuse}); !errors.Is(err,
		fleet.ErrForbidden) {
		t.Errorf("by an operator: %v", err)
	}
}

func manyDevices(n int) (all []fleet.DeviceID) {
	for i := range n {
		all = append(all, fleet.DeviceID(fmt.Sprintf("%012x", i)))
	}
	return all
}

func TestParseDeviceList(t *testing.T) {
	a, b := fleet.DeviceID("a085e3112233"), fleet.DeviceID("a085e3112244")
	tests := []struct {
		name, text string
		want       []fleet.DeviceID
		line       int // the invalid line
	}{
		{"forms", "A0:85:E3:11:22:33\na0-85-e3-11-22-44\r\na085e3112233\n", []fleet.DeviceID{a, b, a}, 0},
		{"columns", "a085e3112233,desk 1\n\"a0:85:e3:11:22:44\";x", []fleet.DeviceID{a, b}, 0},
		{"header", "\ufeffserial,MAC Address,site\n17,a0:85:e3:11:22:33,lab\n18,a085e3112244,lab", []fleet.DeviceID{a, b}, 0},
		{"comments", "# ours\n\na085e3112233\n\n", []fleet.DeviceID{a}, 0},
		{"nothing", " \n", nil, 0},
		{"no address", "a085e3112233\n# two\nzz85e3112244\n", nil, 3},
		{"short", "a085e31122", nil, 1},
		{"another dialect's id", "a085e3112233\nmy-board", nil, 2},
		{"a row without the column", "id,mac\n1,a085e3112233\n2\n", nil, 3},
	}
	for _, tt := range tests {
		got, err := enrolment.ParseDeviceList(tt.text)
		if tt.line == 0 {
			if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
				t.Errorf("%s: %v %s", tt.name, err, diff)
			}
			continue
		}
		var e *fleet.Error
		if !errors.As(err, &e) || e.Code != "invalid_device_list" || e.Params["line"] != int64(tt.line) ||
			!strings.Contains(i18n.ErrorDetail(e), fmt.Sprintf("line %d:", tt.line)) {
			t.Errorf("%s: %v, want line %d at fault", tt.name, err, tt.line)
		}
	}
}

func TestParseNetworks(t *testing.T) {
	got, err := enrolment.ParseNetworks("10.1.2.3/16, 192.0.2.7\n2001:db8::1/48")
	if diff := cmp.Diff("[10.1.0.0/16 192.0.2.7/32 2001:db8::/48]", fmt.Sprint(got)); err != nil || diff != "" {
		t.Error(err, diff)
	}
	for _, bad := range []string{"10.1/16", "10.0.0.0/33", "lab", "fe80::1%eth0", "::ffff:10.0.0.1/120"} {
		var e *fleet.Error
		if _, err := enrolment.ParseNetworks(bad); !errors.As(err, &e) || e.Code != "invalid_network" ||
			e.Params["value"] != bad {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzParseDeviceList(f *testing.F) {
	f.Add("mac,name\na0:85:e3:11:22:33,x\n")
	f.Fuzz(func(t *testing.T, s string) {
		ids, err := enrolment.ParseDeviceList(s)
		for _, id := range ids {
			if id.MAC() == "" || err != nil {
				t.Errorf("%q gave %q, %v", s, id, err)
			}
		}
	})
}

// BenchmarkPollWithRules measures a poll of an unknown device that the last of many rules lets in.
func BenchmarkPollWithRules(b *testing.B) {
	rules := make([]enrolment.Rule, 50)
	for i := range rules {
		rules[i] = enrolment.Rule{Action: enrolment.RuleAccept, Boards: []string{"bread*"}, Networks: prefixes("10.0.0.0/8",
			"192.0.2.0/24"), Devices: manyDevices(5000)}
	}
	e, err := enrolment.New(enrolment.Options{Store: new(admissionStore), Mode: fleet.EnrolByCode, Key: testKey,
		Rules: rulesOf(b, rules...)})
	if err != nil {
		b.Fatal(err)
	}
	for i := 0; b.Loop(); i++ {
		e.Poll(enrolment.BootPoll{Device: fleet.DeviceID(fmt.Sprintf("e%011x", i)), ClientID: uuid1,
			Board:      "bread-compact-wifi",
			RemoteAddr: "192.0.2.9", At: time.Now()})
	}
}
