package rollout

import (
	"context"
	"errors"
	"fmt"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

// steer moves a campaign as far as possible without notifying devices: it starts, stops, waits
// for windows, judges, and opens waves.
func (l *loop) steer(ctx context.Context, c *openCampaign) {
	if ctx.Err() != nil || l.now.Before(c.retryAt) {
		return
	}
	if err := l.steerState(ctx, c); errors.Is(err, fleet.ErrConflict) {
		l.reload = true // an operator was faster: read the decision
		l.again = true
		l.rereadCampaign(ctx, c)
	} else if err != nil {
		l.trouble(ctx, c, fmt.Errorf("campaign %s: %w", c.ID, err))
	}
}

func (l *loop) steerState(ctx context.Context, c *openCampaign) error {
	switch c.State {
	case campaign.Scheduled:
		return l.begin(ctx, c)
	case campaign.Stopping:
		return l.stop(ctx, c)
	case campaign.Running, campaign.Paused:
		return l.proceed(ctx, c)
	case campaign.Aborted:
		return l.rollBack(ctx, c)
	}
	return nil
}

// proceed runs the steps of a campaign that is running or paused. The first step that changes
// the campaign is the last: the next turn continues.
func (l *loop) proceed(ctx context.Context, c *openCampaign) error {
	steps := []func(context.Context, *openCampaign) error{l.expire, l.checkRights, l.checkPlan, l.checkImages,
		l.judgeRules,
		l.followWindows, l.followWave, l.complete, l.grow}
	before := c.Revision
	for _, step := range steps {
		if err := step(ctx, c); err != nil || c.Revision != before {
			l.again = l.again || err == nil
			return err
		}
	}
	return nil
}

// change stores a change of the campaign, and only then applies it in memory.
func (l *loop) change(ctx context.Context, c *openCampaign, action string, with func(*campaign.Campaign)) error {
	row := c.Campaign
	with(&row)
	if err := l.o.Store.ChangeCampaign(ctx, c.actor(), action, &row); err != nil {
		return err
	}
	c.Campaign = row
	c.judged = false
	c.events.pending = true
	c.events.at = time.Time{}
	return nil
}

func (l *loop) rereadCampaign(ctx context.Context, c *openCampaign) {
	row, err := l.o.Store.Campaign(ctx, c.ID)
	if err != nil {
		l.trouble(ctx, c, err)
		return
	}
	c.setRow(row)
}

// begin starts a scheduled campaign when its time has come. If the end has also passed, the
// campaign ends without having run.
func (l *loop) begin(ctx context.Context, c *openCampaign) error {
	if end, ok := c.Ends(); ok && !l.now.Before(end) {
		return l.expire(ctx, c)
	}
	if at := c.Plan.StartAt; at != nil && l.now.Before(*at) {
		return nil
	}
	l.o.Log.Info("campaign runs", "campaign", c.ID, "name", c.Plan.Name)
	l.again = true
	return l.change(ctx, c, "campaign.run", func(row *campaign.Campaign) {
		now := l.now
		row.State, row.PauseReason, row.Reason, row.StartedAt = campaign.Running, "", fleet.Reason{}, &now
	})
}

// pause stops dispatching. Deployments in flight continue.
func (l *loop) pause(ctx context.Context, c *openCampaign, why campaign.PauseReason, reason fleet.Reason) error {
	action := "campaign.pause"
	if why == campaign.PausedByWindow {
		action = "" // it happens every night
	}
	l.o.Log.Info("campaign paused", "campaign", c.ID, "name", c.Plan.Name, "why", string(why), "reason", reason)
	return l.change(ctx, c, action, func(row *campaign.Campaign) {
		row.State, row.PauseReason, row.Reason = campaign.Paused, why, reason
	})
}

// complete ends a campaign if all its devices have an outcome.
func (l *loop) complete(ctx context.Context, c *openCampaign) error {
	if c.State == campaign.Paused && c.PauseReason != campaign.PausedByWindow || c.open() > 0 || c.Plan.Continuous {
		return nil
	}
	if w := c.wave(); w == nil || !c.lastWave() || w.State == campaign.WavePending {
		return nil
	}
	return l.finish(ctx, c, l.outcome(c), "campaign.complete")
}

// outcome returns the final state of a campaign whose devices all have an outcome.
func (l *loop) outcome(c *openCampaign) campaign.State {
	if c.failures() > 0 || c.tallies.ByState[campaign.DeploymentSucceeded] == 0 {
		return campaign.CompletedWithErrors
	}
	return campaign.Completed
}

func (l *loop) finish(ctx context.Context, c *openCampaign, as campaign.State, action string) error {
	if err := l.closeWave(ctx, c); err != nil {
		return err
	}
	l.o.Log.Info("campaign is over", "campaign", c.ID, "name", c.Plan.Name, "state", string(as))
	return l.change(ctx, c, action, func(row *campaign.Campaign) {
		now := l.now
		row.State, row.PauseReason, row.FinishedAt = as, "", &now
		if as == campaign.Completed || as == campaign.CompletedWithErrors {
			row.Reason = fleet.Reason{}
		}
	})
}

// closeWave gives the open wave its final verdict.
func (l *loop) closeWave(ctx context.Context, c *openCampaign) error {
	w := c.wave()
	if w == nil || w.State == campaign.WavePending || w.FinishedAt != nil {
		return nil
	}
	v := l.judgeWave(c, *w)
	state := campaign.WaveFinished
	if v.State == campaign.WaveFailed {
		state = campaign.WaveFailed
	}
	return l.saveWave(ctx, c, state, v.Reason)
}
