package campaign

import (
	"fleetd/fleet"
	"maps"
	"slices"
	"strconv"
)

// AbortTallies are the outcomes that abort rules look at: deployments by state.
type AbortTallies struct {
	ByState   map[DeploymentState]int
	ByWave    []map[DeploymentState]int // by wave number
	ByBoard   map[string]map[DeploymentState]int
	WaveNames []string // for the reason; may be shorter than ByWave
}

// An AbortVerdict says which rule fired, and over what.
type AbortVerdict struct {
	Rule    AbortRule
	Index   int          // of the rule in the plan
	Scope   fleet.Reason // the campaign, a wave or a board
	Counted int          // outcomes of the rule's class
	Of      int          // verdicts in the scope
	Reason  fleet.Reason
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
	label   fleet.Reason
	byState map[DeploymentState]int
}

func (r AbortRule) scopes(t AbortTallies) []abortScope {
	switch r.Scope {
	case ScopeWave:
		return waveScopes(r.Wave, t)
	case ScopeBoard:
		var all []abortScope
		for _, board := range slices.Sorted(maps.Keys(t.ByBoard)) {
			label := fleet.Because(ReasonScopeOfNoBoard)
			if board != "" {
				label = fleet.Because(ReasonScopeOfBoard, "name", board)
			}
			all = append(all, abortScope{label, t.ByBoard[board]})
		}
		return all
	default:
		return []abortScope{{fleet.Because(ReasonScopeOfAll), t.ByState}}
	}
}

func waveScopes(only int, t AbortTallies) []abortScope {
	var all []abortScope
	for i, byState := range t.ByWave {
		if only != 0 && only != i+1 {
			continue
		}
		label := fleet.Because(ReasonScopeOfWave, "wave", i+1)
		if i < len(t.WaveNames) && t.WaveNames[i] != "" {
			label = fleet.Because(ReasonScopeOfNamedWave, "wave", i+1, "name", t.WaveNames[i])
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
	return &AbortVerdict{Rule: r, Scope: s.label, Counted: counted, Of: of, Reason: r.reason(s.label, counted, of)}
}

func (r AbortRule) counts(s DeploymentState) bool {
	return s.Failed() && (r.Class == ClassAny || r.Class == string(s))
}

func (r AbortRule) reason(scope fleet.Reason, counted, of int) fleet.Reason {
	limit := fleet.Because(ReasonLimitFirst)
	if r.Percent > 0 {
		limit = fleet.Because(ReasonLimitShare, "share", percentText(r.Percent))
	}
	return fleet.Because(ReasonRuleFired, "counted", counted, "of", of, "scope", scope,
		"outcome", fleet.Because(outcomeCode(r.Class)), "share", shareOf(counted, of), "limit", limit,
		"sample", max(1, r.MinExecuted))
}

// shareOf is a share in percent, with three digits.
func shareOf(n, of int) string {
	return strconv.FormatFloat(100*float64(n)/float64(max(1, of)), 'g', 3, 64)
}

func percentText(percent float64) string { return strconv.FormatFloat(percent, 'g', -1, 64) }
