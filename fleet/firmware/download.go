package firmware

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

const (
	downloadBuffer = 32 << 10
	progressEvery  = 500 * time.Millisecond
)

// Reasons why downloads end before their last byte.
var (
	errAskedAgain = errors.New("the device asked again over another connection")
	errRevoked    = errors.New("the link was revoked")
	errUnreadable = errors.New("fleetd could not read the image")
)

var downloadBuffers = sync.Pool{New: func() any { return new([downloadBuffer]byte) }}

// A Download is one GET of a link, from [Downloads.Begin] to [Download.End].
type Download struct {
	Link Link

	downloads *Downloads
	id        uuid.UUID
	token     string
	key       linkKey
	ctx       context.Context // ends when the download is cut
	cancel    context.CancelCauseFunc
	placed    bool
	older     *Download     // over the same link, when this one began
	ended     chan struct{} // closed by End

	offset   int64 // of the first requested byte
	end      int64 // offset after the last requested byte
	began    atomic.Bool
	sent     atomic.Int64 // offset after the last byte sent
	complete atomic.Bool  // the image's last byte was sent

	edge    string // that sends the image; "" if this process does
	silence *time.Timer
	settled sync.Once
}

// Context ends when the download is cut, by a revocation or a newer GET.
func (t *Download) Context() context.Context { return t.ctx }

// Open opens the requested part of the image and records the GET. After an error nothing is
// recorded.
func (t *Download) Open(ctx context.Context, offset, length int64) (io.ReadCloser, error) {
	r, err := t.downloads.open(ctx, t.Link, offset, length)
	if err != nil {
		return nil, err
	}
	t.begin(offset, length)
	return r, nil
}

// begin records the GET.
func (t *Download) begin(offset, length int64) {
	if t.end = offset + length; length < 0 {
		t.end = t.Link.Size
	}
	t.sent.Store(offset)
	t.offset = offset
	t.began.Store(true)
	reason := fleet.Reason{}
	if offset > 0 {
		reason = fleet.Because(TransferResumed, "offset", offset)
	}
	t.observe(fleet.EvidenceGet, reason)
}

// Send copies the reader from Open to the device and reports how the transfer ended: with the
// last byte, or cut. Bytes that w accepted count as sent; no piece is larger than 32 KiB.
func (t *Download) Send(w io.Writer, r io.Reader) error {
	err := t.stream(w, r)
	if cause := context.Cause(t.ctx); cause != nil && err != nil {
		err = cause
	}
	t.conclude(err)
	return err
}

// conclude reports how the transfer ended: with the last byte of the part if err is nil.
func (t *Download) conclude(err error) {
	switch {
	case errors.Is(err, errAskedAgain): // only the newer download counts
		t.reached()
	case err != nil:
		t.reached()
		t.observe(fleet.EvidenceCut, cutReason(err))
	case t.reached() >= t.Link.Size:
		t.finish()
	default: // only a part was requested, and other parts are missing
		t.observe(fleet.EvidenceBytes, fleet.Reason{})
	}
}

// maxUnfinished bounds the number of unfinished links whose progress is cached.
const maxUnfinished = 10_000

// reached records how far this download came, and returns how much of the image its link has
// sent without a gap.
func (t *Download) reached() int64 {
	d := t.downloads
	d.mu.Lock()
	defer d.mu.Unlock()
	u, _ := d.unfinished.Get(t.key)
	u.begin(t.offset)
	if t.offset <= u.reached {
		u.reached = max(u.reached, t.sent.Load())
	}
	if u.reached >= t.Link.Size {
		d.unfinished.Remove(t.key)
		return u.reached
	}
	d.unfinished.Add(t.key, u)
	return u.reached
}

func cutReason(err error) fleet.Reason {
	switch {
	case errors.Is(err, errRevoked):
		return fleet.Because(TransferRevoked)
	case errors.Is(err, errUnreadable):
		return fleet.Because(TransferUnreadable)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fleet.Because(TransferStuck)
	}
	return fleet.Because(TransferEnded)
}

func (t *Download) stream(w io.Writer, r io.Reader) error {
	buffer := downloadBuffers.Get().(*[downloadBuffer]byte)
	defer downloadBuffers.Put(buffer)
	reported := t.downloads.o.Now()
	for {
		n, err := r.Read(buffer[:t.downloads.chunk])
		if n > 0 {
			if err := t.write(w, buffer[:n]); err != nil {
				return err
			}
			if now := t.downloads.o.Now(); now.Sub(reported) >= progressEvery {
				reported = now
				t.observe(fleet.EvidenceBytes, fleet.Reason{})
			}
		}
		if err == io.EOF && t.sent.Load() == t.end {
			return nil
		}
		if err != nil {
			t.downloads.o.Log.Error("image not read to its end", "image", t.Link.Image, "device", t.Link.Device, "err", err)
			return errUnreadable
		}
	}
}

// write waits until the shared rate allows the piece, and writes it.
func (t *Download) write(w io.Writer, piece []byte) error {
	if pace := t.downloads.pace; pace != nil {
		if err := pace.WaitN(t.ctx, len(piece)); err != nil {
			return err
		}
	}
	if err := t.ctx.Err(); err != nil {
		return err
	}
	n, err := w.Write(piece)
	t.sent.Add(int64(n))
	return err
}

// finish records that the whole image was sent. Observers are notified before the store: the
// link is already unusable in this process, and a device restarts soon.
func (t *Download) finish() {
	t.complete.Store(true)
	t.observe(fleet.EvidenceDownloaded, fleet.Reason{})
	ctx, cancel := context.WithTimeout(context.Background(), fleet.DefaultCallTimeout)
	defer cancel()
	if err := t.downloads.o.Links.FinishFirmwareLink(ctx, t.Link.TokenHash, t.downloads.o.Now().UTC()); err != nil {
		t.downloads.o.Log.Error("used link not marked so", "device", t.Link.Device, "deployment", t.Link.Deployment, "err",
			err)
	}
}

// End frees the download's place, unless an edge sends the image.
func (t *Download) End() {
	if t.edge == "" {
		t.leave()
	}
}

func (t *Download) leave() {
	d := t.downloads
	d.mu.Lock()
	if d.active[t.key] == t {
		delete(d.active, t.key)
	}
	d.mu.Unlock()
	t.cancel(nil)
	if t.placed {
		<-d.places
	}
	close(t.ended)
}

func (t *Download) observe(kind fleet.EvidenceKind, reason fleet.Reason) {
	t.downloads.o.Observe(Transfer{Deployment: t.Link.Deployment, Attempt: t.Link.Attempt, At: t.downloads.o.Now().UTC(),
		Kind: kind, Reason: reason, Sent: t.sent.Load()})
}
