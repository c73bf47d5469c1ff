package firmware

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// A ReleaseRequest contains the fields of a new or edited release.
type ReleaseRequest struct {
	Version string // "" uses the version of the images
	Notes   string
	Images  []string // SHA-256
	Draft   bool
}

// Release returns one release with its images, or [fleet.ErrNotFound].
func (f *Service) Release(ctx context.Context, id uuid.UUID) (Release, error) {
	return f.o.Store.Release(ctx, id)
}

// Releases returns a page of releases, newest first.
func (f *Service) Releases(ctx context.Context, filter ReleaseFilter) (fleet.Page[Release], error) {
	return f.o.Store.Releases(ctx, filter)
}

// Create creates a release of images.
func (f *Service) Create(ctx context.Context, by fleet.Principal, req ReleaseRequest) (Release, error) {
	if err := by.May(fleet.RoleOperator, "make_release"); err != nil {
		return Release{}, err
	}
	now := f.o.Now()
	r := Release{ID: uuid.Must(uuid.NewV7()), State: ReleaseReleased, CreatedBy: by, CreatedAt: now, ChangedAt: now}
	if req.Draft {
		r.State = ReleaseDraft
	}
	if err := f.fill(ctx, &r, req); err != nil {
		return Release{}, err
	}
	if err := f.o.Store.CreateRelease(ctx, by, r); err != nil {
		return Release{}, err
	}
	f.announce(r.ID.String())
	return f.Release(ctx, r.ID)
}

// Edit changes a draft. A released release cannot change: devices run it.
func (f *Service) Edit(ctx context.Context, by fleet.Principal, id uuid.UUID, req ReleaseRequest) (Release, error) {
	if err := by.May(fleet.RoleOperator, "change_release"); err != nil {
		return Release{}, err
	}
	r, err := f.Release(ctx, id)
	if err != nil {
		return Release{}, err
	}
	if r.State != ReleaseDraft {
		return Release{}, fleet.Refuse(fleet.ErrConflict, "not_a_draft", "version", r.Version,
			"state", fleet.Because("state."+string(r.State)))
	}
	if err := f.fill(ctx, &r, req); err != nil {
		return Release{}, err
	}
	if err := f.o.Store.UpdateRelease(ctx, by, r); err != nil {
		return Release{}, err
	}
	f.announce(id.String())
	return f.Release(ctx, id)
}

// fill sets version, notes and images from a request.
func (f *Service) fill(ctx context.Context, r *Release, req ReleaseRequest) (err error) {
	if r.Images, err = f.releaseImages(ctx, req.Images); err != nil {
		return err
	}
	if r.State != ReleaseDraft {
		if len(r.Images) == 0 {
			return fleet.Refuse(fleet.ErrInvalid, "no_images.none").At("images")
		}
		if err := f.mayRelease(ctx, r.Images); err != nil {
			return err.At("images")
		}
	}
	if r.Notes, err = cleanFirmwareNotes(req.Notes); err != nil {
		return err
	}
	if r.Version, err = fleet.CleanLine("version", req.Version, fleet.MaxNameLength); err != nil || r.Version != "" {
		return err
	}
	r.Version, err = commonVersion(r.Images)
	return err
}

func commonVersion(images []Image) (string, error) {
	version := ""
	for _, img := range images {
		if version != "" && img.Version != version {
			return "", fleet.Refuse(fleet.ErrInvalid, "versions_differ", "version", version,
				"other", img.Version).At("version")
		}
		version = img.Version
	}
	if version == "" {
		return "", fleet.Refuse(fleet.ErrInvalid, "invalid_version.missing").At("version")
	}
	return version, nil
}

// releaseImages looks up the images: all must exist, none may be revoked, and each chip and
// board has only one.
func (f *Service) releaseImages(ctx context.Context, sha256 []string) ([]Image, error) {
	if len(sha256) > maxReleaseImages {
		return nil, fleet.Refuse(fleet.ErrInvalid, "too_many_images", "limit", maxReleaseImages).At("images")
	}
	var images []Image
	for _, sha := range sha256 {
		img, err := f.Image(ctx, strings.ToLower(strings.TrimSpace(sha)))
		if errors.Is(err, fleet.ErrNotFound) {
			return nil, fleet.Refuse(fleet.ErrInvalid, "unknown_image", "image", short(sha)).At("images")
		}
		if err != nil {
			return nil, err
		}
		images = append(images, img)
	}
	slices.SortFunc(images, func(a, b Image) int {
		return cmp.Or(cmp.Compare(a.Board, b.Board), cmp.Compare(a.Chip, b.Chip), cmp.Compare(a.SHA256, b.SHA256))
	})
	return images, checkImages(images)
}

// checkImages checks the images of a release, sorted by board and chip.
func checkImages(images []Image) error {
	for i, img := range images {
		if img.RevokedAt != nil {
			return fleet.Refuse(fleet.ErrInvalid, "image_revoked.version", "image", short(img.SHA256), "version", img.Version,
				"chip", img.Chip, "reason", img.RevokeReason).At("images")
		}
		if i > 0 && images[i-1].Board == img.Board && images[i-1].Chip == img.Chip {
			if img.Board == "" {
				return fleet.Refuse(fleet.ErrInvalid, "board_taken.any_board", "chip", img.Chip,
					"image", short(images[i-1].SHA256), "other", short(img.SHA256)).At("images")
			}
			return fleet.Refuse(fleet.ErrInvalid, "board_taken.images", "board", img.Board, "chip", img.Chip,
				"image", short(images[i-1].SHA256), "other", short(img.SHA256)).At("images")
		}
	}
	return nil
}
