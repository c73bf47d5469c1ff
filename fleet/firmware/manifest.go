package firmware

import (
	"context"
	"encoding/hex"
	"errors"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/espimage"
)

// SetManifest stores the signed manifest of a .manifest file for an image, and replaces an
// existing one.
func (f *Service) SetManifest(ctx context.Context, by fleet.Principal, sha256 string, file []byte) (Image, error) {
	if err := by.May(fleet.RoleOperator, "sign_image"); err != nil {
		return Image{}, err
	}
	img, err := f.Image(ctx, sha256)
	if err != nil {
		return Image{}, err
	}
	if len(file) == 0 {
		return Image{}, fleet.Refuse(fleet.ErrInvalid, "manifest_unreadable.missing").At("manifest")
	}
	if err := f.takeManifest(&img, file); err != nil {
		return Image{}, err
	}
	return f.storeManifest(ctx, by, img)
}

// AttachManifest stores the manifest of a .manifest file for the image that it describes.
func (f *Service) AttachManifest(ctx context.Context, by fleet.Principal, file []byte) (Image, error) {
	if err := by.May(fleet.RoleOperator, "sign_image"); err != nil {
		return Image{}, err
	}
	_, m, err := espimage.ReadSignedManifest(file)
	if err != nil {
		return Image{}, unreadable(err)
	}
	img, err := f.SetManifest(ctx, by, m.SHA256, file)
	if errors.Is(err, fleet.ErrNotFound) {
		err = fleet.Refuse(fleet.ErrInvalid, "manifest_image", "image", fleet.CleanText(m.SHA256, 16)).At("manifest")
	}
	return img, err
}

func (f *Service) storeManifest(ctx context.Context, by fleet.Principal, img Image) (Image, error) {
	if err := f.o.Store.SetImageManifest(ctx, by, img); err != nil {
		return Image{}, err
	}
	f.o.Log.Info("image signed", "image", img.SHA256, "version", img.Version, "key", img.ManifestKey, "checked",
		img.ManifestChecked, "operator", by.Name)
	f.announce(img.SHA256) // running campaigns use it from now on
	return f.Image(ctx, img.SHA256)
}

// takeManifest checks a .manifest file against the image and sets it. Without a file the image
// does not change.
func (f *Service) takeManifest(img *Image, file []byte) error {
	if len(file) == 0 {
		return nil
	}
	signed, m, err := espimage.ReadSignedManifest(file)
	if err != nil {
		return unreadable(err)
	}
	if cause := img.differsFrom(m); cause.Code != "" {
		return fleet.Refuse(fleet.ErrInvalid, "manifest_differs", "cause", cause).At("manifest")
	}
	key, checked, err := f.checker.whoseManifest(signed)
	if err != nil {
		return err
	}
	if fleet.CleanText(signed.Text, len(signed.Text)) != signed.Text { // would not be stored unchanged
		return fleet.Refuse(fleet.ErrInvalid, "manifest_unreadable.control").At("manifest")
	}
	img.Manifest, img.ManifestSignature, img.ManifestKey, img.ManifestChecked = signed.Text, signed.Signature, key, checked
	return nil
}

func unreadable(err error) error {
	var fault *espimage.Fault
	if !errors.As(err, &fault) {
		return err
	}
	return faultError(fault).At("manifest")
}

// differsFrom returns how a manifest disagrees with the image; the zero Reason if it agrees.
func (img Image) differsFrom(m espimage.Manifest) fleet.Reason {
	chip, known := espimage.ChipID(img.Chip)
	switch {
	case m.SHA256 != img.SHA256:
		return fleet.Because("differs.sha256", "manifest", fleet.CleanText(m.SHA256, 16),
			"image", fleet.CleanText(img.SHA256, 16))
	case m.Size != img.Size:
		return fleet.Because("differs.size", "manifest", m.Size, "image", img.Size)
	case !known || m.Chip != int64(chip):
		return fleet.Because("differs.chip", "manifest", m.Chip, "image", img.Chip)
	case fleet.CleanText(m.Project, 32) != img.Project:
		return fleet.Because("differs.project", "manifest", m.Project, "image", img.Project)
	case fleet.CleanText(m.Version, 32) != img.Version:
		return fleet.Because("differs.version", "manifest", m.Version, "image", img.Version)
	case m.SecureVersion != int64(img.SecureVersion):
		return fleet.Because("differs.secure_version", "manifest", m.SecureVersion, "image", img.SecureVersion)
	}
	return fleet.Reason{}
}

// NotBefore returns the earliest time at which devices install the image, by its manifest; zero
// means at once.
func (img Image) NotBefore() time.Time { return espimage.ManifestBegins(img.Manifest) }

// MaxManifestBytes bounds a .manifest file.
const MaxManifestBytes = espimage.MaxSignedManifest

// whoseManifest returns the key that verifies the signature, and whether it is one of fleetd's.
// If fleetd has no keys, the signature is checked only against the key that the file names.
func (c *Checker) whoseManifest(signed espimage.SignedManifest) (key string, checked bool, err error) {
	for _, k := range c.o.ManifestKeys {
		if signed.Holds(k) {
			return hex.EncodeToString(k), true, nil
		}
	}
	named := signed.NamedKey()
	switch {
	case len(c.o.ManifestKeys) > 0:
		return "", false, fleet.Refuse(fleet.ErrInvalid, "manifest_signature.keys",
			"keys", len(c.o.ManifestKeys)).At("manifest")
	case named == nil:
		return "", false, nil
	case !signed.Holds(named):
		return "", false, fleet.Refuse(fleet.ErrInvalid, "manifest_signature.named").At("manifest")
	}
	return hex.EncodeToString(named), false, nil
}
