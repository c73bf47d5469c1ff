package campaign

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// AbortTallies are the outcomes that abort rules look at: deployments by state.
type AbortTallies struct {
	ByState   map[DeploymentState]int
	ByWave    []map[DeploymentState]int // by wave number
	ByBoard   map[string]map[DeploymentState]int
	WaveNames []string // for the sentence; may be shorter than ByWave
}

// An AbortVerdict says which rule fired, and over what.
type AbortVerdict struct {
	Rule     AbortRule
	Index    int    // of the rule in the plan
	Scope    string // "the campaign", "wave 1 (canary)", "board esp-box-3"
	Counted  int    // outcomes of the rule's class
	Of       int    // verdicts in the scope
	Sentence string
}

// DefaultAbortRules are those of a plan that names none.
func DefaultAbortRules() []AbortRule {
	return []AbortRule{
		{Class: string(DeploymentRolledBack), MinExecuted: 1, Scope: ScopeWave, Wave: 1, Action: AbortPause},
		{Class: ClassAny, MinExecuted: 5, Percent: 10, Scope: ScopeCampaign, Action: AbortPause},
	}
}

// JudgeAbort returns the severest rule that fires, the first of several as
// severe, or nil. It has no memory: a rule that fired and was overruled by an
// operator fires again until the numbers change.
func JudgeAbort(rules []AbortRule, t AbortTallies) *AbortVerdict {
	var worst *AbortVerdict
	for i, r := range rules {
		v := r.judge(t)
		if v == nil || worst != nil && severity(v.Rule.Action) <= severity(worst.Rule.Action) {
			continue
		}
		v.Index = i
		worst = v
	}
	return worst
}

// abortSeverity orders what rules do.
var abortSeverity = []AbortAction{AbortPause, AbortAbort, AbortAndRollback}

func severity(a AbortAction) int { return slices.Index(abortSeverity, a) }

// judge returns the scope in which the rule fires with the highest share.
func (r AbortRule) judge(t AbortTallies) *AbortVerdict {
	var worst *AbortVerdict
	for _, s := range r.scopes(t) {
		v := r.judgeScope(s)
		if v != nil && (worst == nil || v.Counted*worst.Of > worst.Counted*v.Of) {
			worst = v
		}
	}
	return worst
}

type abortScope struct {
	label   string
	byState map[DeploymentState]int
}

func (r AbortRule) scopes(t AbortTallies) []abortScope {
	switch r.Scope {
	case ScopeWave:
		return waveScopes(r.Wave, t)
	case ScopeBoard:
		var all []abortScope
		for _, board := range slices.Sorted(maps.Keys(t.ByBoard)) {
			all = append(all, abortScope{"board " + cmp.Or(board, "(not stated)"), t.ByBoard[board]})
		}
		return all
	default:
		return []abortScope{{"the campaign", t.ByState}}
	}
}

func waveScopes(only int, t AbortTallies) []abortScope {
	var all []abortScope
	for i, byState := range t.ByWave {
		if only != 0 && only != i+1 {
			continue
		}
		label := fmt.Sprintf("wave %d", i+1)
		if i < len(t.WaveNames) && t.WaveNames[i] != "" {
			label += " (" + t.WaveNames[i] + ")"
		}
		all = append(all, abortScope{label, byState})
	}
	return all
}

func (r AbortRule) judgeScope(s abortScope) *AbortVerdict {
	counted, of := 0, 0
	for state, n := range s.byState {
		if state.Verdict() {
			of += n
		}
		if r.counts(state) {
			counted += n
		}
	}
	if counted == 0 || of < r.MinExecuted || float64(counted)*100 < r.Percent*float64(of) {
		return nil
	}
	return &AbortVerdict{Rule: r, Scope: s.label, Counted: counted, Of: of, Sentence: r.sentence(s.label, counted, of)}
}

func (r AbortRule) counts(s DeploymentState) bool {
	return s.Failed() && (r.Class == ClassAny || r.Class == string(s))
}

func (r AbortRule) sentence(scope string, counted, of int) string {
	what := r.Class
	if r.Class == ClassAny {
		what = "failed"
	}
	limit := "the first"
	if r.Percent > 0 {
		limit = fmt.Sprintf("%g %%", r.Percent)
	}
	return fmt.Sprintf("%d of %d devices in %s ended %s (%.3g %%); the rule stops at %s of at least %d",
		counted, of, scope, what, 100*float64(counted)/float64(of), limit, max(1, r.MinExecuted))
}
