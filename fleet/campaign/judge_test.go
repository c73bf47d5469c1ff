package campaign_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet/campaign"
)

type tally = map[campaign.DeploymentState]int

// dispatched returns the cohorts of deployments in the order of dispatch, one for each letter: a
// digit is the wave, "." is under way, "s" succeeded, "n" not dispatched, "c" canceled, other
// letters failed. The boards alternate between a and b.
func dispatched(text string) campaign.AbortEvidence {
	states := map[rune]campaign.DeploymentState{'.': "verifying", 's': "succeeded", 'c': "canceled", 'n': "queued",
		'f': "failed", 't': "timed_out", 'r': "rolled_back", 'u': "unhealthy", 'x': "rejected"}
	var all []campaign.Deployment
	wave := 0
	for i, letter := range text {
		if letter >= '0' && letter <= '9' {
			wave = int(letter - '0')
			continue
		}
		d := campaign.Deployment{ID: uuid.New(), State: states[letter], Wave: wave, Board: []string{"a", "b"}[i%2]}
		at := start.Add(time.Duration(i) * time.Second)
		if letter != 'n' {
			d.DispatchedAt = &at
		}
		if d.State.Final() {
			d.FinishedAt = &at
		}
		all = append(all, d)
	}
	slices.Reverse(all)
	return campaign.AbortEvidence{Cohorts: campaign.CohortsOf(all), WaveNames: []string{"canary", "rest"}}
}

var start = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func TestJudgeAbort(t *testing.T) {
	rule := func(class string, least int, percent float64, scope campaign.AbortScope, wave int,
		action campaign.AbortAction) campaign.AbortRule {
		return campaign.AbortRule{Class: class, MinExecuted: least, Percent: percent, Scope: scope, Wave: wave,
			Action: action}
	}
	share := func(r campaign.AbortRule) []campaign.AbortRule {
		r.Measure = campaign.MeasureShare
		return []campaign.AbortRule{r}
	}
	defaults := campaign.DefaultAbortRules()
	tests := []struct {
		name  string
		rules []campaign.AbortRule
		order string
		index int // of the rule; -1: none
		scope string
		n, of int
	}{
		{"nothing yet", defaults, "", -1, "", 0, 0},
		{"no rules", nil, "ffffffff", -1, "", 0, 0},
		{"a canary rolled back", defaults, "r", 0, "wave 1 (canary)", 1, 1},
		{"a canary rolled back while others are under way", defaults, "...r..", 0, "wave 1 (canary)", 1, 6},
		{"a later device rolled back", defaults, "s1sssssssssrsssss", -1, "", 0, 0},
		{"all of four failed: too few", defaults, "ffff", -1, "", 0, 0},
		{"all of five failed", defaults, "fffff", 1, "the campaign", 5, 5},
		{"three of the first five", defaults, "fsftssssssss", 1, "the campaign", 3, 5},
		{"two of five may be chance", defaults, "fsfss", -1, "", 0, 0},
		{"10 % of many may be chance", defaults, strings.Repeat("sssssssssf", 30), -1, "", 0, 0},
		{"20 % of many are not", defaults, strings.Repeat("ssssf", 16), 1, "the campaign", 16, 80},
		{"rejections of devices whose neighbors are under way", defaults, strings.Repeat(".........x", 30), -1, "", 0, 0},
		{"most of those notified first, however many follow", defaults, "xx.xx" + strings.Repeat(".", 300), 1,
			"the campaign", 4, 5},
		{"what is no verdict does not count", defaults, "ffncccnc.n" + "cncc", -1, "", 0, 0},
		{"devices not dispatched do not dilute", defaults, "nnnfnffnfffnn", 1, "the campaign", 6, 6},
		{"only its class", []campaign.AbortRule{rule("rejected", 1, 50, "campaign", 0, "pause")}, "fffffffffx", -1, "", 0, 0},
		{"the worst board", []campaign.AbortRule{rule("any", 2, 20, "board", 0, "abort")}, "sfsfsfsfsfsf", 0, "board b", 6, 6},
		{"any wave", []campaign.AbortRule{rule("any", 1, 50, "wave", 0, "abort")}, "ssssssssssss1fffffff", 0,
			"wave 2 (rest)", 7, 7},
		{"another wave", []campaign.AbortRule{rule("any", 1, 50, "wave", 1, "abort")}, "ssssssssssss1fffffff", -1, "", 0, 0},
		{"the severest", []campaign.AbortRule{rule("any", 1, 0, "campaign", 0, "pause"), rule("failed", 1, 0, "campaign", 0,
			"abort_and_rollback"), rule("any", 1, 0, "campaign", 0, "abort")}, "f", 1, "the campaign", 1, 1},
		{"the first of at least three", []campaign.AbortRule{rule("any", 3, 0, "campaign", 0, "pause")}, "f.", -1, "", 0, 0},
		{"of three under way", []campaign.AbortRule{rule("any", 3, 0, "campaign", 0, "pause")}, "f..", 0, "the campaign", 1, 3},
		{"the plain share", share(rule("any", 5, 10, "campaign", 0, "pause")), "ssssssf.s", 0, "the campaign", 1, 7},
		{"the plain share of five", share(rule("any", 5, 10, "campaign", 0, "pause")), "sfsss", 0, "the campaign", 1, 5},
		{"less than the plain share", share(rule("any", 5, 10, "campaign", 0, "pause")), "ssssssssssfs", -1, "", 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := campaign.JudgeAbort(tt.rules, dispatched(tt.order))
			if got == nil {
				if tt.index >= 0 {
					t.Fatalf("no rule fired, want rule %d: %+v", tt.index, campaign.AbortFigures(tt.rules, dispatched(tt.order)))
				}
				return
			}
			if got.Index != tt.index || said(got.Scope) != tt.scope || got.Counted != tt.n || got.Of != tt.of ||
				got.Rule != tt.rules[got.Index] {
				t.Errorf("%+v, want rule %d over %s, %d of %d", got, tt.index, tt.scope, tt.n, tt.of)
			}
		})
	}
}

// An operator who resumes a campaign accepts its failures so far: the rule stays silent until
// another device fails, and then judges the cohort that contains all of them.
func TestOverruledRule(t *testing.T) {
	rules := campaign.DefaultAbortRules()[1:]
	tests := []struct {
		name, order string
		after       int // of the order the operator saw
		fires       bool
		n, of       int
	}{
		{"nothing new", "fffffsssss", 10, false, 5, 5},
		{"many go well, one does not", "fffff" + strings.Repeat("s", 100) + "f", 50, false, 6, 106},
		{"the next fails as well", "fffffssssf", 8, true, 6, 10},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := dispatched(tt.order)
			at := start.Add(time.Duration(tt.after) * time.Second)
			e.OverruledAt = &at
			f := campaign.AbortFigures(rules, e)[0]
			if f.Fires != tt.fires || f.Counted != tt.n || f.Of != tt.of || f.Overruled != (tt.name == "nothing new") {
				t.Errorf("%+v, want %d of %d, fires %v", f, tt.n, tt.of, tt.fires)
			}
		})
	}
}

func TestSentenceOfAnAbortRule(t *testing.T) {
	share := campaign.DefaultAbortRules()[1]
	share.Measure = campaign.MeasureShare
	tests := []struct {
		rule  campaign.AbortRule
		order string
		want  string
	}{
		{campaign.DefaultAbortRules()[1], "fffssssss",
			"3 of the first 5 devices dispatched in the campaign ended failed: 60%, and at least 16.9% with 99% confidence; the rule stops at 10%"},
		{share, "fsssssss", "1 of the first 5 devices dispatched in the campaign ended failed: 20%; the rule stops at 10%"},
		{campaign.DefaultAbortRules()[0], "r",
			"1 of 1 device dispatched in wave 1 (canary) ended rolled back; the rule stops at the first"},
	}
	for _, tt := range tests {
		got := campaign.JudgeAbort([]campaign.AbortRule{tt.rule}, dispatched(tt.order))
		if got == nil || said(got.Reason()) != tt.want {
			t.Errorf("%+v reads %q, want %q", got, said(got.Reason()), tt.want)
		}
		mustBeKnown(t, got.Reason())
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
		{"soaking", 10, tally{"verifying": 3, "succeeded": 7}, 0, "soaking", "3 devices have to stay healthy for 0 ms"},
		{"soaking, the rest offline", 10, tally{"verifying": 3, "queued": 2, "succeeded": 5}, 2, "soaking",
			"3 devices have to stay healthy for 0 ms"},
		{"one waits for its turn", 10, tally{"verifying": 3, "queued": 2, "succeeded": 5}, 1, "running",
			"5 of 10 devices are not done"},
		{"good", 10, tally{"succeeded": 9, "failed": 1}, 0, "finished", "9 of 10 devices succeeded (90%)"},
		{"bad", 10, tally{"succeeded": 8, "failed": 2}, 0, "failed",
			"8 of 10 devices succeeded (80%); 90% can no longer be reached"},
		{"good, some offline", 10, tally{"succeeded": 5, "queued": 5}, 5, "finished",
			"5 of 5 devices succeeded (100%); 5 could not be reached yet"},
		{"too few, the rest offline", 10, tally{"succeeded": 4, "queued": 6}, 6, "running",
			"4 of 5 verdicts; 6 devices cannot be reached"},
		{"bad so far, the rest offline", 100, tally{"succeeded": 8, "failed": 2, "queued": 90}, 90, "failed",
			"8 of 10 devices succeeded (80%); 90% is required"},
		{"bad beyond hope while others work", 10, tally{"failed": 5, "downloading": 5}, 0, "failed",
			"0 of 5 devices succeeded (0%); 90% can no longer be reached"},
		{"bad, but too few to judge", 10, tally{"failed": 4, "downloading": 6}, 0, "running", "6 of 10 devices are not done"},
		{"a small wave needs all it has", 2, tally{"succeeded": 2}, 0, "finished", "2 of 2 devices succeeded (100%)"},
		{"skipped ones need no verdict", 4, tally{"succeeded": 2, "skipped": 2}, 0, "finished",
			"2 of 2 devices succeeded (100%)"},
		{"nobody left", 4, tally{"skipped": 3, "removed": 1}, 0, "failed",
			"no device in the wave reached a verdict (4 skipped, canceled or removed), so there is no evidence for the image"},
		{"an empty wave", 0, tally{}, 0, "finished", "the wave contains no devices"},
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
