package campaign_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

func FuzzNormalize(f *testing.F) {
	full := campaign.Plan{Name: "x", Waves: campaign.DefaultWaves(), AbortRules: campaign.DefaultAbortRules(),
		Windows: []campaign.Window{{Cron: "0 2 * * 1-5", Duration: time.Hour, TimeZone: "Asia/Shanghai"}},
		HealthChecks: []campaign.HealthCheck{{Tool: "t", Arguments: json.RawMessage(`{}`),
			Assert: []campaign.Assertion{{Path: "$.a", Op: "eq", Value: json.RawMessage(`1`)}}}}}
	text, err := json.Marshal(full)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Fuzz(func(t *testing.T, text []byte) {
		var p campaign.Plan
		if json.Unmarshal(text, &p) != nil || p.Normalize(noon) != nil {
			return
		}
		digest := campaign.Digest(p, nil, nil)
		if err := p.Normalize(noon); err != nil || campaign.Digest(p, nil, nil) != digest {
			t.Errorf("a normal plan changes: %v", err)
		}
		stored, err := json.Marshal(p)
		if err != nil {
			t.Fatalf("a normal plan cannot be stored: %v", err)
		}
		var back campaign.Plan
		if err := json.Unmarshal(stored, &back); err != nil || campaign.Digest(back, nil, nil) != digest {
			t.Errorf("the digest does not survive the database: %v", err)
		}
		if campaign.Loosens(p, back) || campaign.RunningEdit(p, back) != nil {
			t.Error("a plan differs from itself")
		}
	})
}

func TestDigest(t *testing.T) {
	start := noon
	base := func() campaign.Plan {
		p := campaign.Plan{Name: "x", StartAt: &start, HealthChecks: []campaign.HealthCheck{{Tool: "t",
			Arguments: json.RawMessage(`{"a":1,"b":2.50}`)}}}
		if err := p.Normalize(noon); err != nil {
			t.Fatal(err)
		}
		return p
	}
	targets := func() []campaign.Deployment {
		return []campaign.Deployment{{Device: "a", Wave: 0, Image: "1"}, {Device: "b", Wave: 1, Image: "1"},
			{Device: "c", Wave: -1, State: campaign.DeploymentSkipped}}
	}
	want := campaign.Digest(base(), targets(), nil)
	if len(want) != 64 {
		t.Fatalf("digest %q", want)
	}
	same := map[string]func(p *campaign.Plan, d []campaign.Deployment) []campaign.Deployment{
		"order of the targets": func(_ *campaign.Plan, d []campaign.Deployment) []campaign.Deployment {
			slices.Reverse(
				d)
			return d
		},
		"skipped ones": func(_ *campaign.Plan, d []campaign.Deployment) []campaign.Deployment { return d[:2] },
		"spelling of JSON": func(p *campaign.Plan, d []campaign.Deployment) []campaign.Deployment {
			p.HealthChecks[0].Arguments = json.RawMessage(`{ "b": 25e-1, "a": 1.0 }`)
			return d
		},
		"zone of a time": func(p *campaign.Plan, d []campaign.Deployment) []campaign.Deployment {
			at := p.StartAt.In(time.FixedZone("x", 3600))
			p.StartAt = &at
			return d
		},
	}
	for name, change := range same {
		p := base()
		if d := change(&p, targets()); campaign.Digest(p, d, nil) != want {
			t.Errorf("the digest depends on the %s", name)
		}
	}
	other := []func(p *campaign.Plan, d []campaign.Deployment) []campaign.Deployment{
		func(p *campaign.Plan, d []campaign.Deployment) []campaign.Deployment { p.MaxInFlight = 11; return d },
		func(p *campaign.Plan, d []campaign.Deployment) []campaign.Deployment { p.Waves[2].Soak++; return d },
		func(p *campaign.Plan, d []campaign.Deployment) []campaign.Deployment {
			p.HealthChecks[0].Arguments = json.RawMessage(`{"a":1,"b":2.51}`)
			return d
		},
		func(p *campaign.Plan, d []campaign.Deployment) []campaign.Deployment {
			p.HealthChecks[0].Arguments = json.RawMessage(`{"a":"1","b":2.5}`)
			return d
		},
		func(_ *campaign.Plan, d []campaign.Deployment) []campaign.Deployment { return d[:1] },
		func(_ *campaign.Plan, d []campaign.Deployment) []campaign.Deployment { d[0].Image = "2"; return d },
		func(_ *campaign.Plan, d []campaign.Deployment) []campaign.Deployment { d[1].Wave = 0; return d },
	}
	seen := map[string]int{want: -1}
	for i, change := range other {
		p := base()
		d := change(&p, targets())
		got := campaign.Digest(p, d, nil)
		if j, twice := seen[got]; twice {
			t.Errorf("change %d has the digest of %d", i, j)
		}
		seen[got] = i
	}
	var back campaign.Plan
	text, err := json.Marshal(base())
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &back); err != nil || campaign.Digest(back, targets(), nil) != want {
		t.Errorf("the digest does not survive the database: %v", err)
	}
}

func TestRunningEdit(t *testing.T) {
	type P = campaign.Plan
	start, end, later, sooner := noon, noon.Add(time.Hour), noon.Add(2*time.Hour), noon.Add(time.Minute)
	nightly := campaign.Window{Cron: "0 2 * * *", Duration: time.Hour, TimeZone: "UTC"}
	shorter := nightly
	shorter.Duration = 30 * time.Minute
	rule := campaign.AbortRule{Class: "failed", MinExecuted: 5, Percent: 10, Scope: campaign.ScopeCampaign,
		Action: campaign.AbortPause}
	with := func(change func(r *campaign.AbortRule)) []campaign.AbortRule {
		r := rule
		change(&r)
		return []campaign.AbortRule{r}
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
		{"stricter end", func(p *P) { p.EndBehavior = campaign.EndAbortInFlight }, "", false},
		{"milder end", func(p *P) { p.EndBehavior = campaign.EndStopRollout }, "", true},
		{"shorter window", func(p *P) { p.Windows = []campaign.Window{shorter} }, "", false},
		{"a window more", func(p *P) {
			p.Windows = append(p.Windows, campaign.Window{Cron: "0 4 * * *", Duration: time.Hour, TimeZone: "UTC"})
		}, "", true},
		{"always", func(p *P) { p.Windows = nil }, "", true},
		{"a rule more", func(p *P) { p.AbortRules = append(p.AbortRules, campaign.AbortRule{Class: "any"}) }, "", false},
		{"no rules", func(p *P) { p.AbortRules = nil }, "", true},
		{"tighter rule", func(p *P) {
			p.AbortRules = with(func(r *campaign.AbortRule) {
				r.Percent, r.MinExecuted, r.Class, r.Action = 5, 2, "any", campaign.AbortAbort
			})
		}, "", false},
		{"higher threshold", func(p *P) { p.AbortRules = with(func(r *campaign.AbortRule) { r.Percent = 11 }) }, "", true},
		{"larger sample", func(p *P) { p.AbortRules = with(func(r *campaign.AbortRule) { r.MinExecuted = 6 }) }, "", true},
		{"other scope", func(p *P) { p.AbortRules = with(func(r *campaign.AbortRule) { r.Scope = campaign.ScopeWave }) }, "",
			true},
		{"release", func(p *P) { p.Release = uuid.Max }, "release", false},
		{"audience", func(p *P) { p.Query = "tag:lab" }, "query", false},
		{"devices", func(p *P) { p.Devices = []fleet.DeviceID{"a"} }, "devices", false},
		{"waves", func(p *P) { p.Waves = campaign.DefaultWaves()[:1] }, "waves", false},
		{"name", func(p *P) { p.Name = "y" }, "name", false},
		{"downgrade", func(p *P) { p.AllowDowngrade = true }, "allow_downgrade", false},
		{"start", func(p *P) { p.StartAt = nil }, "start_at", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			plan := func() P {
				return P{Name: "x", Waves: campaign.DefaultWaves(), MaxInFlight: 10, MaxPerMinute: 50, Jitter: time.Minute,
					StartAt: &start, EndAt: &end,
					EndBehavior: campaign.EndCancelQueued, Windows: []campaign.Window{nightly}, AbortRules: []campaign.AbortRule{rule}}
			}
			before, after := plan(), plan()
			tt.change(&after)
			err := campaign.RunningEdit(before, after)
			var e *fleet.Error
			if errors.As(err, &e); (e == nil) != (tt.refused == "") || e != nil && (e.Field != tt.refused ||
				e.Code != "campaign_running") {
				t.Errorf("%v, want field %q refused", err, tt.refused)
			}
			if got := campaign.Loosens(before, after); got != tt.loosens {
				t.Errorf("loosens: %v, want %v", got, tt.loosens)
			}
		})
	}
}

// BenchmarkDigest digests a campaign over a large fleet.
func BenchmarkDigest(b *testing.B) {
	targets := make([]campaign.Deployment, 50_000)
	for i := range targets {
		targets[i] = campaign.Deployment{Device: fleet.DeviceID(fmt.Sprintf("%012x", i*7919)), Image: "x"}
	}
	for b.Loop() {
		campaign.Digest(campaign.Plan{}, targets, nil)
	}
}
