package ui

import (
	"fmt"
	"strings"
	"testing"

	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
	"fleetd/web/i18n"
)

// The values are those of the usual tables of the interval.
func TestWilson(t *testing.T) {
	for _, tt := range []struct {
		ok, of int
		want   string
	}{
		{0, 0, "0.000 1.000"}, {0, 10, "0.000 0.278"}, {10, 10, "0.722 1.000"}, {1, 1, "0.207 1.000"}, {5, 10, "0.237 0.763"},
		{98, 100, "0.930 0.994"}, {9_800, 10_000, "0.977 0.983"},
	} {
		lo, hi := wilson(tt.ok, tt.of)
		if got := fmt.Sprintf("%.3f %.3f", lo, hi); got != tt.want {
			t.Errorf("wilson(%d, %d) = %s, want %s", tt.ok, tt.of, got, tt.want)
		}
	}
}

func TestFunnel(t *testing.T) {
	b := CampaignBoard{Progress: campaign.Progress{
		ByState: map[campaign.DeploymentState]int{campaign.DeploymentQueued: 4, campaign.DeploymentDownloading: 3,
			campaign.DeploymentFailed: 2, campaign.DeploymentSucceeded: 1},
		Reached: map[campaign.FunnelStep]int{campaign.FunnelPlanned: 10, campaign.FunnelNotified: 6, campaign.FunnelGet: 6,
			campaign.FunnelDownloaded: 1, campaign.FunnelGoodbye: 1,
			campaign.FunnelBootPoll: 1, campaign.FunnelInitialize: 1, campaign.FunnelSucceeded: 1},
	}}
	got := ""
	for _, s := range b.funnel() {
		got += fmt.Sprintf("%s %d/%d/%d ", s.step, s.count, s.here, s.lost)
	}
	want := "planned 10/4/0 told 6/0/0 get 6/3/2 downloaded 1/0/0 goodbye 1/0/0 boot_poll 1/0/0 initialize 1/0/0 succeeded 1/0/0 "
	if got != want {
		t.Errorf("count/here/lost by step:\n%s\nwant\n%s", got, want)
	}
}

// A rule is shown where it is nearest to firing, and as fired only when it
// has enough verdicts.
func TestRuleState(t *testing.T) {
	ok, bad := campaign.DeploymentSucceeded, campaign.DeploymentRolledBack
	b := CampaignBoard{Progress: campaign.Progress{
		ByState: map[campaign.DeploymentState]int{ok: 18, bad: 2, campaign.DeploymentQueued: 80},
		ByWave:  []map[campaign.DeploymentState]int{{ok: 2, bad: 2}, {ok: 16}},
		ByBoard: map[string]map[campaign.DeploymentState]int{"a": {ok: 9}, "b": {ok: 9, bad: 2}},
	}}
	rule := campaign.AbortRule{Class: campaign.ClassAny, MinExecuted: 5, Percent: 10}
	for _, tt := range []struct {
		scope       campaign.AbortScope
		class       string
		wave        int
		count, of   int
		armed, hits bool
	}{
		{campaign.ScopeCampaign, campaign.ClassAny, 0, 2, 20, true, true},
		{campaign.ScopeCampaign, "timed_out", 0, 0, 20, true, false},
		{campaign.ScopeWave, campaign.ClassAny, 0, 2, 4, false, false},
		{campaign.ScopeWave, campaign.ClassAny, 2, 0, 16, true, false},
		{campaign.ScopeWave, campaign.ClassAny, 9, 0, 0, false, false},
		{campaign.ScopeBoard, "rolled_back", 0, 2, 11, true, true},
	} {
		r := rule
		r.Scope, r.Class, r.Wave = tt.scope, tt.class, tt.wave
		s := b.ruleState(t.Context(), r)
		if s.count != tt.count || s.of != tt.of || s.armed != tt.armed || s.hits != tt.hits {
			t.Errorf("%s in any one %s, wave %d: %d of %d, armed %v, fires %v; want %+v", tt.class, tt.scope, tt.wave, s.count,
				s.of, s.armed, s.hits, tt)
		}
	}
}

// Whatever the domain can say has words in both languages.
func TestCampaignWords(t *testing.T) {
	var keys []string
	for _, s := range campaign.States {
		keys = append(keys, "campaign.state."+string(s), "campaign.say."+string(s))
	}
	for _, r := range []campaign.PauseReason{campaign.PausedByOperator, campaign.PausedByWindow,
		campaign.PausedByThreshold, campaign.PausedByGate, campaign.PausedBySystem} {
		keys = append(keys, "campaign.paused."+string(r), "campaign.say.paused."+string(r))
	}
	for _, s := range campaign.DeploymentStates {
		keys = append(keys, "campaign.dep."+string(s), "campaign.verdict."+string(s))
	}
	for _, c := range campaign.FailureClasses {
		keys = append(keys, "campaign.fail."+string(c), "campaign.verdict.class."+string(c))
	}
	for _, r := range firmware.SkipReasons {
		keys = append(keys, "campaign.skip."+string(r))
	}
	for _, s := range campaign.FunnelSteps {
		keys = append(keys, "campaign.step_name."+string(s))
	}
	for _, s := range []campaign.WaveState{campaign.WavePending, campaign.WaveRunning, campaign.WaveSoaking,
		campaign.WaveGated, campaign.WaveFinished, campaign.WaveFailed} {
		keys = append(keys, "campaign.wavestate."+string(s))
	}
	for _, key := range keys {
		if !i18n.Has(key) {
			t.Errorf("there is no message %s", key)
		}
	}
}

// In flight is what the plan's limit counts: devices that only have to stay
// well are not.
func TestTallyCountsInFlightAsTheLimitDoes(t *testing.T) {
	byState := make(map[campaign.DeploymentState]int)
	limited := 0
	for _, s := range campaign.DeploymentStates {
		byState[s] = 1
		if s.InFlight() {
			limited++
		}
	}
	c := NewCampaignTally(byState)
	if c.InFlight != limited || c.Verifying != 1 || c.total() != len(byState)-1 { // all but the skipped one
		t.Errorf("%+v of one device in each state; the limit counts %d in flight", c, limited)
	}
	for _, e := range c.entries() {
		n := 0
		for _, s := range DeploymentStates(e.group) {
			n += byState[s]
		}
		if n != e.count {
			t.Errorf("%s counts %d and leads to a list of %d", e.key, e.count, n)
		}
	}
}

// Before a resume after an abort rule the board says what it does; it is the
// primary act only while the wave can still reach its goal.
func TestResumeSaysWhatItDoes(t *testing.T) {
	open := map[campaign.DeploymentState]int{campaign.DeploymentFailed: 2, campaign.DeploymentQueued: 5,
		campaign.DeploymentVerifying: 1}
	over := map[campaign.DeploymentState]int{campaign.DeploymentFailed: 8}
	for _, tt := range []struct {
		wave    campaign.WaveState
		states  map[campaign.DeploymentState]int
		say     string
		primary bool
	}{
		{campaign.WaveRunning, open, "goes on with the 6 devices left in wave 1, which needs 95%", true},
		{campaign.WaveFailed, open, "can no longer reach its 95%. Resume takes the 6 devices left", false},
		{campaign.WaveFailed, over, "every device of it has had its turn", false},
	} {
		b := CampaignBoard{CanAct: true, Campaign: campaign.Campaign{State: campaign.Paused,
			PauseReason: campaign.PausedByThreshold},
			Waves:    []campaign.Wave{{State: tt.wave, Size: 8, Plan: campaign.WavePlan{SuccessPercent: 95}}, {}},
			Progress: campaign.Progress{ByWave: []map[campaign.DeploymentState]int{tt.states}}}
		ctx := WithPage(t.Context(), Page{Lang: i18n.English})
		if say := b.resumeSaying(ctx); !strings.Contains(say, tt.say) {
			t.Errorf("%s: says %q, want %q", tt.wave, say, tt.say)
		}
		var html strings.Builder
		if err := b.Actions().Render(ctx, &html); err != nil {
			t.Fatal(err)
		}
		_, form, _ := strings.Cut(html.String(), "/resume\"")
		form, _, _ = strings.Cut(form, "</form>")
		if strings.Contains(form, "btn-primary") != tt.primary {
			t.Errorf("%s: the form is %s", tt.wave, form)
		}
	}
}
