package rollout

import (
	"context"
	"slices"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

// fireTimers handles the deployments whose time has come.
func (l *loop) fireTimers(ctx context.Context) {
	var active []*deployment
	for d := l.timers.due(l.now); d != nil; d = l.timers.due(l.now) {
		if d.State.Active() {
			active = append(active, d)
		} else {
			l.settle(d)
		}
	}
	l.askRegistry(ctx, active)
	for _, d := range active {
		if l.byID[d.ID] == d && d.timer < 0 {
			l.fire(d)
		}
	}
}

// fire passes the rules the evidence that a step's time is over.
func (l *loop) fire(d *deployment) {
	if d.spared.After(l.now) {
		l.timers.set(d, d.spared)
		return
	}
	if d.State.Active() {
		l.observe(d, campaign.Observation{At: l.now, Kind: fleet.EvidenceTimer, Attempt: d.Attempt})
	}
	if d.State.Active() && (d.timer < 0 || !d.at.After(l.now)) {
		l.timers.set(d, l.now.Add(stormPause))
	}
}

// askRegistry looks for boot polls that were recorded while no engine listened, before the
// deployments that wait for a poll time out.
func (l *loop) askRegistry(ctx context.Context, due []*deployment) {
	waiting := slices.DeleteFunc(slices.Clone(due), func(d *deployment) bool {
		return d.State == campaign.DeploymentBooted || d.State == campaign.DeploymentVerifying
	})
	for chunk := range slices.Chunk(waiting, saveBatch) {
		devices, err := l.devices(ctx, chunk)
		if err != nil {
			l.trouble(ctx, nil, err)
			return
		}
		for _, d := range chunk {
			l.observeRegistered(d, devices[d.Device])
		}
	}
}

// observeRegistered observes the boot poll in the registry if it adds to the row. A poll of an
// old build does so only if it is newer than everything in the row.
func (l *loop) observeRegistered(d *deployment, device fleet.Device) {
	at := device.LastPoll
	if at == nil {
		return
	}
	proves := device.ELFSHA256 == d.TargetELF && d.SentAt != nil && at.After(*d.SentAt)
	if proves || at.After(d.UpdatedAt) {
		l.observe(d, campaign.Observation{At: *at, Kind: fleet.EvidenceBootPoll, ELF: device.ELFSHA256,
			Version: device.Version})
	}
}
