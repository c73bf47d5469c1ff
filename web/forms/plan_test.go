package forms

import (
	"encoding/json"
	"net/url"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

// A plan that is edited and saved without a change must stay the same, because its approval applies
// to exactly this plan.
func TestPlanSurvivesItsForm(t *testing.T) {
	shanghai, err := time.LoadLocation("Asia/Shanghai")
	if err != nil {
		t.Fatal(err)
	}
	plain := func() campaign.Plan {
		p := campaign.DefaultPlan()
		p.Name, p.Release, p.Query = "plain", uuid.NewSHA1(uuid.Nil, []byte("2.4.3")), "board:bread-compact-wifi,esp-box-3 -hold"
		p.AbortRules = append(p.AbortRules, campaign.AbortRule{Class: campaign.ClassAny, MinExecuted: 20, Percent: 25,
			Scope: campaign.ScopeBoard, Action: campaign.AbortAndRollback})
		p.MaxPerMinute, p.ForbidRemoved = 200, []string{"self.reboot"}
		p.Windows = []campaign.Window{{Cron: "0 2 * * *", Duration: 3 * time.Hour, TimeZone: campaign.DeviceZone}}
		p.HealthChecks = []campaign.HealthCheck{{Tool: "self.get_device_status", Retries: 2, Assert: []campaign.Assertion{
			{Path: "$.audio_speaker.volume", Op: "unchanged"},
			{Path: "$.network.signal", Op: "ne", Value: json.RawMessage(`"weak"`)}}}}
		return p
	}
	full := plain()
	full.Name = "春季 🦊"
	full.StartAt = new(time.Date(2026, 12, 1, 18, 30, 0, 0, time.UTC))
	full.EndAt, full.Jitter = new(time.Date(2026, 12, 9, 0, 0, 0, 0, time.UTC)), 90*time.Minute
	full.Devices = []fleet.DeviceID{"a085e3112233", "a085e3112244"}
	full.Waves[0] = campaign.WavePlan{Name: "By hand", Devices: full.Devices, SuccessPercent: 99.5, MinSample: 1,
		Soak: 36 * time.Hour, Gate: campaign.GateManual}
	full.Waves[1].Percent, full.Waves[1].Count = 0, 25
	full.Continuous, full.MaxDevices, full.Supersede, full.AllowDowngrade, full.ApprovalRequired, full.PullNow = true, 500,
		true, true, true, true
	full.HealthChecks = append(full.HealthChecks,
		campaign.HealthCheck{Tool: "self.get_device_status", Arguments: json.RawMessage(`{"deep":true}`)},
		campaign.HealthCheck{Tool: "self.get_device_status", Assert: []campaign.Assertion{
			{Path: "$.a", Op: "eq", Value: json.RawMessage(`"12"`)}, {Path: "$.b", Op: "eq", Value: json.RawMessage(`12`)},
			{Path: "$.c", Op: "matches", Value: json.RawMessage(`"^a b$"`)}, {Path: "$.d", Op: "exists"},
			{Path: "$.e", Op: "ne", Value: json.RawMessage(`" x"`)}, {Path: "$.f", Op: "ne", Value: json.RawMessage(`null`)}}})
	for field, value := range reflect.ValueOf(full).Fields() {
		if value.IsZero() && field.Name != "Within" { // the creator's filter is in no form
			t.Errorf("the full plan does not set %s", field.Name)
		}
	}
	bare := campaign.Plan{Name: "bare", Release: full.Release, AbortRules: []campaign.AbortRule{}}
	for _, plan := range []campaign.Plan{full, plain(), bare} {
		form := FillPlan(plan, shanghai)
		// As a browser sends it back, in the address.
		sent, err := url.ParseQuery(form.Values.Encode())
		if err != nil {
			t.Fatal(err)
		}
		back := NewPlan(sent, shanghai)
		got := back.Read()
		if diff := cmp.Diff(plan, got); diff != "" || len(back.Problems) > 0 {
			t.Errorf("%s comes back changed, with problems %v:\n%s", plan.Name, back.Problems, diff)
		}
	}
}

func TestSpans(t *testing.T) {
	for text, want := range map[string]time.Duration{"": 0, "0": 0, "30s": 30 * time.Second, "10m": 10 * time.Minute,
		" 2h ": 2 * time.Hour, "1d": 24 * time.Hour,
		"1d12h": 36 * time.Hour, "1h30m": 90 * time.Minute, "90m": 90 * time.Minute, "1h0m5s": time.Hour + 5*time.Second} {
		got, ok := parseSpan(text)
		if !ok || got != want {
			t.Errorf("parseSpan(%q) = %v, %v, want %v", text, got, ok, want)
		}
		if again, ok := parseSpan(spanText(got)); !ok || again != got {
			t.Errorf("spanText(%v) = %q, which reads %v, %v", got, spanText(got), again, ok)
		}
	}
	for _, text := range []string{"soon", "-5m", "5", "1d x", "99999d", "-1d", "d"} {
		if got, ok := parseSpan(text); ok {
			t.Errorf("parseSpan(%q) = %v, want it refused", text, got)
		}
	}
}

func TestFormCommands(t *testing.T) {
	f := NewPlan(url.Values{"release": {"x"}}, time.UTC)
	if n := len(f.Read().Waves); n != 3 {
		t.Fatalf("a new form has %d waves, want the canary's 3", n)
	}
	do := func(name, value string) campaign.Plan {
		t.Helper()
		f.Values.Set(name, value)
		if !f.Command() || f.Values.Has(name) {
			t.Fatalf("%s=%s was not carried out", name, value)
		}
		return f.Read()
	}
	if f.Preset() != "canary" || f.Get("open") != "" {
		t.Errorf("a new form has the waves %q, want the first ready-made ones, folded", f.Preset())
	}
	if p := do("preset", "small"); f.Preset() != "small" || f.Get("open") != "" || len(p.Waves) != 2 || p.Waves[0].Count != 1 {
		t.Errorf("small fleet: %+v", p.Waves)
	}
	if p := do("add", "night"); len(p.Windows) != 1 || p.Windows[0] != (campaign.Window{Cron: "0 2 * * *",
		Duration: 3 * time.Hour, TimeZone: campaign.DeviceZone}) {
		t.Errorf("every night: %+v", p.Windows)
	}
	if p := do("drop", "rule.0"); len(p.AbortRules) != 1 || p.AbortRules[0].Class != campaign.ClassAny {
		t.Errorf("without the first rule: %+v", p.AbortRules)
	}
	for _, bad := range []string{"rule.9", "rule.-1", "nope.0", "rule.x", "wave."} {
		if p := do("drop", bad); len(p.AbortRules) != 1 || len(p.Waves) != 2 {
			t.Errorf("drop=%s left %d rules and %d waves", bad, len(p.AbortRules), len(p.Waves))
		}
	}
	for range 100 {
		do("add", "wave")
	}
	if n := len(f.Values["wave.size"]); n > 20 {
		t.Errorf("one can add waves up to %d", n)
	}
	if f.Command() {
		t.Error("a form without a command carried one out")
	}
}

// A new form is the default plan with the overrides of the address. A table is replaced as a whole,
// because mixed waves would be wrong.
func TestNewFormIsTheDefaultPlan(t *testing.T) {
	f := NewPlan(url.Values{}, time.UTC)
	if diff := cmp.Diff(campaign.DefaultPlan(), f.Read()); diff != "" {
		t.Errorf("a new form (-default +form):\n%s", diff)
	}
	f = NewPlan(url.Values{"q": {"tag:lab"}, "heap": {"0"}, "wave.size": {"100"}, "wave.unit": {"percent"}}, time.UTC)
	want := campaign.DefaultPlan()
	want.Query, want.MinHeapPercent, want.Waves = "tag:lab", 0, []campaign.WavePlan{{Percent: 100}}
	if diff := cmp.Diff(want, f.Read()); diff != "" {
		t.Errorf("a form that the address fills in part (-want +got):\n%s", diff)
	}
}

// An unreadable release is not chosen: no part of it becomes an ID.
func TestUnreadableRelease(t *testing.T) {
	f := NewPlan(url.Values{"release": {"6ba7b810-9dad-11d1-80b4-00c04fd430cx"}}, time.UTC)
	if got := f.Read().Release; got != uuid.Nil {
		t.Errorf("Release = %s, want none", got)
	}
}
