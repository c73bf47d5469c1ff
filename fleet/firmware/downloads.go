package firmware

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/time/rate"

	"fleetd/fleet"
	"fleetd/fleet/internal/token"
	"fleetd/internal/bounded"
)

// DownloadsOptions configures [Downloads]. Links and Blobs are required.
type DownloadsOptions struct {
	Links LinkStore
	Blobs fleet.BlobFiles
	// Addresses lets edges read images. With nil, this process sends all images.
	Addresses fleet.BlobAddresses
	// Check returns why an image may not be served now to a device with this
	// board; the zero Reason if it may. Default: it may.
	Check func(ctx context.Context, sha256, board string) (fleet.Reason, error)
	// Observe receives the events of downloads: get, bytes (at most twice a second), cut,
	// downloaded, revoked. It must not block.
	Observe        func(Transfer)
	MaxConcurrent  int   // concurrent downloads. Default: 500
	BytesPerSecond int64 // shared by all downloads; 0 does not limit
	Log            *slog.Logger
	Now            func() time.Time // default: time.Now
}

// Downloads serves firmware images over one-time links, and tracks which deployments are
// downloading and how far each has come.
//
// Stock firmware does not identify its device in the GET. A link belongs to one attempt of one
// device, so the GET and every byte are evidence about that attempt. Images are streamed; a
// download costs one small buffer.
type Downloads struct {
	o      DownloadsOptions
	places chan struct{}
	pace   *rate.Limiter // nil: unlimited
	chunk  int

	mu     sync.Mutex
	active map[linkKey]*Download
	// unfinished has the links that have not sent their whole image.
	unfinished *bounded.Cache[linkKey, unfinished]
}

type unfinished struct {
	// reached is how many bytes of the image the link has sent without a gap. A device may fetch the
	// image in pieces; the last piece alone does not complete a download.
	reached int64
	newest  uuid.UUID // the download that began last
	// foreign means that an earlier process sent the beginning. Only the device knows how much: what it
	// does not ask for again, it has.
	foreign bool
}

// begin takes the place from which a device continues for what an earlier process has sent.
func (u *unfinished) begin(offset int64) {
	if u.foreign {
		u.reached, u.foreign = offset, false
	}
}

// linkKey is the SHA-256 of a link's token.
type linkKey [32]byte

// NewDownloads returns the service.
func NewDownloads(o DownloadsOptions) *Downloads {
	o.MaxConcurrent = cmp.Or(max(o.MaxConcurrent, 0), 500)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Observe == nil {
		o.Observe = func(Transfer) {}
	}
	d := &Downloads{o: o, places: make(chan struct{}, o.MaxConcurrent), chunk: downloadBuffer,
		active:     make(map[linkKey]*Download),
		unfinished: bounded.New[linkKey, unfinished](maxUnfinished)}
	if o.BytesPerSecond > 0 {
		d.chunk = pacedChunk(o.BytesPerSecond, o.MaxConcurrent)
		d.pace = rate.NewLimiter(rate.Limit(o.BytesPerSecond), d.chunk)
	}
	return d
}

// pacedChunk returns how many bytes one download sends at a time when all share a rate. The
// chunk is small enough that each download gets its turn before its device times out.
func pacedChunk(bytesPerSecond int64, downloads int) int {
	const turnEvery = 5 // seconds
	return int(min(max(bytesPerSecond*turnEvery/int64(downloads), 1<<10), downloadBuffer))
}

// Link returns the link of a token, if it may be used now; [fleet.ErrNotFound] if it is
// unknown, used, expired or revoked.
func (d *Downloads) Link(ctx context.Context, text string) (Link, error) {
	if !token.WellFormed(text) {
		return Link{}, errDeadFirmwareLink()
	}
	l, err := d.o.Links.FirmwareLink(ctx, token.Hash(text), d.o.Now().UTC())
	if errors.Is(err, fleet.ErrNotFound) || err == nil && d.usedUp(l) {
		return Link{}, errDeadFirmwareLink()
	}
	if err == nil {
		err = d.mayServe(ctx, l)
	}
	return l, err
}

// mayServe checks the image of a link at each use, before any of its bytes are read. If the
// image may no longer be used, the link is refused and its attempt ends.
func (d *Downloads) mayServe(ctx context.Context, l Link) error {
	why := fleet.Reason{}
	switch {
	case l.Foreign:
		why = fleet.Because(TransferForeign, "image", short(l.Image))
	case d.o.Check != nil:
		cause, err := d.o.Check(ctx, l.Image, l.Board)
		if err != nil {
			return err
		}
		if !cause.Is("") {
			why = fleet.Because(TransferWithheld, "cause", cause)
		}
	}
	if why.Is("") {
		return nil
	}
	d.o.Log.Error("an image is withheld from a device that came for it", "device", l.Device, "deployment", l.Deployment,
		"image", l.Image, "reason", why)
	d.o.Observe(Transfer{Deployment: l.Deployment, Attempt: l.Attempt, At: d.o.Now().UTC(), Kind: fleet.EvidenceRevoked,
		Reason: why})
	return errDeadFirmwareLink()
}

func errDeadFirmwareLink() error {
	return fleet.Refuse(fleet.ErrNotFound, "dead_link.download")
}

// Begin starts a download of the link's image. It waits for a place until ctx ends, and then
// returns [fleet.ErrUnavailable] (downloads_full). An older download over the same link ends: a
// device that sends a second GET has lost the first. The caller must call End.
func (d *Downloads) Begin(ctx context.Context, token string) (*Download, error) {
	l, err := d.Link(ctx, token)
	if err != nil {
		return nil, err
	}
	t := d.enter(l, token, uuid.Must(uuid.NewV7()), "")
	if err := d.admit(ctx, t, token); err != nil {
		t.leave()
		return nil, err
	}
	return t, nil
}

// enter registers the download as active, in place of an older one.
func (d *Downloads) enter(l Link, token string, id uuid.UUID, edge string) *Download {
	t := &Download{Link: l, downloads: d, id: id, token: token, edge: edge, key: linkKey(l.TokenHash),
		ended: make(chan struct{})}
	t.ctx, t.cancel = context.WithCancelCause(context.Background())
	d.mu.Lock()
	defer d.mu.Unlock()
	if t.older = d.active[t.key]; t.older != nil {
		t.older.cancel(errAskedAgain)
	}
	d.active[t.key] = t
	u, known := d.unfinished.Get(t.key)
	if !known {
		u.foreign = l.Begun
	}
	u.newest = id
	d.unfinished.Add(t.key, u)
	return t
}

// admit waits until the older download ends and a place is free, and then checks the link
// again: the older download may have used it up, and a revocation before enter did not reach
// this one. A later revocation cancels it.
func (d *Downloads) admit(ctx context.Context, t *Download, token string) error {
	if t.older != nil {
		<-t.older.ended // soon: it was cut
		t.older = nil
	}
	select {
	case d.places <- struct{}{}:
		t.placed = true
	case <-t.ctx.Done():
		return errDeadFirmwareLink()
	case <-ctx.Done():
		return fleet.Refuse(fleet.ErrUnavailable, "downloads_full", "limit", cap(d.places))
	}
	_, err := d.Link(ctx, token)
	if err == nil && t.ctx.Err() != nil {
		err = errDeadFirmwareLink()
	}
	return err
}

// usedUp reports whether a download has sent the last byte of the link's image but not yet
// recorded that.
func (d *Downloads) usedUp(l Link) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.active[linkKey(l.TokenHash)]
	return t != nil && t.complete.Load()
}

// Revoke cuts the downloads of deployments at once. Revoke their links in the store first:
// downloads that begin later then find them revoked.
func (d *Downloads) Revoke(deployments ...uuid.UUID) {
	d.cut(func(l *Link) bool { return slices.Contains(deployments, l.Deployment) })
}

// RevokeImages cuts the downloads of images at once. Revoke the images in the store first.
func (d *Downloads) RevokeImages(sha256 []string) {
	d.cut(func(l *Link) bool { return slices.Contains(sha256, l.Image) })
}

func (d *Downloads) cut(which func(*Link) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, t := range d.active {
		if which(&t.Link) {
			t.cancel(errRevoked)
		}
	}
}

// Room returns how many more downloads can begin now.
func (d *Downloads) Room() int { return cap(d.places) - len(d.places) }

// Active returns how many bytes of its image each downloading deployment has received.
func (d *Downloads) Active() map[uuid.UUID]int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make(map[uuid.UUID]int64, len(d.active))
	for _, t := range d.active {
		if t.began.Load() {
			all[t.Link.Deployment] = t.sent.Load()
		}
	}
	return all
}

// open opens an image at the offset.
func (d *Downloads) open(ctx context.Context, l Link, offset, length int64) (io.ReadCloser, error) {
	r, err := d.o.Blobs.OpenRange(ctx, l.Image, offset, length)
	return r, d.unopened(l, err)
}

// unopened completes the error of an image that cannot be read.
func (d *Downloads) unopened(l Link, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("image %s for device %s: %w", l.Image, l.Device, err)
}
