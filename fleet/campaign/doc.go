// Package campaign brings many devices to a release. A plan selects its devices and splits them
// into waves, windows limit when it runs, and abort rules limit its failures. Each device's
// part is a deployment, a state machine whose input is evidence.
//
// All judgements are functions of their arguments: the next state of a deployment ([Advance]), the
// state of a wave, the next device. The package has no goroutine and no lock. It has no knowledge
// of how devices are reached or of the engine: package rollout has the clock, reads evidence, calls
// these functions and stores the results. [Service] implements the operators' acts on campaigns.
package campaign
