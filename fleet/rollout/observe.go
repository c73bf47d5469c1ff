package rollout

import (
	"slices"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

// observeDevice passes evidence about a device to its deployments. If the device has several,
// the ones without an outcome come first: if one campaign gave the device up and another is
// updating it, the evidence proves nothing for the first campaign.
func (l *loop) observeDevice(id fleet.DeviceID, o campaign.Observation) {
	all := slices.Clone(l.byDevice[id])
	live := slices.ContainsFunc(all, func(d *deployment) bool { return !d.State.Final() })
	for _, d := range all {
		switch {
		case d.State.Final() && live:
		case d.State == campaign.DeploymentQueued:
			l.observeQueued(d, o)
		case o.Kind == fleet.EvidenceConnect && d.State == campaign.DeploymentVerifying && !d.Away && d.cameBack(o.At):
			l.verify(d)
		default:
			l.observe(d, o)
		}
	}
}

// observeQueued handles evidence about a device that waits to be notified: the device may be
// reachable now.
func (l *loop) observeQueued(d *deployment, o campaign.Observation) {
	l.observe(d, o)
	switch o.Kind {
	case fleet.EvidenceConnect, fleet.EvidenceInitialize, fleet.EvidenceBootPoll:
		if d.State == campaign.DeploymentQueued && (d.in == &d.camp.parked || d.stuck || d.restarting) {
			l.unplace(d)
			d.waitIn(&d.camp.ready, true)
		}
	}
}

// observe applies the rules to an observation, and marks the result for storing.
func (l *loop) observe(d *deployment, o campaign.Observation) {
	from, failures := d.State, d.Failures
	step := campaign.Advance(&d.Deployment, o, &d.camp.Plan, d.camp.soak(d.Wave), l.o.Timers)
	if step.Event == nil && !step.Changed && step.Act == campaign.ActNone {
		return
	}
	d.seen = append(d.seen, o)
	if step.Event != nil {
		d.events = append(d.events, *step.Event)
	}
	if step.Act != campaign.ActNone {
		d.acts = append(d.acts, step.Act)
	}
	if d.Failures > failures || from.Active() && d.State.Failed() {
		l.failed = append(l.failed, d)
	}
	if isProgress(o) && step.Event == nil && d.State == from {
		l.markLazy(d)
	} else {
		l.mark(d)
	}
	d.camp.moved(d, from)
	if d.State != from || step.Changed {
		l.settle(d)
	}
}

// mark schedules the deployment for storing at the end of the turn.
func (l *loop) mark(d *deployment) {
	d.camp.events.pending = true
	if !d.dirty {
		d.dirty = true
		l.dirty = append(l.dirty, d)
	}
}

// markLazy schedules the deployment for storing with its next real change, or within seconds.
func (l *loop) markLazy(d *deployment) {
	if !d.dirty && !d.lazy {
		d.lazy = true
		l.lazy = append(l.lazy, d)
	}
}

func (l *loop) markLazies() {
	if len(l.lazy) == 0 || l.now.Sub(l.lazyAt) < lazyEvery {
		return
	}
	l.lazyAt = l.now
	for _, d := range l.lazy {
		if d.lazy && l.byID[d.ID] == d {
			l.mark(d)
		}
		d.lazy = false
	}
	l.lazy = l.lazy[:0]
}
