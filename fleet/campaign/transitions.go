package campaign

import (
	"cmp"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

// Advance is the state machine of deployments. It applies one observation to d and returns the
// result. It reads no clock and has no side effects: the same observations in the same order
// always give the same result. The store sets Revision.
//
//	pending
//	  | wave opens
//	queued <------------------------- a failed attempt that may be repeated
//	  | BeginAttempt: push                | BeginAttempt: pull
//	dispatching                         offered
//	  | sent                              |
//	sent                                  |
//	  | no GET in time: ambiguous         |
//	  +-----------------+-----------------+
//	                    | GET
//	               downloading
//	                    | last byte
//	               downloaded
//	                    | clean DISCONNECT
//	               rebooting
//	                    | boot poll that names the image
//	                 booted
//	                    | MCP initialize
//	               verifying
//	                    | checks passed, soak over
//	               succeeded
//
// A boot poll that names the image moves every notified state to booted, because evidence may
// skip states. The first of these rules that applies to the observation decides:
//
//	names another attempt     earlierAttempt
//	final states              final
//	report of the device      report
//	independent of the state  anyState, then provesImage
//	pending, queued           waiting
//	dispatching, sent, offered, ambiguous    notified
//	downloading               downloading
//	downloaded, rebooting     hasImage, or awaitingReport
//	booted                    booted
//	verifying                 verifying
//
// If a rule does not name an observation, the observation changes nothing; some are recorded
// all the same (onRecord).
//
// Advance relies on these properties of observations:
//   - the ELF of initialize is the one that the latest boot poll named; the ELF of a
//     probe is the device's present answer
//   - healthy and unhealthy have the time of the checks, not of their evaluation: they do
//     not invalidate a poll that came after the checks
//   - the CallError of not_sent is [fleet.CodeBusy] if the device had no room; with
//     any other error no attempt is used up
//   - a job comes from the device of the deployment and names its attempt
//   - timers may fire late, twice, or for a deadline that has moved
func Advance(d *Deployment, o Observation, p *Plan, soak time.Duration, t DeploymentTimers) Step {
	o.Detail = fleet.CleanText(o.Detail, maxDetail)
	a := advance{d: d, o: o, plan: p, soak: soak, timers: t, from: d.State, kind: o.Kind, reason: o.reason()}
	a.observe()
	return a.step()
}

func (a *advance) observe() {
	switch s := a.d.State; {
	case a.o.Kind == fleet.EvidenceJob && a.o.Attempt == 0: // of no known attempt
	case a.o.Attempt != 0 && a.o.Attempt != a.d.Attempt:
		a.earlierAttempt()
	case s.Final():
		a.final()
	case a.o.Kind == fleet.EvidenceJob:
		a.report()
	case a.anyState(), a.provesImage():
	case s.Waiting():
		a.waiting()
	case s == DeploymentDownloading:
		a.downloading()
	case a.hasWholeImage() && a.d.Reason.Is(ReasonAwaitsReport):
		a.awaitingReport()
	case a.hasWholeImage():
		a.hasImage()
	case s == DeploymentBooted:
		a.booted()
	case s == DeploymentVerifying:
		a.verifying()
	default:
		a.notified()
	}
}

// earlierAttempt completes the record of an attempt that was given up.
func (a *advance) earlierAttempt() {
	switch a.o.Kind {
	case fleet.EvidenceAnswer, fleet.EvidenceLateAnswer, fleet.EvidenceRefused, fleet.EvidenceGet, fleet.EvidenceCut,
		fleet.EvidenceDownloaded:
		a.record = true
	case fleet.EvidenceJob:
		a.record = a.o.Job.Final() && a.o.Attempt < a.d.Attempt
	}
}

// final handles final states: only late proof reopens a deployment that was given up.
func (a *advance) final() {
	s := a.d.State
	switch {
	case a.o.Kind == fleet.EvidenceQuarantined, a.o.Kind == fleet.EvidenceLateAnswer,
		a.o.Kind == fleet.EvidenceDownloaded:
		a.record = true
	case a.o.Kind == fleet.EvidenceJob && (!a.o.Job.Final() || a.o.Job == fleet.JobFailed && ReportedByDevice(a.d.Reason)):
	case a.o.Kind == fleet.EvidenceJob && a.o.Job == fleet.JobFailed && s.Failed() && jobFailure(a.o.Code) == a.d.Class:
		a.explain(a.o.report()) // the device's account of the failure that was already judged
	case a.o.Kind == fleet.EvidenceJob:
		a.record = true
	case a.polls(buildTarget) && (s == DeploymentTimedOut || s == DeploymentFailed):
		a.enterBooted()
		a.d.Late = true
	case a.polls(buildTarget) && s == DeploymentAborted:
		a.record = true // the download completed before its link was cut
	case a.o.Kind == fleet.EvidenceInitialize && a.build() == buildTarget && s == DeploymentTimedOut && a.d.Booted:
		a.enterVerifying()
		a.d.Late = true
	}
}

// report handles the device's own report on its upgrade. It explains failures, shows progress,
// and ends a failed attempt, because a device gains nothing by lying about a failure. It never
// makes a success: like a device without reports, one that reports done must prove what it runs
// by its boot poll, its tools and its health checks.
func (a *advance) report() {
	s := a.d.State
	verified := s == DeploymentBooted || s == DeploymentVerifying
	switch job := a.o.Job; {
	case s.Waiting(): // about an attempt that was given up
		a.record = job.Final() && a.d.Attempt > 0

	case job == fleet.JobAccepted || job == fleet.JobProgress:
		a.record = a.notePercent(a.o.Percent)
		switch s {
		case DeploymentDispatching: // the report overtook the evidence that the call was sent
			at := a.o.At
			a.enter(DeploymentSent, a.timers.Get)
			a.d.SentAt = &at
		case DeploymentSent, DeploymentOffered, DeploymentAmbiguous:
			a.extend(a.timers.Get, a.d.SentAt.Add(a.timers.Get+a.resendTimeout()))
		case DeploymentDownloading:
			a.renewStall()
		}

	case job == fleet.JobDone && verified:
		a.notePercent(100)
		a.record = true
	case job == fleet.JobDone && a.hasWholeImage():
		a.notePercent(100)
		a.askAfterReturn()
	case job == fleet.JobDone:
		if a.record = a.notePercent(100); !a.d.Probed {
			a.probe()
		}

	case job != fleet.JobFailed:
	case verified && ReportedByDevice(a.d.Reason):
	case verified: // the poll is better evidence than a possibly late report: probe
		a.explain(a.o.report())
		a.act = ActProbe
	case jobFailure(a.o.Code) == FailureRolledBack, a.d.Booted && a.d.Reason.Is(ReasonAwaitsReport):
		a.act = ActRevoke
		a.finish(DeploymentRolledBack, FailureRolledBack, a.o.report())
	case jobFailure(a.o.Code) == FailureRejected:
		a.act = ActRevoke
		a.finish(DeploymentRejected, FailureRejected, a.o.report())
	default:
		a.failAttempt(jobFailure(a.o.Code), a.o.report())
	}
}

// anyState handles observations that do not depend on the current step.
func (a *advance) anyState() bool {
	s := a.d.State
	switch a.o.Kind {
	case fleet.EvidenceRetired:
		a.revokeLink()
		a.finish(DeploymentRemoved, "", fleet.Because(ReasonRetired))
	case fleet.EvidenceQuarantined:
		a.record = true
	case fleet.EvidenceCanceled:
		if s.Waiting() {
			a.finish(DeploymentCanceled, "", a.o.Reason)
		}
	case fleet.EvidenceUnfit:
		switch {
		case s == DeploymentQueued && a.o.Skip == firmware.SkipInstalled && a.d.Attempt > 0:
			a.enterBooted() // it was waiting for a retry, but had worked
		case s.Waiting(), s == DeploymentDispatching:
			a.revokeLink()
			a.d.Skip = a.o.Skip
			a.finish(DeploymentSkipped, "", a.o.Reason.Or(fleet.Because(ReasonMisfit)))
		}
	case fleet.EvidenceRevoked: // after the last byte only the device decides
		switch s {
		case DeploymentDispatching, DeploymentSent, DeploymentOffered, DeploymentAmbiguous, DeploymentDownloading:
			a.act = ActRevoke
			a.finish(DeploymentAborted, "", a.o.Reason.Or(fleet.Because(ReasonLinkRevoked)))
		default:
			a.record = s.Active()
		}
	case fleet.EvidenceRestarted:
		a.restarted()
	default:
		return false
	}
	return true
}

// restarted extends what fleetd could not observe while it was down. A call that may have been
// sent is never repeated at once. The restart cut the download: a device that reports progress
// continues it over the same link, others need a new attempt.
func (a *advance) restarted() {
	if a.d.Reason.Is(ReasonAwaitsReport) {
		a.renew(a.timers.Connect)
		return
	}
	switch t := a.timers; a.d.State {
	case DeploymentDispatching:
		a.enter(DeploymentAmbiguous, a.resendTimeout())
		sent := a.d.UpdatedAt
		a.d.SentAt = &sent
		a.d.Reason = fleet.Because(ReasonStoppedWhileSending)
	case DeploymentSent, DeploymentOffered, DeploymentAmbiguous:
		a.renew(t.Get)
	case DeploymentDownloading:
		if a.d.ReportsProgress() {
			a.record = true
			a.renewStall()
			return
		}
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
	case DeploymentVerifying: // its soak continues; when it is over, the checks decide
		a.record, a.changed = true, true
		a.d.Checked = false
		a.act = ActVerify
		if a.d.Probed { // the soak is over: the device gets its time to answer again
			a.renew(t.Connect)
		}
	}
}

// provesImage handles a boot poll with the image's build. It proves all earlier steps, whether
// they were observed or not.
func (a *advance) provesImage() bool {
	switch s := a.d.State; {
	case !a.polls(buildTarget), s == DeploymentBooted, s == DeploymentVerifying:
		return false
	case s.Waiting() && a.d.Attempt == 0: // not caused by this campaign
		return false
	case a.d.Booted && a.d.Reason.Is(ReasonAwaitsReport): // the image did not stay, whatever comes now
		return false
	}
	a.enterBooted()
	return true
}

// waiting handles pending and queued.
func (a *advance) waiting() {
	switch a.o.Kind {
	case fleet.EvidenceDownloaded: // the whole image, in an attempt that was given up a moment too early
		if a.d.Attempt > 0 && a.o.Attempt == a.d.Attempt {
			a.enterDownloaded()
		}
	case fleet.EvidenceAnswer, fleet.EvidenceLateAnswer, fleet.EvidenceRefused, fleet.EvidenceGet, fleet.EvidenceCut:
		a.record = true
	}
}

// notified handles dispatching, sent, offered and ambiguous. The device may have learned of the
// image, but has not fetched it.
func (a *advance) notified() {
	s, byCall := a.d.State, a.d.State != DeploymentOffered
	switch {
	case a.fetches():
	case a.o.Kind == fleet.EvidenceSent:
		if s == DeploymentDispatching { // otherwise the answer, or fleetd's restart, was faster
			at := a.o.At
			a.enter(DeploymentSent, a.timers.Get)
			a.d.SentAt = &at
		}
	case a.o.Kind == fleet.EvidenceNotSent && byCall && a.o.CallError == fleet.CodeBusy:
		a.failAttempt(FailureBusy, fleet.Because(ReasonNoRoom))
	case a.o.Kind == fleet.EvidenceNotSent && byCall:
		a.act = ActRevoke
		if a.d.Failures == 0 {
			a.d.DispatchedAt = nil
		}
		a.requeue("", fleet.Because(ReasonNotSent, "error", a.o.CallError, "detail", a.o.Detail), a.timers.Backoff)
	case a.o.Kind == fleet.EvidenceRefused && byCall:
		a.refused()
	case a.o.Kind == fleet.EvidenceTimer && !a.timeUp():
	case a.o.Kind == fleet.EvidenceTimer && (s == DeploymentDispatching || s == DeploymentSent):
		a.enter(DeploymentAmbiguous, a.resendTimeout())
		a.d.Reason = fleet.Because(ReasonMayStillFetch)
		if a.d.SentAt == nil {
			sent := a.d.UpdatedAt
			a.d.SentAt = &sent
		}
	case a.o.Kind == fleet.EvidenceTimer, a.livesOn():
		why := fleet.Because(ReasonNotFetched)
		if s == DeploymentOffered {
			why = fleet.Because(ReasonOfferIgnored)
		}
		a.failAttempt(FailureTimeout, why)
	case a.o.Kind == fleet.EvidenceProbe && a.build() == buildTarget:
		a.enter(DeploymentRebooting, a.timers.BootPoll)
		a.explainUnpolled()
	case a.names(buildTarget): // an inventory of the image but no poll: probe
		a.probe()
	default:
		a.onRecord()
	}
}

// fetches handles the evidence of the web server: a GET, bytes, the last byte.
func (a *advance) fetches() bool {
	switch a.o.Kind {
	case fleet.EvidenceGet:
		a.enterDownloading()
	case fleet.EvidenceBytes: // the GET was not observed but must have come
		a.enterDownloading()
		a.kind = fleet.EvidenceGet
	case fleet.EvidenceDownloaded:
		a.enterDownloaded()
	case fleet.EvidenceCut:
		a.d.BytesSent = a.o.Bytes
		a.failAttempt(FailureDownload, a.whyCut())
	default:
		return false
	}
	return true
}

// refused handles the answer of a device that refused the order. An answer without a code comes
// from stock firmware.
func (a *advance) refused() {
	class := jobFailure(cmp.Or(a.o.Code, "refused"))
	why := a.o.report()
	if a.o.CallError != fleet.CodeToolError {
		class, why = FailureRejected, a.reason.Or(fleet.Because(ReasonCallRefused))
	}
	if class.Retried() {
		a.failAttempt(class, why)
		return
	}
	a.act = ActRevoke
	a.finish(DeploymentRejected, FailureRejected, why)
}

// livesOn reports whether the device was seen with its old build after it was notified: it
// restarted or reconnected instead of fetching.
func (a *advance) livesOn() bool {
	if a.d.SentAt == nil || !a.o.At.After(*a.d.SentAt) || a.build() != buildOld && a.build() != buildOther {
		return false
	}
	switch a.o.Kind {
	case fleet.EvidenceBootPoll:
		return true
	case fleet.EvidenceInitialize, fleet.EvidenceProbe:
		return a.d.State != DeploymentSent // it may not have started the download yet
	}
	return false
}

// downloading waits for the next byte.
func (a *advance) downloading() {
	again := a.o.Kind == fleet.EvidenceGet && a.o.At.Sub(a.d.UpdatedAt) < hastyGet
	switch {
	case a.o.Kind == fleet.EvidenceBytes:
		a.d.BytesSent = max(a.d.BytesSent, a.o.Bytes)
		a.renewStall()
	case a.o.Kind == fleet.EvidenceCut && a.d.ReportsProgress(): // it continues over the same link, or reports why not
		a.record = a.o.At.Sub(a.d.UpdatedAt) >= hastyGet
		a.d.BytesSent = a.o.Bytes
		a.renewStall()
	case again:
		a.d.BytesSent = a.o.Bytes
		a.renewStall()
	case a.fetches():
	case a.timeUp():
		a.failAttempt(FailureDownload, a.whyStalled())
	case a.o.Kind == fleet.EvidenceProbe && a.build() == buildTarget:
		a.enter(DeploymentRebooting, a.timers.BootPoll)
		a.explainUnpolled()
	case a.o.At.After(*a.d.GetAt) && (a.polls(buildOld) || a.polls(buildOther)):
		a.failAttempt(FailureDownload, fleet.Because(ReasonRestartedEarly))
	default:
		a.onRecord()
	}
}

// hasImage handles downloaded and rebooting. The device has every byte: from here on nothing is
// repeated unless the device proves that it did not change.
func (a *advance) hasImage() {
	downloaded := a.d.State == DeploymentDownloaded
	tooOld := a.o.At.Before(a.lastByte()) // apparently of an earlier connection
	switch a.o.Kind {
	case fleet.EvidenceTimer:
		switch {
		case !a.timeUp():
		case downloaded && !a.d.Probed: // no DISCONNECT came
			a.askWhichBuild()
		case a.unpolled():
			a.finish(DeploymentTimedOut, FailureTimeout, fleet.Because(ReasonNoPollBecause, "why", a.d.Reason))
		default:
			a.finish(DeploymentTimedOut, FailureTimeout, fleet.Because(ReasonNoPoll))
		}
	case fleet.EvidenceDisconnect: // the clean DISCONNECT of a deliberate restart: it accepted the image
		switch {
		case !downloaded, tooOld:
			a.record = true
		default:
			until := a.lastByte().Add(a.timers.BootPoll)
			a.enter(DeploymentRebooting, 0)
			a.setDeadline(until)
		}
	case fleet.EvidenceAnswer, fleet.EvidenceLateAnswer:
		// After the last byte it means that the device did not restart (protocol 4.7); firmware
		// before 2.1 answers at once.
		if a.o.Kind == fleet.EvidenceAnswer && tooOld {
			a.record = true
			return
		}
		a.finish(DeploymentFailed, FailureImage, fleet.Because(ReasonImageRefused))
	case fleet.EvidenceProbe: // the device's own answer about its build
		switch {
		case tooOld:
			a.record = true
		case a.build() == buildTarget:
			a.explainUnpolled()
		case downloaded && a.o.SameConnection && a.d.ReportsProgress():
			a.record = true // it still checks the image; it reports a refusal
		case a.awaitReport():
		case downloaded && (a.o.SameConnection || a.build() == buildOld):
			a.finish(DeploymentFailed, FailureImage, fleet.Because(ReasonImageRefused))
		case !a.failedBuild():
			a.record = true
		}
	case fleet.EvidenceConnect, fleet.EvidenceInitialize:
		a.askAfterReturn()
	case fleet.EvidenceBootPoll:
		if !a.failedBuild() {
			a.record = true
		}
	default:
		a.onRecord()
	}
}

// awaitingReport handles downloaded and rebooting for a device that reports on its upgrade and
// returned with its old build after the last byte. It may have lost its power before it
// switched, and then nothing speaks against the image: the verdict waits for its report, which
// follows the boot poll over MQTT.
func (a *advance) awaitingReport() {
	switch {
	case a.timeUp() && a.d.State == DeploymentDownloaded:
		a.finish(DeploymentFailed, FailureImage, fleet.Because(ReasonImageRefused))
	case a.timeUp():
		a.finish(DeploymentRolledBack, FailureRolledBack, a.whyRolledBack())
	case a.o.Kind == fleet.EvidenceProbe && a.build() == buildTarget && !a.d.Booted:
		a.explainUnpolled()
	case a.o.Kind == fleet.EvidenceProbe && a.build() == buildOther, a.polls(buildOther):
		a.record = true
		a.failedBuild()
	case a.d.State == DeploymentDownloaded && a.polls(buildOld): // it did restart
		a.record, a.changed = true, true
		a.d.State = DeploymentRebooting
	default:
		a.onRecord()
	}
}

// booted waits for a device that polled with the image to connect.
func (a *advance) booted() {
	switch a.o.Kind {
	case fleet.EvidenceTimer: // probes once before it gives up
		switch {
		case !a.timeUp():
		case a.d.Probed:
			a.finish(DeploymentTimedOut, FailureTimeout, fleet.Because(ReasonNeverConnected))
		case a.d.Away:
			a.probe()
			a.setDeadline(a.o.At.Add(a.timers.Probe))
		default:
			a.probe()
			a.setDeadline(a.o.At.Add(a.timers.Connect))
		}
	case fleet.EvidenceInitialize:
		if a.o.ELF == "" || a.build() == buildTarget {
			a.enterVerifying()
			return
		}
		a.probe() // of a poll that was not read yet: probe
	case fleet.EvidenceProbe, fleet.EvidenceBootPoll:
		switch {
		case a.build() == buildTarget && a.o.Kind == fleet.EvidenceProbe:
			a.enterVerifying()
		case a.build() == buildTarget:
			a.bootedAgain()
		case !a.failedBuild():
			a.record = true
		}
	case fleet.EvidenceConnect:
		// initialize follows; a device whose tools are known does not list them again, so it is
		// probed instead, a little later.
		a.record, a.changed = true, true
		a.d.Away = false
		if soon := a.o.At.Add(a.timers.Probe); !a.d.Probed && soon.Before(*a.d.Deadline) {
			a.setDeadline(soon)
		}
	case fleet.EvidenceDisconnect, fleet.EvidenceConnectionLost:
		a.record = true
		if a.d.Away || !a.sinceLastChange() {
			return
		}
		a.d.Away = true
		if !a.flapping() {
			a.setDeadline(a.o.At.Add(a.timers.Connect))
		}
	default:
		a.onRecord()
	}
}

// verifying waits for the health checks and the end of the soak. Probed means that the soak is
// over and that verifying waits a last time for what is missing.
func (a *advance) verifying() {
	switch a.o.Kind {
	case fleet.EvidenceHealthy:
		a.record, a.changed = true, true
		a.d.Checked = true
		if (a.d.Probed || !a.o.At.Before(*a.d.Deadline)) && !a.d.Away {
			a.succeed()
		}
	case fleet.EvidenceUnhealthy:
		if a.d.Away { // the checks run again when the device is back
			a.record = true
			return
		}
		a.finish(DeploymentUnhealthy, FailureUnhealthy, a.o.Reason.Or(fleet.Because(ReasonCheckFailed)))
	case fleet.EvidenceTimer:
		switch {
		case !a.timeUp():
		case a.d.Checked && !a.d.Away:
			a.succeed()
		case !a.d.Probed:
			a.explain(a.missing(ReasonAwaitsConnection, ReasonAwaitsChecks))
			a.d.Probed = true
			a.setDeadline(a.o.At.Add(a.timers.Connect))
		default:
			a.finish(DeploymentTimedOut, FailureTimeout, a.missing(ReasonNoConnection, ReasonNoAnswer))
		}
	case fleet.EvidenceDisconnect, fleet.EvidenceConnectionLost:
		a.record = true
		if a.sinceLastChange() {
			a.d.Away, a.changed = true, true
		}
	case fleet.EvidenceConnect, fleet.EvidenceInitialize:
		a.record = true
		if a.o.Kind == fleet.EvidenceInitialize && !a.d.Away || !a.sinceLastChange() {
			return
		}
		a.d.Away, a.changed = false, true
		if !a.flapping() && !a.d.Checked {
			a.act = ActVerify
		}
	case fleet.EvidenceBootPoll, fleet.EvidenceProbe:
		if a.polls(buildTarget) {
			a.bootedAgain()
		} else if !a.failedBuild() {
			a.record = true
		}
	default:
		a.onRecord()
	}
}
