package firmware

import (
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"fleetd/fleet"
	"fleetd/fleet/espimage"
)

// Limits of a build's files.
const (
	maxBuildFiles = 40
	maxArgsBytes  = 64 << 10 // of flasher_args.json
)

// A Build collects the files that a build produces for a blank board: bootloader, partition
// table, initial otadata, application, and flasher_args.json with their offsets. The files are
// stored on disk until Close, which the caller must call.
type Build struct {
	firmware *Service
	by       fleet.Principal
	files    []buildFile
	args     *flasherArgs
	size     int64
}

type buildFile struct {
	name string // as sent, with slashes; foreign text
	file *os.File
	size int64
}

// NewBuild starts an empty build.
func (f *Service) NewBuild(by fleet.Principal) (*Build, error) {
	if err := by.May(fleet.RoleOperator, "upload_firmware"); err != nil {
		return nil, err
	}
	if f.o.Layouts == nil {
		return nil, fleet.Refuse(fleet.ErrUnavailable, "no_layouts")
	}
	return &Build{firmware: f, by: by}, nil
}

// Close discards the files.
func (b *Build) Close() {
	for _, f := range b.files {
		f.file.Close()
	}
}

// Empty reports whether no file was added.
func (b *Build) Empty() bool { return len(b.files) == 0 && b.args == nil }

// Add adds one file to the build.
func (b *Build) Add(name string, body io.Reader) error {
	name = fleet.CleanText(strings.TrimPrefix(path.Clean("/"+strings.ReplaceAll(name, `\`, "/")), "/"), maxFileNameBytes)
	if len(b.files) == maxBuildFiles {
		return fleet.Refuse(fleet.ErrInvalid, "too_many_files", "limit", maxBuildFiles).At("file")
	}
	if path.Base(name) == flasherArgsName {
		return b.addArgs(body)
	}
	file, size, err := b.firmware.spool(body)
	if err != nil {
		return err
	}
	b.files = append(b.files, buildFile{name, file, size})
	if b.size += size; b.size > MaxImageBytes {
		return fleet.Refuse(fleet.ErrInvalid, "image_too_large.build", "limit", MaxImageBytes>>20).At("file")
	}
	return nil
}

func (b *Build) addArgs(body io.Reader) error {
	text, err := io.ReadAll(io.LimitReader(body, maxArgsBytes+1))
	if err != nil {
		return fmt.Errorf("the upload broke off: %w", err)
	}
	b.args, err = parseFlasherArgs(text)
	return err
}

// Keep stores the application and the other parts of its layout.
func (b *Build) Keep(ctx context.Context, board, notes string) (Image, bool, error) {
	pieces, err := b.sort()
	if err != nil {
		return Image{}, false, err
	}
	if pieces.app == nil {
		return Image{}, false, fleet.Refuse(fleet.ErrInvalid, "no_application").At("file")
	}
	u := ImageUpload{FileName: pieces.appName, Board: board, Notes: notes}
	if err := u.clean(); err != nil {
		return Image{}, false, err
	}
	if err := b.firmware.signed(pieces.app.Signatures); err != nil {
		return Image{}, false, err
	}
	layout, err := b.layout(pieces)
	if err != nil {
		return Image{}, false, err
	}
	img, created, err := b.firmware.keep(ctx, b.by, newImage(pieces.app, b.by, u), io.NewSectionReader(pieces.App, 0,
		pieces.App.Size()))
	if err != nil {
		return Image{}, false, err
	}
	_, err = b.firmware.keepLayout(ctx, b.by, img.SHA256, layout)
	return img, created, err
}

// KeepFor stores the other parts of the layout of an image that is already stored. The
// application may be among the files, but no other application.
func (b *Build) KeepFor(ctx context.Context, sha256 string) (ImageLayout, error) {
	img, err := b.firmware.Image(ctx, sha256)
	if err != nil {
		return ImageLayout{}, err
	}
	if img.RevokedAt != nil {
		return ImageLayout{}, fleet.Refuse(fleet.ErrConflict, "image_revoked.image", "image", short(img.SHA256),
			"reason", img.RevokeReason)
	}
	pieces, err := b.sort()
	if err != nil {
		return ImageLayout{}, err
	}
	if err := b.isImage(pieces, img); err != nil {
		return ImageLayout{}, err
	}
	layout, err := b.layout(pieces)
	if err != nil {
		return ImageLayout{}, err
	}
	return b.firmware.keepLayout(ctx, b.by, img.SHA256, layout)
}

func (b *Build) layout(p *buildPieces) (*espimage.Layout, error) {
	layout, err := p.Layout()
	if err != nil {
		return nil, imageError(err)
	}
	return layout, b.args.check(layout)
}
