package campaign

import "fmt"

// A WaveVerdict says where a wave stands, and why.
type WaveVerdict struct {
	// State is [WaveRunning], [WaveSoaking], [WaveFinished] (good) or
	// [WaveFailed]. A manual gate is the caller's.
	State    WaveState
	Sentence string

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
	v.State, v.Sentence = v.judge(w, size, open, neutral)
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

func (v WaveVerdict) judge(w WavePlan, size, open, neutral int) (WaveState, string) {
	held := open - v.Stuck // devices that something will come of
	switch {
	case size == 0:
		return WaveFinished, "the wave holds no device"
	case open == 0 && v.Verdicts() == 0:
		return WaveFailed, fmt.Sprintf(
			"no device of the wave came to a verdict (%d skipped, canceled or removed): nothing speaks for the image", neutral)
	case v.Verdicts() >= v.Needed && v.hopeless(w, open):
		return WaveFailed, fmt.Sprintf("%s; %g %% cannot be reached any more", v.rate(), w.SuccessPercent)
	case held > v.Soaking:
		return WaveRunning, fmt.Sprintf("%d of %d devices are not done", open, size)
	case held > 0:
		return WaveSoaking, fmt.Sprintf("%d devices have to stay well for %v", v.Soaking, w.Soak)
	case v.Verdicts() < v.Needed:
		return WaveRunning, fmt.Sprintf("%d of %d verdicts; %d devices cannot be reached", v.Verdicts(), v.Needed, v.Stuck)
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
func (v WaveVerdict) passed(w WavePlan) (WaveState, string) {
	if float64(v.Succeeded)*100 < w.SuccessPercent*float64(v.Verdicts()) {
		return WaveFailed, fmt.Sprintf("%s, of %g %% needed", v.rate(), w.SuccessPercent)
	}
	if v.Stuck > 0 {
		return WaveFinished, fmt.Sprintf("%s; %d could not be reached yet", v.rate(), v.Stuck)
	}
	return WaveFinished, v.rate()
}

func (v WaveVerdict) rate() string {
	return fmt.Sprintf("%d of %d devices succeeded (%.3g %%)", v.Succeeded, v.Verdicts(), 100*float64(v.Succeeded)/float64(
		max(1, v.Verdicts())))
}
