package campaign

import "fleetd/fleet"

// booted waits for a device that polled with the image to connect.
func (a *advance) booted() {
	switch {
	case a.o.Kind == fleet.EvidenceTimer:
		a.bootedTimer()
	case a.o.Kind == fleet.EvidenceInitialize && (a.o.ELF == "" || a.build() == buildTarget),
		a.o.Kind == fleet.EvidenceProbe && a.build() == buildTarget:
		a.enterVerifying()
	case a.o.Kind == fleet.EvidenceBootPoll && a.build() == buildTarget:
		a.rebootedAgain()
	case a.o.Kind == fleet.EvidenceBootPoll, a.o.Kind == fleet.EvidenceProbe:
		if !a.failedBuild() {
			a.connectivity()
		}
	case a.o.Kind == fleet.EvidenceConnect:
		a.connectedBooted()
	case a.o.Kind == fleet.EvidenceDisconnect, a.o.Kind == fleet.EvidenceConnectionLost:
		a.lostBooted()
	case a.o.Kind == fleet.EvidenceInitialize: // the word of a poll that was not read yet: ask
		a.probe()
	default:
		a.connectivity()
	}
}

// connectedBooted expects initialize to follow; a device whose tools are known
// is not asked for them again, so it is probed instead, a little later.
func (a *advance) connectedBooted() {
	a.record, a.changed = true, true
	a.d.Away = false
	if soon := a.o.At.Add(a.timers.Probe); !a.d.Probed && soon.Before(*a.d.Deadline) {
		a.setDeadline(soon)
	}
}

func (a *advance) lostBooted() {
	a.record = true
	if a.d.Away || !a.sinceLastChange() {
		return
	}
	a.d.Away = true
	if !a.flapping() {
		a.setDeadline(a.o.At.Add(a.timers.Connect))
	}
}

// bootedTimer asks once before it gives up.
func (a *advance) bootedTimer() {
	switch {
	case !a.timeUp():
	case !a.d.Probed && a.d.Away:
		a.probe()
		a.setDeadline(a.o.At.Add(a.timers.Probe))
	case !a.d.Probed:
		a.probe()
		a.setDeadline(a.o.At.Add(a.timers.Connect))
	default:
		a.finish(DeploymentTimedOut, FailureTimeout, fleet.Because(ReasonNeverConnected))
	}
}

func (a *advance) enterVerifying() {
	a.enter(DeploymentVerifying, a.soak)
	a.d.Checked, a.d.Away = false, false
	a.act = ActVerify
}

// verifying waits for the health checks and the end of the soak.
func (a *advance) verifying() {
	switch a.o.Kind {
	case fleet.EvidenceHealthy:
		a.healthy()
	case fleet.EvidenceUnhealthy:
		a.unhealthy()
	case fleet.EvidenceTimer:
		a.soakTimer()
	case fleet.EvidenceDisconnect, fleet.EvidenceConnectionLost:
		a.record = true
		if a.sinceLastChange() {
			a.d.Away, a.changed = true, true
		}
	case fleet.EvidenceConnect:
		a.reconnected()
	case fleet.EvidenceInitialize:
		a.record = true
		if a.d.Away {
			a.reconnected()
		}
	case fleet.EvidenceBootPoll:
		if a.build() == buildTarget {
			a.rebootedAgain()
		} else if !a.failedBuild() {
			a.record = true
		}
	case fleet.EvidenceProbe:
		if !a.failedBuild() {
			a.record = true
		}
	default:
		a.connectivity()
	}
}

func (a *advance) healthy() {
	a.record, a.changed = true, true
	a.d.Checked = true
	if (a.d.Probed || !a.o.At.Before(*a.d.Deadline)) && !a.d.Away {
		a.succeed()
	}
}

func (a *advance) succeed() {
	a.finish(DeploymentSucceeded, "", fleet.Reason{})
}

// unhealthy ends it, unless the checks found nobody home: those are run again
// when the device is back.
func (a *advance) unhealthy() {
	if a.d.Away {
		a.record = true
		return
	}
	reason := a.o.Reason
	if reason.Is("") {
		reason = fleet.Because(ReasonCheckFailed)
	}
	a.finish(DeploymentUnhealthy, FailureUnhealthy, reason)
}

// soakTimer ends the soak, or waits a last time for what is missing. Probed
// says that it does.
func (a *advance) soakTimer() {
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
}

func (a *advance) missing(connection, checks string) fleet.Reason {
	if a.d.Away {
		return fleet.Because(connection)
	}
	return fleet.Because(checks)
}

func (a *advance) reconnected() {
	a.record = true
	if !a.sinceLastChange() {
		return
	}
	a.d.Away, a.changed = false, true
	if !a.flapping() && !a.d.Checked {
		a.act = ActVerify
	}
}

// rebootedAgain takes a device that restarted with the image: it has to
// connect, pass its checks and soak anew.
func (a *advance) rebootedAgain() {
	if !a.sinceLastChange() { // the poll that brought us here, once more
		return
	}
	a.record = true
	if a.flapping() {
		return
	}
	n := a.d.Reconnects
	a.enterBooted()
	a.d.Reconnects = n
}

// flapping counts a lost connection, and ends a deployment with too many.
func (a *advance) flapping() bool {
	a.changed = true
	a.d.Reconnects++
	if a.d.Reconnects <= a.plan.MaxReconnects {
		return false
	}
	a.finish(DeploymentUnhealthy, FailureUnhealthy, fleet.Because(ReasonFlapping, "times", a.d.Reconnects,
		"most", a.plan.MaxReconnects))
	return true
}
