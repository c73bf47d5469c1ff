package campaign

import (
	"fleetd/fleet"
	"time"
)

// fetched is for devices that have every byte: downloaded, rebooting. From
// here on nothing is repeated unless the device proves that it stayed as it
// was; it may be half way through.
func (a *advance) fetched() {
	switch {
	case a.d.Reason.Is(ReasonAwaitsReport):
		a.awaiting()
	case a.o.Kind == fleet.EvidenceTimer:
		a.fetchedTimer()
	case a.o.Kind == fleet.EvidenceDisconnect && a.d.State == DeploymentDownloaded:
		a.goodbye()
	case a.o.Kind == fleet.EvidenceAnswer, a.o.Kind == fleet.EvidenceLateAnswer:
		a.answered()
	case a.o.Kind == fleet.EvidenceProbe:
		a.probed()
	case a.o.Kind == fleet.EvidenceConnect, a.o.Kind == fleet.EvidenceInitialize:
		a.back()
	case a.o.Kind == fleet.EvidenceBootPoll:
		if !a.failedBuild() {
			a.record = true
		}
	default:
		a.connectivity()
	}
}

// lastByte is when it was sent: the deadlines of both states count from it.
func (a *advance) lastByte() time.Time {
	if a.d.State == DeploymentDownloaded && !a.d.Probed {
		return a.d.Deadline.Add(-a.timers.Goodbye)
	}
	return a.d.Deadline.Add(-a.timers.BootPoll)
}

// goodbye takes the clean DISCONNECT of the deliberate restart: the device
// accepted the image.
func (a *advance) goodbye() {
	last := a.lastByte()
	if a.o.At.Before(last) { // of an earlier connection, it seems
		a.record = true
		return
	}
	a.enter(DeploymentRebooting, 0)
	a.setDeadline(last.Add(a.timers.BootPoll))
}

// fetchedTimer probes a device that said no goodbye, and at the end gives up.
func (a *advance) fetchedTimer() {
	switch {
	case !a.timeUp():
	case a.d.State == DeploymentDownloaded && !a.d.Probed:
		a.askWhichBuild()
	case a.unpolled():
		a.finish(DeploymentTimedOut, FailureTimeout, fleet.Because(ReasonNoPollBecause, "why", a.d.Reason))
	default:
		a.finish(DeploymentTimedOut, FailureTimeout, fleet.Because(ReasonNoPoll))
	}
}

// askWhichBuild probes, and waits for the boot poll meanwhile.
func (a *advance) askWhichBuild() {
	until := a.lastByte().Add(a.timers.BootPoll)
	a.probe()
	a.setDeadline(until)
}

// answered takes the answer to the call. After the last byte it means that the
// device did not restart (protocol 4.7); the firmware before 2.1 answers at once.
func (a *advance) answered() {
	if a.o.Kind == fleet.EvidenceAnswer && a.o.At.Before(a.lastByte()) {
		a.record = true
		return
	}
	a.finish(DeploymentFailed, FailureImage, fleet.Because(ReasonImageRefused))
}

// probed takes the device's own word for its build.
func (a *advance) probed() {
	switch {
	case a.o.At.Before(a.lastByte()):
		a.record = true
	case a.build() == buildTarget:
		a.explainUnpolled()
	case a.d.State == DeploymentDownloaded && a.o.SameConnection && a.d.Percent != nil:
		a.record = true // checks the image still; it says so if it refuses it
	case a.awaitWord():
	case a.d.State == DeploymentDownloaded && (a.o.SameConnection || a.build() == buildOld):
		a.finish(DeploymentFailed, FailureImage, fleet.Because(ReasonImageRefused))
	case !a.failedBuild():
		a.record = true
	}
}

// back is a device on the broker again without a boot poll: which build is it?
func (a *advance) back() {
	a.record = true
	switch {
	case !a.sinceLastChange() || a.unpolled():
	case a.d.State == DeploymentDownloaded && !a.d.Probed:
		a.askWhichBuild()
	default:
		a.probe()
	}
}
