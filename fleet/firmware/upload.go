package firmware

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"fleetd/fleet"
	"fleetd/fleet/espimage"
)

// An ImageUpload is a file uploaded as firmware.
type ImageUpload struct {
	Body     io.Reader // at most [MaxImageBytes]
	FileName string
	Board    string // "" if not stated
	Notes    string
	Manifest []byte // content of the .manifest file that goes with it; nil without one
}

// Upload reads, checks and stores an image, or the application of a merged binary. If the bytes
// are already stored, it returns that image and false. The file is spooled to disk, so memory
// use does not grow with its size.
func (f *Service) Upload(ctx context.Context, by fleet.Principal, u ImageUpload) (Image, bool, error) {
	if err := by.May(fleet.RoleOperator, "upload_firmware"); err != nil {
		return Image{}, false, err
	}
	if err := u.clean(); err != nil {
		return Image{}, false, err
	}
	file, size, err := f.spool(u.Body)
	if err != nil {
		return Image{}, false, err
	}
	defer file.Close()
	parsed, err := espimage.Parse(file, size, f.o.Keys...)
	if err != nil {
		return Image{}, false, imageError(err)
	}
	if err := f.signed(parsed.Signatures); err != nil {
		return Image{}, false, err
	}
	img, created, err := f.keepSigned(ctx, by, newImage(parsed, by, u), u.Manifest, io.NewSectionReader(file,
		parsed.Offset, parsed.Size))
	if err != nil {
		return Image{}, false, err
	}
	return img, created, f.keepMerged(ctx, by, img, file, size, parsed)
}

func (u *ImageUpload) clean() (err error) {
	if u.Board, err = cleanBoard(u.Board); err != nil {
		return err
	}
	u.FileName = fleet.CleanText(path.Base(strings.ReplaceAll(u.FileName, `\`, "/")), maxFileNameBytes)
	if u.FileName == "." || u.FileName == "/" {
		u.FileName = ""
	}
	u.Notes, err = cleanFirmwareNotes(u.Notes)
	return err
}

// spool writes an upload to an unlinked file: it disappears when it is closed, and when the
// process ends.
func (f *Service) spool(body io.Reader) (*os.File, int64, error) {
	file, err := os.CreateTemp(f.o.TempDir, "fleetd-upload-*")
	if err != nil {
		return nil, 0, notKept("write", err)
	}
	if err := os.Remove(file.Name()); err != nil {
		file.Close()
		return nil, 0, notKept("write", err)
	}
	size, err := copyUpload(file, body)
	if err != nil {
		file.Close()
		return nil, 0, err
	}
	return file, size, nil
}

// notKept is what the caller sees of a failure, before the whole of it for the log.
func notKept(verb string, err error) error {
	return fmt.Errorf("%w: %w", fleet.Refuse(fleet.ErrUnavailable, "upload_not_kept."+verb, "detail",
		cmp.Or(fleet.SystemCause(err), "see the log")), err)
}

// copyUpload stops one byte after the limit, whatever size the sender announced.
func copyUpload(file *os.File, body io.Reader) (int64, error) {
	disk := &writeErr{w: file}
	size, err := io.Copy(disk, io.LimitReader(body, MaxImageBytes+1))
	switch {
	case disk.err != nil:
		return 0, notKept("write", disk.err)
	case err != nil:
		return 0, fmt.Errorf("the upload broke off after %d bytes: %w", size, err)
	case size > MaxImageBytes:
		return 0, fleet.Refuse(fleet.ErrInvalid, "image_too_large.file", "limit", MaxImageBytes>>20).At("file")
	}
	return size, nil
}

// writeErr distinguishes an error of writing from one of reading.
type writeErr struct {
	w   io.Writer
	err error
}

func (w *writeErr) Write(p []byte) (n int, err error) {
	n, err = w.w.Write(p)
	if err != nil {
		w.err = err
	}
	return n, err
}

// imageError converts the fault of a file to a refusal.
func imageError(err error) error {
	var fault *espimage.Fault
	if !errors.As(err, &fault) {
		return notKept("read", err)
	}
	return faultError(fault).At("file")
}

func faultError(f *espimage.Fault) *fleet.Error {
	r := FaultReason(f)
	return &fleet.Error{Kind: fleet.ErrInvalid, Code: r.Code, Params: r.Params}
}

// FaultReason returns a fault as a code with parameters, such as "image_sha256" or
// "image_segment_bounds"; the case distinguishes faults of one kind. Its text is that of a refusal.
func FaultReason(f *espimage.Fault) fleet.Reason {
	code := "image_" + strings.ReplaceAll(string(f.Reason), " ", "_")
	switch f.Reason {
	case espimage.ReasonDescriptor:
		code = "image_no_app_descriptor"
	case espimage.ReasonManifest:
		code = "manifest_unreadable"
	}
	r := fleet.Reason{Code: code}.With("case", f.Case)
	for name, value := range f.Params {
		switch v := value.(type) {
		case *espimage.Fault:
			value = FaultReason(v)
		case string:
			value = fleet.CleanText(v, 200)
		}
		r = r.With(name, value)
	}
	return r
}

// signed refuses images whose signatures do not meet the rules.
func (f *Service) signed(all []espimage.Signature) error {
	if why := f.checker.unsigned(all); !why.Is("") {
		return fleet.Refuse(fleet.ErrInvalid, "image_unsigned", "cause", why).At("file")
	}
	return nil
}

// keep stores the bytes and records the image.
func (f *Service) keep(ctx context.Context, by fleet.Principal, img Image, data *io.SectionReader) (Image, bool,
	error) {
	return f.keepSigned(ctx, by, img, nil, data)
}

// keepSigned is keep with the .manifest file of the image, if there is one.
func (f *Service) keepSigned(ctx context.Context, by fleet.Principal, img Image, manifest []byte,
	data *io.SectionReader) (
	Image, bool, error) {
	f.stored.RLock()
	defer f.stored.RUnlock()
	img.CreatedAt = f.o.Now()
	var err error
	if img.SHA256, err = f.o.Blobs.PutFile(ctx, data, data.Size()); err != nil {
		return Image{}, false, err
	}
	if err := f.takeManifest(&img, manifest); err != nil {
		return Image{}, false, err // its bytes do no harm, and a better manifest may follow
	}
	stored, created, err := f.o.Store.CreateImage(ctx, by, img)
	switch {
	case err != nil:
		return Image{}, false, err // the bytes remain: the record may exist after all
	case stored.RevokedAt != nil:
		return Image{}, false, fleet.Refuse(fleet.ErrConflict, "image_revoked.by", "actor", stored.RevokedBy,
			"reason", stored.RevokeReason)
	case created:
		f.o.Log.Info("image uploaded", "image", stored.SHA256, "version", stored.Version, "chip", stored.Chip, "board",
			stored.Board, "operator", by.Name)
		f.announce(stored.SHA256)
	case img.Manifest != "" && img.Manifest != stored.Manifest: // the same image again, now signed
		stored, err = f.storeManifest(ctx, by, img)
	}
	return stored, created, err
}

// newImage combines the data of the bytes and of their uploader. Texts of the build are foreign.
func newImage(p *espimage.Image, by fleet.Principal, u ImageUpload) Image {
	d := p.Descriptor
	img := Image{Size: p.Size, FileName: u.FileName, Board: u.Board, Notes: u.Notes,
		Chip: p.Chip, Version: fleet.CleanText(d.Version, 32), Project: fleet.CleanText(d.Project, 32),
		IDFVersion: fleet.CleanText(d.IDFVersion, 32),
		ELFSHA256:  d.ELFSHA256, CompiledAt: fleet.CleanText(strings.TrimSpace(d.Date+" "+d.Time), 40),
		SecureVersion: d.SecureVersion,
		MinChipRev:    p.Header.MinChipRev, MaxChipRev: p.Header.MaxChipRev, FlashSize: p.Header.FlashSize,
		MergedBinary: p.Merged != nil, UploadedBy: by}
	if d.BuiltWithoutID {
		img.ELFSHA256 = "" // zeros would take every such build for the same
	}
	for _, s := range p.Signatures {
		img.Signatures = append(img.Signatures, ImageSignature{KeyDigest: s.KeyDigest, Scheme: s.Scheme, Valid: s.Valid,
			Trusted: s.Trusted})
	}
	if err := espimage.LintVersion(d.Version); err != nil {
		img.NotOfferable = fleet.CleanText(err.Error(), 300)
	}
	return img
}
