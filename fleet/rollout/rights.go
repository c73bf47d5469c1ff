package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

// errStandsStill means that a campaign must not go on: somebody who asked for it is gone.
var errStandsStill = errors.New("who asked for the campaign may not act any more")

// rightsOf reads what those who asked for a campaign may do, once in a turn.
func (l *loop) rightsOf(ctx context.Context, c *openCampaign) (campaign.Rights, error) {
	if c.rightsIn == l.turns {
		if c.gone.Is("") {
			return c.rights, nil
		}
		return campaign.Rights{}, errStandsStill
	}
	rights, gone, err := c.Campaign.Rights(ctx, l.o.Authority)
	if err != nil {
		return rights, fmt.Errorf("rights of who asked for campaign %s: %w", c.ID, err)
	}
	c.rightsIn, c.gone = l.turns, gone
	if !gone.Is("") {
		return rights, errStandsStill
	}
	c.rights = rights
	return rights, nil
}

// checkRights pauses a campaign that runs when somebody who asked for it is gone: what is
// in flight goes on, and nothing else, until an operator takes the campaign over.
func (l *loop) checkRights(ctx context.Context, c *openCampaign) error {
	if c.State != campaign.Running {
		return nil
	}
	switch _, err := l.rightsOf(ctx, c); {
	case errors.Is(err, errStandsStill):
		return l.pause(ctx, c, campaign.PausedBySystem, c.gone)
	default:
		return err
	}
}

// mandate is on whose behalf the campaign makes its own calls. Of those about attempts
// under way it is what was known last: these run to their end.
func (c *openCampaign) mandate() *call.Mandate {
	if c.rights.Maker.Kind == "" { // not read since the start of this engine
		return (campaign.Rights{Maker: c.Maker(), Starter: c.Starter()}).Mandate()
	}
	return c.rights.Mandate()
}

// leaveOutside skips those devices of the wave that is about to open that are outside
// of what those who asked may do now: nothing is done to them, nor taken from other campaigns.
func (l *loop) leaveOutside(ctx context.Context, c *openCampaign) error {
	rights, err := l.rightsOf(ctx, c)
	if err != nil || !rights.Narrow() {
		return err
	}
	rows, err := l.deployments(ctx, c.ID, []campaign.DeploymentState{campaign.DeploymentPending})
	if err != nil {
		return err
	}
	rows = slices.DeleteFunc(rows, func(d campaign.Deployment) bool { return d.Wave != c.Wave })
	for chunk := range slices.Chunk(rows, saveBatch) {
		ids := make([]fleet.DeviceID, len(chunk))
		for i, row := range chunk {
			ids[i] = row.Device
		}
		devices, err := l.o.Store.DevicesByID(ctx, ids)
		if err != nil {
			return err
		}
		outside := make(map[fleet.DeviceID]fleet.Reason)
		for _, device := range devices {
			if why := rights.Outside(device); !why.Is("") {
				outside[device.ID] = why
			}
		}
		for _, row := range chunk {
			if why, out := outside[row.Device]; out && l.byID[row.ID] == nil {
				l.leaveOut(l.attach(c, row), why)
			}
		}
	}
	l.save(ctx)
	return nil
}

// leaveOut skips a deployment whose device is outside.
func (l *loop) leaveOut(d *deployment, why fleet.Reason) {
	l.observe(d, campaign.Observation{At: l.now, Kind: fleet.EvidenceUnfit, Skip: firmware.SkipOutOfScope, Reason: why})
}

// A checker makes the calls of health checks: the campaign does, on behalf of the maker
// of its plan, whose rights are read again for each.
type checker struct {
	e        *Engine
	campaign campaign.Campaign
	actor    fleet.Principal
}

func (c *openCampaign) checker(e *Engine) checker { return checker{e, c.Campaign, c.actor()} }

// call makes the call of a check. While the maker is gone it is not made, and the
// device counts as one that cannot be asked.
func (c checker) call(ctx context.Context, r call.Request) (fleet.Call, error) {
	rights, gone, err := c.campaign.Rights(ctx, c.e.o.Authority)
	if err == nil && !gone.Is("") {
		err = errStandsStill
	}
	if err != nil {
		return fleet.Call{}, err
	}
	r.Actor, r.Mandate = c.actor, rights.CheckMandate()
	return c.e.o.Calls.Make(ctx, r)
}
