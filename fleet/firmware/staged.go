package firmware

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/espimage"
)

// Limits of uploads that wait for their uploader's confirmation. They are unnamed files and do
// not survive the process.
const (
	StagedFor      = 30 * time.Minute
	maxStaged      = 64
	maxStagedBytes = 1 << 30
	maxStagedOfOne = 16 // the oldest of the same principal is dropped
)

// A Staged upload was read and checked, but is not an image until its uploader confirms it.
type Staged struct {
	ID      uuid.UUID
	Image   Image // as it would be recorded
	Known   bool  // the same bytes are an image already
	Expires time.Time
}

type stagedFile struct {
	Staged
	by       fleet.Principal
	upload   ImageUpload
	manifest []byte
	file     *os.File
	size     int64
	parsed   *espimage.Image
}

// A staging holds the staged uploads, oldest first.
type staging struct {
	mu  sync.Mutex
	all []*stagedFile
}

// Inspect reads and checks a file as [Service.Upload] does, but stores nothing. known reports
// whether the same bytes are already an image.
func (f *Service) Inspect(ctx context.Context, by fleet.Principal, u ImageUpload) (img Image, known bool, err error) {
	s, err := f.read(ctx, by, u)
	if err != nil {
		return Image{}, false, err
	}
	defer s.file.Close()
	return s.Image, s.Known, nil
}

// Stage reads and checks a file and retains it for [StagedFor]; Confirm creates an image from it.
func (f *Service) Stage(ctx context.Context, by fleet.Principal, u ImageUpload) (Staged, error) {
	s, err := f.read(ctx, by, u)
	if err != nil {
		return Staged{}, err
	}
	s.ID, s.Expires = uuid.New(), f.o.Now().Add(StagedFor)
	if err := f.staged.add(s, f.o.Now()); err != nil {
		s.file.Close()
		return Staged{}, err
	}
	time.AfterFunc(StagedFor, func() { f.staged.drop(s.ID) })
	return s.Staged, nil
}

// read spools and parses a file and determines its image. The caller closes the file.
func (f *Service) read(ctx context.Context, by fleet.Principal, u ImageUpload) (*stagedFile, error) {
	if err := by.May(fleet.RoleOperator, "upload_firmware"); err != nil {
		return nil, err
	}
	if err := u.clean(); err != nil {
		return nil, err
	}
	file, size, err := f.spool(u.Body)
	if err != nil {
		return nil, err
	}
	s := &stagedFile{by: by, upload: u, manifest: u.Manifest, file: file, size: size}
	s.upload.Body = nil
	if err := f.parse(ctx, s); err != nil {
		file.Close()
		return nil, err
	}
	return s, nil
}

func (f *Service) parse(ctx context.Context, s *stagedFile) (err error) {
	if s.parsed, err = espimage.Parse(s.file, s.size, f.o.Keys...); err != nil {
		return imageError(err)
	}
	if err := f.signed(s.parsed.Signatures); err != nil {
		return err
	}
	s.Image = newImage(s.parsed, s.by, s.upload)
	sum := sha256.New()
	if _, err := io.Copy(sum, s.content()); err != nil {
		return imageError(err)
	}
	s.Image.SHA256 = hex.EncodeToString(sum.Sum(nil))
	if err := f.takeManifest(&s.Image, s.manifest); err != nil {
		return err
	}
	return f.recognize(ctx, s)
}

// recognize checks whether the bytes are already an image, and refuses the bytes of a
// revoked image.
func (f *Service) recognize(ctx context.Context, s *stagedFile) error {
	stored, err := f.Image(ctx, s.Image.SHA256)
	switch {
	case errors.Is(err, fleet.ErrNotFound):
		return nil
	case err != nil:
		return err
	case stored.RevokedAt != nil:
		return fleet.Refuse(fleet.ErrConflict, "image_revoked.by", "actor", stored.RevokedBy, "reason",
			stored.RevokeReason)
	}
	s.Known = true
	s.Image.Board, s.Image.Notes = stored.Board, stored.Notes
	return nil
}

func (s *stagedFile) content() *io.SectionReader {
	return io.NewSectionReader(s.file, s.parsed.Offset, s.parsed.Size)
}

// Confirm creates an image from a staged upload, for the board that its uploader chose. After a
// refusal it can be called again.
func (f *Service) Confirm(ctx context.Context, by fleet.Principal, id uuid.UUID, board, notes string) (Image, bool,
	error) {
	if err := by.May(fleet.RoleOperator, "upload_firmware"); err != nil {
		return Image{}, false, err
	}
	s := f.staged.take(by, id, f.o.Now())
	if s == nil {
		return Image{}, false, fleet.Refuse(fleet.ErrConflict, "upload_expired").At("file")
	}
	img, created, err := f.confirm(ctx, by, s, board, notes)
	if err != nil {
		f.staged.putBack(s)
		return Image{}, false, err
	}
	s.file.Close()
	return img, created, nil
}

func (f *Service) confirm(ctx context.Context, by fleet.Principal, s *stagedFile, board, notes string) (Image, bool,
	error) {
	u := s.upload
	u.Board, u.Notes = board, notes
	if err := u.clean(); err != nil {
		return Image{}, false, err
	}
	img, created, err := f.keepSigned(ctx, by, newImage(s.parsed, by, u), s.manifest, s.content())
	if err != nil {
		return Image{}, false, err
	}
	if !created && img.Board != u.Board { // the image existed; its uploader now chose another board
		if img, err = f.Update(ctx, by, img.SHA256, &u.Board, nil); err != nil {
			return Image{}, false, err
		}
	}
	return img, created, f.keepMerged(ctx, by, img, s.file, s.size, s.parsed)
}

// StagedUpload returns a waiting upload of the principal.
func (f *Service) StagedUpload(by fleet.Principal, id uuid.UUID) (Staged, bool) {
	f.staged.mu.Lock()
	defer f.staged.mu.Unlock()
	if i := f.staged.find(by, id, f.o.Now()); i >= 0 {
		return f.staged.all[i].Staged, true
	}
	return Staged{}, false
}

// StageManifest adds a .manifest file to the waiting upload that it describes; false without
// such an upload.
func (f *Service) StageManifest(by fleet.Principal, file []byte) (Staged, bool, error) {
	if err := by.May(fleet.RoleOperator, "upload_firmware"); err != nil {
		return Staged{}, false, err
	}
	_, m, err := espimage.ReadSignedManifest(file)
	if err != nil {
		return Staged{}, false, unreadable(err)
	}
	f.staged.mu.Lock()
	defer f.staged.mu.Unlock()
	for _, s := range slices.Backward(f.staged.all) {
		if !s.by.Same(by) || s.Image.SHA256 != m.SHA256 {
			continue
		}
		if err := f.takeManifest(&s.Image, file); err != nil {
			return Staged{}, false, err
		}
		s.manifest = file
		return s.Staged, true, nil
	}
	return Staged{}, false, nil
}

func (g *staging) find(by fleet.Principal, id uuid.UUID, now time.Time) int {
	return slices.IndexFunc(g.all, func(s *stagedFile) bool {
		return s.ID == id && s.by.Same(by) && now.Before(s.Expires)
	})
}

func (g *staging) take(by fleet.Principal, id uuid.UUID, now time.Time) *stagedFile {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := g.find(by, id, now)
	if i < 0 {
		return nil
	}
	s := g.all[i]
	g.all = slices.Delete(g.all, i, i+1)
	return s
}

func (g *staging) putBack(s *stagedFile) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all = append(g.all, s)
}

// add stores an upload, and drops expired uploads and the oldest of a principal with too many.
func (g *staging) add(s *stagedFile, now time.Time) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	own, bytes := 1, s.size
	for i := len(g.all) - 1; i >= 0; i-- {
		old := g.all[i]
		if old.by.Same(s.by) {
			own++
		}
		if !now.Before(old.Expires) || old.by.Same(s.by) && own > maxStagedOfOne {
			old.file.Close()
			g.all = slices.Delete(g.all, i, i+1)
			continue
		}
		bytes += old.size
	}
	if len(g.all) >= maxStaged || bytes > maxStagedBytes {
		return fleet.Refuse(fleet.ErrUnavailable, "upload_not_kept.full")
	}
	g.all = append(g.all, s)
	return nil
}

func (g *staging) drop(id uuid.UUID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.IndexFunc(g.all, func(s *stagedFile) bool { return s.ID == id }); i >= 0 {
		g.all[i].file.Close()
		g.all = slices.Delete(g.all, i, i+1)
	}
}
