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

// errStandsStill means that a campaign must not continue: its maker or starter is gone.
var errStandsStill = errors.New("who asked for the campaign may not act any more")

// rightsOf reads the rights of the campaign's maker and starter, once per turn.
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

// checkRights pauses a running campaign if its maker or starter is gone: only deployments in
// flight continue, until an operator takes the campaign over.
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

// mandate returns on whose behalf the campaign makes its own calls. For attempts under way,
// which run to their end, it returns the latest known maker.
func (c *openCampaign) mandate() *call.Mandate {
	if c.rights.Maker.Kind == "" { // not read since the start of this engine
		return (campaign.Rights{Maker: c.Maker(), Starter: c.Starter()}).Mandate()
	}
	return c.rights.Mandate()
}

// leaveOutside skips devices of the wave that is about to open if they are outside the current
// rights of the campaign's maker and starter. Such devices are neither updated nor taken from
// other campaigns.
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

// leaveOut skips a deployment whose device is outside those rights.
func (l *loop) leaveOut(d *deployment, why fleet.Reason) {
	l.observe(d, campaign.Observation{At: l.now, Kind: fleet.EvidenceUnfit, Skip: firmware.SkipOutOfScope, Reason: why})
}

// checker makes the calls of health checks. The campaign makes them on behalf of the maker of
// its plan, whose rights are re-read for each call.
type checker struct {
	e        *Engine
	campaign campaign.Campaign
	actor    fleet.Principal
}

func (c *openCampaign) checker(e *Engine) checker { return checker{e, c.Campaign, c.actor()} }

// call makes the call of a check. If the maker is gone, it makes no call, and the device counts
// as unreachable.
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
