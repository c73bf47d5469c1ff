package firmware

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/espimage"
)

// SetManifest gives an image the signed manifest in a .manifest file, in place
// of any that it has.
func (f *Service) SetManifest(ctx context.Context, by fleet.Actor, sha256 string, file []byte) (Image, error) {
	if err := by.May(fleet.RoleOperator, "signing an image"); err != nil {
		return Image{}, err
	}
	img, err := f.Image(ctx, sha256)
	if err != nil {
		return Image{}, err
	}
	if len(file) == 0 {
		return Image{}, manifestError("manifest_unreadable", "there is no file with a manifest")
	}
	if err := f.takeManifest(&img, file); err != nil {
		return Image{}, err
	}
	return f.storeManifest(ctx, by, img)
}

// AttachManifest gives the image that a .manifest file is about that manifest.
func (f *Service) AttachManifest(ctx context.Context, by fleet.Actor, file []byte) (Image, error) {
	if err := by.May(fleet.RoleOperator, "signing an image"); err != nil {
		return Image{}, err
	}
	_, m, err := espimage.ReadSignedManifest(file)
	if err != nil {
		return Image{}, unreadable(err)
	}
	img, err := f.SetManifest(ctx, by, m.SHA256, file)
	if errors.Is(err, fleet.ErrNotFound) {
		err = manifestError("manifest_image",
			fmt.Sprintf("the image that it is about, %.16s..., is not here; upload the image first", m.SHA256))
	}
	return img, err
}

func (f *Service) storeManifest(ctx context.Context, by fleet.Actor, img Image) (Image, error) {
	if err := f.o.Store.SetImageManifest(ctx, by, img); err != nil {
		return Image{}, err
	}
	f.o.Log.Info("image signed", "image", img.SHA256, "version", img.Version, "key", img.ManifestKey, "checked",
		img.ManifestChecked, "operator", by.Name)
	f.announce(img.SHA256) // campaigns under way hand it out from now on
	return f.Image(ctx, img.SHA256)
}

// takeManifest checks a .manifest file against the image, and puts it there. No
// file leaves the image as it is.
func (f *Service) takeManifest(img *Image, file []byte) error {
	if len(file) == 0 {
		return nil
	}
	signed, m, err := espimage.ReadSignedManifest(file)
	if err != nil {
		return unreadable(err)
	}
	if what := img.differsFrom(m); what != "" {
		return manifestError("manifest_differs", "the manifest is about another image: "+what)
	}
	key, checked, err := f.whoseManifest(signed)
	if err != nil {
		return err
	}
	if fleet.CleanText(signed.Text, len(signed.Text)) != signed.Text { // the database would not keep it to the letter
		return manifestError("manifest_unreadable",
			"the manifest holds control characters; sign the image with fleetd image sign")
	}
	img.Manifest, img.ManifestSignature, img.ManifestKey, img.ManifestChecked = signed.Text, signed.Signature, key, checked
	return nil
}

func unreadable(err error) error {
	return manifestError("manifest_unreadable", "the file with the manifest is not taken: "+err.Error())
}

func manifestError(code, message string) error {
	return &fleet.Error{Kind: fleet.ErrInvalid, Code: code, Field: "manifest", Message: fleet.CleanText(message, 500)}
}

// differsFrom says in what a manifest disagrees with the image; "" if it agrees.
func (img Image) differsFrom(m espimage.Manifest) string {
	chip, known := espimage.ChipID(img.Chip)
	switch {
	case m.SHA256 != img.SHA256:
		return fmt.Sprintf("its SHA-256 is %.16s..., and that of the image %.16s...", m.SHA256, img.SHA256)
	case m.Size != img.Size:
		return fmt.Sprintf("its size is %d bytes, and that of the image %d", m.Size, img.Size)
	case !known || m.Chip != int64(chip):
		return fmt.Sprintf("its chip is number %d, and the image is for %s", m.Chip, img.Chip)
	case fleet.CleanText(m.Project, 32) != img.Project:
		return fmt.Sprintf("its project is %.40q, and that of the image %q", m.Project, img.Project)
	case fleet.CleanText(m.Version, 32) != img.Version:
		return fmt.Sprintf("its version is %.40q, and that of the image %q", m.Version, img.Version)
	case m.SecureVersion != int64(img.SecureVersion):
		return fmt.Sprintf("its secure version is %d, and that of the image %d", m.SecureVersion, img.SecureVersion)
	}
	return ""
}

// NotBefore is when devices take the image at the earliest, by its manifest;
// zero is at once.
func (img Image) NotBefore() time.Time { return espimage.ManifestBegins(img.Manifest) }

// MaxManifestBytes bounds a .manifest file.
const MaxManifestBytes = espimage.MaxSignedManifest

// whoseManifest returns the key that the signature holds with, and whether it
// is one of fleetd's. Without keys of its own fleetd can only say that the file
// is whole.
func (f *Service) whoseManifest(signed espimage.SignedManifest) (key string, checked bool, err error) {
	for _, k := range f.o.ManifestKeys {
		if signed.Holds(k) {
			return hex.EncodeToString(k), true, nil
		}
	}
	named := signed.NamedKey()
	switch {
	case len(f.o.ManifestKeys) > 0:
		return "", false, manifestError("manifest_signature",
			fmt.Sprintf("the manifest is signed with none of the %d keys that fleetd was given (--manifest-key), or was changed after it was signed", len(f.o.ManifestKeys)))
	case named == nil:
		return "", false, nil
	case !signed.Holds(named):
		return "", false, manifestError("manifest_signature",
			"the signature does not hold with the key that the file names: it was changed after it was signed")
	}
	return hex.EncodeToString(named), false, nil
}
