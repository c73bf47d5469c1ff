package campaign

import (
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

const (
	// maxDetail bounds untrusted text in a reason, in bytes.
	maxDetail = 480
	// hastyGet is how soon after the last change another GET of a link gets no row. Nothing
	// else limits how often a client with the link sends requests.
	hastyGet = time.Second
	// longestBackoff bounds the growth of [DeploymentTimers.Backoff].
	longestBackoff = 6 * time.Hour
)

// An advance is the state of one call of [Advance]. The rules are in transitions.go; this file
// has their parts.
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
	record  bool // the observation is stored as a row
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

// BeginAttempt starts the next attempt of a queued deployment. By push it is dispatching until
// [fleet.EvidenceSent]; by pull the answer to the current poll notifies the device. The caller
// stores d with the event and the link.
func BeginAttempt(d *Deployment, mode firmware.DispatchMode, at time.Time, t DeploymentTimers) DeploymentEvent {
	from := d.State
	d.Attempt++
	d.State, d.SentAt = DeploymentDispatching, nil
	if d.DispatchedAt == nil {
		d.DispatchedAt = &at
	}
	kind := fleet.EvidenceDispatched
	if mode == firmware.ModePull {
		d.State, d.SentAt = DeploymentOffered, &at
		d.Offers++
		kind = fleet.EvidenceOffered
	}
	deadline := at.Add(t.Get)
	d.Deadline, d.NotBefore, d.GetAt, d.FinishedAt = &deadline, nil, nil, nil
	d.Class, d.Reason, d.BytesSent, d.Percent, d.Reconnects = "", fleet.Reason{}, 0, nil, 0
	d.Booted, d.Away, d.Checked, d.Probed = false, false, false, false
	d.UpdatedAt = at
	return DeploymentEvent{ID: uuid.Must(uuid.NewV7()), Deployment: d.ID, At: at, Attempt: d.Attempt, Kind: kind,
		From: from, To: d.State}
}

// enter moves to an active state with a deadline. An attempt that had been given up, which its
// class shows, continues: it did not fail after all.
func (a *advance) enter(s DeploymentState, timeout time.Duration) {
	a.record = true
	if a.d.Class != "" {
		a.d.Failures = max(0, a.d.Failures-1)
	}
	a.d.State, a.d.Probed = s, false
	a.d.Class, a.d.Reason = "", fleet.Reason{}
	a.d.NotBefore, a.d.FinishedAt = nil, nil
	a.setDeadline(a.o.At.Add(timeout))
}

func (a *advance) enterDownloading() {
	a.noteGet() // the GET may overtake the evidence that the call was sent
	a.enter(DeploymentDownloading, 0)
	a.d.BytesSent = a.o.Bytes
	a.renewStall()
}

func (a *advance) enterDownloaded() {
	a.noteGet()
	a.enter(DeploymentDownloaded, a.timers.Goodbye)
	a.d.BytesSent = max(a.o.Bytes, a.d.ImageSize)
}

func (a *advance) noteGet() {
	at := a.o.At
	if a.d.GetAt == nil {
		a.d.GetAt = &at
	}
	if a.d.SentAt == nil {
		a.d.SentAt = &at
	}
}

func (a *advance) enterBooted() {
	a.enter(DeploymentBooted, a.timers.Connect)
	a.d.Booted, a.d.Away = true, true
	a.d.Checked, a.d.Reconnects = false, 0
}

// bootedAgain handles a device that restarted with the image: it must connect, pass its checks
// and soak again.
func (a *advance) bootedAgain() {
	if !a.sinceLastChange() { // the same poll that led here
		return
	}
	a.record = true
	if a.flapping() {
		return
	}
	n := a.d.Reconnects
	a.enterBooted()
	a.d.Reconnects = n
}

func (a *advance) enterVerifying() {
	a.enter(DeploymentVerifying, a.soak)
	a.d.Checked, a.d.Away = false, false
	a.act = ActVerify
}

// flapping counts a lost connection, and ends a deployment with too many.
func (a *advance) flapping() bool {
	a.changed = true
	a.d.Reconnects++
	if a.d.Reconnects <= a.plan.MaxReconnects {
		return false
	}
	a.finish(DeploymentUnhealthy, FailureUnhealthy, fleet.Because(ReasonFlapping, "times", a.d.Reconnects,
		"most", a.plan.MaxReconnects))
	return true
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

func (a *advance) succeed() { a.finish(DeploymentSucceeded, "", fleet.Reason{}) }

// failAttempt ends the current attempt. It is repeated if the class allows that and attempts are left.
func (a *advance) failAttempt(class FailureClass, reason fleet.Reason) {
	a.act = ActRevoke
	if !class.Retried() || a.d.Failures+1 >= a.plan.MaxAttempts {
		state := DeploymentFailed
		if class == FailureTimeout {
			state = DeploymentTimedOut
		}
		a.finish(state, class, reason)
		return
	}
	a.d.Failures++
	a.requeue(class, reason, backoff(a.timers.Backoff, a.d.Failures))
	a.kind, a.reason = fleet.EvidenceRetry, reason
}

// requeue returns the deployment to the queue for its next attempt. class is that of the failed
// attempt, or "" if none failed.
func (a *advance) requeue(class FailureClass, reason fleet.Reason, wait time.Duration) {
	a.record, a.changed = true, true
	at := a.o.At.Add(jittered(wait, a.d.ID, a.d.Attempt))
	a.d.State, a.d.Class, a.d.Reason = DeploymentQueued, class, reason
	a.d.NotBefore, a.d.Deadline = &at, nil
	a.d.Probed = false
}

// backoff returns the wait, which is quadrupled after each failure.
func backoff(first time.Duration, failures int) time.Duration {
	wait := first
	for range failures - 1 {
		if wait *= 4; wait >= longestBackoff {
			return longestBackoff
		}
	}
	return wait
}

// jittered changes a wait by up to a fifth in either direction, so devices that failed together
// do not return together.
func jittered(wait time.Duration, deployment uuid.UUID, attempt int) time.Duration {
	sum := sha256.Sum256(binary.BigEndian.AppendUint32(deployment[:], uint32(attempt)))
	part := float64(binary.BigEndian.Uint32(sum[:]))/(1<<32)*0.4 - 0.2
	return wait + time.Duration(part*float64(wait))
}

// explain sets what the deployment waits for, without changing its state.
func (a *advance) explain(reason fleet.Reason) {
	a.record, a.changed = true, true
	a.d.Reason = reason
}

// explainUnpolled handles a device that runs the image but has not polled with it. Stock firmware
// confirms its image by the poll (protocol 7.4); a device that reports on its upgrade does not need it.
func (a *advance) explainUnpolled() {
	if a.d.ReportsProgress() {
		a.explain(fleet.Because(ReasonPollUnseen))
		return
	}
	a.explain(fleet.Because(ReasonUnconfirmed))
}

func (a *advance) unpolled() bool {
	return a.d.Reason.Is(ReasonUnconfirmed) || a.d.Reason.Is(ReasonPollUnseen)
}

// onRecord records connection events for which no step waits.
func (a *advance) onRecord() {
	switch a.o.Kind {
	case fleet.EvidenceConnect, fleet.EvidenceDisconnect, fleet.EvidenceConnectionLost, fleet.EvidenceInitialize,
		fleet.EvidenceBootPoll, fleet.EvidenceAnswer, fleet.EvidenceLateAnswer, fleet.EvidenceRefused,
		fleet.EvidenceProbe, fleet.EvidenceGet, fleet.EvidenceCut, fleet.EvidenceRevoked:
		a.record = true
	}
}

func (a *advance) revokeLink() {
	if a.d.State.Active() {
		a.act = ActRevoke
	}
}

// probe requests the running build from the device.
func (a *advance) probe() {
	a.record, a.changed = true, true
	a.act, a.d.Probed = ActProbe, true
}

// askWhichBuild probes, and waits for the boot poll meanwhile.
func (a *advance) askWhichBuild() {
	until := a.lastByte().Add(a.timers.BootPoll)
	a.probe()
	a.setDeadline(until)
}

// askAfterReturn handles a device that is back on the broker without a boot poll.
func (a *advance) askAfterReturn() {
	a.record = true
	switch {
	case !a.sinceLastChange() || a.unpolled():
	case a.d.State == DeploymentDownloaded && !a.d.Probed:
		a.askWhichBuild()
	default:
		a.probe()
	}
}

// awaitReport delays the verdict on a device that reports on its upgrade and runs its old
// build, if it has not reported why.
func (a *advance) awaitReport() bool {
	if ReportedByDevice(a.d.Reason) || !a.d.ReportsProgress() || a.build() != buildOld {
		return false
	}
	a.record = true
	if !a.sinceLastChange() {
		return true
	}
	if a.d.State != DeploymentDownloaded || a.o.Kind == fleet.EvidenceBootPoll {
		a.d.State = DeploymentRebooting
	}
	a.d.Probed = true
	a.explain(fleet.Because(ReasonAwaitsReport))
	a.setDeadline(a.o.At.Add(a.timers.Connect))
	return true
}

// failedBuild ends a deployment whose device returned with a build other than the image.
func (a *advance) failedBuild() bool {
	switch {
	case !a.sinceLastChange():
		return false
	case a.awaitReport():
	case a.build() == buildOld:
		a.finish(DeploymentRolledBack, FailureRolledBack, a.whyRolledBack())
	case a.build() == buildOther:
		a.finish(DeploymentWrongBuild, FailureWrongBuild,
			fleet.Because(ReasonOtherBuild, "build", fleet.CleanText(a.o.ELF, 12)))
	default:
		return false
	}
	return true
}

// whyRolledBack returns the device's earlier report, if there is one.
func (a *advance) whyRolledBack() fleet.Reason {
	if ReportedByDevice(a.d.Reason) {
		return a.d.Reason
	}
	return fleet.Because(ReasonRolledBack)
}

func (a *advance) whyStalled() fleet.Reason {
	sent, size := a.d.BytesSent, a.d.ImageSize
	if !a.d.Deadline.Before(a.d.GetAt.Add(a.wholeDownload())) {
		return fleet.Because(ReasonTooSlow, "limit_ms", a.wholeDownload(), "sent_bytes", sent, "image_bytes", size)
	}
	return fleet.Because(ReasonStalled, "idle_ms", a.timers.Stall, "sent_bytes", sent, "image_bytes", size)
}

func (a *advance) whyCut() fleet.Reason {
	sent, size := a.d.BytesSent, a.d.ImageSize
	if a.o.Reason.Is("") {
		return fleet.Because(ReasonBrokeOff, "sent_bytes", sent, "image_bytes", size)
	}
	return fleet.Because(ReasonBrokeOffBecause, "sent_bytes", sent, "image_bytes", size, "why", a.o.Reason)
}

// missing returns what a finished soak lacks.
func (a *advance) missing(connection, checks string) fleet.Reason {
	if a.d.Away {
		return fleet.Because(connection)
	}
	return fleet.Because(checks)
}

// notePercent records the progress and reports whether it is stored as a row: the first report
// is, and each quarter.
func (a *advance) notePercent(percent int) bool {
	percent = bounded(percent)
	was := a.d.Percent
	if was != nil && percent <= *was {
		return false
	}
	a.d.Percent, a.changed = &percent, true
	return was == nil || percent/25 > *was/25
}

func bounded(percent int) int { return min(max(percent, 0), 100) }

func (a *advance) setDeadline(at time.Time) {
	a.d.Deadline = &at
	a.changed = true
}

// renew extends a step to at least timeout from now.
func (a *advance) renew(timeout time.Duration) {
	a.record, a.changed = true, true
	if until := a.o.At.Add(timeout); a.d.Deadline == nil || a.d.Deadline.Before(until) {
		a.setDeadline(until)
	}
}

// extend gives the step more time, up to a bound: a device cannot occupy its place forever.
func (a *advance) extend(timeout time.Duration, last time.Time) {
	until := a.o.At.Add(timeout)
	if until.After(last) {
		until = last
	}
	if a.d.Deadline.Before(until) {
		a.setDeadline(until)
	}
}

// renewStall extends the deadline with each byte, up to the bound of the whole download. It
// never moves it back, because observations may overtake each other.
func (a *advance) renewStall() {
	until := a.o.At.Add(a.timers.Stall)
	if last := a.d.GetAt.Add(a.wholeDownload()); until.After(last) {
		until = last
	}
	if a.d.Deadline == nil || until.After(*a.d.Deadline) {
		a.d.Deadline = &until
	}
	a.changed = true
}

func (a *advance) wholeDownload() time.Duration {
	return max(a.timers.Download, 3*a.timers.atSlowest(a.d.ImageSize))
}

// resendTimeout returns how long a call that may have arrived is not repeated.
func (a *advance) resendTimeout() time.Duration {
	return max(a.timers.Resend, a.timers.atSlowest(a.d.ImageSize))
}

// timeUp reports a timer whose deadline has passed. Timers that fire early were set before the
// deadline moved.
func (a *advance) timeUp() bool {
	return a.o.Kind == fleet.EvidenceTimer && a.d.Deadline != nil && !a.o.At.Before(*a.d.Deadline)
}

// sinceLastChange reports whether the observation is later than all recorded ones. Only then
// does an old build or a new connection prove anything.
func (a *advance) sinceLastChange() bool { return a.o.At.After(a.d.UpdatedAt) }

func (a *advance) hasWholeImage() bool {
	return a.d.State == DeploymentDownloaded || a.d.State == DeploymentRebooting
}

// lastByte returns when the last byte was sent. The deadlines of both states count from it.
func (a *advance) lastByte() time.Time {
	if a.d.State == DeploymentDownloaded && !a.d.Probed {
		return a.d.Deadline.Add(-a.timers.Goodbye)
	}
	return a.d.Deadline.Add(-a.timers.BootPoll)
}

// A build is the build that an observation names, from the viewpoint of a deployment.
type build int

const (
	buildUnknown build = iota
	buildTarget        // the image's
	buildOld           // the one before the upgrade
	buildOther         // neither
)

// build compares by ELF SHA-256. The version counts only for a device that never names its build.
func (a *advance) build() build {
	v, d := a.o.Version, a.d
	switch {
	case a.o.ELF == "" && (v == "" || d.FromELF != "" || d.FromVersion == d.ToVersion):
		return buildUnknown
	case a.o.ELF == "" && v == d.ToVersion:
		return buildTarget
	case a.o.ELF == "" && v == d.FromVersion:
		return buildOld
	case a.o.ELF == "":
		return buildUnknown
	case a.o.ELF == d.TargetELF:
		return buildTarget
	case a.o.ELF == d.FromELF, d.FromELF == "": // not the image; the device presumably still has its old build
		return buildOld
	}
	return buildOther
}

// names reports whether the observation names the build, in a poll or on request.
func (a *advance) names(b build) bool {
	switch a.o.Kind {
	case fleet.EvidenceBootPoll, fleet.EvidenceInitialize, fleet.EvidenceProbe:
		return a.build() == b
	}
	return false
}

// polls reports whether the observation is a boot poll that names the build.
func (a *advance) polls(b build) bool { return a.o.Kind == fleet.EvidenceBootPoll && a.build() == b }
