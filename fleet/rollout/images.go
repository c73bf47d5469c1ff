package rollout

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

// imagesEvery is how often images are re-read without an event.
const imagesEvery = 30 * time.Second

// images caches image data for the engine. Events announce a revocation, and the engine also
// checks for it regularly.
type images struct {
	bySHA  map[string]firmware.Image
	readAt time.Time
	asked  int // increases when all images must be re-read
}

func (m *images) forget() {
	m.bySHA = nil
	m.asked++
}

func (l *loop) image(ctx context.Context, sha string) (firmware.Image, error) {
	if l.now.Sub(l.images.readAt) > imagesEvery || l.images.bySHA == nil {
		l.images.bySHA, l.images.readAt = make(map[string]firmware.Image), l.now
	}
	if img, ok := l.images.bySHA[sha]; ok {
		return img, nil
	}
	img, err := l.o.Store.Image(ctx, sha)
	if err == nil {
		l.images.bySHA[sha] = img
	}
	return img, err
}

// checkImages stops a campaign if its release or one of its images was revoked: it cuts downloads
// under way, and ends the waiting deployments. An image that must not be used for now also stops
// the campaign, but waiting deployments continue to wait, since a signature or a key may follow.
func (l *loop) checkImages(ctx context.Context, c *openCampaign) error {
	if c.asked == l.images.asked && l.now.Sub(c.checkedAt) < imagesEvery {
		return nil
	}
	asked := l.images.asked
	reason, err := l.releaseRevoked(ctx, c)
	if err != nil {
		return err
	}
	revoked, err := l.revokedImages(ctx, c)
	if err != nil {
		return err
	}
	c.asked, c.checkedAt = asked, l.now
	l.cut(ctx, c, fleet.Because(campaign.ReasonImageRevoked), func(d *deployment) bool {
		return !reason.Is("") || !revoked[d.Image].Is("")
	})
	for sha, why := range revoked {
		if reason.Is("") {
			reason = why
		}
		l.dropWaiting(c, sha)
	}
	l.save(ctx)
	if reason.Is("") && c.State == campaign.Running {
		if reason, err = l.withheldImage(ctx, c); err != nil {
			return err
		}
	}
	if reason.Is("") || c.State == campaign.Paused && c.PauseReason == campaign.PausedBySystem {
		return nil
	}
	return l.pause(ctx, c, campaign.PausedBySystem, reason)
}

// revokedImages returns the revoked images among those under way, with the reasons.
func (l *loop) revokedImages(ctx context.Context, c *openCampaign) (map[string]fleet.Reason, error) {
	seen, revoked := make(map[string]bool), make(map[string]fleet.Reason)
	for _, d := range c.held {
		if d.State.Final() || seen[d.Image] {
			continue
		}
		seen[d.Image] = true
		img, err := l.image(ctx, d.Image)
		switch {
		case errors.Is(err, fleet.ErrNotFound):
			revoked[d.Image] = fleet.Because(campaign.ReasonImageGone, "image", short(d.Image))
		case err != nil:
			return nil, err
		case img.RevokedAt != nil:
			revoked[d.Image] = fleet.Because(campaign.ReasonImageWasRevoked, "image", short(d.Image), "detail", img.RevokeReason)
		}
	}
	return revoked, nil
}

// withheldImage returns why one of the images that devices wait for must not be used.
func (l *loop) withheldImage(ctx context.Context, c *openCampaign) (fleet.Reason, error) {
	seen := make(map[string]bool)
	for _, d := range c.held {
		if d.State != campaign.DeploymentQueued || seen[d.Image] {
			continue
		}
		seen[d.Image] = true
		if why, err := l.withheld(ctx, d.Image); err != nil || !why.Is("") {
			return why, err
		}
	}
	return fleet.Reason{}, nil
}

func (l *loop) dropWaiting(c *openCampaign, sha string) {
	for _, d := range c.held {
		if d.State == campaign.DeploymentQueued && d.Image == sha {
			l.observe(d, campaign.Observation{At: l.now, Kind: fleet.EvidenceUnfit, Skip: firmware.SkipRevoked})
		}
	}
}

func (l *loop) releaseRevoked(ctx context.Context, c *openCampaign) (fleet.Reason, error) {
	if c.Plan.Release == uuid.Nil {
		return fleet.Reason{}, nil
	}
	r, err := l.o.Store.Release(ctx, c.Plan.Release)
	switch {
	case errors.Is(err, fleet.ErrNotFound):
		return fleet.Because(campaign.ReasonReleaseGone), nil
	case err != nil:
		return fleet.Reason{}, err
	case r.State == firmware.ReleaseRevoked:
		return fleet.Because(campaign.ReasonReleaseRevoked, "version", r.Version, "detail", r.Reason), nil
	}
	return fleet.Reason{}, nil
}

func short(sha string) string { return fleet.CleanText(sha, 12) }
