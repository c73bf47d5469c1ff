package campaign

import (
	"cmp"
	"context"
	"fleetd/fleet"
	"fleetd/fleet/firmware"
	"slices"
	"time"

	"github.com/google/uuid"
)

const rollbackSoak = 2 * time.Minute

// Rollback makes a campaign that returns every device that this one updated to
// the build it had before, as far as that build's image is stored here, and
// starts it. It needs no approval: it is the way to safety.
func (s *Service) Rollback(ctx context.Context, by fleet.Principal, id uuid.UUID) (Campaign, error) {
	ctx = fleet.WithScope(ctx, by)
	if err := s.maySteer(ctx, by, id, "roll_back_campaign"); err != nil {
		return Campaign{}, err
	}
	from, err := s.Campaign(ctx, id)
	if err != nil {
		return Campaign{}, err
	}
	if err := rollbackable(from); err != nil {
		return Campaign{}, err
	}
	c, made, err := s.planRollback(ctx, by, from)
	if err != nil {
		return Campaign{}, err
	}
	if err := s.o.Store.CreateCampaign(ctx, by, &c, made.waves, made.deployments); err != nil {
		return Campaign{}, err
	}
	if _, err := s.change(ctx, by, from.ID, "campaign.rollback", func(f *Campaign) error {
		f.RollbackWith, f.RollbackWanted = c.ID, false
		return nil
	}); err != nil {
		return Campaign{}, err
	}
	return s.Start(ctx, by, c.ID)
}

func rollbackable(c Campaign) error {
	switch {
	case c.RollbackWith != uuid.Nil:
		return fleet.Refuse(fleet.ErrConflict, "rolled_back_already", "name", c.Plan.Name)
	case c.StartedAt == nil:
		return fleet.Refuse(fleet.ErrConflict, "not_started.take_back", "name", c.Plan.Name)
	case c.State == Running:
		return fleet.Refuse(fleet.ErrConflict, "still_running", "name", c.Plan.Name)
	}
	return nil
}

// planRollback aims each device at the image of the build it came from.
func (s *Service) planRollback(ctx context.Context, by fleet.Principal, from Campaign) (Campaign, planned, error) {
	updated, err := s.o.Store.Rollbacks(ctx, from.ID)
	if err != nil {
		return Campaign{}, planned{}, err
	}
	if len(updated) == 0 {
		return Campaign{}, planned{}, fleet.Refuse(fleet.ErrConflict, "nothing_to_roll_back", "name", from.Plan.Name)
	}
	now := s.o.Now()
	c := Campaign{ID: uuid.Must(uuid.NewV7()), State: Draft, RollbackOf: from.ID, CreatedBy: by, CreatedAt: now,
		EditedBy: by, EditedAt: now}
	a := newPlanner(s, c.ID, rollbackPlan(from, updated), now)
	if err := a.plan.Normalize(now); err != nil {
		return Campaign{}, planned{}, err
	}
	earlier, err := s.earlierImages(ctx, updated)
	if err != nil {
		return Campaign{}, planned{}, err
	}
	var former []firmware.Image
	for _, images := range earlier {
		former = append(former, images...)
	}
	if a.limits, err = s.o.Limits(ctx, former); err != nil {
		return Campaign{}, planned{}, err
	}
	for page := range slices.Chunk(updated, planPage) {
		if err := a.rollbackPage(ctx, page, earlier); err != nil {
			return Campaign{}, planned{}, err
		}
	}
	if err := a.assign(); err != nil {
		return Campaign{}, planned{}, err
	}
	made := a.result(firmware.Release{State: firmware.ReleaseReleased})
	return c, made, made.fill(&c)
}

func rollbackPlan(from Campaign, updated []Deployment) Plan {
	p := Plan{Name: fleet.CleanText("Rollback: "+from.Plan.Name, fleet.MaxNameLength), Mode: firmware.ModeAuto,
		AllowDowngrade: true, Supersede: true,
		Waves: []WavePlan{{Name: "all", Percent: 100, Soak: rollbackSoak, SuccessPercent: 90, MinSample: 1,
			Gate: GateAuto}},
		MaxInFlight: from.Plan.MaxInFlight, MaxPerMinute: from.Plan.MaxPerMinute, MaxAttempts: from.Plan.MaxAttempts}
	for _, d := range updated {
		p.Devices = append(p.Devices, d.Device)
	}
	slices.Sort(p.Devices)
	return p
}

// earlierImages finds the stored image of each build that devices came from.
func (s *Service) earlierImages(ctx context.Context, updated []Deployment) (map[string][]firmware.Image, error) {
	var builds []string
	for _, d := range updated {
		if d.FromELF != "" {
			builds = append(builds, d.FromELF)
		}
	}
	slices.Sort(builds)
	images, err := s.o.Firmware.ImagesByELF(ctx, slices.Compact(builds))
	if err != nil {
		return nil, err
	}
	of := map[string][]firmware.Image{}
	for _, img := range images {
		of[img.ELFSHA256] = append(of[img.ELFSHA256], img)
	}
	return of, nil
}

func (a *planner) rollbackPage(ctx context.Context, updated []Deployment, earlier map[string][]firmware.Image) error {
	before := make(map[fleet.DeviceID]string, len(updated))
	ids := make([]fleet.DeviceID, 0, len(updated))
	for _, d := range updated {
		before[d.Device] = d.FromELF
		ids = append(ids, d.Device)
	}
	devices, err := a.s.o.Devices.DevicesByID(ctx, ids)
	if err != nil {
		return err
	}
	busy, err := a.busy(ctx, ids)
	if err != nil {
		return err
	}
	slices.SortFunc(devices, func(x, y fleet.Device) int { return cmp.Compare(x.ID, y.ID) })
	for _, d := range devices {
		// A release of the one image: who fits is judged by the same rules. A
		// quarantine does not keep a device from what it ran well with.
		r := firmware.Release{State: firmware.ReleaseReleased, Images: earlier[before[d.ID]]}
		if len(r.Images) == 0 {
			dep := newDeployment(a.id, d, a.now)
			a.matched++
			a.leaveOut(&dep, firmware.SkipNoEarlier, fleet.Reason{})
			a.deployments = append(a.deployments, dep)
			continue
		}
		a.take(d, r, busy[d.ID], nil)
	}
	return nil
}
