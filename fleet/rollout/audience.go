package rollout

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

// growEvery is how often a continuous campaign looks for newly matching devices.
const growEvery = 30 * time.Second

// grow adds devices to the last wave of a continuous campaign, up to the campaign's cap.
// Earlier waves contain only devices that were known at the start.
func (l *loop) grow(ctx context.Context, c *openCampaign) error {
	if !c.Plan.Continuous || c.State != campaign.Running || l.now.Sub(c.grownAt) < growEvery || l.ended(c) ||
		c.Plan.Release == uuid.Nil {
		return nil
	}
	c.grownAt = l.now
	fresh, err := l.newcomers(ctx, c)
	if err != nil || len(fresh) == 0 {
		return err
	}
	targets, err := l.targets(ctx, c, fresh)
	if err != nil || len(targets) == 0 {
		return err
	}
	n, err := l.o.Store.AddTargets(ctx, c.ID, targets)
	if err != nil {
		return err
	}
	for _, t := range targets {
		c.known[t.Device] = struct{}{}
	}
	l.o.Log.Info("devices joined a continuous campaign", "campaign", c.ID, "name", c.Plan.Name, "devices", n)
	c.stale, l.reload, l.again = true, true, true
	return nil
}

// newcomers returns matching devices that the campaign's maker and starter may update and that
// have no deployment in it yet.
func (l *loop) newcomers(ctx context.Context, c *openCampaign) ([]fleet.DeviceID, error) {
	if c.known == nil {
		rows, err := l.deployments(ctx, c.ID, nil)
		if err != nil {
			return nil, err
		}
		c.known = make(map[fleet.DeviceID]struct{}, len(rows))
		for _, row := range rows {
			c.known[row.Device] = struct{}{}
		}
	}
	q, err := c.Plan.Audience()
	if err != nil {
		return nil, fmt.Errorf("audience %q within %q: %w", c.Plan.Query, c.Plan.Within, err)
	}
	rights, err := l.rightsOf(ctx, c)
	if err != nil {
		return nil, err
	}
	ids, err := l.o.Store.DeviceIDs(ctx, rights.Narrowed(q))
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(ids, func(id fleet.DeviceID) bool {
		_, known := c.known[id]
		return known
	}), nil
}

// targets returns pending deployments for the newcomers that fit. It skips the others, since
// they may fit later.
func (l *loop) targets(ctx context.Context, c *openCampaign, ids []fleet.DeviceID) (all []campaign.Deployment,
	err error) {
	release, err := l.o.Store.Release(ctx, c.Plan.Release)
	if err != nil {
		return nil, err
	}
	rights, err := l.rightsOf(ctx, c)
	if err != nil {
		return nil, err
	}
	room := c.Plan.MaxDevices - c.Targets
	options := firmware.FitOptions{Mode: c.Plan.Mode, AllowDowngrade: c.Plan.AllowDowngrade}
	if l.o.Limits != nil {
		if options.Limits, err = l.o.Limits(ctx, release.Images); err != nil {
			return nil, err
		}
	}
	for chunk := range slices.Chunk(ids, saveBatch) {
		devices, err := l.o.Store.DevicesByID(ctx, chunk)
		if err != nil {
			return nil, err
		}
		for _, device := range devices {
			img, reason, _ := firmware.FitDevice(device, release, options, l.now)
			if reason == firmware.SkipNone && len(all) < room && c.mayHave(img.SHA256) && rights.Outside(device).Is("") {
				all = append(all, newTarget(c, device, img, l.now))
			}
		}
	}
	return all, nil
}

func newTarget(c *openCampaign, device fleet.Device, img firmware.Image, now time.Time) campaign.Deployment {
	return campaign.Deployment{
		ID: uuid.Must(uuid.NewV7()), Campaign: c.ID, Device: device.ID, Board: device.Board, Wave: len(c.waves) - 1,
		Joined: true,
		State:  campaign.DeploymentPending, Image: img.SHA256, ImageSize: img.Size, TargetELF: img.ELFSHA256,
		ToVersion: img.Version,
		FromELF:   device.ELFSHA256, FromVersion: device.Version, CreatedAt: now, UpdatedAt: now,
	}
}
