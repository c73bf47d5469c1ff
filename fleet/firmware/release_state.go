package firmware

import (
	"context"
	"fleetd/fleet"
	"slices"

	"github.com/google/uuid"
)

// releaseMoves says where a release can go from where. What was revoked stays so.
var releaseMoves = map[ReleaseState][]ReleaseState{
	ReleaseDraft:      {ReleaseReleased, ReleaseRevoked},
	ReleaseReleased:   {ReleaseDeprecated, ReleaseRevoked},
	ReleaseDeprecated: {ReleaseReleased, ReleaseRevoked},
}

// SetState releases a draft or a deprecated release, deprecates or revokes.
// Revoking is an admin's, needs a reason, takes all images with it, and ends
// downloads under way.
func (f *Service) SetState(ctx context.Context, by fleet.Actor, id uuid.UUID, to ReleaseState, reason string) (Release,
	error) {
	reason, err := mayMove(by, to, reason)
	if err != nil {
		return Release{}, err
	}
	r, err := f.Release(ctx, id)
	if err != nil {
		return Release{}, err
	}
	if err := r.checkMove(to); err != nil {
		return Release{}, err
	}
	if err := f.o.Store.SetReleaseState(ctx, by, id, r.State, to, reason, f.o.Now()); err != nil {
		return Release{}, err
	}
	return f.moved(ctx, by, r, to)
}

func mayMove(by fleet.Actor, to ReleaseState, reason string) (string, error) {
	switch to {
	case ReleaseRevoked:
		if err := by.May(fleet.RoleAdmin, "revoking a release"); err != nil {
			return "", err
		}
		return cleanReason(reason)
	case ReleaseReleased, ReleaseDeprecated:
		if err := by.May(fleet.RoleOperator, "changing the state of a release"); err != nil {
			return "", err
		}
		return fleet.CleanLine("reason", reason, maxFirmwareReason)
	}
	return "", fleet.Errorf(fleet.ErrInvalid, "invalid_state",
		"a release can be released, deprecated or revoked, not %.20q", string(to))
}

func (r Release) checkMove(to ReleaseState) error {
	if !slices.Contains(releaseMoves[r.State], to) {
		return fleet.Errorf(fleet.ErrConflict, "release_state", "release %s is %s and cannot become %s", r.Version, r.State,
			to)
	}
	if to != ReleaseReleased {
		return nil
	}
	if len(r.Images) == 0 {
		return fleet.Errorf(fleet.ErrConflict, "no_images", "release %s has no image yet; add one before you release it",
			r.Version)
	}
	for _, img := range r.Images {
		if img.RevokedAt != nil {
			return fleet.Errorf(fleet.ErrConflict, "image_revoked", "the image %.12s of release %s was revoked: %s", img.SHA256,
				r.Version, img.RevokeReason)
		}
	}
	return nil
}

// moved follows up a new state. Images are cut off as the release names them
// now, since a draft may have changed until the last moment; if that cannot be
// read, as it did before.
func (f *Service) moved(ctx context.Context, by fleet.Actor, before Release, to ReleaseState) (Release, error) {
	r, err := f.Release(context.WithoutCancel(ctx), before.ID)
	if err != nil {
		r = before
	}
	if to == ReleaseRevoked {
		f.o.Revoked(r.hashes())
	}
	f.o.Log.Info("release changed state", "release", r.Version, "state", to, "operator", by.Name, "reason", r.Reason)
	f.announce(before.ID.String())
	return r, err
}

func (r Release) hashes() []string {
	all := make([]string, len(r.Images))
	for i, img := range r.Images {
		all[i] = img.SHA256
	}
	return all
}
