package firmware

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"path"
	"slices"

	"fleetd/fleet"
	"fleetd/fleet/espimage"
)

// buildPieces are the identified files of a build.
type buildPieces struct {
	espimage.Pieces
	app     *espimage.Image // nil if the application is not among them
	appName string
}

// sort identifies the files by their content, and looks up the offsets of the others in
// flasher_args.json.
func (b *Build) sort() (*buildPieces, error) {
	p := &buildPieces{}
	if err := b.args.complete(b.files); err != nil {
		return nil, err
	}
	for _, f := range b.files {
		if err := b.place(p, f); err != nil {
			return nil, err
		}
	}
	if p.Table != nil && p.TableOffset == 0 {
		p.TableOffset = guessTableOffset(p.Table)
	}
	return p, nil
}

// place identifies one file and its offset.
func (b *Build) place(p *buildPieces, f buildFile) error {
	data := io.NewSectionReader(f.file, 0, f.size)
	start := make([]byte, min(f.size, 64))
	if _, err := data.ReadAt(start, 0); err != nil && err != io.EOF {
		return fmt.Errorf("the upload cannot be read back from disk: %w", err)
	}
	offset, placed := b.args.offsetOf(f.name)
	switch kind := b.kind(f, start, placed); kind {
	case espimage.PartTable:
		p.TableOffset = offset
		return p.set(&p.Table, data, kind)
	case espimage.PartOTAData:
		return p.set(&p.OTAData, data, kind)
	case espimage.PartBootloader:
		return b.placeImage(p, f, data)
	}
	if !placed {
		return fleet.Refuse(fleet.ErrInvalid, "unknown_file", "name", f.name).At("file")
	}
	p.Data = append(p.Data, espimage.Piece{Offset: offset, Data: data})
	return nil
}

// placeImage distinguishes the application from the bootloader.
func (b *Build) placeImage(p *buildPieces, f buildFile, data *io.SectionReader) error {
	img, err := espimage.Parse(f.file, f.size, b.firmware.o.Keys...)
	if err == nil && img.Merged != nil {
		return fleet.Refuse(fleet.ErrInvalid, "merged_binary", "name", f.name).At("file")
	}
	if err == nil {
		p.app, p.appName, p.Chip = img, path.Base(f.name), img.Chip
		return p.set(&p.App, data, espimage.PartApp)
	}
	if _, loaderErr := espimage.ParseBootloader(f.file, f.size); loaderErr != nil && isAppError(err) {
		return imageError(err) // it is an application, and this is its fault
	}
	return p.set(&p.Bootloader, data, espimage.PartBootloader)
}

// isAppError distinguishes a damaged application from another file.
func isAppError(err error) bool {
	f, ok := err.(*espimage.Fault)
	return ok && f.Reason != espimage.ReasonDescriptor && f.Reason != espimage.ReasonMagic &&
		f.Reason != espimage.ReasonSize
}

func (p *buildPieces) set(place **io.SectionReader, data *io.SectionReader, kind espimage.PartKind) error {
	if *place != nil {
		return fleet.Refuse(fleet.ErrInvalid, "twice", "part", fleet.Because("part."+string(kind))).At("file")
	}
	*place = data
	return nil
}

// kind identifies a file by its first bytes. A bootloader and an application have the same
// first bytes.
func (b *Build) kind(f buildFile, start []byte, placed bool) espimage.PartKind {
	const otaData = 0x2000
	erased := len(start) > 0 && len(bytes.TrimRight(start, "\xff")) == 0
	switch {
	case bytes.HasPrefix(start, []byte{0xAA, 0x50}):
		return espimage.PartTable
	case bytes.HasPrefix(start, []byte{0xE9}):
		return espimage.PartBootloader
	case b.args.isOTAData(f.name), path.Base(f.name) == "ota_data_initial.bin", erased && !placed && f.size <= otaData:
		return espimage.PartOTAData
	}
	return espimage.PartData
}

// guessTableOffset returns the offset of the partition table: with default offsets, the first
// partition follows the table. In a release build the bootloader is larger and the table moves.
func guessTableOffset(table *io.SectionReader) int64 {
	const usual, release, sector = 0x8000, 0x10000, 0x1000
	b := make([]byte, min(table.Size(), sector))
	if _, err := table.ReadAt(b, 0); err != nil && err != io.EOF {
		return usual
	}
	entries, err := espimage.ParseTable(b, release)
	follows := func(p espimage.Partition) bool { return p.Offset == release+sector }
	if err == nil && slices.ContainsFunc(entries, follows) {
		return release
	}
	return usual
}

// isImage checks that the application among the files is the image that they are uploaded for;
// without an application, it uses the image.
func (b *Build) isImage(p *buildPieces, img Image) error {
	if p.app == nil {
		p.Chip, p.App = img.Chip, io.NewSectionReader(unread{}, 0, img.Size)
		return nil
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, io.NewSectionReader(p.App, 0, p.App.Size())); err != nil {
		return fmt.Errorf("the upload cannot be read back from disk: %w", err)
	}
	if hex.EncodeToString(hash.Sum(nil)) != img.SHA256 {
		return fleet.Refuse(fleet.ErrInvalid, "other_application", "name", p.appName,
			"image", short(img.SHA256)).At("file")
	}
	return nil
}

// unread replaces bytes that are already in the blob store: a layout needs only the size of
// the image.
type unread struct{}

func (unread) ReadAt([]byte, int64) (int, error) { return 0, io.ErrUnexpectedEOF }
