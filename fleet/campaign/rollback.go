package campaign

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

const rollbackSoak = 2 * time.Minute

// Rollback makes and starts a campaign that returns every device that this one updated to its
// previous build, if the image of that build is stored. The principal that requests it is its
// maker and starter and answers for it while it runs. It needs an approval like any start,
// unless the approval of the campaign covers its rollback; see [Approval].
func (s *Service) Rollback(ctx context.Context, by fleet.Principal, id uuid.UUID) (Campaign, error) {
	ctx = fleet.WithScope(ctx, by)
	if err := s.maySteer(ctx, by, id, "roll_back_campaign"); err != nil {
		return Campaign{}, err
	}
	from, err := s.Campaign(ctx, id)
	if err != nil {
		return Campaign{}, err
	}
	c, _, err := s.rollBack(ctx, by, from, false)
	return c, err
}

// RollBackAborted makes the rollback that was requested when the campaign was aborted. It acts for
// the operator who aborted the campaign, or, if a rule of the plan did, for its starter. Their
// rights are read again. If the rollback is refused, the reason is put on record, and any principal
// with the right can then request it. An error means that RollBackAborted must be tried again.
func (s *Service) RollBackAborted(ctx context.Context, id uuid.UUID) error {
	from, err := s.o.Store.Campaign(ctx, id)
	if err != nil || !from.RollbackWanted {
		return err
	}
	by, why, err := s.rollbackAsker(ctx, &from)
	if err != nil {
		return err
	}
	left := 0
	if why.Is("") {
		_, left, err = s.rollBack(ctx, by, from, from.RollbackBy == nil)
		if why, err = whyNoRollback(from, by, err); err != nil {
			return err
		}
	}
	if why.Is("") && left > 0 {
		why = fleet.Because(ReasonRollbackPartly, "devices", left)
	}
	if why.Is("") {
		return nil
	}
	s.o.Log.Warn("the rollback of an aborted campaign was not made, or not of all devices", "campaign", id,
		"name", from.Plan.Name, "reason", why)
	_, err = s.store(ctx, fleet.Principal{Kind: fleet.KindCampaign, ID: id.String(), Name: from.Plan.Name,
		Role: fleet.RoleOperator}, id, "campaign.no_rollback", func(c *Campaign) error {
		c.RollbackWanted, c.RollbackReason = false, why
		return nil
	})
	return err
}

// rollbackAsker returns the principal that answers for the requested rollback, with its present
// rights. A rule of the plan acts for the campaign's maker and starter.
func (s *Service) rollbackAsker(ctx context.Context, from *Campaign) (by fleet.Principal, why fleet.Reason, err error) {
	if from.RollbackBy == nil {
		rights, why, err := from.Rights(ctx, s.o.Authority)
		return rights.Starter, why, err
	}
	by, err = s.o.Authority.PrincipalNow(ctx, *from.RollbackBy)
	if errors.Is(err, fleet.ErrActorGone) {
		return by, fleet.Because(ReasonActorGone, "name", from.RollbackBy.Name), nil
	}
	if err == nil && !by.Role.Allows(fleet.RoleOperator) {
		why = fleet.Because(ReasonActorNoOperator, "name", by.Name)
	}
	return by, why, err
}

// whyNoRollback returns the reason to record for a refusal. It returns any other error unchanged.
func whyNoRollback(from Campaign, by fleet.Principal, err error) (fleet.Reason, error) {
	e, refused := errors.AsType[*fleet.Error](err)
	if !refused || errors.Is(err, fleet.ErrUnavailable) {
		return fleet.Reason{}, err
	}
	switch e.Code {
	case "campaign_changed": // another change was faster
		return fleet.Reason{}, err
	case "nothing_to_roll_back":
		return fleet.Because(ReasonRollbackNothing), nil
	case "rolled_back_already":
		return fleet.Because(ReasonRollbackUnderWay, "name", from.Plan.Name), nil
	case "rollback_waits":
		return fleet.Because(ReasonRollbackWaits, "name", from.Plan.Name), nil
	case "audience_not_yours":
		return fleet.Because(ReasonOutOfScope, "name", by.Name), nil
	}
	return fleet.Because(ReasonRollbackRefused, "error", e.Code), nil
}

// rollBack makes and starts the rollback, and returns the number of devices that the principal
// could not return. byRule reports that a rule of the plan requests it.
func (s *Service) rollBack(ctx context.Context, by fleet.Principal, from Campaign, byRule bool) (Campaign, int, error) {
	former, err := s.rollbackable(ctx, by, from)
	if err != nil {
		return Campaign{}, 0, err
	}
	c, made, left, err := s.planRollback(ctx, by, from)
	if err != nil {
		return Campaign{}, 0, err
	}
	if a := from.Approval; a != nil && a.Rollback && (byRule || !by.Kind.IsModel()) {
		c.Approval = &Approval{By: a.By, At: a.At, Digest: c.Digest, Of: from.ID}
	}
	if former != uuid.Nil {
		if _, err := s.store(ctx, by, former, "campaign.discard", s.discard); err != nil {
			return Campaign{}, 0, err
		}
	}
	if err := s.o.Store.CreateCampaign(ctx, by, &c, made.waves, made.deployments); err != nil {
		return Campaign{}, 0, err
	}
	if _, err := s.store(ctx, by, from.ID, "campaign.rollback", func(f *Campaign) error {
		f.RollbackWith, f.RollbackReason = c.ID, fleet.Reason{}
		return nil
	}); err != nil {
		return Campaign{}, 0, err
	}
	c, err = s.store(ctx, by, c.ID, "campaign.start", func(c *Campaign) error { return s.start(ctx, by, c) })
	if err != nil {
		return Campaign{}, 0, err
	}
	_, err = s.store(ctx, by, from.ID, "", func(f *Campaign) error {
		f.RollbackWanted = false // only now: after a crash before this the rollback is requested again
		return nil
	})
	return c, left, err
}

// rollsBack reports whether a rule of the plan rolls back automatically.
func (p *Plan) rollsBack() bool {
	return slices.ContainsFunc(p.AbortRules, func(r AbortRule) bool { return r.Action == AbortAndRollback })
}

// rollbackable refuses a rollback that is not possible now. It allows another one after a
// rollback that ended before it returned all devices. It returns a rollback that was not
// started, which the new one replaces unless a model requests it.
func (s *Service) rollbackable(ctx context.Context, by fleet.Principal, from Campaign) (former uuid.UUID, err error) {
	switch {
	case from.StartedAt == nil:
		return uuid.Nil, fleet.Refuse(fleet.ErrConflict, "not_started.take_back", "name", from.Plan.Name)
	case from.State == Running:
		return uuid.Nil, fleet.Refuse(fleet.ErrConflict, "still_running", "name", from.Plan.Name)
	case from.RollbackWith == uuid.Nil:
		return uuid.Nil, nil
	}
	r, err := s.o.Store.Campaign(fleet.WithoutScope(ctx), from.RollbackWith)
	switch {
	case err != nil:
		return uuid.Nil, err
	case r.State.WayBackOpen():
		return uuid.Nil, nil
	case (r.State == Draft || r.State == AwaitingApproval) && !by.Kind.IsModel():
		return r.ID, nil
	case r.State == Draft || r.State == AwaitingApproval:
		return uuid.Nil, fleet.Refuse(fleet.ErrConflict, "rollback_waits", "name", r.Plan.Name)
	}
	return uuid.Nil, fleet.Refuse(fleet.ErrConflict, "rolled_back_already", "name", from.Plan.Name)
}

// WayBackOpen reports whether a rollback in this state leaves devices to return and does no
// more about them.
func (s State) WayBackOpen() bool {
	switch s {
	case Denied, Discarded, Aborted, Expired, CompletedWithErrors:
		return true
	}
	return false
}

// planRollback sets for each device the image of its previous build. It omits, and counts, the
// devices on which the principal may not act.
func (s *Service) planRollback(ctx context.Context, by fleet.Principal, from Campaign) (c Campaign, made planned,
	left int, err error) {
	updated, err := s.o.Store.Rollbacks(ctx, from.ID)
	if err != nil {
		return c, made, 0, err
	}
	all := len(updated)
	if updated, err = s.within(ctx, by, updated); err != nil {
		return c, made, 0, err
	}
	switch {
	case all == 0:
		return c, made, 0, fleet.Refuse(fleet.ErrConflict, "nothing_to_roll_back", "name", from.Plan.Name)
	case len(updated) == 0:
		return c, made, 0, fleet.Refuse(fleet.ErrForbidden, "audience_not_yours", "devices", all, "matched", all,
			"actor", by.Name)
	}
	now := s.o.Now()
	c = Campaign{ID: uuid.Must(uuid.NewV7()), State: Draft, RollbackOf: from.ID, CreatedBy: by, CreatedAt: now,
		EditedBy: by, EditedAt: now}
	a := newPlanner(s, c.ID, rollbackPlan(from, updated), now)
	a.plan.Within = by.Within(fleet.RoleOperator).Text
	a.plan.ApprovalRequired = from.Plan.ApprovalRequired || s.o.RequireApproval
	a.by = by
	if err := a.plan.Normalize(now); err != nil {
		return c, made, 0, err
	}
	earlier, err := s.earlierImages(ctx, updated)
	if err != nil {
		return c, made, 0, err
	}
	var former []firmware.Image
	for _, images := range earlier {
		former = append(former, images...)
	}
	if a.limits, err = s.o.Limits(ctx, former); err != nil {
		return c, made, 0, err
	}
	for page := range slices.Chunk(updated, planPage) {
		if err := a.rollbackPage(ctx, page, earlier); err != nil {
			return c, made, 0, err
		}
	}
	if err := a.assign(); err != nil {
		return c, made, 0, err
	}
	made = a.result(firmware.Release{State: firmware.ReleaseReleased})
	return c, made, all - len(updated), made.fill(&c)
}

// within omits the deployments of devices on which the principal is not an operator.
func (s *Service) within(ctx context.Context, by fleet.Principal, all []Deployment) ([]Deployment, error) {
	if by.Within(fleet.RoleOperator).Empty() {
		return all, nil
	}
	mine := make(map[fleet.DeviceID]bool, len(all))
	for page := range slices.Chunk(all, planPage) {
		ids := make([]fleet.DeviceID, len(page))
		for i, d := range page {
			ids[i] = d.Device
		}
		devices, err := s.o.Devices.DevicesByID(ctx, ids)
		if err != nil {
			return nil, err
		}
		for _, d := range devices {
			mine[d.ID] = by.RoleOn(d).Allows(fleet.RoleOperator)
		}
	}
	return slices.DeleteFunc(all, func(d Deployment) bool { return !mine[d.Device] }), nil
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

// earlierImages finds the stored image of each previous build.
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
		// A release with only this image applies the same rules to decide which devices fit. A
		// quarantine does not block a device from a build that it ran well.
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
