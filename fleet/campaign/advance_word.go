package campaign

import "fleetd/fleet"

// A device that reports on its upgrade and comes back with its old build after
// the last byte may have lost its power before it switched, and then nothing
// speaks against the image. It knows: the verdict waits for its report, which
// follows the boot poll over MQTT.

// awaitWord holds back the verdict on such a device, if it has not said why.
func (a *advance) awaitWord() bool {
	if ReportedByDevice(a.d.Reason) || a.d.Percent == nil || a.build() != buildOld {
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

// awaiting is for a device that has yet to say why it runs its old build. What
// it reports is taken before.
func (a *advance) awaiting() {
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
		a.connectivity()
	}
}
