package rollout

import (
	"context"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

// prepare starts to read the baseline of a device if its campaign checks health, and reports
// whether that is under way: the device is notified of the image only afterwards. A device that
// is not connected has no baseline read.
func (l *loop) prepare(d *deployment) bool {
	checks := d.camp.Plan.HealthChecks
	if len(checks) == 0 || d.prepared || d.saw != fleet.PresenceOnline {
		return false
	}
	d.busy = true
	d.camp.preparing++ // it already has a place
	e, device, run := l.e, d.Device, d.camp.checker(l.e)
	l.inBackground(func(ctx context.Context) {
		answers, err := run.checkHealth(ctx, device, nil)
		e.inbox.put(input{do: func(l *loop) { l.prepared(d, answers, err) }})
	})
	return true
}

// prepared lets a device with a baseline proceed. A device that fails its checks before the
// upgrade is not notified: it would also fail them afterwards, which proves nothing.
func (l *loop) prepared(d *deployment, answers map[string]string, err error) {
	d.busy = false
	d.camp.preparing--
	if l.byID[d.ID] != d || d.State != campaign.DeploymentQueued {
		return
	}
	l.unplace(d)
	switch {
	case noVerdict(err):
		d.saw = ""
		l.timers.set(d, l.now.Add(busyPause))
	case err != nil:
		l.o.Log.Info("device fails its health checks before the upgrade", "device", d.Device, "campaign", d.Campaign, "err",
			err)
		l.observe(d, campaign.Observation{At: l.now, Kind: fleet.EvidenceUnfit, Skip: firmware.SkipUnhealthy})
	default:
		d.prepared, d.Baseline.Answers = true, answers
		d.waitIn(&d.camp.ready, true)
	}
}

// inBackground runs functions that query devices, a bounded number at a time.
func (l *loop) inBackground(do func(ctx context.Context)) {
	e, ctx := l.e, l.life
	go func() {
		select {
		case e.checks <- struct{}{}:
			defer func() { <-e.checks }()
			do(ctx)
		case <-ctx.Done():
		}
	}()
}
