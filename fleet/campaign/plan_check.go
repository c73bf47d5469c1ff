package campaign

import (
	"context"
	"errors"
	"slices"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

// A PlannedTarget is the part of a deployment that the digest covers.
type PlannedTarget struct {
	Device fleet.DeviceID
	Wave   int
	Image  string
	Board  string // not covered: for the lowest version that it may get
	Joined bool   // while the campaign ran: the digest does not cover it
	Open   bool   // not covered: it has no outcome yet
}

// keepPlanned saves the plan that the digest covers before the plan is changed.
func (c *Campaign) keepPlanned() {
	if c.Planned == nil {
		plan := c.Plan
		c.Planned = &plan
	}
}

// PlanDiffers compares the stored campaign with the approved digest. It compares the plan,
// except for what may change while it runs, and which device gets which image in which wave.
// Devices that joined a continuous campaign must get one of the approved images. It returns the
// difference as far as it is known, or the zero Reason if both agree. A campaign without a
// list of images cannot be compared and must be planned again.
func (c *Campaign) PlanDiffers(targets []PlannedTarget) fleet.Reason {
	if c.Images == nil {
		return fleet.Because(ReasonPlanUnchecked)
	}
	plan := c.Plan
	if c.Planned != nil {
		plan = *c.Planned
		now := c.Plan
		now.PullNow = plan.PullNow
		if err := RunningEdit(plan, now); err != nil {
			e, _ := errors.AsType[*fleet.Error](err)
			return fleet.Because(ReasonPlanDiffersField, "field", e.Field)
		}
	}
	var named []PlannedTarget
	unused := make(map[string]bool, len(c.Images))
	for _, image := range c.Images {
		unused[image] = true
	}
	for _, t := range targets {
		if _, planned := unused[t.Image]; !planned {
			return fleet.Because(ReasonPlanDiffersImage, "device", string(t.Device), "image", fleet.CleanText(t.Image, 12))
		}
		if t.Joined && !plan.Continuous {
			return fleet.Because(ReasonPlanDiffersDevice, "device", string(t.Device))
		}
		if !t.Joined {
			unused[t.Image] = false
			named = append(named, t)
		}
	}
	if !plan.Continuous {
		for image, is := range unused {
			if is {
				return fleet.Because(ReasonPlanDiffersImages, "image", fleet.CleanText(image, 12))
			}
		}
	}
	if digest(plan, named, c.Images) != c.Digest {
		return fleet.Because(ReasonPlanDiffersDigest)
	}
	if c.State != Draft && c.State != AwaitingApproval && c.needsApproval() &&
		(c.Approval == nil || c.Approval.Digest != c.Digest) {
		return fleet.Because(ReasonPlanDiffersApproval)
	}
	return fleet.Reason{}
}

// planImages returns the images that devices of the plan may get, in order.
func (a *planner) planImages(r firmware.Release) []string {
	images := make([]string, 0, len(a.images))
	for sha := range a.images {
		images = append(images, sha)
	}
	if a.plan.Continuous {
		for _, img := range r.Images {
			images = append(images, img.SHA256)
		}
	}
	slices.Sort(images)
	return slices.Compact(images)
}

// unchanged refuses a campaign whose rows differ from the plan, or with an image that may not
// be used now.
func (s *Service) unchanged(ctx context.Context, c *Campaign) error {
	targets, err := s.o.Store.PlannedTargets(ctx, c.ID)
	if err != nil {
		return err
	}
	switch why := c.PlanDiffers(targets); {
	case why.Is(ReasonPlanUnchecked):
		return fleet.Refuse(fleet.ErrConflict, "plan_unchecked", "name", c.Plan.Name)
	case !why.Is(""):
		return fleet.Refuse(fleet.ErrConflict, "plan_changed", "name", c.Plan.Name, "cause", why)
	}
	if c.Plan.Continuous {
		r, err := s.o.Firmware.Release(ctx, c.Plan.Release)
		if err != nil {
			return err
		}
		for _, img := range r.Images {
			if !slices.Contains(c.Images, img.SHA256) {
				return fleet.Refuse(fleet.ErrConflict, "release_edited", "name", c.Plan.Name, "version", r.Version)
			}
		}
	}
	return s.usable(ctx, targets)
}

// usable returns an error if a waiting device would get an image that may not be used now.
func (s *Service) usable(ctx context.Context, targets []PlannedTarget) error {
	type use struct{ image, board string }
	var images []firmware.Image
	uses := make(map[use]bool)
	of := make(map[string]firmware.Image)
	for _, t := range targets {
		if !t.Open || uses[use{t.Image, t.Board}] {
			continue
		}
		uses[use{t.Image, t.Board}] = true
		if _, known := of[t.Image]; known {
			continue
		}
		img, err := s.o.Firmware.Image(ctx, t.Image)
		if err != nil {
			return err
		}
		of[t.Image] = img
		images = append(images, img)
	}
	limits, err := s.o.Limits(ctx, images)
	if err != nil {
		return err
	}
	for u := range uses {
		if why := limits.Why(of[u.image], u.board); !why.Is("") {
			return firmware.ErrWithheld(fleet.ErrConflict, of[u.image], why)
		}
	}
	return nil
}
