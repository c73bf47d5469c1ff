package campaign

import (
	"context"
	"errors"
	"fleetd/fleet"
	"fleetd/fleet/firmware"
	"time"

	"github.com/google/uuid"
)

// A Outlook answers "why is this device not updating?".
type Outlook struct {
	Deployment *Deployment // its latest; nil if it has none
	Campaign   *Campaign
	// BlockReason is what it waits for now; "" if nothing, or if there is no deployment.
	BlockReason BlockReason
	Until       *time.Time // when that ends without an operator, if known
	Quarantine  *Quarantine
	// Newer are released releases with an image that would fit and is newer
	// than the running build, newest first.
	Newer []firmware.Release
}

// newerShown bounds the releases that an outlook looks at.
const newerShown = 50

// Outlook says what is to be expected of a device's firmware.
func (s *Service) Outlook(ctx context.Context, id fleet.DeviceID) (Outlook, error) {
	d, err := s.o.Devices.Device(ctx, id)
	if err != nil {
		return Outlook{}, err
	}
	var out Outlook
	if out.Quarantine, err = s.o.Quarantines.QuarantineOf(ctx, id, s.o.Now()); err != nil {
		return Outlook{}, err
	}
	if out.Newer, err = s.newer(ctx, d); err != nil {
		return Outlook{}, err
	}
	latest, err := s.DeviceDeployments(ctx, id, 1)
	if err != nil || len(latest) == 0 {
		return out, err
	}
	out.Deployment = &latest[0]
	c, err := s.Campaign(ctx, latest[0].Campaign)
	if err != nil {
		return Outlook{}, err
	}
	out.Campaign = &c
	if latest[0].State.Waiting() {
		return out, s.blocked(ctx, &out, d)
	}
	return out, nil
}

func (s *Service) newer(ctx context.Context, d fleet.Device) ([]firmware.Release, error) {
	page, err := s.o.Firmware.Releases(ctx, firmware.ReleaseFilter{State: firmware.ReleaseReleased, Limit: newerShown})
	if err != nil {
		return nil, err
	}
	var fit []firmware.Release
	for _, r := range page.Items {
		if _, reason, _ := firmware.FitDevice(d, r, firmware.FitOptions{}, s.o.Now()); reason == firmware.SkipNone {
			fit = append(fit, r)
		}
	}
	return fit, nil
}

// blocked asks the engine's own rule what keeps a waiting deployment, of what
// can be known from the rows: the limits in the engine's memory are left out.
func (s *Service) blocked(ctx context.Context, out *Outlook, d fleet.Device) error {
	now, c, dep := s.o.Now(), *out.Campaign, *out.Deployment
	var inv *fleet.Inventory
	if d.InventoryID != "" {
		var err error
		if inv, err = s.o.Inventories.Inventory(ctx, d.InventoryID); err != nil && !errors.Is(err, fleet.ErrNotFound) {
			return err
		}
	}
	_, offers := inv.Tool(fleet.ToolUpgradeFirmware)
	zone, need := s.zoneOf(d), ExpectedDuration(dep.ImageSize)
	conflicts, err := s.o.Store.Conflicts(ctx, c.ID, []fleet.DeviceID{d.ID})
	if err != nil {
		return err
	}
	p, err := s.CampaignProgress(ctx, c.ID)
	if err != nil {
		return err
	}
	inFlight := 0
	for st, n := range p.ByState {
		if st.InFlight() {
			inFlight += n
		}
	}
	out.BlockReason, _ = Block(ReadySituation{Campaign: c.State, Paused: c.PauseReason, Wave: c.Wave, Deployment: dep,
		Mode: c.Plan.Mode, PullNow: c.Plan.PullNow, WindowOpen: WindowOpen(c.Plan.Windows, zone, now, need),
		Presence:   d.Presence,
		OffersTool: offers, Confirmed: d.LastPoll != nil, Busy: activeElsewhere(conflicts), InFlight: inFlight,
		MaxInFlight: c.Plan.MaxInFlight, PaceLeft: true, Room: true, Now: now})
	out.Until = s.until(c, dep, out.BlockReason, zone, need, now)
	return nil
}

func activeElsewhere(conflicts []DeploymentConflict) bool {
	for _, c := range conflicts {
		if c.State.Active() {
			return true
		}
	}
	return false
}

// zoneOf is the device's time zone, or the fleet's.
func (s *Service) zoneOf(d fleet.Device) *time.Location {
	if d.TimeZone != "" {
		if zone, err := time.LoadLocation(d.TimeZone); err == nil {
			return zone
		}
	}
	return s.o.Zone
}

func (s *Service) until(c Campaign, d Deployment, h BlockReason, zone *time.Location, need time.Duration,
	now time.Time) *time.Time {
	switch h {
	case BlockNotStarted:
		return c.Plan.StartAt
	case BlockBackoff:
		return d.NotBefore
	case BlockWindow:
		if next, ok := NextWindow(c.Plan.Windows, zone, now, need); ok {
			return &next
		}
	}
	return nil
}

// CampaignsOf names the campaign that each device has a live part in.
func (s *Service) CampaignsOf(ctx context.Context, ids []fleet.DeviceID) (map[fleet.DeviceID]uuid.UUID, error) {
	conflicts, err := s.o.Store.Conflicts(ctx, uuid.Nil, ids)
	if err != nil {
		return nil, err
	}
	of := make(map[fleet.DeviceID]uuid.UUID, len(conflicts))
	for _, c := range conflicts {
		if c.Campaign == uuid.Nil {
			continue // it does not exist for who asks
		}
		if _, have := of[c.Device]; !have || c.State.Active() {
			of[c.Device] = c.Campaign
		}
	}
	return of, nil
}
