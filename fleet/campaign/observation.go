package campaign

import (
	"fleetd/fleet"
	"time"
)

// An Observation is a piece of evidence about a deployment, as [Advance] reads it.
type Observation struct {
	At      time.Time
	Kind    fleet.EvidenceKind
	Detail  string
	Attempt int    // the attempt it belongs to; 0 if it is about the device, as polls and connections are
	ELF     string // boot_poll, probe, initialize: the build the device runs; "" if unknown
	Version string // boot_poll
	Bytes   int64  // get, bytes, cut, downloaded: sent so far
	// Of job, the device's own report on the attempt; Detail is its sentence.
	Job     fleet.JobState
	Percent int    // progress: 0 to 100
	Code    string // failed: as the firmware names it, such as "corrupt"
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
