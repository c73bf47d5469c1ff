// Package campaign brings many devices to a release: a plan picks its devices
// and splits them into waves, windows say when, abort rules say when to stop,
// and each device's part is a deployment, a state machine fed with evidence.
//
// Everything that judges is a function of its arguments: what a deployment does
// next ([Advance]), how a wave stands, which device is next. The package has no
// goroutine and no lock. It does not know how devices are reached, nor who
// drives it: package rollout has the clock, reads evidence, asks here, and
// stores the results. [Service] is what operators do with campaigns.
package campaign
