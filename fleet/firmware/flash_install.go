package firmware

import (
	"context"
	"errors"
	"io"

	"fleetd/fleet"
)

// maxInstallable bounds the list that a page offers.
const maxInstallable = 500

// Installable lists the images that operators may install on blank boards, and the images that
// lack only their layout.
func (f *Service) Installable(ctx context.Context, by fleet.Principal, chip string) ([]Installable, error) {
	if err := mayInstall(by); err != nil || f.o.Layouts == nil {
		return nil, err
	}
	return f.o.Layouts.Installable(ctx, InstallFilter{Chip: chip, Limit: maxInstallable})
}

// mayInstall requires an operator: the parts are firmware, which viewers may not read either.
func mayInstall(by fleet.Principal) error {
	return by.May(fleet.RoleOperator, "install_firmware")
}

// Install returns an image with its layout if it may be installed on a blank board, or the
// reason why not.
func (f *Service) Install(ctx context.Context, by fleet.Principal, sha256 string) (Installable, error) {
	if err := mayInstall(by); err != nil {
		return Installable{}, err
	}
	img, err := f.Image(ctx, sha256)
	if err != nil {
		return Installable{}, err
	}
	if img.RevokedAt != nil {
		return Installable{}, fleet.Refuse(fleet.ErrConflict, "image_revoked.image", "image", short(img.SHA256),
			"reason", img.RevokeReason)
	}
	if why, err := f.Check(ctx, img, ""); err != nil {
		return Installable{}, err
	} else if !why.Is("") {
		return Installable{}, ErrWithheld(fleet.ErrConflict, img, why)
	}
	layout, err := f.Layout(ctx, img.SHA256)
	switch {
	case errors.Is(err, fleet.ErrNotFound):
		return Installable{}, fleet.Refuse(fleet.ErrConflict, "no_layout.image", "image", short(img.SHA256))
	case err != nil:
		return Installable{}, err
	case !layout.Complete():
		return Installable{}, fleet.Refuse(fleet.ErrConflict, "no_layout.merged", "image", short(img.SHA256),
			"cause", layout.Problem)
	}
	found, err := f.o.Layouts.Installable(ctx, InstallFilter{Image: img.SHA256, Limit: 1})
	if err != nil {
		return Installable{}, err
	}
	if len(found) == 0 || !found[0].Ready() { // revoked or replaced just now
		return Installable{}, fleet.Refuse(fleet.ErrConflict, "not_released", "image", short(img.SHA256))
	}
	return found[0], nil
}

// OpenPart opens the bytes of a part by its number in the layout; [fleet.ErrNotFound] if there
// is no such part.
func (f *Service) OpenPart(ctx context.Context, i Installable, n int) (io.ReadCloser, ImagePart, error) {
	if i.Layout == nil || n < 0 || n >= len(i.Layout.Parts) {
		return nil, ImagePart{}, fleet.Refuse(fleet.ErrNotFound, "no_part", "part", n)
	}
	part := i.Layout.Parts[n]
	r, err := f.o.Blobs.OpenRange(ctx, part.SHA256, 0, part.Size)
	return r, part, err
}
