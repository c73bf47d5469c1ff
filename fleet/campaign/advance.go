package campaign

import (
	"fleetd/fleet"
	"time"

	"github.com/google/uuid"
)

// Advance is the state machine of deployments: it takes one observation into
// account, changes d accordingly, and says what follows. It has no clock and
// does nothing itself; the same observations in the same order always end the
// same. Revision is left to the store.
//
// What observations must hold for it:
//   - the ELF of initialize is what the latest boot poll named; that of a probe
//     is what the device says when asked now
//   - the CallError of not_sent is [fleet.CodeBusy] if the device had no room;
//     every other one uses up no attempt
//   - a job is of the device that the deployment is of, and names its attempt
//   - timers may come late, twice, or for a deadline that was moved meanwhile
func Advance(d *Deployment, o Observation, p *Plan, soak time.Duration, t DeploymentTimers) Step {
	o.Detail = fleet.CleanText(o.Detail, maxDetail)
	a := advance{d: d, o: o, plan: p, soak: soak, timers: t, from: d.State, kind: o.Kind, reason: o.reason()}
	a.observe()
	return a.step()
}

// maxDetail bounds foreign text in a reason, in bytes.
const maxDetail = 480

// An advance is [Advance] at work.
type advance struct {
	d      *Deployment
	o      Observation
	plan   *Plan
	soak   time.Duration
	timers DeploymentTimers
	from   DeploymentState

	kind    fleet.EvidenceKind // of the event row
	reason  fleet.Reason       // of the event row
	act     Act
	record  bool // the observation is worth a row
	changed bool
}

func (a *advance) step() Step {
	s := Step{Act: a.act, Changed: a.changed}
	if a.changed && a.o.At.After(a.d.UpdatedAt) {
		a.d.UpdatedAt = a.o.At
	}
	if !a.record {
		return s
	}
	attempt := a.o.Attempt
	if attempt == 0 {
		attempt = a.d.Attempt
	}
	s.Event = &DeploymentEvent{ID: uuid.Must(uuid.NewV7()), Deployment: a.d.ID, At: a.o.At, Attempt: attempt,
		Kind: a.kind, Reason: a.reason, From: a.from, To: a.d.State}
	return s
}

// observe finds the rule for the observation: first what holds in every state,
// then the state's own.
func (a *advance) observe() {
	switch {
	case a.o.Kind == fleet.EvidenceJob && a.o.Attempt == 0: // a job of nobody knows what
	case a.o.Attempt != 0 && a.o.Attempt != a.d.Attempt:
		a.ofEarlierAttempt()
	case a.d.State.Final():
		a.afterVerdict()
	case a.o.Kind == fleet.EvidenceJob:
		a.job()
	case a.anywhere(), a.provesImage():
	case a.d.State.Waiting():
		a.waiting()
	default:
		a.active()
	}
}

// ofEarlierAttempt keeps what tells the story of an attempt that was given up.
func (a *advance) ofEarlierAttempt() {
	switch a.o.Kind {
	case fleet.EvidenceAnswer, fleet.EvidenceLateAnswer, fleet.EvidenceRefused, fleet.EvidenceGet, fleet.EvidenceCut,
		fleet.EvidenceDownloaded:
		a.record = true
	case fleet.EvidenceJob:
		a.record = a.o.Job.Final() && a.o.Attempt < a.d.Attempt
	}
}

func (a *advance) active() {
	switch a.d.State {
	case DeploymentDispatching, DeploymentSent, DeploymentOffered, DeploymentAmbiguous:
		a.told()
	case DeploymentDownloading:
		a.downloading()
	case DeploymentDownloaded, DeploymentRebooting:
		a.fetched()
	case DeploymentBooted:
		a.booted()
	case DeploymentVerifying:
		a.verifying()
	}
}

// connectivity keeps what happens to the connection where no step waits for it.
func (a *advance) connectivity() {
	switch a.o.Kind {
	case fleet.EvidenceConnect, fleet.EvidenceDisconnect, fleet.EvidenceConnectionLost, fleet.EvidenceInitialize,
		fleet.EvidenceBootPoll,
		fleet.EvidenceAnswer, fleet.EvidenceLateAnswer, fleet.EvidenceRefused, fleet.EvidenceProbe, fleet.EvidenceGet,
		fleet.EvidenceCut, fleet.EvidenceRevoked:
		a.record = true
	}
}

// enter moves on to an active state, which a deadline bounds. An attempt that
// had been given up, as its class tells, goes on: it did not fail after all.
func (a *advance) enter(s DeploymentState, patience time.Duration) {
	a.record = true
	if a.d.Class != "" {
		a.d.Failures = max(0, a.d.Failures-1)
	}
	a.d.State, a.d.Probed = s, false
	a.d.Class, a.d.Reason = "", fleet.Reason{}
	a.d.NotBefore, a.d.FinishedAt = nil, nil
	a.setDeadline(a.o.At.Add(patience))
}

func (a *advance) setDeadline(at time.Time) {
	a.d.Deadline = &at
	a.changed = true
}

// finish ends the deployment, and with it the attempt under way.
func (a *advance) finish(s DeploymentState, class FailureClass, reason fleet.Reason) {
	a.record, a.changed = true, true
	if s.Failed() {
		a.d.Failures++
	}
	at := a.o.At
	a.d.State, a.d.Class, a.d.Reason = s, class, reason
	a.d.Deadline, a.d.NotBefore, a.d.FinishedAt = nil, nil, &at
	a.d.Late = a.d.Late && s == DeploymentSucceeded
}

// explain says what the deployment waits for, without moving it.
func (a *advance) explain(reason fleet.Reason) {
	a.record, a.changed = true, true
	a.d.Reason = reason
}

// probe has the device asked which build it runs.
func (a *advance) probe() {
	a.record, a.changed = true, true
	a.act, a.d.Probed = ActProbe, true
}

// timeUp reports a timer whose deadline did pass. Timers that come early were
// set before the deadline moved.
func (a *advance) timeUp() bool {
	return a.o.Kind == fleet.EvidenceTimer && a.d.Deadline != nil && !a.o.At.Before(*a.d.Deadline)
}

// sinceLastChange reports that the observation was made after all that is on
// record: only then does an old build or a new connection say anything.
func (a *advance) sinceLastChange() bool { return a.o.At.After(a.d.UpdatedAt) }
