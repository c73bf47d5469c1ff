package campaign

import (
	"time"

	"fleetd/fleet/firmware"
)

// Defaults of a [Plan] and its waves. Where zero means "not set", [Plan.Normalize] applies them, too.
const (
	defaultInFlight    = 10
	defaultAttempts    = 3
	defaultHeapPercent = 50
	defaultReconnects  = 3
	defaultSuccess     = 90 // percent
	defaultSample      = 1  // verdicts
)

// DefaultPlan is the base of every new campaign in the console, over REST and on the command line:
// the same few fields give the same digest everywhere. It lacks a name, a release and an audience.
//
// [Plan.Normalize] does not change it, and cannot make it from a zero Plan: there, a
// MinHeapPercent of 0 is the choice not to check.
func DefaultPlan() Plan {
	return Plan{Mode: firmware.ModeAuto, Waves: DefaultWaves(), AbortRules: DefaultAbortRules(),
		MaxInFlight: defaultInFlight, MaxAttempts: defaultAttempts, MinHeapPercent: defaultHeapPercent,
		MaxReconnects: defaultReconnects, EndBehavior: EndStopRollout}
}

// Names of the waves that the program plans automatically. They are stored in this form; pages
// translate them.
const (
	WaveCanary   = "canary"
	WaveEarly    = "early"
	WaveRest     = "rest"
	WaveEveryone = "everyone" // of a plan with one wave
)

// DefaultWaves returns the waves of a plan that lists none.
func DefaultWaves() []WavePlan {
	wave := func(name string, percent float64, soak time.Duration) WavePlan {
		return WavePlan{Name: name, Percent: percent, SuccessPercent: defaultSuccess, MinSample: defaultSample,
			Soak: soak, Gate: GateAuto}
	}
	return []WavePlan{
		wave(WaveCanary, 1, 10*time.Minute),
		wave(WaveEarly, 10, 2*time.Minute),
		wave(WaveRest, 100, 2*time.Minute),
	}
}

// DefaultAbortRules returns the abort rules of a plan that lists none.
func DefaultAbortRules() []AbortRule {
	return []AbortRule{
		{Class: string(DeploymentRolledBack), MinExecuted: 1, Scope: ScopeWave, Wave: 1, Action: AbortPause},
		{Class: ClassAny, MinExecuted: 5, Percent: 10, Scope: ScopeCampaign, Action: AbortPause},
	}
}
