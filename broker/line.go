package broker

import (
	"slices"

	"fleetd/fleet"
)

// maxWaiting is how many calls may wait for one device, besides the one in
// flight.
const maxWaiting = 16

// A line orders what one device is asked over one connection. Devices work on
// one request at a time, and have memory for little more. Listing a device's
// tools takes its place in line like a call: a call waits for one step of it at
// most, and the listing is not put off for ever on a busy device.
type line struct {
	current *turn
	waiting []*turn
}

// A turn is a place in line.
type turn struct {
	c     *connection
	id    int32
	ready chan struct{}
	used  bool // Send was called; belongs to the caller
}

var _ fleet.Turn = (*turn)(nil)

// now is the ready channel of turns that need not wait.
var now = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Queue joins the device's line.
func (b *Broker) Queue(id fleet.DeviceID) (fleet.Turn, error) {
	c := b.registry.connection(id)
	if c == nil {
		return nil, fleet.ErrOffline
	}
	t, err := c.join(maxWaiting)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// join appends a turn if no more than limit wait before it.
func (c *connection) join(limit int) (*turn, error) {
	t := &turn{c: c, id: c.device.ids.Next(), ready: now}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.cause != nil:
		return nil, fleet.ErrOffline
	case c.line.current == nil:
		c.line.current = t
	case len(c.line.waiting) >= limit:
		return nil, fleet.ErrBusy
	default:
		t.ready = make(chan struct{})
		c.line.waiting = append(c.line.waiting, t)
	}
	return t, nil
}

func (t *turn) Ready() <-chan struct{} { return t.ready }
func (t *turn) Lost() <-chan struct{}  { return t.c.lost }
func (t *turn) RPCID() int32           { return t.id }

// Done gives the turn back.
func (t *turn) Done() {
	c := t.c
	c.mu.Lock()
	defer c.mu.Unlock()
	l := &c.line
	if l.current != t {
		if i := slices.Index(l.waiting, t); i >= 0 {
			l.waiting = slices.Delete(l.waiting, i, i+1)
		}
		return
	}
	if l.current = nil; len(l.waiting) > 0 {
		l.current = l.waiting[0]
		l.waiting = slices.Delete(l.waiting, 0, 1)
		close(l.current.ready)
	}
	if len(l.waiting) == 0 {
		l.waiting = nil
	}
}
