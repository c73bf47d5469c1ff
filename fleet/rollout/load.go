package rollout

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

// lateFor is how long after the end of a campaign the engine still accepts late proof.
const lateFor = time.Hour

// lateStates are the outcomes that late proof changes.
var lateStates = slices.DeleteFunc(slices.Clone(campaign.DeploymentStates),
	func(s campaign.DeploymentState) bool { return !late(s) })

// heldStates are the states of the deployments that stay in memory after their campaign ended.
var heldStates = slices.DeleteFunc(slices.Clone(campaign.DeploymentStates),
	func(s campaign.DeploymentState) bool { return !late(s) && !s.Active() })

// load continues from the rows that an earlier engine left. Nothing else survives an engine.
func (l *loop) load(ctx context.Context) error {
	l.now = l.e.now()
	rows, err := l.o.Store.OpenCampaigns(ctx)
	if err != nil {
		return fmt.Errorf("load campaigns: %w", err)
	}
	for _, row := range rows {
		if _, err := l.open(ctx, row); err != nil {
			return fmt.Errorf("load campaign %s: %w", row.ID, err)
		}
	}
	live, err := l.o.Store.LiveDeployments(ctx)
	if err != nil {
		return fmt.Errorf("load deployments: %w", err)
	}
	if err := l.takeLive(ctx, live); err != nil {
		return err
	}
	if err := l.loadEnded(ctx); err != nil {
		return fmt.Errorf("load campaigns that ended lately: %w", err)
	}
	if err := l.resume(ctx); err != nil {
		return fmt.Errorf("compare deployments with their devices: %w", err)
	}
	l.refreshedAt = l.now
	l.e.index.loaded()
	l.o.Log.Info("campaigns are carried out by this process", "campaigns", len(l.order), "deployments", len(l.byID))
	return nil
}

// open adds a campaign to memory with its counts, but without its deployments.
func (l *loop) open(ctx context.Context, row campaign.Campaign) (*openCampaign, error) {
	c := newCampaign(row)
	if err := l.recount(ctx, c); err != nil {
		return nil, err
	}
	l.campaigns[c.ID] = c
	l.order = append(l.order, c)
	return c, nil
}

// recount reads the waves and counts of a campaign. Between turns everything in memory is also
// in the store.
func (l *loop) recount(ctx context.Context, c *openCampaign) error {
	waves, err := l.o.Store.Waves(ctx, c.ID)
	if err != nil {
		return err
	}
	p, err := l.o.Store.CampaignProgress(ctx, c.ID)
	if err != nil {
		return err
	}
	for i, w := range waves {
		if w.Number < len(c.Plan.Waves) {
			waves[i].Plan = c.Plan.Waves[w.Number] // the digest covers the plan, not the row of the wave
		}
	}
	c.waves = waves
	c.tallies = tallies{ByState: p.ByState, ByWave: p.ByWave}
	for len(c.tallies.ByWave) < len(waves) {
		c.tallies.ByWave = append(c.tallies.ByWave, nil)
	}
	c.judged, c.rulesDue = false, true
	return nil
}

func (l *loop) takeLive(ctx context.Context, rows []campaign.Deployment) error {
	byCampaign := make(map[*openCampaign][]campaign.Deployment)
	for _, row := range rows {
		if c := l.campaigns[row.Campaign]; c != nil {
			byCampaign[c] = append(byCampaign[c], row)
		}
	}
	for c, rows := range byCampaign {
		if err := l.enqueue(ctx, c, rows); err != nil {
			return fmt.Errorf("devices of campaign %s: %w", c.ID, err)
		}
	}
	for _, c := range l.order {
		if err := l.holdStates(ctx, c, lateStates); err != nil {
			return err
		}
	}
	return nil
}

// loadEnded loads campaigns that ended recently: their active deployments, and those whose
// outcome late proof may change.
func (l *loop) loadEnded(ctx context.Context) error {
	ended := slices.DeleteFunc(slices.Clone(campaign.States), func(s campaign.State) bool {
		return !s.Final() ||
			s == campaign.Discarded
	})
	page, err := l.o.Store.Campaigns(ctx, campaign.Filter{States: ended, Limit: fleet.MaxLimit})
	if err != nil {
		return err
	}
	for _, row := range page.Items {
		if row.FinishedAt == nil || l.now.Sub(*row.FinishedAt) > 2*lateFor || l.campaigns[row.ID] != nil {
			continue
		}
		c, err := l.open(ctx, row)
		if err != nil {
			return err
		}
		if err := l.holdStates(ctx, c, heldStates); err != nil {
			return err
		}
	}
	return nil
}

// holdStates reads a campaign's deployments in the given states, and adds those that are not in
// memory yet.
func (l *loop) holdStates(ctx context.Context, c *openCampaign, states []campaign.DeploymentState) error {
	rows, err := l.deployments(ctx, c.ID, states)
	if err != nil {
		return err
	}
	for _, row := range rows {
		if l.byID[row.ID] == nil {
			l.attach(c, row)
		}
	}
	return nil
}

func (l *loop) deployments(ctx context.Context, campaignID uuid.UUID, states []campaign.DeploymentState) (
	all []campaign.Deployment, err error) {
	f := campaign.DeploymentFilter{Campaign: campaignID, States: states, Limit: fleet.MaxLimit}
	for {
		page, err := l.o.Store.Deployments(ctx, f)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if page.Next == "" {
			return all, nil
		}
		f.Cursor = page.Next
	}
}

// resume passes every active deployment the evidence that it was unwatched for a while. Data
// that the registry received about the device meanwhile comes first, because it is older.
func (l *loop) resume(ctx context.Context) error {
	var active []*deployment
	for _, d := range l.byID {
		if d.State.Active() {
			active = append(active, d)
		}
	}
	for chunk := range slices.Chunk(active, saveBatch) {
		devices, err := l.devices(ctx, chunk)
		if err != nil {
			return err
		}
		for _, d := range chunk {
			l.resumeOne(d, devices[d.Device])
		}
	}
	return nil
}

func (l *loop) resumeOne(d *deployment, device fleet.Device) {
	l.observeRegistered(d, device)
	d.afterStart = d.State == campaign.DeploymentVerifying
	d.askBuild = d.State == campaign.DeploymentBooted || d.State == campaign.DeploymentVerifying
	l.observe(d, campaign.Observation{At: l.now, Kind: fleet.EvidenceRestarted})
	if presence, since, _ := l.o.Presence.State(d.Device); presence == fleet.PresenceOnline {
		l.observeDevice(d.Device, campaign.Observation{At: later(since, l.now), Kind: fleet.EvidenceConnect})
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// devices reads the devices of deployments from the registry.
func (l *loop) devices(ctx context.Context, all []*deployment) (map[fleet.DeviceID]fleet.Device, error) {
	ids := make([]fleet.DeviceID, len(all))
	for i, d := range all {
		ids[i] = d.Device
	}
	rows, err := l.o.Store.DevicesByID(ctx, ids)
	if err != nil {
		return nil, err
	}
	devices := make(map[fleet.DeviceID]fleet.Device, len(rows))
	for _, row := range rows {
		devices[row.ID] = row
	}
	return devices, nil
}
