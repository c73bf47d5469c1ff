package broker

import (
	"slices"

	"fleetd/fleet"
)

// maxWaiting is how many calls may wait for one device, besides the call in flight; maxSpoken is
// how many calls of voice models may wait in addition.
const (
	maxWaiting = 16
	maxSpoken  = 8
)

// A line orders the requests to one device over one connection. Devices work on one request at a
// time, and have little memory for more. Listing a device's tools joins the line like a call: a
// call waits for at most one step of the listing, and a busy device cannot postpone the listing
// for ever.
//
// A person at the device waits for the calls of the voice model: these calls go before all other
// waiting calls, except at every second turn. Neither kind of call uses the capacity of the
// other.
type line struct {
	held    bool // calls wait until the device is introduced
	current *turn
	waiting []*turn // in order of arrival
	spoken  int     // how many of waiting are calls of voice models
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

// next returns the index of the next turn, given whether the last turn was spoken; -1 for none.
func (l *line) next(wasSpoken bool) int {
	switch {
	case len(l.waiting) == 0:
		return -1
	case l.held:
		return slices.IndexFunc(l.waiting, func(t *turn) bool { return t.introduces })
	}
	return max(0, slices.IndexFunc(l.waiting, func(t *turn) bool { return t.spoken != wasSpoken }))
}

// A turn is a position in the line.
type turn struct {
	c          *connection
	id         int32
	spoken     bool // a voice model's call
	introduces bool // a request of the onboarding: it does not wait for the end of the onboarding
	ready      chan struct{}
	used       bool // Send was called; belongs to the caller
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
	t, err := c.join(&turn{spoken: spoken}, limit)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// Introduced reports whether the device is connected and the first requests on its connection
// have ended, even if they failed for now.
func (b *Broker) Introduced(id fleet.DeviceID) bool {
	c := b.registry.connection(id)
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause == nil && (c.onboarding.done || c.onboarding.logged)
}

// join appends t if at most limit turns with the same value of spoken wait before it, and returns it.
func (c *connection) join(t *turn, limit int) (*turn, error) {
	t.c, t.id, t.ready = c, c.device.ids.Next(), now
	c.mu.Lock()
	defer c.mu.Unlock()
	before := len(c.line.waiting) - c.line.spoken
	if t.spoken {
		before = c.line.spoken
	}
	switch {
	case c.cause != nil:
		return nil, fleet.ErrOffline
	case c.line.current == nil && (t.introduces || !c.line.held):
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

// Done ends the turn.
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
	l.current = nil
	l.advance(t.spoken)
}

// advance lets the next turn begin, if there is one.
func (l *line) advance(wasSpoken bool) {
	if i := l.next(wasSpoken); i >= 0 {
		l.current = l.leave(i)
		close(l.current.ready)
	}
}

// open lets calls begin.
func (l *line) open() {
	if l.held = false; l.current == nil {
		l.advance(false)
	}
}
