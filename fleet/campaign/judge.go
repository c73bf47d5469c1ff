package campaign

import (
	"maps"
	"slices"
	"strconv"

	"fleetd/fleet"
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

// A WaveVerdict says where a wave stands, and why.
type WaveVerdict struct {
	// State is [WaveRunning], [WaveSoaking], [WaveFinished] (good) or
	// [WaveFailed]. A manual gate is the caller's.
	State  WaveState
	Reason fleet.Reason

	Waiting   int // not notified yet, those that cannot be reached included
	Stuck     int // of these: cannot be reached now
	Active    int // notified, soaking ones included
	Soaking   int // only have to stay well
	Succeeded int
	Failed    int
	Needed    int // verdicts that the wave needs
}

// Verdicts is how many devices said something about the image.
func (v WaveVerdict) Verdicts() int { return v.Succeeded + v.Failed }

// JudgeWave judges a wave of size devices. Of those that wait, stuck cannot be
// reached: they do not hold the wave up once the others gave a sample.
func JudgeWave(w WavePlan, size int, byState map[DeploymentState]int, stuck int) WaveVerdict {
	v := tallyWave(byState, stuck)
	open := v.Waiting + v.Active
	neutral := max(0, size-open-v.Verdicts())
	v.Needed = max(1, min(w.MinSample, size-neutral))
	v.State, v.Reason = v.judge(w, size, open, neutral)
	return v
}

func tallyWave(byState map[DeploymentState]int, stuck int) WaveVerdict {
	v := WaveVerdict{Succeeded: byState[DeploymentSucceeded], Soaking: byState[DeploymentVerifying]}
	for s, n := range byState {
		switch {
		case s.Waiting():
			v.Waiting += n
		case s.Active():
			v.Active += n
		case s.Failed():
			v.Failed += n
		}
	}
	v.Stuck = max(0, min(stuck, byState[DeploymentQueued]))
	return v
}

func (v WaveVerdict) judge(w WavePlan, size, open, neutral int) (WaveState, fleet.Reason) {
	held := open - v.Stuck // devices that something will come of
	switch {
	case size == 0:
		return WaveFinished, fleet.Because(ReasonWaveEmpty)
	case open == 0 && v.Verdicts() == 0:
		return WaveFailed, fleet.Because(ReasonWaveNoVerdict, "left_out", neutral)
	case v.Verdicts() >= v.Needed && v.hopeless(w, open):
		return WaveFailed, fleet.Because(ReasonWaveHopeless, "succeeded", v.Succeeded, "of", v.Verdicts(), "share", v.share(),
			"needed", percentText(w.SuccessPercent))
	case held > v.Soaking:
		return WaveRunning, fleet.Because(ReasonWaveUnderWay, "open", open, "size", size)
	case held > 0:
		return WaveSoaking, fleet.Because(ReasonWaveStaysWell, "devices", v.Soaking, "soak_ms", w.Soak)
	case v.Verdicts() < v.Needed:
		return WaveRunning, fleet.Because(ReasonWaveUnreachable, "verdicts", v.Verdicts(), "needed", v.Needed,
			"unreachable", v.Stuck)
	default:
		return v.passed(w)
	}
}

// hopeless says that the success rule fails even if every open device succeeds.
func (v WaveVerdict) hopeless(w WavePlan, open int) bool {
	return float64(v.Succeeded+open)*100 < w.SuccessPercent*float64(v.Verdicts()+open)
}

// passed states the success of a wave that is not hopeless. Devices that could
// not be reached are not counted.
func (v WaveVerdict) passed(w WavePlan) (WaveState, fleet.Reason) {
	if float64(v.Succeeded)*100 < w.SuccessPercent*float64(v.Verdicts()) {
		return WaveFailed, fleet.Because(ReasonWaveTooFew, "succeeded", v.Succeeded, "of", v.Verdicts(), "share", v.share(),
			"needed", percentText(w.SuccessPercent))
	}
	if v.Stuck > 0 {
		return WaveFinished, fleet.Because(ReasonWaveSomeLeft, "succeeded", v.Succeeded, "of", v.Verdicts(),
			"share", v.share(), "unreachable", v.Stuck)
	}
	return WaveFinished, fleet.Because(ReasonWaveRate, "succeeded", v.Succeeded, "of", v.Verdicts(), "share", v.share())
}

// share of the verdicts that are successes, in percent.
func (v WaveVerdict) share() string { return shareOf(v.Succeeded, v.Verdicts()) }
