package firmware

import (
	"context"
	"slices"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// releaseMoves are the allowed changes of state. A revoked release remains revoked.
var releaseMoves = map[ReleaseState][]ReleaseState{
	ReleaseDraft:      {ReleaseReleased, ReleaseRevoked},
	ReleaseReleased:   {ReleaseDeprecated, ReleaseRevoked},
	ReleaseDeprecated: {ReleaseReleased, ReleaseRevoked},
}

// SetState releases a draft or a deprecated release, deprecates or revokes. Revoking requires
// an admin and a reason, revokes all images of the release, and ends active downloads.
func (f *Service) SetState(ctx context.Context, by fleet.Principal, id uuid.UUID, to ReleaseState,
	reason string) (Release,
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
	if to == ReleaseReleased {
		if err := f.mayRelease(ctx, r.Images); err != nil {
			if err.Kind == fleet.ErrInvalid { // the request is valid, but an image is not
				err.Kind = fleet.ErrConflict
			}
			return Release{}, err
		}
	}
	if err := f.o.Store.SetReleaseState(ctx, by, id, r.State, to, reason, f.o.Now()); err != nil {
		return Release{}, err
	}
	return f.moved(ctx, by, r, to)
}

func mayMove(by fleet.Principal, to ReleaseState, reason string) (string, error) {
	switch to {
	case ReleaseRevoked:
		if err := by.May(fleet.RoleAdmin, "revoke_release"); err != nil {
			return "", err
		}
		return cleanReason(reason)
	case ReleaseReleased, ReleaseDeprecated:
		if err := by.May(fleet.RoleOperator, "change_release_state"); err != nil {
			return "", err
		}
		return fleet.CleanLine("reason", reason, maxFirmwareReason)
	}
	return "", fleet.Refuse(fleet.ErrInvalid, "invalid_state.release", "value", string(to))
}

func (r Release) checkMove(to ReleaseState) error {
	if !slices.Contains(releaseMoves[r.State], to) {
		return fleet.Refuse(fleet.ErrConflict, "release_state", "version", r.Version,
			"state", fleet.Because("state."+string(r.State)), "to", fleet.Because("state."+string(to)))
	}
	if to != ReleaseReleased {
		return nil
	}
	if len(r.Images) == 0 {
		return fleet.Refuse(fleet.ErrConflict, "no_images.release", "version", r.Version)
	}
	for _, img := range r.Images {
		if img.RevokedAt != nil {
			return fleet.Refuse(fleet.ErrConflict, "image_revoked.of_release", "image", short(img.SHA256),
				"version", r.Version, "reason", img.RevokeReason)
		}
	}
	return nil
}

// mayRelease returns an error for images that may not be used now.
func (f *Service) mayRelease(ctx context.Context, images []Image) *fleet.Error {
	limits, err := f.Limits(ctx, images)
	if err != nil {
		return fleet.Refuse(fleet.ErrUnavailable, "not_checked", "cause", fleet.CauseOf(err))
	}
	for _, img := range images {
		if why := limits.Why(img, ""); !why.Is("") {
			return ErrWithheld(fleet.ErrInvalid, img, why)
		}
	}
	return nil
}

// ErrWithheld refuses the use of an image, with the reason that [Checker] gives.
func ErrWithheld(kind error, img Image, why fleet.Reason) *fleet.Error {
	return fleet.Refuse(kind, "image_withheld", "image", short(img.SHA256), "version", img.Version, "cause", why)
}

// moved follows up a change of state. It cuts off the images that the release contains now,
// because a draft may have changed until the last moment; if the release cannot be read, the
// images it had before.
func (f *Service) moved(ctx context.Context, by fleet.Principal, before Release, to ReleaseState) (Release, error) {
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
