package campaign

import "fleetd/fleet"

// A build is what an observation says the device runs, seen from a deployment.
type build int

const (
	buildUnknown build = iota
	buildTarget        // the image's
	buildOld           // the one it had before
	buildOther         // neither
)

// build compares by ELF SHA-256. Only for a device that never names its build
// does the version speak.
func (a *advance) build() build {
	switch {
	case a.o.ELF == "":
		return a.buildByVersion()
	case a.o.ELF == a.d.TargetELF:
		return buildTarget
	case a.o.ELF == a.d.FromELF, a.d.FromELF == "": // not the image; it has what it had, for all we know
		return buildOld
	}
	return buildOther
}

func (a *advance) buildByVersion() build {
	v := a.o.Version
	if v == "" || a.d.FromELF != "" || a.d.FromVersion == a.d.ToVersion {
		return buildUnknown
	}
	switch v {
	case a.d.ToVersion:
		return buildTarget
	case a.d.FromVersion:
		return buildOld
	}
	return buildUnknown
}

// tells reports an observation of a build, by a device that was asked or polls.
func (a *advance) tells(b build) bool {
	switch a.o.Kind {
	case fleet.EvidenceBootPoll, fleet.EvidenceInitialize, fleet.EvidenceProbe:
		return a.build() == b
	}
	return false
}

// polls reports a boot poll that names the build.
func (a *advance) polls(b build) bool { return a.o.Kind == fleet.EvidenceBootPoll && a.build() == b }

// provesImage applies rule 1: a boot poll with the image's build settles
// everything up to there, whatever was seen or not seen before.
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

func (a *advance) enterBooted() {
	a.enter(DeploymentBooted, a.timers.Connect)
	a.d.Booted, a.d.Away = true, true
	a.d.Checked, a.d.Reconnects = false, 0
}

// afterVerdict lets late proof re-open what was given up, and nothing else.
func (a *advance) afterVerdict() {
	s := a.d.State
	givenUp := s == DeploymentTimedOut || s == DeploymentFailed
	switch {
	case a.o.Kind == fleet.EvidenceQuarantined:
		a.record = true
	case a.o.Kind == fleet.EvidenceJob:
		a.explains()
	case a.polls(buildTarget) && givenUp:
		a.enterBooted()
		a.d.Late = true
	case a.polls(buildTarget) && s == DeploymentAborted:
		a.record = true // the image came through before its link was cut
	case a.o.Kind == fleet.EvidenceInitialize && a.build() == buildTarget && s == DeploymentTimedOut && a.d.Booted:
		a.enterVerifying()
		a.d.Late = true
	case a.o.Kind == fleet.EvidenceLateAnswer, a.o.Kind == fleet.EvidenceDownloaded:
		a.record = true
	}
}

// failedBuild ends a deployment whose device came back with another build than
// the image.
func (a *advance) failedBuild() bool {
	switch {
	case !a.sinceLastChange():
		return false
	case a.awaitWord():
	case a.build() == buildOld:
		a.finish(DeploymentRolledBack, FailureRolledBack, a.whyRolledBack())
	case a.build() == buildOther:
		a.finish(DeploymentWrongBuild, FailureWrongBuild,
			fleet.Because(ReasonOtherBuild, "build", shortHash(a.o.ELF)))
	default:
		return false
	}
	return true
}

// whyRolledBack is the device's own report, if it made one before.
func (a *advance) whyRolledBack() fleet.Reason {
	if ReportedByDevice(a.d.Reason) {
		return a.d.Reason
	}
	return fleet.Because(ReasonRolledBack)
}

func shortHash(s string) string { return fleet.CleanText(s, 12) }
