package campaign

import (
	"fleetd/fleet"
	"fleetd/fleet/firmware"
	"time"
)

// anywhere applies what does not depend on the step under way.
func (a *advance) anywhere() bool {
	switch a.o.Kind {
	case fleet.EvidenceRetired:
		a.endLink()
		a.finish(DeploymentRemoved, "", fleet.Because(ReasonRetired))
	case fleet.EvidenceQuarantined:
		a.record = true
	case fleet.EvidenceCanceled:
		a.canceled()
	case fleet.EvidenceUnfit:
		a.unfit()
	case fleet.EvidenceRevoked:
		a.revoked()
	case fleet.EvidenceRestarted:
		a.restarted()
	default:
		return false
	}
	return true
}

func (a *advance) endLink() {
	if a.d.State.Active() {
		a.act = ActRevoke
	}
}

// canceled withdraws what was not told yet.
func (a *advance) canceled() {
	if a.d.State.Waiting() {
		a.finish(DeploymentCanceled, "", a.o.Reason)
	}
}

// unfit takes the device out before it is told. A device that waits for
// another attempt and is found to run the image did take it.
func (a *advance) unfit() {
	switch s := a.d.State; {
	case s == DeploymentQueued && a.o.Skip == firmware.SkipInstalled && a.d.Attempt > 0:
		a.enterBooted()
	case s.Waiting(), s == DeploymentDispatching:
		a.endLink()
		a.d.Skip = a.o.Skip
		a.finish(DeploymentSkipped, "", fleet.Because(ReasonMisfit))
	}
}

// revoked aborts what can still be stopped: after the last byte the device
// decides alone.
func (a *advance) revoked() {
	switch a.d.State {
	case DeploymentDispatching, DeploymentSent, DeploymentOffered, DeploymentAmbiguous, DeploymentDownloading:
		a.act = ActRevoke
		reason := a.o.Reason
		if reason.Is("") {
			reason = fleet.Because(ReasonLinkRevoked)
		}
		a.finish(DeploymentAborted, "", reason)
	default:
		a.record = a.d.State.Active()
	}
}

// restarted renews what fleetd could not observe while it was down. A call that
// may have left is never repeated at once, and a download was cut by us.
func (a *advance) restarted() {
	if a.d.Reason.Is(ReasonAwaitsReport) {
		a.renew(a.timers.Connect)
		return
	}
	switch t := a.timers; a.d.State {
	case DeploymentDispatching:
		a.enter(DeploymentAmbiguous, a.resendPatience())
		told := a.d.UpdatedAt
		a.d.SentAt = &told
		a.d.Reason = fleet.Because(ReasonStoppedWhileSending)
	case DeploymentSent, DeploymentOffered, DeploymentAmbiguous:
		a.renew(t.Get)
	case DeploymentDownloading:
		a.act = ActRevoke
		a.requeue("", fleet.Because(ReasonInterrupted), t.Backoff)
	case DeploymentDownloaded:
		a.renew(t.Goodbye)
		if a.d.Probed {
			a.renew(t.BootPoll)
		}
	case DeploymentRebooting:
		a.renew(t.BootPoll)
	case DeploymentBooted:
		a.d.Away, a.d.Probed = true, false
		a.renew(t.Connect)
	case DeploymentVerifying:
		a.d.Checked, a.d.Probed = false, false
		a.act = ActVerify
		a.renew(max(a.soak, t.Connect))
	}
}

// renew grants a step at least so much time from now on.
func (a *advance) renew(patience time.Duration) {
	a.record, a.changed = true, true
	if until := a.o.At.Add(patience); a.d.Deadline == nil || a.d.Deadline.Before(until) {
		a.setDeadline(until)
	}
}

// waiting is for deployments that are not told, or will be told again.
func (a *advance) waiting() {
	switch a.o.Kind {
	case fleet.EvidenceDownloaded: // all of an attempt that was given up a moment too early
		if a.d.Attempt > 0 && a.o.Attempt == a.d.Attempt {
			a.enterDownloaded()
		}
	case fleet.EvidenceAnswer, fleet.EvidenceLateAnswer, fleet.EvidenceRefused, fleet.EvidenceGet, fleet.EvidenceCut:
		a.record = true
	}
}

// notSent puts a deployment back whose call did not leave. A device without
// room for the call has had its attempt; one that is away has not.
func (a *advance) notSent() {
	if a.o.CallError == fleet.CodeBusy {
		a.failAttempt(FailureBusy, fleet.Because(ReasonNoRoom))
		return
	}
	a.act = ActRevoke
	a.requeue("", fleet.Because(ReasonNotSent, "error", a.o.CallError, "detail", a.o.Detail), a.timers.Backoff)
}
