package campaign

import "fleetd/fleet"

// A WaveVerdict says where a wave stands, and why.
type WaveVerdict struct {
	// State is [WaveRunning], [WaveSoaking], [WaveFinished] (good) or
	// [WaveFailed]. A manual gate is the caller's.
	State  WaveState
	Reason fleet.Reason

	Waiting   int // not told yet, those that cannot be reached included
	Stuck     int // of these: cannot be reached now
	Active    int // told, soaking ones included
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
