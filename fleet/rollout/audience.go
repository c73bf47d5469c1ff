package rollout

import (
	"context"
	"fmt"
	"slices"
	"time"

	"fleetd/fleet"

	"github.com/google/uuid"
)

// growEvery is how often a continuous campaign looks for devices that have come
// to match.
const growEvery = 30 * time.Second

// grow adds devices to a continuous campaign, up to its cap. They come into its
// last wave: the ones before it are for devices known from the start.
func (l *loop) grow(ctx context.Context, c *campaign) error {
	if !c.Plan.Continuous || c.State != fleet.CampaignRunning || l.now.Sub(c.grownAt) < growEvery || l.ended(c) || c.Plan.Release == uuid.Nil {
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

// newcomers returns devices that match and have no part in the campaign yet.
func (l *loop) newcomers(ctx context.Context, c *campaign) ([]fleet.DeviceID, error) {
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
	q, err := fleet.ParseQuery(c.Plan.Query)
	if err != nil {
		return nil, fmt.Errorf("audience %q: %w", c.Plan.Query, err)
	}
	ids, err := l.o.Store.DeviceIDs(ctx, q)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(ids, func(id fleet.DeviceID) bool {
		_, known := c.known[id]
		return known
	}), nil
}

// targets are the newcomers that fit, as pending deployments. Those that do not
// fit now may later, and are left alone.
func (l *loop) targets(ctx context.Context, c *campaign, ids []fleet.DeviceID) (all []fleet.Deployment, err error) {
	release, err := l.o.Store.Release(ctx, c.Plan.Release)
	if err != nil {
		return nil, err
	}
	room := c.Plan.MaxDevices - c.Targets
	options := fleet.FitOptions{Mode: c.Plan.Mode, AllowDowngrade: c.Plan.AllowDowngrade}
	for chunk := range slices.Chunk(ids, saveBatch) {
		devices, err := l.o.Store.DevicesByID(ctx, chunk)
		if err != nil {
			return nil, err
		}
		for _, device := range devices {
			img, reason, _ := fleet.FitDevice(device, release, options, l.now)
			if reason == fleet.SkipNone && len(all) < room {
				all = append(all, newTarget(c, device, img, l.now))
			}
		}
	}
	return all, nil
}

func newTarget(c *campaign, device fleet.Device, img fleet.Image, now time.Time) fleet.Deployment {
	return fleet.Deployment{
		ID: uuid.Must(uuid.NewV7()), Campaign: c.ID, Device: device.ID, Board: device.Board, Wave: len(c.waves) - 1,
		State: fleet.DeploymentPending, Image: img.SHA256, ImageSize: img.Size, TargetELF: img.ELFSHA256, ToVersion: img.Version,
		FromELF: device.ELFSHA256, FromVersion: device.Version, CreatedAt: now, UpdatedAt: now,
	}
}
