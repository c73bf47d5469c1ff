package campaign_test

import (
	"testing"

	"fleetd/fleet/campaign"
)

type tally = map[campaign.DeploymentState]int

func TestJudgeAbort(t *testing.T) {
	rule := func(class string, least int, percent float64, scope campaign.AbortScope, wave int,
		action campaign.AbortAction) campaign.AbortRule {
		return campaign.AbortRule{Class: class, MinExecuted: least, Percent: percent, Scope: scope, Wave: wave,
			Action: action}
	}
	defaults := campaign.DefaultAbortRules()
	tests := []struct {
		name  string
		rules []campaign.AbortRule
		t     campaign.AbortTallies
		index int // of the rule; -1: none
		scope string
		n, of int
	}{
		{"nothing yet", defaults, campaign.AbortTallies{}, -1, "", 0, 0},
		{"no rules", nil, campaign.AbortTallies{ByState: tally{"failed": 100}}, -1, "", 0, 0},
		{"a canary rolled back", defaults, campaign.AbortTallies{ByState: tally{"rolled_back": 1},
			ByWave: []tally{{"rolled_back": 1}}, WaveNames: []string{"canary"}},
			0, "wave 1 (canary)", 1, 1},
		{"a later device rolled back", defaults, campaign.AbortTallies{ByState: tally{"rolled_back": 1, "succeeded": 20},
			ByWave: []tally{{"succeeded": 1}, {"rolled_back": 1, "succeeded": 19}}},
			-1, "", 0, 0},
		{"one of four failed: too few", defaults, campaign.AbortTallies{ByState: tally{"failed": 1, "succeeded": 3}}, -1, "",
			0, 0},
		{"one of five failed", defaults, campaign.AbortTallies{ByState: tally{"timed_out": 1, "succeeded": 4}}, 1,
			"the campaign", 1, 5},
		{"one of ten is ten percent", defaults, campaign.AbortTallies{ByState: tally{"unhealthy": 1, "succeeded": 9}}, 1,
			"the campaign", 1, 10},
		{"one of eleven is less", defaults, campaign.AbortTallies{ByState: tally{"unhealthy": 1, "succeeded": 10}}, -1, "", 0,
			0},
		{"what is no verdict does not count", defaults, campaign.AbortTallies{ByState: tally{"failed": 1, "succeeded": 3,
			"skipped": 50, "aborted": 50, "queued": 50, "verifying": 5}}, -1, "", 0, 0},
		{"only its class", []campaign.AbortRule{rule("rejected", 1, 50, "campaign", 0, "pause")},
			campaign.AbortTallies{ByState: tally{"failed": 9, "rejected": 1}}, -1, "", 0, 0},
		{"the worst board", []campaign.AbortRule{rule("any", 2, 20, "board", 0, "abort")},
			campaign.AbortTallies{ByBoard: map[string]tally{"a": {"failed": 1, "succeeded": 3},
				"b": {"failed": 4, "succeeded": 4}, "c": {"failed": 1}}}, 0, "board b", 4, 8},
		{"any wave", []campaign.AbortRule{rule("any", 1, 50, "wave", 0, "abort")},
			campaign.AbortTallies{ByWave: []tally{{"succeeded": 9}, {"failed": 1, "succeeded": 1}}}, 0, "wave 2", 1, 2},
		{"another wave", []campaign.AbortRule{rule("any", 1, 50, "wave", 1, "abort")},
			campaign.AbortTallies{ByWave: []tally{{"succeeded": 9}, {"failed": 1, "succeeded": 1}}}, -1, "", 0, 0},
		{"the severest", []campaign.AbortRule{rule("any", 1, 0, "campaign", 0, "pause"), rule("failed", 1, 0, "campaign", 0,
			"abort_and_rollback"), rule("any", 1, 0, "campaign", 0, "abort")},
			campaign.AbortTallies{ByState: tally{"failed": 1}}, 1, "the campaign", 1, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := campaign.JudgeAbort(tt.rules, tt.t)
			if got == nil {
				if tt.index >= 0 {
					t.Fatalf("no rule fired, want rule %d", tt.index)
				}
				return
			}
			if got.Index != tt.index || said(got.Scope) != tt.scope || got.Counted != tt.n || got.Of != tt.of ||
				got.Rule != tt.rules[got.Index] {
				t.Errorf("%+v, want rule %d over %s, %d of %d", got, tt.index, tt.scope, tt.n, tt.of)
			}
		})
	}
	got := campaign.JudgeAbort(defaults, campaign.AbortTallies{ByState: tally{"failed": 2, "succeeded": 10}})
	if want := "2 of 12 devices in the campaign ended failed (16.7%); the rule stops at 10% of at least 5"; said(got.Reason) != want {
		t.Errorf("sentence %q, want %q", said(got.Reason), want)
	}
}

func TestJudgeWave(t *testing.T) {
	normal := campaign.WavePlan{SuccessPercent: 90, MinSample: 5}
	tests := []struct {
		name     string
		size     int
		states   tally
		stuck    int
		want     campaign.WaveState
		sentence string
	}{
		{"just opened", 10, tally{"queued": 10}, 0, "running", "10 of 10 devices are not done"},
		{"all offline", 10, tally{"queued": 10}, 10, "running", "0 of 5 verdicts; 10 devices cannot be reached"},
		{"under way", 10, tally{"queued": 2, "downloading": 3, "succeeded": 5}, 0, "running", "5 of 10 devices are not done"},
		{"retries to come", 10, tally{"queued": 1, "succeeded": 9}, 0, "running", "1 of 10 devices are not done"},
		{"soaking", 10, tally{"verifying": 3, "succeeded": 7}, 0, "soaking", "3 devices have to stay well for 0 ms"},
		{"soaking, the rest offline", 10, tally{"verifying": 3, "queued": 2, "succeeded": 5}, 2, "soaking",
			"3 devices have to stay well for 0 ms"},
		{"one waits for its turn", 10, tally{"verifying": 3, "queued": 2, "succeeded": 5}, 1, "running",
			"5 of 10 devices are not done"},
		{"good", 10, tally{"succeeded": 9, "failed": 1}, 0, "finished", "9 of 10 devices succeeded (90%)"},
		{"bad", 10, tally{"succeeded": 8, "failed": 2}, 0, "failed",
			"8 of 10 devices succeeded (80%); 90% cannot be reached any more"},
		{"good, some offline", 10, tally{"succeeded": 5, "queued": 5}, 5, "finished",
			"5 of 5 devices succeeded (100%); 5 could not be reached yet"},
		{"too few, the rest offline", 10, tally{"succeeded": 4, "queued": 6}, 6, "running",
			"4 of 5 verdicts; 6 devices cannot be reached"},
		{"bad so far, the rest offline", 100, tally{"succeeded": 8, "failed": 2, "queued": 90}, 90, "failed",
			"8 of 10 devices succeeded (80%), of 90% needed"},
		{"bad beyond hope while others work", 10, tally{"failed": 5, "downloading": 5}, 0, "failed",
			"0 of 5 devices succeeded (0%); 90% cannot be reached any more"},
		{"bad, but too few to judge", 10, tally{"failed": 4, "downloading": 6}, 0, "running", "6 of 10 devices are not done"},
		{"a small wave needs all it has", 2, tally{"succeeded": 2}, 0, "finished", "2 of 2 devices succeeded (100%)"},
		{"skipped ones need no verdict", 4, tally{"succeeded": 2, "skipped": 2}, 0, "finished",
			"2 of 2 devices succeeded (100%)"},
		{"nobody left", 4, tally{"skipped": 3, "removed": 1}, 0, "failed",
			"no device of the wave came to a verdict (4 skipped, canceled or removed): nothing speaks for the image"},
		{"an empty wave", 0, tally{}, 0, "finished", "the wave holds no device"},
		{"stuck is at most what waits", 10, tally{"downloading": 10}, 10, "running", "10 of 10 devices are not done"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := campaign.JudgeWave(normal, tt.size, tt.states, tt.stuck)
			if got.State != tt.want || said(got.Reason) != tt.sentence {
				t.Errorf("%s: %q, want %s: %q", got.State, said(got.Reason), tt.want, tt.sentence)
			}
		})
	}
}
