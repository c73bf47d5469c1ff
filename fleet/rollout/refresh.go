package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

// refresh re-reads the campaigns if one changed, and otherwise at intervals.
func (l *loop) refresh(ctx context.Context) {
	if !l.reload && l.now.Sub(l.refreshedAt) < refreshEvery {
		return
	}
	rows, err := l.o.Store.OpenCampaigns(ctx)
	if err != nil {
		l.trouble(ctx, nil, err)
		return
	}
	l.reload, l.refreshedAt = false, l.now
	for _, row := range rows {
		if err := l.refreshOne(ctx, row); err != nil {
			l.reload = true
			l.trouble(ctx, l.campaigns[row.ID], fmt.Errorf("campaign %s: %w", row.ID, err))
		}
	}
	l.forgetEnded(ctx, rows)
}

func (l *loop) refreshOne(ctx context.Context, row campaign.Campaign) error {
	c := l.campaigns[row.ID]
	if c != nil && c.Revision == row.Revision && c.Targets == row.Targets && !c.stale {
		return nil
	}
	if c == nil {
		var err error
		if c, err = l.open(ctx, row); err != nil {
			return err
		}
	} else {
		c.setRow(row)
	}
	return l.resync(ctx, c)
}

// resync re-reads what others may have changed in a campaign: its waves, its counts, and which
// of its deployments wait. The caller must have stored everything in memory.
func (l *loop) resync(ctx context.Context, c *openCampaign) error {
	rows, err := l.deployments(ctx, c.ID, []campaign.DeploymentState{campaign.DeploymentQueued})
	if err != nil {
		return err
	}
	if err := l.recount(ctx, c); err != nil {
		return err
	}
	c.stale = false
	waiting := make(map[string]bool, len(rows))
	for _, row := range rows {
		waiting[row.ID.String()] = true
		if d := l.byID[row.ID]; d != nil && d.Revision != row.Revision {
			l.supplant(d, row)
		}
	}
	for _, d := range c.held {
		if d.State == campaign.DeploymentQueued && !waiting[d.ID.String()] {
			l.detach(d)
		}
	}
	l.examineAgain(c)
	return l.enqueue(ctx, c, rows)
}

// examineAgain re-examines all deployments that wait for a window: windows, pace and mode may
// have changed.
func (l *loop) examineAgain(c *openCampaign) {
	for _, d := range c.held {
		if d.State == campaign.DeploymentQueued && d.timer >= 0 && !d.restarting {
			l.settle(d)
		}
	}
}

// supplant replaces a deployment's row in memory if the counts already include the new row.
func (l *loop) supplant(d *deployment, row campaign.Deployment) {
	d.camp.count(d.State, -1)
	d.Deployment = row
	d.camp.count(d.State, 1)
	d.prepared = false
	l.settle(d)
}

// enqueue adds rows of waiting devices to memory, and the data about the devices that is needed
// from the start.
func (l *loop) enqueue(ctx context.Context, c *openCampaign, rows []campaign.Deployment) error {
	added := make([]*deployment, 0, len(rows))
	for _, row := range rows {
		if l.byID[row.ID] == nil {
			row.NotBefore = l.delayed(c, row)
			added = append(added, l.attach(c, row))
		}
	}
	c.judged = false
	if c.Plan.Mode != firmware.ModePush {
		if err := l.offers.learn(ctx, l, added); err != nil {
			return err
		}
	}
	return l.learnZones(ctx, c)
}

// delayed returns the delay of a device in its wave if no window sets one.
func (l *loop) delayed(c *openCampaign, row campaign.Deployment) *time.Time {
	w := c.wave()
	if row.NotBefore != nil || row.Attempt > 0 || c.Plan.Jitter <= 0 || len(c.Plan.Windows) > 0 || w == nil ||
		w.StartedAt == nil {
		return row.NotBefore
	}
	at := w.StartedAt.Add(campaign.JitterFor(c.ID, row.Device, c.Plan.Jitter))
	return &at
}

// forgetEnded handles campaigns that are no longer open. They stay in memory for a while: a
// device may still prove that it was updated.
func (l *loop) forgetEnded(ctx context.Context, open []campaign.Campaign) {
	for _, c := range slices.Clone(l.order) {
		if slices.ContainsFunc(open, func(row campaign.Campaign) bool { return row.ID == c.ID }) {
			continue
		}
		if !c.State.Final() {
			row, err := l.o.Store.Campaign(ctx, c.ID)
			if err != nil {
				if errors.Is(err, fleet.ErrNotFound) {
					l.forget(c)
				}
				continue
			}
			c.setRow(row)
		}
		if c.active == 0 && (c.FinishedAt == nil || l.now.Sub(*c.FinishedAt) > lateFor) {
			l.forget(c)
		}
	}
}

func (l *loop) forget(c *openCampaign) {
	for _, d := range c.held {
		l.detach(d)
	}
	delete(l.campaigns, c.ID)
	l.order = slices.DeleteFunc(l.order, func(other *openCampaign) bool { return other == c })
}

// trouble suspends a campaign for a moment after an error of the store.
func (l *loop) trouble(ctx context.Context, c *openCampaign, err error) {
	if ctx.Err() != nil {
		return
	}
	l.o.Log.Error("campaigns wait for the database", "err", err)
	if c != nil {
		c.retryAt = l.now.Add(time.Second)
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(firstPause):
	}
}
