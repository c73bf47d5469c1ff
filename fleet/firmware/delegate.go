package firmware

import (
	"bytes"
	"context"
	"errors"
	"os"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/internal/token"
)

const (
	// addressLife is how long an edge can begin, or begin again, to read an image.
	addressLife = 15 * time.Minute
	// delegatedFrom is the size from which on an edge sends a part of an image. For less, the reports
	// would cost more than the bytes.
	delegatedFrom = 64 << 10
	// silenceTimeout is how long an edge may fail to report on a download. Edges report every second.
	silenceTimeout = 10 * time.Second
)

// A Delegation lets an edge send a download, with bytes that it reads from S3 itself. It exists as
// JSON between a core and its edges only: the URL is a secret.
type Delegation struct {
	Progress
	Length int64  `json:"length"` // of the requested part, which begins at Offset
	Size   int64  `json:"size"`   // of the image
	URL    string `json:"url"`
	ETag   string `json:"etag"` // of the object in S3, without quotes
}

// Progress is what an edge reports of a download: what it got with the [Delegation], and how far the
// download has come.
type Progress struct {
	ID      uuid.UUID `json:"id"` // of version 7: the newer GET of a link has the greater one
	Token   string    `json:"token"`
	Offset  int64     `json:"offset"`  // of the first requested byte
	Reached int64     `json:"reached"` // bytes that the link had sent without a gap before this download
	Sent    int64     `json:"sent"`    // offset after the last byte sent

	Ended bool   `json:"ended,omitempty"`
	Cause string `json:"cause,omitempty"` // why it ended early: one of the Transfer codes
	// Recorded means that an earlier core has recorded the end. Only how far the link has come may
	// be new to the core that leads now.
	Recorded bool `json:"recorded,omitempty"`
}

// WithoutGap returns how many bytes of the image the link has sent without a gap.
func (p *Progress) WithoutGap() int64 {
	if p.Offset > p.Reached {
		return p.Reached
	}
	return max(p.Reached, p.Sent)
}

var errConnEnded = errors.New("the connection of the device ended")

// causes are the errors of the causes that edges report.
var causes = map[string]error{"": nil, TransferUnreadable: errUnreadable, TransferStuck: os.ErrDeadlineExceeded}

// Delegate lets an edge send the requested part of the image, and records the GET. The download then
// lasts until a report says that it has ended, a revocation or a newer GET ends it, or reports stop.
//
// It returns false if this process must send the part: the image has no address, the part is small, or
// all downloads share a rate, which needs one process that counts.
func (t *Download) Delegate(ctx context.Context, edge string, offset, length int64) (Delegation, bool, error) {
	d := t.downloads
	if d.o.Addresses == nil || d.pace != nil || length < delegatedFrom {
		return Delegation{}, false, nil
	}
	at, err := d.o.Addresses.Address(ctx, t.Link.Image, addressLife)
	if err != nil || at.URL == "" {
		return Delegation{}, false, d.unopened(t.Link, err)
	}
	d.mu.Lock()
	link, _ := d.unfinished.Get(t.key)
	d.mu.Unlock()
	link.begin(offset)
	t.begin(offset, length)
	t.delegate(edge)
	return Delegation{Length: length, Size: t.Link.Size, URL: at.URL, ETag: at.ETag,
		Progress: Progress{ID: t.id, Token: t.token, Offset: offset, Reached: link.reached, Sent: offset}}, true, nil
}

// delegate makes the edge's reports decide about the end.
func (t *Download) delegate(edge string) {
	t.downloads.mu.Lock()
	t.edge = edge
	t.silence = time.AfterFunc(silenceTimeout, func() {
		t.downloads.o.Log.Warn("an edge does not report on a download", "edge", edge, "device", t.Link.Device, "deployment",
			t.Link.Deployment)
		t.settle(errConnEnded)
	})
	t.downloads.mu.Unlock()
	context.AfterFunc(t.ctx, func() { t.settle(context.Cause(t.ctx)) })
}

// settle records the end of a delegated download, the first time.
func (t *Download) settle(err error) {
	t.settled.Do(func() {
		t.silence.Stop()
		t.conclude(err)
		t.leave()
	})
}

// Report records what an edge reports of a download, and returns whether the download may go on. A core
// that leads since a moment ago does not know the download: it checks the link again. The error is
// [fleet.ErrUnavailable] if that was not possible; the edge reports again.
func (d *Downloads) Report(ctx context.Context, edge string, p Progress) (goesOn bool, err error) {
	if !token.WellFormed(p.Token) || p.Offset < 0 || p.Reached < 0 || p.Sent < p.Offset {
		return false, nil
	}
	var t *Download
	if p.Recorded {
		err = d.learn(ctx, p)
	} else {
		t, err = d.reported(ctx, edge, p)
	}
	switch {
	case errors.Is(err, fleet.ErrNotFound):
		return false, nil
	case err != nil || p.Recorded:
		return err == nil, err
	}
	t.silence.Reset(silenceTimeout)
	moved := t.advance(p.Sent)
	if !p.Ended {
		if moved {
			t.observe(fleet.EvidenceBytes, fleet.Reason{})
		}
		return t.ctx.Err() == nil, nil
	}
	cause, known := causes[p.Cause]
	if !known {
		cause = errConnEnded
	}
	if cause == errUnreadable {
		d.o.Log.Error("an edge could not read an image from S3 to its end", "edge", edge, "image", t.Link.Image, "device",
			t.Link.Device)
	}
	t.settle(cause)
	return true, nil
}

// advance records that the device has the bytes before the offset, and returns whether that is new.
func (t *Download) advance(to int64) bool {
	for {
		sent := t.sent.Load()
		if to <= sent || to > t.end {
			return false
		}
		if t.sent.CompareAndSwap(sent, to) {
			return true
		}
	}
}

// errAdopting means that another request makes the download known at the moment.
var errAdopting = errors.New("another report makes the download known")

// reported returns the download of a report, or [fleet.ErrNotFound] if it must not go on.
func (d *Downloads) reported(ctx context.Context, edge string, p Progress) (*Download, error) {
	key := linkKey(token.Hash(p.Token))
	d.mu.Lock()
	t := d.active[key]
	link, _ := d.unfinished.Get(key)
	known := t != nil && t.id == p.ID && t.edge == edge
	ready := known && t.silence != nil
	d.mu.Unlock()
	switch {
	case ready:
		return t, nil
	case known:
		return nil, errAdopting
	case t != nil && t.id == p.ID, bytes.Compare(link.newest[:], p.ID[:]) > 0: // of another edge, or there is a newer GET
		return nil, fleet.ErrNotFound
	}
	return d.adopt(ctx, edge, p)
}

// adopt makes a download known that began while another core led.
func (d *Downloads) adopt(ctx context.Context, edge string, p Progress) (*Download, error) {
	l, err := d.Link(ctx, p.Token)
	if err != nil {
		return nil, err
	}
	if p.Sent > l.Size || p.Reached > l.Size {
		return nil, fleet.ErrNotFound
	}
	d.raise(linkKey(l.TokenHash), p.Reached)
	t := d.enter(l, p.Token, p.ID, edge)
	if t.older != nil {
		<-t.older.ended
		t.older = nil
	}
	select {
	case d.places <- struct{}{}:
		t.placed = true
	default: // it is the next to get a place, before new downloads
		go func() {
			select {
			case d.places <- struct{}{}:
				<-t.ended
				<-d.places
			case <-t.ended:
			}
		}()
	}
	if _, err = d.Link(ctx, p.Token); err == nil && t.ctx.Err() != nil {
		err = errDeadFirmwareLink()
	}
	if err != nil {
		t.leave()
		return nil, err
	}
	t.offset, t.end = p.Offset, l.Size
	t.sent.Store(p.Sent)
	t.began.Store(true)
	t.delegate(edge)
	return t, nil
}

// learn notes how far a link has come that another core knew.
func (d *Downloads) learn(ctx context.Context, p Progress) error {
	l, err := d.Link(ctx, p.Token)
	if err == nil && p.WithoutGap() < l.Size {
		d.raise(linkKey(l.TokenHash), p.WithoutGap())
	}
	return err
}

// raise records that a link has sent at least n bytes of its image without a gap.
func (d *Downloads) raise(key linkKey, n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	u, _ := d.unfinished.Get(key)
	u.reached, u.foreign = max(u.reached, n), false
	d.unfinished.Add(key, u)
}
