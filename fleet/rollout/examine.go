package rollout

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

// examine determines what blocks each candidate. It returns the unblocked ones, and puts the
// others where they wait for the end of the block.
func (l *loop) examine(ctx context.Context, c *openCampaign, candidates []*deployment) (picked []notification,
	err error) {
	devices, quarantines, err := l.facts(ctx, candidates)
	if err != nil {
		return nil, err
	}
	rights, err := l.rightsOf(ctx, c)
	if err != nil {
		return nil, err
	}
	for _, d := range candidates {
		device := devices[d.Device]
		if why := rights.Outside(device); device.ID != "" && !why.Is("") {
			l.leaveOut(d, why)
			continue
		}
		reason, err := l.unfit(ctx, d, device, quarantines)
		if err != nil {
			return nil, err
		}
		if reason != firmware.SkipNone {
			l.observe(d, campaign.Observation{At: l.now, Kind: fleet.EvidenceUnfit, Skip: reason})
			continue
		}
		block, mode, err := l.blockReason(ctx, d, device, c.inFlight+len(picked))
		if err != nil {
			return nil, err
		}
		if block != campaign.BlockNone {
			l.waitFor(d, device, block)
			continue
		}
		if t, ok := l.ready(d, device, mode); ok {
			picked = append(picked, t)
		}
	}
	return picked, nil
}

// facts reads the registry's data about the devices, and which of them failed too often.
func (l *loop) facts(ctx context.Context, all []*deployment) (map[fleet.DeviceID]fleet.Device,
	map[fleet.DeviceID]campaign.Quarantine, error) {
	devices, err := l.devices(ctx, all)
	if err != nil || l.o.Quarantines == nil {
		return devices, nil, err
	}
	ids := make([]fleet.DeviceID, len(all))
	for i, d := range all {
		ids[i] = d.Device
	}
	quarantines, err := l.o.Quarantines.QuarantinesOf(ctx, ids, l.now)
	return devices, quarantines, err
}

// unfit returns why the device no longer fits.
func (l *loop) unfit(ctx context.Context, d *deployment, device fleet.Device,
	quarantines map[fleet.DeviceID]campaign.Quarantine) (firmware.SkipReason, error) {
	if device.ID == "" {
		return firmware.SkipRetired, nil
	}
	if _, out := quarantines[d.Device]; out && d.camp.RollbackOf == uuid.Nil { // a rollback remains allowed
		return firmware.SkipQuarantined, nil
	}
	if !d.camp.mayHave(d.Image) {
		d.camp.planChecked = false // find out what else differs
		return firmware.SkipUnapproved, nil
	}
	img, err := l.image(ctx, d.Image)
	switch {
	case errors.Is(err, fleet.ErrNotFound):
		return firmware.SkipNoImage, nil
	case err != nil:
		return firmware.SkipNone, err
	}
	limits, err := l.limits(ctx, img)
	if err != nil {
		return firmware.SkipNone, err
	}
	plan := &d.camp.Plan
	reason, _ := firmware.FitImage(device, img, firmware.FitOptions{Mode: plan.Mode, AllowDowngrade: plan.AllowDowngrade,
		Limits: limits}, l.now)
	if reason == firmware.SkipNone && plan.Mode == firmware.ModePush {
		offers, err := l.offersUpgrade(ctx, device)
		if err == nil && !offers && device.InventoryID != "" {
			reason = firmware.SkipNoTool
		}
		return reason, err
	}
	return reason, nil
}

func (l *loop) offersUpgrade(ctx context.Context, device fleet.Device) (bool, error) {
	inv, err := l.inventories.get(ctx, l.o.Inventories, device.InventoryID)
	if err != nil {
		return false, err
	}
	_, offers := inv.Tool(fleet.ToolUpgradeFirmware)
	return offers, nil
}

// blockReason applies the rules.
func (l *loop) blockReason(ctx context.Context, d *deployment, device fleet.Device, inFlight int) (campaign.BlockReason,
	firmware.DispatchMode, error) {
	offers, err := l.offersUpgrade(ctx, device)
	if err != nil {
		return "", "", err
	}
	c := d.camp
	_, talking := l.conversation(d)
	h, mode := campaign.Block(campaign.ReadySituation{
		Campaign: c.State, Paused: c.PauseReason, Wave: c.Wave, Deployment: d.Deployment, Mode: c.Plan.Mode,
		PullNow:    c.Plan.PullNow,
		WindowOpen: l.windowOpen(d, l.zoneOf(d, device)), Presence: d.saw, OffersTool: offers, Confirmed: confirmed(device),
		Talking: talking,
		Busy:    l.activeElsewhere(d), InFlight: inFlight, MaxInFlight: c.Plan.MaxInFlight, PaceLeft: true, Room: true,
		Now: l.now,
	})
	return h, mode, nil
}

// confirmed reports whether a boot poll named the build that the device runs. The poll was
// answered, and so the device considers the build good.
func confirmed(device fleet.Device) bool { return device.LastPoll != nil && device.ELFSHA256 != "" }

// waitFor puts a deployment where it waits for the end of its block.
func (l *loop) waitFor(d *deployment, device fleet.Device, h campaign.BlockReason) {
	if h != campaign.BlockConversation {
		l.talked(d)
	}
	switch h {
	case campaign.BlockBackoff:
		l.timers.set(d, *d.NotBefore)
	case campaign.BlockWindow:
		at, ok := l.nextTurn(d, l.zoneOf(d, device))
		if !ok || !at.After(l.now) {
			at = l.now.Add(refreshEvery)
		}
		l.timers.set(d, at)
	case campaign.BlockBusy, campaign.BlockOldPresence:
		l.timers.set(d, l.now.Add(busyPause))
	case campaign.BlockUnconfirmed:
		l.timers.set(d, l.now.Add(unsurePause))
	case campaign.BlockConversation:
		l.letTalk(d)
	case campaign.BlockOffline, campaign.BlockAwaitsPoll, campaign.BlockUnresponsive:
		if h == campaign.BlockAwaitsPoll && l.prepare(d) {
			return
		}
		d.waitIn(&d.camp.parked, false)
	default:
		d.waitIn(&d.camp.ready, true)
	}
	d.setStuck(h.Stuck())
}

// ready takes the last steps before an unblocked device is notified: its baseline, or the
// restart that makes it poll.
func (l *loop) ready(d *deployment, device fleet.Device, mode firmware.DispatchMode) (notification, bool) {
	if l.prepare(d) {
		return notification{}, false
	}
	if mode == firmware.ModePull {
		l.restart(d)
		return notification{}, false
	}
	recordFacts(d, device)
	return notification{d: d, mode: mode}, true
}

// recordFacts records the build and version from before the upgrade in the deployment.
func recordFacts(d *deployment, device fleet.Device) {
	d.FromELF, d.FromVersion = device.ELFSHA256, device.Version
	d.Baseline.Inventory, d.Baseline.Slot = device.InventoryID, device.Slot
	if device.Layout != nil {
		d.Baseline.FreeHeap = device.Layout.FreeHeap
	}
}
