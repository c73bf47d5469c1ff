package campaign

import (
	"cmp"
	"strings"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

// An Observation is a piece of evidence about a deployment, as [Advance] reads it.
type Observation struct {
	At      time.Time
	Kind    fleet.EvidenceKind
	Reason  fleet.Reason        // what belongs to the evidence, unless the fields below hold it
	Attempt int                 // the attempt it belongs to; 0 if it is about the device, as polls and connections are
	ELF     string              // boot_poll, probe, initialize: the build the device runs; "" if unknown
	Version string              // boot_poll
	Bytes   int64               // get, bytes, cut, downloaded: sent so far
	Skip    firmware.SkipReason // unfit
	Job     fleet.JobState      // job: the device's own report on the attempt
	Percent int                 // job, progress: 0 to 100
	// Code is the failure that the firmware names, such as "corrupt": of a job that
	// failed, and of refused as far as [ParseRefusal] finds one.
	Code      string
	CallError string // not_sent, refused: code of the call's error
	Detail    string // foreign text: of the device's report, answer or refusal, or of the call's error
	// SameConnection: the probe was answered over the connection that stood
	// when the last byte was sent.
	SameConnection bool
}

// DeploymentTimers bound the steps of a deployment. The zero value is not
// usable: see [DefaultTimers].
type DeploymentTimers struct {
	Get         time.Duration // told of the image -> GET
	Resend      time.Duration // ambiguous: at least so long until the attempt is given up
	Stall       time.Duration // download without a byte
	Download    time.Duration // whole download: at least this, and 3 times the size at SlowestRate
	SlowestRate int64         // bytes per second
	Goodbye     time.Duration // last byte -> DISCONNECT; then the device is probed
	BootPoll    time.Duration // last byte -> boot poll
	Connect     time.Duration // boot poll -> MCP initialize; also the patience with health checks and absences
	Probe       time.Duration // patience with the answer to a probe
	Backoff     time.Duration // before the second attempt; four times as long before each later one
}

// DefaultTimers are those of devices in the field (campaigns rule 3).
var DefaultTimers = DeploymentTimers{
	Get: time.Minute, Resend: 5 * time.Minute, Stall: 90 * time.Second, Download: 10 * time.Minute, SlowestRate: 8 << 10,
	Goodbye: 20 * time.Second, BootPoll: 10 * time.Minute, Connect: 5 * time.Minute, Probe: 30 * time.Second,
	Backoff: time.Minute,
}

// Act is what the engine has to do after an observation.
type Act string

const (
	ActNone   Act = ""
	ActProbe  Act = "probe"  // ask the device something that a restarting one cannot answer, and which build it runs
	ActVerify Act = "verify" // run the health checks
	ActRevoke Act = "revoke" // end the attempt's link, and the call if it waits
)

// A Step is what became of an observation.
type Step struct {
	// Event is worth a row; nil if the observation says nothing about this deployment.
	Event *DeploymentEvent
	Act   Act
	// Changed says that the deployment's row has to be written, event or not.
	Changed bool
}

// reason is what an observation puts on record.
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

// report is the device's own account of a failure.
func (o *Observation) report() fleet.Reason {
	if text := cmp.Or(o.Detail, o.Code); text != "" {
		return fleet.Because(ReasonDeviceReported, "error", o.Code, "detail", text)
	}
	return fleet.Because(ReasonDeviceFailed)
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

// atSlowest is how long the slowest download of so many bytes takes.
func (t DeploymentTimers) atSlowest(size int64) time.Duration {
	if t.SlowestRate <= 0 {
		return 0
	}
	return time.Duration(size) * time.Second / time.Duration(t.SlowestRate)
}
