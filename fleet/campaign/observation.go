package campaign

import (
	"cmp"
	"strings"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

// An Observation is a piece of evidence about a deployment, in the form that [Advance] reads.
type Observation struct {
	At      time.Time
	Kind    fleet.EvidenceKind
	Reason  fleet.Reason        // details of the evidence, unless the fields below contain them
	Attempt int                 // the attempt it belongs to; 0 for polls and connections, which are about the device
	ELF     string              // boot_poll, probe, initialize: the build the device runs; "" if unknown
	Version string              // boot_poll
	Bytes   int64               // get, bytes, cut, downloaded: sent so far
	Skip    firmware.SkipReason // unfit
	Job     fleet.JobState      // job: the device's own report on the attempt
	Percent int                 // job, progress: 0 to 100
	// Code is the failure that the firmware names, such as "corrupt": in a failed job, and in
	// refused if [ParseRefusal] finds one.
	Code      string
	CallError string // not_sent, refused: code of the call's error
	Detail    string // untrusted text: the device's report, answer or refusal, or the call's error
	// SameConnection reports that the probe was answered over the connection that was open when
	// the device requested the image. When the last byte is observed, a device with little left
	// to do may have restarted and connected again.
	SameConnection bool
}

// DeploymentTimers bound the steps of a deployment. The zero value is not
// usable: see [DefaultTimers].
type DeploymentTimers struct {
	Get         time.Duration // notified of the image -> GET
	Resend      time.Duration // ambiguous: shortest time until the attempt is given up
	Stall       time.Duration // longest time without a byte of the download
	Download    time.Duration // whole download: at least this, and 3 times the size at SlowestRate
	SlowestRate int64         // bytes per second
	Goodbye     time.Duration // last byte -> DISCONNECT; then the device is probed
	BootPoll    time.Duration // last byte -> boot poll
	Connect     time.Duration // boot poll -> MCP initialize; also the timeout of health checks and absences
	Probe       time.Duration // timeout of the answer to a probe
	Backoff     time.Duration // before the second attempt; quadrupled before each later one
}

// DefaultTimers are the timers for devices in the field (campaigns rule 3).
var DefaultTimers = DeploymentTimers{
	Get: time.Minute, Resend: 5 * time.Minute, Stall: 90 * time.Second, Download: 10 * time.Minute, SlowestRate: 8 << 10,
	Goodbye: 20 * time.Second, BootPoll: 10 * time.Minute, Connect: 5 * time.Minute, Probe: 30 * time.Second,
	Backoff: time.Minute,
}

// Act is what the engine must do after an observation.
type Act string

const (
	ActNone   Act = ""
	ActProbe  Act = "probe"  // send a request that a restarting device cannot answer, and read its build
	ActVerify Act = "verify" // run the health checks
	ActRevoke Act = "revoke" // revoke the attempt's link, and cancel the call if it waits
)

// A Step is the result of an observation.
type Step struct {
	// Event is stored as a row; nil if the observation changes nothing about this deployment.
	Event *DeploymentEvent
	Act   Act
	// Changed reports that the deployment's row must be written, with or without an event.
	Changed bool
}

// reason returns the reason that an observation puts on record.
func (o *Observation) reason() fleet.Reason {
	switch o.Kind {
	case fleet.EvidenceUnfit:
		return fleet.Because(ReasonSkippedFor, "skip", o.Skip)
	case fleet.EvidenceJob:
		return o.jobReason()
	case fleet.EvidenceAnswer, fleet.EvidenceLateAnswer:
		if o.Detail != "" {
			return fleet.Because(ReasonAnswered, "detail", o.Detail)
		}
	case fleet.EvidenceNotSent, fleet.EvidenceRefused:
		switch {
		case o.CallError == fleet.CodeToolError && o.Code != "":
			return fleet.Because(ReasonToolRefused, "error", o.Code, "detail", o.Detail)
		case o.CallError == fleet.CodeToolError:
			return fleet.Because(ReasonToolRefusedText, "detail", o.Detail)
		case o.CallError != "":
			return fleet.Because(ReasonCallFailed, "error", o.CallError, "detail", o.Detail)
		}
	}
	return o.Reason
}

func (o *Observation) jobReason() fleet.Reason {
	switch o.Job {
	case fleet.JobAccepted:
		return fleet.Because(ReasonJobAccepted)
	case fleet.JobProgress:
		return fleet.Because(ReasonJobProgress, "percent", bounded(o.Percent))
	case fleet.JobDone:
		return fleet.Because(ReasonJobDone)
	case fleet.JobFailed:
		return fleet.Because(ReasonJobFailed, "error", o.Code, "detail", o.Detail)
	}
	return fleet.Reason{}
}

// report returns the device's own account of a failure.
func (o *Observation) report() fleet.Reason {
	if text := cmp.Or(o.Detail, o.Code); text != "" {
		return fleet.Because(ReasonDeviceReported, "error", o.Code, "detail", text)
	}
	return fleet.Because(ReasonDeviceFailed)
}

// ReportedByDevice reports whether the device itself reported the reason.
func ReportedByDevice(r fleet.Reason) bool {
	return r.Is(ReasonDeviceReported) || r.Is(ReasonDeviceFailed)
}

// jobFailure classifies the failure codes of the included firmware by the required reaction. An
// image that it calls corrupt was corrupt before the transfer, because TCP protects the bytes
// on the way. An unknown code, from newer firmware, is retried.
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

// ParseRefusal parses the error text of a tool. The included firmware sends "code: text"; stock
// firmware sends only text, for which code is "".
func ParseRefusal(message string) (code, text string) {
	code, rest, coded := strings.Cut(message, ": ")
	if coded && refusalCodes[code] {
		return code, rest
	}
	return "", message
}

// refusalCodes are the refusal codes of the included firmware.
var refusalCodes = map[string]bool{"invalid": true, "not_found": true, "busy": true, "no_memory": true,
	"no_space": true, "timeout": true,
	"unavailable": true, "refused": true, "corrupt": true, "wrong_target": true, "io": true, "unsupported": true,
	"canceled": true}

// atSlowest returns how long the slowest download of size bytes takes.
func (t DeploymentTimers) atSlowest(size int64) time.Duration {
	if t.SlowestRate <= 0 {
		return 0
	}
	return time.Duration(size) * time.Second / time.Duration(t.SlowestRate)
}
