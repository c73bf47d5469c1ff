package campaign

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/firmware"
)

// An Outlook answers "why is this device not updating?".
type Outlook struct {
	Deployment *Deployment // the latest; nil if it has none
	Campaign   *Campaign
	// BlockReason is what it waits for now; "" if nothing, or without a deployment.
	BlockReason BlockReason
	Until       *time.Time // when the block ends without an operator, if known
	Quarantine  *Quarantine
	Hold        *fleet.Hold // campaigns exclude the device until it ends; nil without a current hold
	// Newer are released releases, newer than the running build, with an image that fits,
	// newest first. A hold does not affect them.
	Newer []firmware.Release
	// RolledBack are releases like those in Newer whose build the device installed but did not
	// keep. They are not offered, but can be tried again deliberately.
	RolledBack []RolledBackRelease
	// Misfits are newer releases with an image for the device's board that it cannot install,
	// newest first.
	Misfits []Misfit
	// Failed are its latest failed deployments, one for each build that it does not run, newest first.
	Failed []Deployment
}

// A RolledBackRelease is a release that fits a device, and the deployment after which the
// device returned to its previous build.
type RolledBackRelease struct {
	Release    firmware.Release
	Deployment Deployment // the latest with that outcome
}

// A Misfit is a release that a device cannot install, with the reasons.
type Misfit struct {
	Release firmware.Release
	Skip    firmware.SkipReason
	Reason  fleet.Reason
}

// Limits of what an outlook examines and lists.
const (
	newerShown   = 50
	failedLooked = 20
	failedShown  = 3
	misfitsShown = 3
)

// Outlook returns the prospects of a device's firmware.
func (s *Service) Outlook(ctx context.Context, id fleet.DeviceID) (Outlook, error) {
	d, err := s.o.Devices.Device(ctx, id)
	if err != nil {
		return Outlook{}, err
	}
	var out Outlook
	if out.Quarantine, err = s.o.Quarantines.QuarantineOf(ctx, id, s.o.Now()); err != nil {
		return Outlook{}, err
	}
	if d.Hold.Active(s.o.Now()) {
		out.Hold = d.Hold
	}
	latest, err := s.DeviceDeployments(ctx, id, failedLooked)
	if err != nil {
		return Outlook{}, err
	}
	if err := s.newer(ctx, d, latest, &out); err != nil || len(latest) == 0 {
		return out, err
	}
	out.Failed = failed(latest, d)
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

// newer finds the releases that the device could get, and those for its board that it cannot.
func (s *Service) newer(ctx context.Context, d fleet.Device, latest []Deployment, out *Outlook) error {
	page, err := s.o.Firmware.Releases(ctx, firmware.ReleaseFilter{State: firmware.ReleaseReleased, Limit: newerShown})
	if err != nil {
		return err
	}
	d.Hold = nil // a hold decides when, not whether
	for _, r := range page.Items {
		switch img, skip, why := firmware.FitDevice(d, r, firmware.FitOptions{}, s.o.Now()); skip {
		case firmware.SkipNone:
			if dep := rolledBack(latest, img.ELFSHA256); dep != nil {
				out.RolledBack = append(out.RolledBack, RolledBackRelease{r, *dep})
				continue
			}
			out.Newer = append(out.Newer, r)
		case firmware.SkipInstalled, firmware.SkipNewer, firmware.SkipNoImage, firmware.SkipRetired,
			firmware.SkipNotEnrolled, firmware.SkipProgram, firmware.SkipUnknown:
		default:
			if len(out.Misfits) < misfitsShown && mayBeNewer(r.Version, d.Version) {
				out.Misfits = append(out.Misfits, Misfit{r, skip, why})
			}
		}
	}
	return nil
}

// rolledBack returns the deployment after which a device did not keep a build. It is nil if the
// latest verdict on the build is another.
func rolledBack(latest []Deployment, elf string) *Deployment {
	i := slices.IndexFunc(latest, func(d Deployment) bool { return d.TargetELF == elf && d.State.Verdict() })
	if elf == "" || i < 0 || latest[i].State != DeploymentRolledBack {
		return nil
	}
	return &latest[i]
}

// mayBeNewer also returns true if the versions cannot be compared.
func mayBeNewer(version, than string) bool {
	a, b := fleet.VersionKey(version), fleet.VersionKey(than)
	return a == nil || b == nil || slices.Compare(a, b) > 0
}

// failed selects the failures that still matter: of builds that the device does not run now and
// did not run after the failure.
func failed(latest []Deployment, d fleet.Device) (all []Deployment) {
	judged := make(map[string]bool, len(latest))
	for _, dep := range latest {
		if dep.TargetELF == d.ELFSHA256 && d.ELFSHA256 != "" || judged[dep.TargetELF] || !dep.State.Verdict() {
			continue
		}
		judged[dep.TargetELF] = true
		if dep.State.Failed() && len(all) < failedShown {
			all = append(all, dep)
		}
	}
	return all
}

// blocked finds what blocks the waiting deployment of an outlook.
func (s *Service) blocked(ctx context.Context, out *Outlook, d fleet.Device) error {
	now, c, dep := s.o.Now(), *out.Campaign, *out.Deployment
	facts, err := s.blockFacts(ctx, c, []fleet.Device{d})
	if err != nil {
		return err
	}
	out.BlockReason = facts.reason(dep, d)
	out.Until = s.until(c, dep, out.BlockReason, s.zoneOf(d), ExpectedDuration(dep.ImageSize), now)
	return nil
}

// BlockReasons returns why those of a campaign's deployments that wait are not dispatched now, by
// device.
func (s *Service) BlockReasons(ctx context.Context, c Campaign, all []Deployment) (map[fleet.DeviceID]BlockReason,
	error) {
	waiting := make(map[fleet.DeviceID]Deployment)
	for _, dep := range all {
		if dep.State.Waiting() {
			waiting[dep.Device] = dep
		}
	}
	reasons := make(map[fleet.DeviceID]BlockReason, len(waiting))
	if len(waiting) == 0 {
		return reasons, nil
	}
	devices, err := s.o.Devices.DevicesByID(ctx, slices.Sorted(maps.Keys(waiting)))
	if err != nil {
		return nil, err
	}
	facts, err := s.blockFacts(ctx, c, devices)
	if err != nil {
		return nil, err
	}
	for _, d := range devices {
		reasons[d.ID] = facts.reason(waiting[d.ID], d)
	}
	return reasons, nil
}

// blockFacts are the facts that decide whether deployments of a campaign are dispatched.
type blockFacts struct {
	s        *Service
	campaign Campaign
	offers   map[string]bool // inventories with the tool for upgrades
	busy     map[fleet.DeviceID]bool
	inFlight int
}

func (s *Service) blockFacts(ctx context.Context, c Campaign, devices []fleet.Device) (blockFacts, error) {
	f := blockFacts{s: s, campaign: c, offers: make(map[string]bool), busy: make(map[fleet.DeviceID]bool)}
	ids := make([]fleet.DeviceID, len(devices))
	for i, d := range devices {
		ids[i] = d.ID
		if _, known := f.offers[d.InventoryID]; known || d.InventoryID == "" {
			continue
		}
		inv, err := s.o.Inventories.Inventory(ctx, d.InventoryID)
		if err != nil && !errors.Is(err, fleet.ErrNotFound) {
			return f, err
		}
		_, f.offers[d.InventoryID] = inv.Tool(fleet.ToolUpgradeFirmware)
	}
	conflicts, err := s.o.Store.Conflicts(ctx, c.ID, ids)
	if err != nil {
		return f, err
	}
	for _, conflict := range conflicts {
		if conflict.State.Active() {
			f.busy[conflict.Device] = true
		}
	}
	p, err := s.CampaignProgress(ctx, c.ID)
	for st, n := range p.ByState {
		if st.InFlight() {
			f.inFlight += n
		}
	}
	return f, err
}

// reason applies the engine's own rule. It uses only the rows and ignores the limits in the
// engine's memory.
func (f blockFacts) reason(dep Deployment, d fleet.Device) BlockReason {
	now, c := f.s.o.Now(), f.campaign
	reason, _ := Block(ReadySituation{Campaign: c.State, Paused: c.PauseReason, Wave: c.Wave, Deployment: dep,
		Mode: c.Plan.Mode, PullNow: c.Plan.PullNow,
		WindowOpen: WindowOpen(c.Plan.Windows, f.s.zoneOf(d), now, ExpectedDuration(dep.ImageSize)), Presence: d.Presence,
		OffersTool: f.offers[d.InventoryID], Confirmed: d.LastPoll != nil,
		Talking: dep.Reason.Is(call.ReasonInConversation), Busy: f.busy[d.ID], InFlight: f.inFlight,
		MaxInFlight: c.Plan.MaxInFlight, PaceLeft: true, Room: true, Now: now})
	return reason
}

// zoneOf returns the device's time zone, or the fleet's.
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
	case BlockConversation:
		text, _ := d.Reason.Params["until_at"].(string)
		if at, err := time.Parse(time.RFC3339, text); err == nil {
			return &at
		}
	case BlockWindow:
		if next, ok := NextWindow(c.Plan.Windows, zone, now, need); ok {
			return &next
		}
	}
	return nil
}

// CampaignsOf returns for each device the campaign in which it has a live deployment.
func (s *Service) CampaignsOf(ctx context.Context, ids []fleet.DeviceID) (map[fleet.DeviceID]uuid.UUID, error) {
	conflicts, err := s.o.Store.Conflicts(ctx, uuid.Nil, ids)
	if err != nil {
		return nil, err
	}
	of := make(map[fleet.DeviceID]uuid.UUID, len(conflicts))
	for _, c := range conflicts {
		if c.Campaign == uuid.Nil {
			continue // not visible to the principal
		}
		if _, have := of[c.Device]; !have || c.State.Active() {
			of[c.Device] = c.Campaign
		}
	}
	return of, nil
}
