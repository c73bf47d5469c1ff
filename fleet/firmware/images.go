package firmware

import (
	"context"
	"slices"

	"fleetd/fleet"
)

// Image returns one image, or [fleet.ErrNotFound].
func (f *Service) Image(ctx context.Context, sha256 string) (Image, error) {
	return f.o.Store.Image(ctx, sha256)
}

// Images returns a page of images, newest first.
func (f *Service) Images(ctx context.Context, filter ImageFilter) (fleet.Page[Image], error) {
	return f.o.Store.Images(ctx, filter)
}

// ImagesByELF returns the images of the given builds that are not revoked, newest first.
func (f *Service) ImagesByELF(ctx context.Context, elfSHA256 []string) ([]Image, error) {
	return f.o.Store.ImagesByELF(ctx, elfSHA256)
}

// RunningByELF counts devices in service by the build they run, for the given builds.
func (f *Service) RunningByELF(ctx context.Context, elfSHA256 []string) (map[string]int, error) {
	return f.o.Store.RunningByELF(ctx, elfSHA256)
}

// Update changes the fields that operators enter; nil changes nothing. The board of a released
// image cannot change either: it decides which devices get it.
func (f *Service) Update(ctx context.Context, by fleet.Principal, sha256 string, board, notes *string) (Image, error) {
	if err := by.May(fleet.RoleOperator, "change_image"); err != nil {
		return Image{}, err
	}
	img, err := f.Image(ctx, sha256)
	if err != nil {
		return Image{}, err
	}
	if board, notes, err = cleanImagePatch(board, notes); err != nil {
		return Image{}, err
	}
	if board != nil && *board != img.Board {
		if err := f.notReleased(ctx, img); err != nil {
			return Image{}, err
		}
	}
	if err := f.o.Store.UpdateImage(ctx, by, img.SHA256, board, notes); err != nil {
		return Image{}, err
	}
	f.announce(img.SHA256)
	return f.Image(ctx, img.SHA256)
}

func cleanImagePatch(board, notes *string) (*string, *string, error) {
	if board != nil {
		b, err := cleanBoard(*board)
		if err != nil {
			return nil, nil, err
		}
		board = &b
	}
	if notes != nil {
		n, err := cleanFirmwareNotes(*notes)
		if err != nil {
			return nil, nil, err
		}
		notes = &n
	}
	return board, notes, nil
}

// notReleased returns an error if a released release contains the image.
func (f *Service) notReleased(ctx context.Context, img Image) error {
	filter := ReleaseFilter{State: ReleaseReleased, Limit: fleet.MaxLimit}
	for {
		page, err := f.Releases(ctx, filter)
		if err != nil {
			return err
		}
		for _, r := range page.Items {
			if slices.Contains(r.hashes(), img.SHA256) {
				return fleet.Refuse(fleet.ErrConflict, "image_released", "version", r.Version).At("board")
			}
		}
		if page.Next == "" {
			return nil
		}
		filter.Cursor = page.Next
	}
}

// Revoke revokes an image: it is never served again, not even over a link in use. Revoking
// cannot be undone.
func (f *Service) Revoke(ctx context.Context, by fleet.Principal, sha256, reason string) (Image, error) {
	if err := by.May(fleet.RoleAdmin, "revoke_image"); err != nil {
		return Image{}, err
	}
	reason, err := cleanReason(reason)
	if err != nil {
		return Image{}, err
	}
	img, err := f.Image(ctx, sha256)
	if err != nil {
		return Image{}, err
	}
	if err := f.o.Store.RevokeImages(ctx, by, []string{img.SHA256}, reason, f.o.Now()); err != nil {
		return Image{}, err
	}
	f.o.Revoked([]string{img.SHA256})
	f.o.Log.Warn("image revoked", "image", img.SHA256, "version", img.Version, "reason", reason, "operator", by.Name)
	f.announce(img.SHA256)
	return f.Image(ctx, img.SHA256)
}

// Delete deletes an image that nothing refers to, and its bytes.
func (f *Service) Delete(ctx context.Context, by fleet.Principal, sha256 string) error {
	if err := by.May(fleet.RoleOperator, "delete_image"); err != nil {
		return err
	}
	f.stored.Lock()
	defer f.stored.Unlock()
	img, err := f.Image(ctx, sha256)
	if err != nil {
		return err
	}
	layout, _ := f.Layout(ctx, img.SHA256) // if it cannot be read, its parts remain
	if err := f.o.Store.DeleteImage(ctx, by, img.SHA256); err != nil {
		return err
	}
	f.announce(img.SHA256)
	// The record is deleted. A sweep of the blob store deletes bytes that remain.
	if err := f.dropBlobs(context.WithoutCancel(ctx), img.SHA256); err != nil {
		f.o.Log.Error("bytes of a deleted image not deleted", "image", img.SHA256, "err", err)
	}
	if len(layout.Parts) > 0 {
		f.dropPartsLocked(context.WithoutCancel(ctx), layout)
	}
	return nil
}
