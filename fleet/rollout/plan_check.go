package rollout

import (
	"context"
	"errors"
	"slices"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

// checkPlan compares the stored campaign with the digest of its plan: when this engine first
// finds it running, when it resumes, and before each wave. If they differ, the campaign is
// paused and dispatches nothing.
func (l *loop) checkPlan(ctx context.Context, c *openCampaign) error {
	if c.State != campaign.Running || c.planChecked {
		return nil
	}
	targets, err := l.o.Store.PlannedTargets(ctx, c.ID)
	if err != nil {
		return err
	}
	switch why := c.PlanDiffers(targets); {
	case why.Is(campaign.ReasonPlanUnchecked):
		return l.pause(ctx, c, campaign.PausedBySystem, why)
	case !why.Is(""):
		l.o.Log.Error("what is stored of a campaign is not what was planned", "campaign", c.ID, "name", c.Plan.Name,
			"reason", why)
		return l.pause(ctx, c, campaign.PausedBySystem, fleet.Because(campaign.ReasonPlanChanged, "why", why))
	}
	waiting := make(map[string]bool)
	for _, t := range targets {
		if t.Open {
			waiting[t.Image] = true
		}
	}
	for sha := range waiting {
		if why, err := l.withheld(ctx, sha); err != nil {
			return err
		} else if !why.Is("") {
			return l.pause(ctx, c, campaign.PausedBySystem, why)
		}
	}
	c.planChecked = true
	return nil
}

// mayHave reports whether the approved plan names the image.
func (c *openCampaign) mayHave(sha string) bool {
	return slices.Contains(c.Images, sha)
}

// withheld returns why an image must not be used now, as a campaign shows it. The minimum
// version of one board blocks no campaign: it concerns single devices.
func (l *loop) withheld(ctx context.Context, sha string) (fleet.Reason, error) {
	img, err := l.image(ctx, sha)
	if errors.Is(err, fleet.ErrNotFound) {
		return fleet.Because(campaign.ReasonImageGone, "image", short(sha)), nil
	}
	if err != nil {
		return fleet.Reason{}, err
	}
	limits, err := l.limits(ctx, img)
	if err != nil {
		return fleet.Reason{}, err
	}
	if why := limits.Withheld[sha]; !why.Is("") {
		return fleet.Because(campaign.ReasonImageWithheld, "image", short(sha), "version", img.Version, "cause", why), nil
	}
	return fleet.Reason{}, nil
}

// limits returns whether an image may be used now. It calls [Options.Limits] once for all
// devices of a turn.
func (l *loop) limits(ctx context.Context, img firmware.Image) (firmware.Limits, error) {
	if l.o.Limits == nil {
		return firmware.Limits{}, nil
	}
	if l.limitsOf == nil || l.limitsTurn != l.turns {
		l.limitsOf, l.limitsTurn = make(map[string]firmware.Limits), l.turns
	}
	if known, ok := l.limitsOf[img.SHA256]; ok {
		return known, nil
	}
	limits, err := l.o.Limits(ctx, []firmware.Image{img})
	if err == nil {
		l.limitsOf[img.SHA256] = limits
	}
	return limits, err
}
