package campaign

import (
	"fleetd/fleet"
	"strings"
	"time"
)

// job takes the device's own word on its upgrade. It explains, it shows how far
// the device is, and it ends an attempt that failed: a device has nothing to
// gain from that lie. It never makes a success. A device that says done proves
// by its boot poll, its tools and its health checks what it runs, as those that
// say nothing do: a build that is broken, or a forger, would say done, too.
func (a *advance) job() {
	switch s := a.d.State; {
	case s.Waiting():
		a.record = a.o.Job.Final() && a.d.Attempt > 0 // on an attempt that was given up
	case a.o.Job == fleet.JobFailed:
		a.jobFailed()
	case a.o.Job == fleet.JobDone:
		a.jobDone()
	case a.o.Job == fleet.JobAccepted, a.o.Job == fleet.JobProgress:
		a.jobGoesOn()
	}
}

// jobGoesOn takes a sign of life. Rows are for the first, and each quarter.
func (a *advance) jobGoesOn() {
	a.record = a.tellsPercent(a.o.Percent)
	switch a.d.State {
	case DeploymentDispatching:
		at := a.o.At
		a.enter(DeploymentSent, a.timers.Get) // the report overtook the word that the call had left
		a.d.SentAt = &at
	case DeploymentSent, DeploymentOffered, DeploymentAmbiguous:
		a.extend(a.timers.Get, a.d.SentAt.Add(a.timers.Get+a.resendPatience()))
	case DeploymentDownloading:
		a.renewStall()
	}
}

// tellsPercent notes how far the device is, and reports whether that is news.
func (a *advance) tellsPercent(percent int) (news bool) {
	percent = bounded(percent)
	was := a.d.Percent
	if was != nil && percent <= *was {
		return false
	}
	a.d.Percent, a.changed = &percent, true
	return was == nil || percent/25 > *was/25
}

func bounded(percent int) int { return min(max(percent, 0), 100) }

// extend grants the step more time, up to a bound: a device cannot hold its
// place for ever.
func (a *advance) extend(patience time.Duration, last time.Time) {
	until := a.o.At.Add(patience)
	if until.After(last) {
		until = last
	}
	if a.d.Deadline.Before(until) {
		a.setDeadline(until)
	}
}

// jobDone asks a device which build it runs that did not poll with it yet.
func (a *advance) jobDone() {
	a.record = a.tellsPercent(100)
	switch a.d.State {
	case DeploymentBooted, DeploymentVerifying:
		a.record = true
	case DeploymentDownloaded, DeploymentRebooting:
		a.back()
	default:
		if !a.d.Probed {
			a.probe()
		}
	}
}

// jobFailed ends the attempt, unless the device has polled with the image: then
// it is asked, since a poll is better evidence than a report that may be late.
func (a *advance) jobFailed() {
	class, words := jobFailure(a.o.Code), a.o.report()
	switch {
	case a.d.State == DeploymentBooted, a.d.State == DeploymentVerifying:
		a.doubt(words)
	case class == FailureRolledBack, a.d.Booted && a.d.Reason.Is(ReasonAwaitsReport):
		a.act = ActRevoke
		a.finish(DeploymentRolledBack, FailureRolledBack, words)
	case class == FailureRejected:
		a.act = ActRevoke
		a.finish(DeploymentRejected, class, words)
	default:
		a.failAttempt(class, words)
	}
}

// doubt keeps the device's report for the case that it turns out to be true.
func (a *advance) doubt(words fleet.Reason) {
	if ReportedByDevice(a.d.Reason) {
		return
	}
	a.explain(words)
	a.act = ActProbe
}

// explains takes the words of a device whose attempt is judged already, if they
// are about the same failure.
func (a *advance) explains() {
	switch {
	case !a.o.Job.Final(), ReportedByDevice(a.d.Reason) && a.o.Job == fleet.JobFailed:
	case a.o.Job == fleet.JobFailed && a.d.State.Failed() && jobFailure(a.o.Code) == a.d.Class:
		a.explain(a.o.report())
	default:
		a.record = true
	}
}

// ReportedByDevice reports whether a reason is what the device itself reported.
func ReportedByDevice(r fleet.Reason) bool {
	return r.Is(ReasonDeviceReported) || r.Is(ReasonDeviceFailed)
}

// jobFailure classes the codes of the included firmware by what to do about
// them. What it calls corrupt arrived so: TCP does not let bytes change on the
// way. A code from a newer firmware is worth another try.
func jobFailure(code string) FailureClass {
	switch code {
	case "busy":
		return FailureBusy
	case "refused", "invalid", "unsupported", "not_found":
		return FailureRejected
	case "corrupt", "wrong_target", "no_space":
		return FailureImage
	case "rolled_back":
		return FailureRolledBack
	}
	return FailureDownload // unavailable, timeout, io, no_memory, canceled
}

// saysNo takes the answer of a device that refused the order. One without a code
// is stock firmware's.
func (a *advance) saysNo() {
	class := jobFailure(orElse(a.o.Code, "refused"))
	switch {
	case a.o.CallError != fleet.CodeToolError && a.reason.Is(""):
		a.act = ActRevoke
		a.finish(DeploymentRejected, FailureRejected, fleet.Because(ReasonCallRefused))
	case a.o.CallError != fleet.CodeToolError:
		a.act = ActRevoke
		a.finish(DeploymentRejected, FailureRejected, a.reason)
	case class.Retried():
		a.failAttempt(class, a.o.report())
	default:
		a.act = ActRevoke
		a.finish(DeploymentRejected, FailureRejected, a.o.report())
	}
}

// ParseRefusal reads the error text of a tool: the included firmware writes "code:
// text" on the wire, stock firmware text alone, for which code is "".
func ParseRefusal(message string) (code, text string) {
	code, rest, coded := strings.Cut(message, ": ")
	if coded && refusalCodes[code] {
		return code, rest
	}
	return "", message
}

// refusalCodes are those of the included firmware.
var refusalCodes = map[string]bool{"invalid": true, "not_found": true, "busy": true, "no_memory": true,
	"no_space": true, "timeout": true,
	"unavailable": true, "refused": true, "corrupt": true, "wrong_target": true, "io": true, "unsupported": true,
	"canceled": true}
