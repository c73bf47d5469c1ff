package broker

import (
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"fleetd/broker/dialect"
	"fleetd/fleet"
	"fleetd/mcp"
)

// A device is the state that outlives a device's connections: the counter of its request ids, and
// the calls that may still be answered.
type device struct {
	id  fleet.DeviceID
	ids *mcp.IDs

	// takeover lets one connection establish itself at a time. Mochi's takeover is not atomic: of
	// two simultaneous connections, both or neither would survive.
	takeover sync.Mutex

	mu      sync.Mutex
	current *connection // the newest established connection; nil while offline
	opening bool        // a connection that this process admitted is being established
	own     int64       // epoch of the latest connection that this process admitted; 0 before the first
	holders int         // connections from authentication to their end
	gone    time.Time   // end of the last connection
	sent    []*sentCall // oldest first
	earlier int         // answers that may belong to calls of an earlier process
	habit   dialect.Habit
	latest  dialect.Dialect // of the newest connection that was authenticated; nil before the first

	listings *rate.Limiter
	dials    *rate.Limiter // limits WebSocket dials
}

// newDevice starts the ids at a random number, so an answer to a call of an earlier process
// matches no call of this process.
func newDevice(id fleet.DeviceID) *device {
	return &device{id: id, ids: mcp.NewIDs(rand.Int32()), gone: time.Now(),
		listings: rate.NewLimiter(rate.Every(listingEvery), listingBurst),
		dials:    rate.NewLimiter(rate.Every(dialEvery), dialBurst)}
}

// inherit passes what the dialect of the latest connection learned to that of the next one.
func (d *device) inherit(next dialect.Dialect) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.latest != nil {
		next.Follow(d.latest)
	}
	d.latest = next
}

func (d *device) connection() *connection {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.current
}

// take makes c, which this process admitted, the device's current connection.
func (d *device) take(c *connection) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.current, d.own = c, c.Epoch
}

// adopt makes c the device's current connection unless there was a newer one, and returns the
// previous one. Every connection that this process admitted is newer than one of an earlier process,
// even if the clock of that process was ahead and its epochs are greater.
func (d *device) adopt(c *connection) (old *connection, newest bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	old = d.current
	if d.opening || d.own != 0 && d.own != c.Epoch || old != nil && old.Epoch > c.Epoch {
		return nil, false
	}
	d.current = c
	return old, true
}

func (d *device) setOpening(opening bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.opening = opening
}

// release undoes registry.hold. It compares pointers, since a later connection may have become
// the device's current one.
func (d *device) release(c *connection) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.holders--
	d.gone = time.Now()
	if d.current == c {
		d.current = nil
	}
}

func (d *device) goneBefore(t time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.holders == 0 && d.gone.Before(t)
}

// These limit how often fleetd stores a listing of one device: a hostile device could offer
// different tools at every connection.
const (
	listingBurst = 3
	listingEvery = time.Minute // for each further listing
)

// mayList reports whether another listing may be stored now.
func (d *device) mayList(now time.Time) bool { return d.listings.AllowN(now, 1) }

// These limit how often a device may open a WebSocket.
const (
	dialEvery = time.Second // after the first few
	dialBurst = 10
)
