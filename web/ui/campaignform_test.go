package ui_test

import (
	"net/url"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/web/ui"
)

// A plan that is edited and saved without a change must stay the same: its
// approval is for exactly this plan.
func TestPlanSurvivesItsForm(t *testing.T) {
	shanghai, err := time.LoadLocation("Asia/Shanghai")
	if err != nil {
		t.Fatal(err)
	}
	full := samplePlan("春季 🦊")
	start, end := time.Date(2026, 12, 1, 18, 30, 0, 0, time.UTC), time.Date(2026, 12, 9, 0, 0, 0, 0, time.UTC)
	full.StartAt, full.EndAt, full.Jitter = &start, &end, 90*time.Minute
	full.Devices = []fleet.DeviceID{"a085e3112233", "a085e3112244"}
	full.Waves[0] = campaign.WavePlan{Name: "By hand", Devices: full.Devices, SuccessPercent: 99.5, MinSample: 1,
		Soak: 36 * time.Hour, Gate: campaign.GateManual}
	full.Waves[1].Percent, full.Waves[1].Count = 0, 25
	full.Continuous, full.MaxDevices, full.Supersede, full.AllowDowngrade, full.ApprovalRequired, full.PullNow = true, 500,
		true, true, true, true
	full.HealthChecks = append(full.HealthChecks, campaign.HealthCheck{Tool: "self.get_device_status",
		Arguments: schema(`{"deep":true}`)},
		campaign.HealthCheck{Tool: "self.get_device_status", Assert: []campaign.Assertion{{Path: "$.a", Op: "eq",
			Value: schema(`"12"`)}, {Path: "$.b", Op: "eq", Value: schema(`12`)},
			{Path: "$.c", Op: "matches", Value: schema(`"^a b$"`)}, {Path: "$.d", Op: "exists"}, {Path: "$.e", Op: "ne",
				Value: schema(`" x"`)}, {Path: "$.f", Op: "ne", Value: schema(`null`)}}})
	bare := campaign.Plan{Name: "bare", Release: full.Release, AbortRules: []campaign.AbortRule{}}
	for _, plan := range []campaign.Plan{full, samplePlan("plain"), bare} {
		form := ui.FillPlan(plan, shanghai)
		// As it comes back from a browser, in the address.
		sent, err := url.ParseQuery(form.Values.Encode())
		if err != nil {
			t.Fatal(err)
		}
		back := ui.NewPlanForm(sent, shanghai)
		got := back.Plan()
		if diff := cmp.Diff(plan, got); diff != "" || len(back.Problems) > 0 {
			t.Errorf("%s comes back changed, with problems %v:\n%s", plan.Name, back.Problems, diff)
		}
	}
}

func TestSpans(t *testing.T) {
	for text, want := range map[string]time.Duration{"": 0, "0": 0, "30s": 30 * time.Second, "10m": 10 * time.Minute,
		" 2h ": 2 * time.Hour, "1d": 24 * time.Hour,
		"1d12h": 36 * time.Hour, "1h30m": 90 * time.Minute, "90m": 90 * time.Minute, "1h0m5s": time.Hour + 5*time.Second} {
		got, ok := ui.ParseSpan(text)
		if !ok || got != want {
			t.Errorf("ParseSpan(%q) = %v, %v, want %v", text, got, ok, want)
		}
		if again, ok := ui.ParseSpan(ui.SpanText(got)); !ok || again != got {
			t.Errorf("SpanText(%v) = %q, which reads %v, %v", got, ui.SpanText(got), again, ok)
		}
	}
	for _, text := range []string{"soon", "-5m", "5", "1d x", "99999d", "-1d", "d"} {
		if got, ok := ui.ParseSpan(text); ok {
			t.Errorf("ParseSpan(%q) = %v, want it refused", text, got)
		}
	}
}

func TestFormCommands(t *testing.T) {
	f := ui.NewPlanForm(url.Values{"release": {"x"}}, time.UTC)
	if n := len(f.Plan().Waves); n != 3 {
		t.Fatalf("a new form has %d waves, want the canary's 3", n)
	}
	do := func(name, value string) campaign.Plan {
		t.Helper()
		f.Values.Set(name, value)
		if !f.Command() || f.Values.Has(name) {
			t.Fatalf("%s=%s was not carried out", name, value)
		}
		return f.Plan()
	}
	if p := do("preset", "small"); len(p.Waves) != 2 || p.Waves[0].Count != 1 {
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

// A new form is the default plan with what the address names in its place: a
// table whole, so that no wave mixes the two.
func TestNewFormIsTheDefaultPlan(t *testing.T) {
	f := ui.NewPlanForm(url.Values{}, time.UTC)
	if diff := cmp.Diff(campaign.DefaultPlan(), f.Plan()); diff != "" {
		t.Errorf("a new form (-default +form):\n%s", diff)
	}
	f = ui.NewPlanForm(url.Values{"q": {"tag:lab"}, "heap": {"0"}, "wave.size": {"100"}, "wave.unit": {"percent"}}, time.UTC)
	want := campaign.DefaultPlan()
	want.Query, want.MinHeapPercent, want.Waves = "tag:lab", 0, []campaign.WavePlan{{Percent: 100}}
	if diff := cmp.Diff(want, f.Plan()); diff != "" {
		t.Errorf("a form that the address fills in part (-want +got):\n%s", diff)
	}
}
