package campaign

import (
	"cmp"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

// Advance is the state machine of deployments. It applies one observation to d
// and returns what follows. It reads no clock and acts on nothing; the same
// observations in the same order always give the same result. Revision is left
// to the store.
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
// A boot poll that names the image moves every notified state to booted: evidence
// may skip states. The observation is held against these rules, the first that
// knows it decides:
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
// Within a rule an observation that is not named changes nothing; some are put on
// record all the same (onRecord).
//
// What observations must hold for it:
//   - the ELF of initialize is what the latest boot poll named; that of a probe
//     is what the device answers when asked now
//   - healthy and unhealthy are as old as the checks, whenever they are looked at:
//     they are no reason to dismiss a poll that came after the checks
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

func (a *advance) observe() {
	switch s := a.d.State; {
	case a.o.Kind == fleet.EvidenceJob && a.o.Attempt == 0: // of no attempt that is known
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

// earlierAttempt keeps the record of an attempt that was given up complete.
func (a *advance) earlierAttempt() {
	switch a.o.Kind {
	case fleet.EvidenceAnswer, fleet.EvidenceLateAnswer, fleet.EvidenceRefused, fleet.EvidenceGet, fleet.EvidenceCut,
		fleet.EvidenceDownloaded:
		a.record = true
	case fleet.EvidenceJob:
		a.record = a.o.Job.Final() && a.o.Attempt < a.d.Attempt
	}
}

// final: late proof re-opens what was given up, and nothing else does.
func (a *advance) final() {
	s := a.d.State
	switch {
	case a.o.Kind == fleet.EvidenceQuarantined, a.o.Kind == fleet.EvidenceLateAnswer,
		a.o.Kind == fleet.EvidenceDownloaded:
		a.record = true
	case a.o.Kind == fleet.EvidenceJob && (!a.o.Job.Final() || a.o.Job == fleet.JobFailed && ReportedByDevice(a.d.Reason)):
	case a.o.Kind == fleet.EvidenceJob && a.o.Job == fleet.JobFailed && s.Failed() && jobFailure(a.o.Code) == a.d.Class:
		a.explain(a.o.report()) // the device's account of the failure that was judged already
	case a.o.Kind == fleet.EvidenceJob:
		a.record = true
	case a.polls(buildTarget) && (s == DeploymentTimedOut || s == DeploymentFailed):
		a.enterBooted()
		a.d.Late = true
	case a.polls(buildTarget) && s == DeploymentAborted:
		a.record = true // the image came through before its link was cut
	case a.o.Kind == fleet.EvidenceInitialize && a.build() == buildTarget && s == DeploymentTimedOut && a.d.Booted:
		a.enterVerifying()
		a.d.Late = true
	}
}

// report handles the device's own report on its upgrade. It explains, it shows how
// far the device is, and it ends an attempt that failed: a device has nothing to
// gain from that lie. It never makes a success: a device that reports done proves
// by its boot poll, its tools and its health checks what it runs, as one without
// reports does.
func (a *advance) report() {
	s := a.d.State
	verified := s == DeploymentBooted || s == DeploymentVerifying
	switch job := a.o.Job; {
	case s.Waiting(): // on an attempt that was given up
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
	case verified: // the poll is better evidence than a report that may be late: ask
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

// anyState applies what does not depend on the step under way.
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
			a.enterBooted() // it was to be repeated, and had worked
		case s.Waiting(), s == DeploymentDispatching:
			a.revokeLink()
			a.d.Skip = a.o.Skip
			a.finish(DeploymentSkipped, "", a.o.Reason.Or(fleet.Because(ReasonMisfit)))
		}
	case fleet.EvidenceRevoked: // after the last byte the device decides alone
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

// restarted renews what fleetd could not observe while it was down. A call that
// may have left is never repeated at once, and fleetd cut the download.
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
	case DeploymentVerifying: // its soak goes on; once it is over, the checks decide
		a.record, a.changed = true, true
		a.d.Checked = false
		a.act = ActVerify
		if a.d.Probed { // it is over: the device has its time to answer once more
			a.renew(t.Connect)
		}
	}
}

// provesImage: a boot poll with the image's build settles everything up to there,
// whatever was seen or not seen before.
func (a *advance) provesImage() bool {
	switch s := a.d.State; {
	case !a.polls(buildTarget), s == DeploymentBooted, s == DeploymentVerifying:
		return false
	case s.Waiting() && a.d.Attempt == 0: // not our doing
		return false
	case a.d.Booted && a.d.Reason.Is(ReasonAwaitsReport): // it did not last, whatever comes now
		return false
	}
	a.enterBooted()
	return true
}

// waiting: pending, queued.
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

// notified: dispatching, sent, offered, ambiguous. The device may know of the
// image, and has not fetched it.
func (a *advance) notified() {
	s, byCall := a.d.State, a.d.State != DeploymentOffered
	switch {
	case a.fetches():
	case a.o.Kind == fleet.EvidenceSent:
		if s == DeploymentDispatching { // else the answer, or fleetd's restart, was faster
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
	case a.names(buildTarget): // an inventory of it, yet no poll: ask
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
	case fleet.EvidenceBytes: // the GET was not seen, but there was one
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

// refused handles the answer of a device that refused the order. One without a code
// is stock firmware's.
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

// livesOn reports that the device was seen with its old build after it was
// notified: it restarted or reconnected instead of fetching.
func (a *advance) livesOn() bool {
	if a.d.SentAt == nil || !a.o.At.After(*a.d.SentAt) || a.build() != buildOld && a.build() != buildOther {
		return false
	}
	switch a.o.Kind {
	case fleet.EvidenceBootPoll:
		return true
	case fleet.EvidenceInitialize, fleet.EvidenceProbe:
		return a.d.State != DeploymentSent // it may not have begun yet
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
	case a.o.Kind == fleet.EvidenceCut && a.d.ReportsProgress(): // it goes on over the same link, or reports why not
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

// hasImage: downloaded, rebooting. The device has every byte: from here on nothing
// is repeated unless the device proves that it stayed as it was.
func (a *advance) hasImage() {
	downloaded := a.d.State == DeploymentDownloaded
	tooOld := a.o.At.Before(a.lastByte()) // of an earlier connection, it seems
	switch a.o.Kind {
	case fleet.EvidenceTimer:
		switch {
		case !a.timeUp():
		case downloaded && !a.d.Probed: // no goodbye
			a.askWhichBuild()
		case a.unpolled():
			a.finish(DeploymentTimedOut, FailureTimeout, fleet.Because(ReasonNoPollBecause, "why", a.d.Reason))
		default:
			a.finish(DeploymentTimedOut, FailureTimeout, fleet.Because(ReasonNoPoll))
		}
	case fleet.EvidenceDisconnect: // the clean goodbye of the deliberate restart: it accepted the image
		switch {
		case !downloaded, tooOld:
			a.record = true
		default:
			until := a.lastByte().Add(a.timers.BootPoll)
			a.enter(DeploymentRebooting, 0)
			a.setDeadline(until)
		}
	case fleet.EvidenceAnswer, fleet.EvidenceLateAnswer:
		// After the last byte it means that the device did not restart (protocol 4.7);
		// the firmware before 2.1 answers at once.
		if a.o.Kind == fleet.EvidenceAnswer && tooOld {
			a.record = true
			return
		}
		a.finish(DeploymentFailed, FailureImage, fleet.Because(ReasonImageRefused))
	case fleet.EvidenceProbe: // the device's own answer for its build
		switch {
		case tooOld:
			a.record = true
		case a.build() == buildTarget:
			a.explainUnpolled()
		case downloaded && a.o.SameConnection && a.d.ReportsProgress():
			a.record = true // checks the image still; it reports if it refuses it
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

// awaitingReport: downloaded or rebooting, of a device that reports on its upgrade
// and came back with its old build after the last byte. It may have lost its power
// before it switched, and then nothing speaks against the image: the verdict
// waits for its report, which follows the boot poll over MQTT.
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
	case fleet.EvidenceTimer: // asks once before it gives up
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
		a.probe() // of a poll that was not read yet: ask
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
		// initialize follows; a device whose tools are known is not asked for them
		// again, so it is probed instead, a little later.
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

// verifying waits for the health checks and the end of the soak. Probed means that
// the soak is over, and that it waits a last time for what is missing.
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
