package fleet_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"fleetd/fleet"

	"github.com/google/uuid"
)

func FuzzNormalize(f *testing.F) {
	full := fleet.CampaignPlan{Name: "x", Waves: fleet.DefaultWaves(), AbortRules: fleet.DefaultAbortRules(),
		Windows:      []fleet.Window{{Cron: "0 2 * * 1-5", Duration: time.Hour, TimeZone: "Asia/Shanghai"}},
		HealthChecks: []fleet.HealthCheck{{Tool: "t", Arguments: json.RawMessage(`{}`), Assert: []fleet.Assertion{{Path: "$.a", Op: "eq", Value: json.RawMessage(`1`)}}}}}
	text, err := json.Marshal(full)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Fuzz(func(t *testing.T, text []byte) {
		var p fleet.CampaignPlan
		if json.Unmarshal(text, &p) != nil || p.Normalize(noon) != nil {
			return
		}
		digest := fleet.Digest(p, nil)
		if err := p.Normalize(noon); err != nil || fleet.Digest(p, nil) != digest {
			t.Errorf("a normal plan changes: %v", err)
		}
		stored, err := json.Marshal(p)
		if err != nil {
			t.Fatalf("a normal plan cannot be stored: %v", err)
		}
		var back fleet.CampaignPlan
		if err := json.Unmarshal(stored, &back); err != nil || fleet.Digest(back, nil) != digest {
			t.Errorf("the digest does not survive the database: %v", err)
		}
		if fleet.Loosens(p, back) || fleet.RunningEdit(p, back) != nil {
			t.Error("a plan differs from itself")
		}
	})
}

func TestDigest(t *testing.T) {
	start := noon
	base := func() fleet.CampaignPlan {
		p := fleet.CampaignPlan{Name: "x", StartAt: &start, HealthChecks: []fleet.HealthCheck{{Tool: "t", Arguments: json.RawMessage(`{"a":1,"b":2.50}`)}}}
		if err := p.Normalize(noon); err != nil {
			t.Fatal(err)
		}
		return p
	}
	targets := func() []fleet.Deployment {
		return []fleet.Deployment{{Device: "a", Wave: 0, Image: "1"}, {Device: "b", Wave: 1, Image: "1"}, {Device: "c", Wave: -1, State: fleet.DeploymentSkipped}}
	}
	want := fleet.Digest(base(), targets())
	if len(want) != 64 {
		t.Fatalf("digest %q", want)
	}
	same := map[string]func(p *fleet.CampaignPlan, d []fleet.Deployment) []fleet.Deployment{
		"order of the targets": func(_ *fleet.CampaignPlan, d []fleet.Deployment) []fleet.Deployment { slices.Reverse(d); return d },
		"skipped ones":         func(_ *fleet.CampaignPlan, d []fleet.Deployment) []fleet.Deployment { return d[:2] },
		"spelling of JSON": func(p *fleet.CampaignPlan, d []fleet.Deployment) []fleet.Deployment {
			p.HealthChecks[0].Arguments = json.RawMessage(`{ "b": 25e-1, "a": 1.0 }`)
			return d
		},
		"zone of a time": func(p *fleet.CampaignPlan, d []fleet.Deployment) []fleet.Deployment {
			at := p.StartAt.In(time.FixedZone("x", 3600))
			p.StartAt = &at
			return d
		},
	}
	for name, change := range same {
		p := base()
		if d := change(&p, targets()); fleet.Digest(p, d) != want {
			t.Errorf("the digest depends on the %s", name)
		}
	}
	other := []func(p *fleet.CampaignPlan, d []fleet.Deployment) []fleet.Deployment{
		func(p *fleet.CampaignPlan, d []fleet.Deployment) []fleet.Deployment { p.MaxInFlight = 11; return d },
		func(p *fleet.CampaignPlan, d []fleet.Deployment) []fleet.Deployment { p.Waves[2].Soak++; return d },
		func(p *fleet.CampaignPlan, d []fleet.Deployment) []fleet.Deployment {
			p.HealthChecks[0].Arguments = json.RawMessage(`{"a":1,"b":2.51}`)
			return d
		},
		func(p *fleet.CampaignPlan, d []fleet.Deployment) []fleet.Deployment {
			p.HealthChecks[0].Arguments = json.RawMessage(`{"a":"1","b":2.5}`)
			return d
		},
		func(_ *fleet.CampaignPlan, d []fleet.Deployment) []fleet.Deployment { return d[:1] },
		func(_ *fleet.CampaignPlan, d []fleet.Deployment) []fleet.Deployment { d[0].Image = "2"; return d },
		func(_ *fleet.CampaignPlan, d []fleet.Deployment) []fleet.Deployment { d[1].Wave = 0; return d },
	}
	seen := map[string]int{want: -1}
	for i, change := range other {
		p := base()
		d := change(&p, targets())
		got := fleet.Digest(p, d)
		if j, twice := seen[got]; twice {
			t.Errorf("change %d has the digest of %d", i, j)
		}
		seen[got] = i
	}
	var back fleet.CampaignPlan
	text, err := json.Marshal(base())
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &back); err != nil || fleet.Digest(back, targets()) != want {
		t.Errorf("the digest does not survive the database: %v", err)
	}
}

func TestRunningEdit(t *testing.T) {
	type P = fleet.CampaignPlan
	start, end, later, sooner := noon, noon.Add(time.Hour), noon.Add(2*time.Hour), noon.Add(time.Minute)
	nightly := fleet.Window{Cron: "0 2 * * *", Duration: time.Hour, TimeZone: "UTC"}
	shorter := nightly
	shorter.Duration = 30 * time.Minute
	rule := fleet.AbortRule{Class: "failed", MinExecuted: 5, Percent: 10, Scope: fleet.ScopeCampaign, Action: fleet.AbortPause}
	with := func(change func(r *fleet.AbortRule)) []fleet.AbortRule {
		r := rule
		change(&r)
		return []fleet.AbortRule{r}
	}
	tests := []struct {
		name    string
		change  func(p *P)
		refused string // field
		loosens bool
	}{
		{"nothing", func(p *P) {}, "", false},
		{"slower", func(p *P) { p.MaxInFlight, p.MaxPerMinute = 5, 10 }, "", false},
		{"faster", func(p *P) { p.MaxInFlight = 20 }, "", true},
		{"more per minute", func(p *P) { p.MaxPerMinute = 100 }, "", true},
		{"no limit per minute", func(p *P) { p.MaxPerMinute = 0 }, "", true},
		{"more jitter", func(p *P) { p.Jitter = time.Hour }, "", false},
		{"less jitter", func(p *P) { p.Jitter = 0 }, "", true},
		{"ends sooner", func(p *P) { p.EndAt = &sooner }, "", false},
		{"ends later", func(p *P) { p.EndAt = &later }, "", true},
		{"default end", func(p *P) { p.EndAt = nil }, "", true},
		{"stricter end", func(p *P) { p.EndBehavior = fleet.EndAbortInFlight }, "", false},
		{"milder end", func(p *P) { p.EndBehavior = fleet.EndStopRollout }, "", true},
		{"shorter window", func(p *P) { p.Windows = []fleet.Window{shorter} }, "", false},
		{"a window more", func(p *P) {
			p.Windows = append(p.Windows, fleet.Window{Cron: "0 4 * * *", Duration: time.Hour, TimeZone: "UTC"})
		}, "", true},
		{"always", func(p *P) { p.Windows = nil }, "", true},
		{"a rule more", func(p *P) { p.AbortRules = append(p.AbortRules, fleet.AbortRule{Class: "any"}) }, "", false},
		{"no rules", func(p *P) { p.AbortRules = nil }, "", true},
		{"tighter rule", func(p *P) {
			p.AbortRules = with(func(r *fleet.AbortRule) { r.Percent, r.MinExecuted, r.Class, r.Action = 5, 2, "any", fleet.AbortAbort })
		}, "", false},
		{"higher threshold", func(p *P) { p.AbortRules = with(func(r *fleet.AbortRule) { r.Percent = 11 }) }, "", true},
		{"larger sample", func(p *P) { p.AbortRules = with(func(r *fleet.AbortRule) { r.MinExecuted = 6 }) }, "", true},
		{"other scope", func(p *P) { p.AbortRules = with(func(r *fleet.AbortRule) { r.Scope = fleet.ScopeWave }) }, "", true},
		{"release", func(p *P) { p.Release = uuid.Max }, "release", false},
		{"audience", func(p *P) { p.Query = "tag:lab" }, "query", false},
		{"devices", func(p *P) { p.Devices = []fleet.DeviceID{"a"} }, "devices", false},
		{"waves", func(p *P) { p.Waves = fleet.DefaultWaves()[:1] }, "waves", false},
		{"name", func(p *P) { p.Name = "y" }, "name", false},
		{"downgrade", func(p *P) { p.AllowDowngrade = true }, "allow_downgrade", false},
		{"start", func(p *P) { p.StartAt = nil }, "start_at", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			plan := func() P {
				return P{Name: "x", Waves: fleet.DefaultWaves(), MaxInFlight: 10, MaxPerMinute: 50, Jitter: time.Minute, StartAt: &start, EndAt: &end,
					EndBehavior: fleet.EndCancelQueued, Windows: []fleet.Window{nightly}, AbortRules: []fleet.AbortRule{rule}}
			}
			before, after := plan(), plan()
			tt.change(&after)
			err := fleet.RunningEdit(before, after)
			var e *fleet.Error
			if errors.As(err, &e); (e == nil) != (tt.refused == "") || e != nil && (e.Field != tt.refused || e.Code != "campaign_running") {
				t.Errorf("%v, want field %q refused", err, tt.refused)
			}
			if got := fleet.Loosens(before, after); got != tt.loosens {
				t.Errorf("loosens: %v, want %v", got, tt.loosens)
			}
		})
	}
}

// BenchmarkDigest is of a campaign over a large fleet.
func BenchmarkDigest(b *testing.B) {
	targets := make([]fleet.Deployment, 50_000)
	for i := range targets {
		targets[i] = fleet.Deployment{Device: fleet.DeviceID(fmt.Sprintf("%012x", i*7919)), Image: "x"}
	}
	for b.Loop() {
		fleet.Digest(fleet.CampaignPlan{}, targets)
	}
}
