package rollout

import (
	"context"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

// A device that fails too often is excluded from all campaigns for a day.
const (
	quarantineFor  = 24 * time.Hour
	failuresInDay  = 3
	failuresInRow  = 5
	failuresWithin = 180 * time.Second
)

// quarantineFailed checks the devices with a failed attempt in this turn.
func (l *loop) quarantineFailed(ctx context.Context) {
	failed := l.failed
	l.failed = nil
	for _, d := range failed {
		if ctx.Err() != nil {
			return
		}
		if err := l.quarantineOne(ctx, d); err != nil {
			l.o.Log.Error("failures of a device not judged", "device", d.Device, "err", err)
		}
	}
}

func (l *loop) quarantineOne(ctx context.Context, d *deployment) error {
	day, err := l.o.Store.FailedAttempts(ctx, d.Device, l.now.Add(-quarantineFor))
	if err != nil {
		return err
	}
	reason := fleet.Because(campaign.ReasonFailedAttempts, "times", day, "within_ms", quarantineFor)
	if day < failuresInDay {
		row, err := l.o.Store.FailedAttempts(ctx, d.Device, l.now.Add(-failuresWithin))
		if err != nil || row < failuresInRow {
			return err
		}
		reason = fleet.Because(campaign.ReasonFailedAttempts, "times", row, "within_ms", failuresWithin)
	}
	q := campaign.Quarantine{Device: d.Device, Reason: reason, Since: l.now, Until: l.now.Add(quarantineFor)}
	if err := l.o.Store.Quarantine(ctx, q); err != nil {
		return err
	}
	l.o.Log.Warn("device quarantined", "device", d.Device, "reason", reason)
	if l.byID[d.ID] == d {
		l.observe(d, campaign.Observation{At: l.now, Kind: fleet.EvidenceQuarantined, Reason: reason})
	}
	return nil
}
