package broker

import (
	"slices"

	"fleetd/fleet"
)

// maxWaiting is how many calls may wait for one device, besides the one in
// flight; maxSpoken is how many of voice models may, in addition.
const (
	maxWaiting = 16
	maxSpoken  = 8
)

// A line orders what one device is asked over one connection. Devices work on
// one request at a time, and have memory for little more. Listing a device's
// tools takes its place in line like a call: a call waits for one step of it at
// most, and the listing is not put off for ever on a busy device.
//
// Somebody stands at the device and waits for what the voice model calls: such a
// call goes before all others that wait, but for every second turn. Neither kind
// of call takes the other's room.
type line struct {
	current *turn
	waiting []*turn // in the order of their coming
	spoken  int     // of these, those of voice models
}

func (l *line) enter(t *turn) {
	l.waiting = append(l.waiting, t)
	if t.spoken {
		l.spoken++
	}
}

func (l *line) leave(i int) *turn {
	t := l.waiting[i]
	if t.spoken {
		l.spoken--
	}
	if l.waiting = slices.Delete(l.waiting, i, i+1); len(l.waiting) == 0 {
		l.waiting = nil
	}
	return t
}

// next is the index of the turn that comes after one that was spoken or not;
// something waits.
func (l *line) next(wasSpoken bool) int {
	return max(0, slices.IndexFunc(l.waiting, func(t *turn) bool { return t.spoken != wasSpoken }))
}

// A turn is a place in line.
type turn struct {
	c      *connection
	id     int32
	spoken bool // a voice model's call
	ready  chan struct{}
	used   bool // Send was called; belongs to the caller
}

var _ fleet.Turn = (*turn)(nil)

// now is the ready channel of turns that need not wait.
var now = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Queue joins the device's line.
func (b *Broker) Queue(id fleet.DeviceID, by fleet.PrincipalKind) (fleet.Turn, error) {
	c := b.registry.connection(id)
	if c == nil {
		return nil, fleet.ErrOffline
	}
	spoken, limit := by == fleet.KindVoice, maxWaiting
	if spoken {
		limit = maxSpoken
	}
	t, err := c.join(spoken, limit)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// Introduced reports whether the device is connected, and the first requests on its
// connection are over, or failed for now.
func (b *Broker) Introduced(id fleet.DeviceID) bool {
	c := b.registry.connection(id)
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause == nil && (c.onboarding.done || c.onboarding.logged)
}

// join appends a turn if no more than limit, spoken or not as it is, wait before
// it.
func (c *connection) join(spoken bool, limit int) (*turn, error) {
	t := &turn{c: c, id: c.device.ids.Next(), spoken: spoken, ready: now}
	c.mu.Lock()
	defer c.mu.Unlock()
	before := len(c.line.waiting) - c.line.spoken
	if spoken {
		before = c.line.spoken
	}
	switch {
	case c.cause != nil:
		return nil, fleet.ErrOffline
	case c.line.current == nil:
		c.line.current = t
	case before >= limit:
		return nil, fleet.ErrBusy
	default:
		t.ready = make(chan struct{})
		c.line.enter(t)
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
			l.leave(i)
		}
		return
	}
	if l.current = nil; len(l.waiting) > 0 {
		l.current = l.leave(l.next(t.spoken))
		close(l.current.ready)
	}
}
