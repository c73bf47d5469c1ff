package rollout

import (
	"context"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

// retryGrace is how long after a campaign's end a device with a failed attempt may still have
// its next one, if the campaign allows started devices to finish.
const retryGrace = time.Hour

// stop winds down an aborted campaign: it revokes links and ends waiting deployments. Devices
// that have the image run to their natural end.
func (l *loop) stop(ctx context.Context, c *openCampaign) error {
	reason := fleet.Because(campaign.ReasonCampaignAborted)
	l.cutInFlight(ctx, c, reason)
	if err := l.endWaiting(ctx, c, campaign.DeploymentCanceled, reason, false); err != nil {
		return err
	}
	if c.active > 0 {
		return nil
	}
	return l.finish(ctx, c, campaign.Aborted, "campaign.aborted")
}

// rollBackAgain is the pause before a failed rollback is tried again.
const rollBackAgain = time.Minute

// rollBack starts the rollback of the devices that an aborted campaign updated, if one was
// requested. The row records the request until the rollback is made, or the reason why it is
// not, so a crash loses nothing.
func (l *loop) rollBack(ctx context.Context, c *openCampaign) error {
	if !c.RollbackWanted || l.o.Rollback == nil {
		return nil
	}
	if err := l.o.Rollback(ctx, c.ID); err != nil {
		c.retryAt = l.now.Add(rollBackAgain)
		l.o.Log.Error("the devices of an aborted campaign are not taken back yet", "campaign", c.ID, "name", c.Plan.Name,
			"err", err)
		return nil
	}
	c.RollbackWanted, l.reload = false, true
	return nil
}

// expire ends a campaign whose time is up. No further device is notified; the plan decides what
// becomes of the remaining devices.
func (l *loop) expire(ctx context.Context, c *openCampaign) error {
	end, ok := c.Ends()
	if !ok || l.now.Before(end) {
		return nil
	}
	reason := fleet.Because(campaign.ReasonTimeUp)
	retries := c.Plan.EndBehavior == campaign.EndStopRollout && c.State == campaign.Running &&
		l.now.Before(end.Add(retryGrace))
	if err := l.endWaiting(ctx, c, campaign.DeploymentExpired, reason, retries); err != nil {
		return err
	}
	if c.Plan.EndBehavior == campaign.EndAbortInFlight {
		l.cutInFlight(ctx, c, reason)
	}
	if c.open() > 0 {
		return nil
	}
	if c.tallies.ByState[campaign.DeploymentExpired]+c.tallies.ByState[campaign.DeploymentAborted] == 0 &&
		c.State == campaign.Running {
		return l.finish(ctx, c, l.outcome(c), "campaign.complete")
	}
	return l.finish(ctx, c, campaign.Expired, "campaign.expire")
}

// ended reports whether the campaign's time is up: after that, only devices that had an attempt
// may have another.
func (l *loop) ended(c *openCampaign) bool {
	end, ok := c.Ends()
	return ok && !l.now.Before(end)
}

// cutInFlight revokes the links of all devices that lack part of the image, and cuts their
// downloads.
func (l *loop) cutInFlight(ctx context.Context, c *openCampaign, reason fleet.Reason) {
	l.cut(ctx, c, reason, func(*deployment) bool { return true })
}

func (l *loop) cut(ctx context.Context, c *openCampaign, reason fleet.Reason, which func(*deployment) bool) {
	var all []*deployment
	var ids []uuid.UUID
	for _, d := range c.held {
		if stoppable(d.State) && which(d) {
			all, ids = append(all, d), append(ids, d.ID)
		}
	}
	if len(ids) == 0 {
		return
	}
	l.revokeLinks(ctx, ids)
	for _, d := range all {
		l.observe(d, campaign.Observation{At: l.now, Kind: fleet.EvidenceRevoked, Reason: reason})
	}
	l.save(ctx)
}

// stoppable reports whether a device in this state can still be prevented from installing:
// after the last byte the device decides alone.
func stoppable(s campaign.DeploymentState) bool {
	switch s {
	case campaign.DeploymentDispatching, campaign.DeploymentSent, campaign.DeploymentOffered, campaign.DeploymentAmbiguous,
		campaign.DeploymentDownloading:
		return true
	}
	return false
}

// endWaiting gives all waiting deployments an outcome.
func (l *loop) endWaiting(ctx context.Context, c *openCampaign, to campaign.DeploymentState, reason fleet.Reason,
	untriedOnly bool) error {
	waiting := c.tallies.ByState[campaign.DeploymentPending]
	for _, d := range c.held {
		if d.State == campaign.DeploymentQueued && (d.Attempt == 0 || !untriedOnly) {
			waiting++
		}
	}
	if waiting == 0 {
		return nil
	}
	n, err := l.o.Store.EndWaiting(ctx, c.ID, to, fleet.EvidenceCanceled, reason, l.now, untriedOnly)
	if err != nil {
		return err
	}
	l.o.Log.Info("devices that waited are let go", "campaign", c.ID, "count", n, "state", string(to))
	c.events.pending = true
	return l.resync(ctx, c)
}
