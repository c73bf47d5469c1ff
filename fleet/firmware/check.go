package firmware

import (
	"context"
	"crypto/ed25519"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"fleetd/fleet"
	"fleetd/fleet/espimage"
	"fleetd/internal/bounded"
)

// CheckerOptions configures [Checker]. Blobs is required.
type CheckerOptions struct {
	Blobs  fleet.BlobFiles
	Floors FloorStore // nil: no board has a minimum version
	// Keys are the keys whose image signatures are trusted.
	Keys []espimage.Key
	// ManifestKeys are the trusted keys for manifests: one of them must have signed the
	// manifest. Without keys, any manifest that agrees with its image is accepted.
	ManifestKeys []ed25519.PublicKey
	// RequireSigned withholds images without a valid signature by one of the keys.
	RequireSigned bool
	// RequireManifest withholds images without a manifest.
	RequireManifest bool
	Log             *slog.Logger
	Now             func() time.Time
}

// A Checker decides whether an image may be used now, by the rules that this process was
// started with. It judges the stored bytes, and ignores both the database record and the result
// of the check at upload.
//
// The blob store names bytes by their SHA-256 and does not return bytes that do not match. What
// was read from a blob therefore stays valid while the blob can be opened: the whole file is
// read once per process and change of the file.
type Checker struct {
	o      CheckerOptions
	flight singleflight.Group // many callers may request a new image at once

	contents *bounded.Cache[string, content] // by SHA-256

	floorsMu sync.Mutex
	floors   map[string]string
	floorsAt time.Time // zero: read the floors again
}

// A content is what the bytes of an image contain.
type content struct {
	image    Image // without what operators entered
	withheld fleet.Reason
}

const (
	maxContents = 4096
	floorsFresh = time.Second // how long another process may miss a new floor
)

// NewChecker returns a checker.
func NewChecker(o CheckerOptions) *Checker {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = func() time.Time { return time.Now().UTC() }
	}
	return &Checker{o: o, contents: bounded.New[string, content](maxContents)}
}

// Limits are the verdicts of [Checker] on some images, for [FitDevice].
type Limits struct {
	Floors   map[string]string       // the minimum version by board
	Withheld map[string]fleet.Reason // why images may not be used now, by SHA-256
}

// Limits judges images. After an error the verdict is unknown for now.
func (c *Checker) Limits(ctx context.Context, images []Image) (Limits, error) {
	var l Limits
	var err error
	if l.Floors, err = c.leastVersions(ctx); err != nil {
		return Limits{}, err
	}
	for _, img := range images {
		if _, known := l.Withheld[img.SHA256]; known {
			continue
		}
		why, err := c.usable(ctx, img)
		if err != nil {
			return Limits{}, err
		}
		if !why.Is("") {
			if l.Withheld == nil {
				l.Withheld = make(map[string]fleet.Reason)
			}
			l.Withheld[img.SHA256] = why
		}
	}
	return l, nil
}

// Check returns why the image may not be used now on devices with this board; the zero Reason
// if it may. An image for one board must also meet the minimum version of that board.
func (c *Checker) Check(ctx context.Context, img Image, board string) (fleet.Reason, error) {
	l, err := c.Limits(ctx, []Image{img})
	if err != nil {
		return fleet.Reason{}, err
	}
	return l.Why(img, board), nil
}

// Why returns why the image may not be used on a board; the zero Reason if it may.
func (l Limits) Why(img Image, board string) fleet.Reason {
	if why := l.Withheld[img.SHA256]; !why.Is("") {
		return why
	}
	for _, b := range []string{img.Board, board} {
		if why := l.belowFloor(b, img.Version); !why.Is("") {
			return why
		}
	}
	return fleet.Reason{}
}

// usable judges an image without regard to boards.
func (c *Checker) usable(ctx context.Context, img Image) (fleet.Reason, error) {
	held, err := c.content(ctx, img.SHA256)
	switch {
	case err != nil:
		return fleet.Reason{}, err
	case !held.withheld.Is(""):
		return held.withheld, nil
	}
	if field, of, ok := held.image.sameBytes(img); !ok {
		return fleet.Because("withheld.record", "field", field, "stored", of[0], "recorded", of[1]), nil
	}
	return c.manifestProblem(img, held.image), nil
}

// sameBytes compares the record of an image with its bytes.
func (img Image) sameBytes(row Image) (field string, of [2]any, same bool) {
	for _, f := range []struct {
		name             string
		stored, recorded any
	}{{"size", img.Size, row.Size}, {"chip", img.Chip, row.Chip}, {"version", img.Version, row.Version},
		{"project", img.Project, row.Project}, {"elf_sha256", img.ELFSHA256, row.ELFSHA256},
		{"secure_version", img.SecureVersion, row.SecureVersion}, {"min_chip_rev", img.MinChipRev, row.MinChipRev},
		{"max_chip_rev", img.MaxChipRev, row.MaxChipRev}} {
		if f.stored != f.recorded {
			return f.name, [2]any{f.stored, f.recorded}, false
		}
	}
	return "", [2]any{}, true
}

// content reads an image, or returns the result of an earlier read. At each opening the blob
// store checks that the file is still the one that it verified.
func (c *Checker) content(ctx context.Context, sha256 string) (content, error) {
	file, err := c.o.Blobs.OpenRange(ctx, sha256, 0, 0)
	if err != nil {
		return notOpened(err)
	}
	file.Close()
	if known, ok := c.contents.Get(sha256); ok {
		return known, nil
	}
	// Other callers wait for the result too: it must not depend on this caller's
	// context.
	v, err, _ := c.flight.Do(sha256, func() (any, error) { return c.read(context.WithoutCancel(ctx), sha256) })
	if err != nil {
		return notOpened(err)
	}
	return v.(content), nil
}

// notOpened returns the verdict on bytes that cannot be opened. Lost or changed bytes are not
// used; if the store fails, the verdict is unknown.
func notOpened(err error) (content, error) {
	if errors.Is(err, fleet.ErrNotFound) {
		return content{withheld: fleet.Because("withheld.gone")}, nil
	}
	if e, ok := errors.AsType[*fleet.Error](err); ok && e.Code == "blob_damaged" {
		return content{withheld: fleet.Because("withheld.damaged")}, nil
	}
	return content{}, err
}

func (c *Checker) read(ctx context.Context, sha256 string) (content, error) {
	r := &blobReader{ctx: ctx, blobs: c.o.Blobs, key: sha256}
	size, err := r.size()
	if err != nil {
		return content{}, err
	}
	parsed, err := espimage.Parse(r, size, c.o.Keys...)
	var fault *espimage.Fault
	switch {
	case errors.As(err, &fault):
		return c.keep(sha256, content{withheld: FaultReason(fault)}), nil
	case err != nil:
		return content{}, err
	}
	img := newImage(parsed, fleet.Principal{}, ImageUpload{})
	img.SHA256 = sha256
	return c.keep(sha256, content{image: img, withheld: c.unsigned(parsed.Signatures)}), nil
}

func (c *Checker) keep(sha256 string, held content) content {
	c.contents.Add(sha256, held)
	return held
}

// unsigned returns why the signatures do not meet the rules.
func (c *Checker) unsigned(all []espimage.Signature) fleet.Reason {
	if !c.o.RequireSigned {
		return fleet.Reason{}
	}
	why := fleet.Because("unsigned.none")
	for _, s := range all {
		switch {
		case s.Trusted:
			return fleet.Reason{}
		case s.Valid:
			why = fleet.Because("unsigned.key", "key", fleet.CleanText(s.KeyDigest, 16), "keys", len(c.o.Keys))
		default:
			why = fleet.Because("unsigned." + string(s.Problem))
		}
	}
	return why
}

// manifestProblem compares the manifest on record with the bytes and the keys.
func (c *Checker) manifestProblem(row, held Image) fleet.Reason {
	if row.Manifest == "" {
		if c.o.RequireManifest {
			return fleet.Because("withheld.no_manifest")
		}
		return fleet.Reason{}
	}
	signed := espimage.SignedManifest{Text: row.Manifest, Signature: row.ManifestSignature, Key: row.ManifestKey}
	m, err := signed.Read()
	if err != nil {
		return fleet.CauseOf(unreadable(err))
	}
	if cause := held.differsFrom(m); !cause.Is("") {
		return fleet.Because("manifest_differs", "cause", cause)
	}
	if _, _, err := c.whoseManifest(signed); err != nil {
		return fleet.CauseOf(err)
	}
	return fleet.Reason{}
}

// blobPage is the number of bytes read from a blob at a time.
const blobPage = 256 << 10

// A blobReader reads a blob at any offset, a page at a time.
type blobReader struct {
	ctx   context.Context
	blobs fleet.BlobFiles
	key   string

	page []byte
	at   int64 // of the page
}

// size reads to the end of the blob, because the store does not report the size.
func (r *blobReader) size() (int64, error) {
	all, err := r.blobs.OpenRange(r.ctx, r.key, 0, -1)
	if err != nil {
		return 0, err
	}
	defer all.Close()
	return io.Copy(io.Discard, all)
}

func (r *blobReader) ReadAt(p []byte, off int64) (n int, err error) {
	for n < len(p) {
		if at := off + int64(n); r.page == nil || at < r.at || at >= r.at+int64(len(r.page)) {
			if err := r.load(at); err != nil {
				return n, err
			}
		}
		n += copy(p[n:], r.page[off+int64(n)-r.at:])
	}
	return n, nil
}

func (r *blobReader) load(at int64) error {
	r.at = at - at%blobPage
	file, err := r.blobs.OpenRange(r.ctx, r.key, r.at, blobPage)
	if err != nil {
		return err
	}
	defer file.Close()
	if r.page == nil {
		r.page = make([]byte, blobPage)
	}
	n, err := io.ReadFull(file, r.page[:blobPage])
	r.page = r.page[:n]
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	if at >= r.at+int64(n) {
		return io.EOF
	}
	return nil
}
