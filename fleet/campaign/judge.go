package campaign

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"fleetd/fleet"
)

// AbortEvidence is the input of abort rules.
type AbortEvidence struct {
	Cohorts   Cohorts
	WaveNames []string // as planned, one per wave
	// OverruledAt is when an operator resumed the campaign despite the failures so far, or nil.
	// Rules are then silent until the next failure.
	OverruledAt *time.Time
}

// An AbortFigure says how close an abort rule is to firing, in the scope where it is closest.
type AbortFigure struct {
	Rule    AbortRule
	Index   int          // of the rule in the plan
	Scope   fleet.Reason // the campaign, a wave or a board
	Counted int          // failures of the rule's class among the first Of notified devices
	Of      int          // 0: none was notified
	Share   float64      // Counted of Of, percent
	Bound   float64      // lower bound of the share with 99 % confidence, percent
	// Short reports that fewer devices were notified than the rule requires.
	Short bool
	// Overruled reports that an operator resumed the campaign despite these failures.
	Overruled bool
	Fires     bool
}

// JudgeAbort returns the most severe rule that fires, the first of several with equal severity,
// or nil. It is stateless: a rule that fired and was overruled by an operator fires again with
// the next failure, unless the numbers changed.
func JudgeAbort(rules []AbortRule, e AbortEvidence) *AbortFigure {
	var worst *AbortFigure
	for _, f := range AbortFigures(rules, e) {
		if f.Fires && (worst == nil || severity(f.Rule.Action) > severity(worst.Rule.Action)) {
			worst = &f
		}
	}
	return worst
}

// AbortFigures returns for each rule the figure that [JudgeAbort] uses.
func AbortFigures(rules []AbortRule, e AbortEvidence) []AbortFigure {
	figures := make([]AbortFigure, len(rules))
	for i, r := range rules {
		figures[i] = r.figure(e)
		figures[i].Index = i
	}
	return figures
}

// abortSeverity orders actions by severity.
var abortSeverity = []AbortAction{AbortPause, AbortAbort, AbortAndRollback}

func severity(a AbortAction) int { return slices.Index(abortSeverity, a) }

// figure returns the figure of the scope in which the rule is closest to firing.
func (r AbortRule) figure(e AbortEvidence) AbortFigure {
	var worst *AbortFigure
	for _, s := range r.scopes(e) {
		f := r.look(s.cohortScope, e.OverruledAt)
		f.Scope = s.label
		if worst == nil || r.nearer(f, *worst) {
			worst = &f
		}
	}
	if worst == nil { // no such wave or board yet
		return AbortFigure{Rule: r, Scope: fleet.Because(ReasonScopeOfAll), Short: true}
	}
	return *worst
}

// nearer reports whether a is nearer to firing than b. Both are figures of this rule.
func (r AbortRule) nearer(a, b AbortFigure) bool {
	switch {
	case a.Fires != b.Fires:
		return a.Fires
	case a.Short != b.Short:
		return b.Short
	case a.Overruled != b.Overruled:
		return b.Overruled
	case r.Percent == 0 && a.Counted != b.Counted:
		return a.Counted > b.Counted
	case r.byShare() && a.Share != b.Share:
		return a.Share > b.Share
	case !r.byShare() && (a.Counted >= minBoundFailures) != (b.Counted >= minBoundFailures):
		return a.Counted > b.Counted
	case a.Bound != b.Bound:
		return a.Bound > b.Bound
	}
	return a.Of > b.Of
}

type abortScope struct {
	label fleet.Reason
	cohortScope
}

func (r AbortRule) scopes(e AbortEvidence) []abortScope {
	c := e.Cohorts
	switch r.Scope {
	case ScopeWave:
		return r.waveScopes(e)
	case ScopeBoard:
		var all []abortScope
		for _, board := range slices.Sorted(maps.Keys(c.ByBoard)) {
			label := fleet.Because(ReasonScopeOfNoBoard)
			if board != "" {
				label = fleet.Because(ReasonScopeOfBoard, "name", board)
			}
			all = append(all, abortScope{label, c.scope(c.ByBoard[board], func(f CohortFailure) (int, bool) {
				return f.InBoard, f.Board == board
			})})
		}
		return all
	default:
		return []abortScope{{fleet.Because(ReasonScopeOfAll), c.scope(c.Size, func(f CohortFailure) (int, bool) {
			return f.InCampaign, true
		})}}
	}
}

func (r AbortRule) waveScopes(e AbortEvidence) []abortScope {
	var all []abortScope
	for i, name := range e.WaveNames {
		if r.Wave != 0 && r.Wave != i+1 {
			continue
		}
		label := fleet.Because(ReasonScopeOfWave, "wave", i+1)
		if name != "" {
			label = fleet.Because(ReasonScopeOfNamedWave, "wave", i+1, "name", name)
		}
		all = append(all, abortScope{label, e.Cohorts.scope(e.Cohorts.ByWave[i], func(f CohortFailure) (int, bool) {
			return f.InWave, f.Wave == i
		})})
	}
	return all
}

// look compares the rule with every cohort of a scope that ends with a failure: one comparison after
// each verdict, in the order of dispatch. It ignores cohorts smaller than MinExecuted and those that
// an operator overruled. A cohort counts again if it includes all earlier failures and another one.
func (r AbortRule) look(s cohortScope, overruled *time.Time) AbortFigure {
	mine := slices.DeleteFunc(s.failures, func(f placedFailure) bool { return !r.counts(f.state) })
	isNew := func(f placedFailure) bool { return overruled == nil || f.at.After(*overruled) }
	from := max(1, r.MinExecuted)
	for _, f := range mine {
		if !isNew(f) {
			from = max(from, f.place)
		}
	}
	if r.Percent == 0 {
		from = max(from, s.size) // the first one, wherever it is
	}
	worst := r.hold(0, s.size)
	worst.Short = s.size < r.MinExecuted
	fresh := 0
	for i, f := range mine {
		if isNew(f) {
			fresh++
		}
		if i+1 < len(mine) && mine[i+1].place <= from {
			continue // the cohort of that size includes that failure, too
		}
		c := r.hold(i+1, min(max(from, f.place), s.size))
		c.Short, c.Overruled = worst.Short, fresh == 0
		c.Fires = c.Fires && !c.Short && !c.Overruled
		if worst.Counted == 0 || r.nearer(c, worst) {
			worst = c
		}
	}
	return worst
}

// hold compares the share of a cohort with the rule.
func (r AbortRule) hold(counted, of int) AbortFigure {
	f := AbortFigure{Rule: r, Counted: counted, Of: of, Share: 100 * float64(counted) / float64(max(1, of)),
		Bound: lowerBound(counted, of)}
	switch {
	case counted == 0:
	case r.Percent == 0:
		f.Fires = true
	case r.byShare():
		f.Fires = f.Share >= r.Percent
	default:
		f.Fires = counted >= minBoundFailures && f.Bound >= r.Percent
	}
	return f
}

func (r AbortRule) byShare() bool { return r.Measure == MeasureShare }

func (r AbortRule) counts(s DeploymentState) bool {
	return s.Failed() && (r.Class == ClassAny || r.Class == string(s))
}

// Reason returns why the rule fired.
func (f AbortFigure) Reason() fleet.Reason {
	outcome, limit := fleet.Because(outcomeCode(f.Rule.Class)), percentText(f.Rule.Percent)
	switch {
	case f.Rule.Percent == 0:
		return fleet.Because(ReasonRuleFirst, "counted", f.Counted, "of", f.Of, "scope", f.Scope, "outcome", outcome)
	case f.Rule.byShare():
		return fleet.Because(ReasonRuleShare, "counted", f.Counted, "of", f.Of, "scope", f.Scope, "outcome", outcome,
			"share", threeDigits(f.Share), "limit", limit)
	}
	return fleet.Because(ReasonRuleBound, "counted", f.Counted, "of", f.Of, "scope", f.Scope, "outcome", outcome,
		"share", threeDigits(f.Share), "limit", limit, "bound", threeDigits(f.Bound))
}

// shareOf returns a share in percent with three digits.
func shareOf(n, of int) string { return threeDigits(100 * float64(n) / float64(max(1, of))) }

func threeDigits(percent float64) string { return strconv.FormatFloat(percent, 'g', 3, 64) }

func percentText(percent float64) string { return strconv.FormatFloat(percent, 'g', -1, 64) }

// A WaveVerdict is the state of a wave, with the reason.
type WaveVerdict struct {
	// State is [WaveRunning], [WaveSoaking], [WaveFinished] (good) or [WaveFailed]. The caller
	// handles manual gates.
	State  WaveState
	Reason fleet.Reason

	Waiting   int // not notified yet, including unreachable devices
	Stuck     int // part of Waiting: unreachable now
	Active    int // notified, including soaking devices
	Soaking   int // only have to stay healthy
	Succeeded int
	Failed    int
	Needed    int // verdicts that the wave needs
}

// Verdicts returns the number of devices with a verdict.
func (v WaveVerdict) Verdicts() int { return v.Succeeded + v.Failed }

// JudgeWave judges a wave of size devices. Of the waiting devices, stuck cannot be reached:
// they do not delay the wave once the others are a sufficient sample.
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
	held := open - v.Stuck // devices that can still give a verdict
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

// hopeless reports whether the success rule fails even if every open device succeeds.
func (v WaveVerdict) hopeless(w WavePlan, open int) bool {
	return float64(v.Succeeded+open)*100 < w.SuccessPercent*float64(v.Verdicts()+open)
}

// passed returns the result of a wave that is not hopeless. It ignores devices that could not
// be reached.
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

// share returns the successes as a share of the verdicts, in percent.
func (v WaveVerdict) share() string { return shareOf(v.Succeeded, v.Verdicts()) }
