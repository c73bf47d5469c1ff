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

// A device is what outlives the connections of one: the counter of its request
// ids, and the calls whose answer may still come.
type device struct {
	id  fleet.DeviceID
	ids *mcp.IDs

	// takeover lets one connection at a time establish itself. Mochi's own
	// takeover is not atomic: of two at once both would stay, or neither.
	takeover sync.Mutex

	mu      sync.Mutex
	current *connection // the newest that is established; nil while offline
	holders int         // connections from authentication to their end
	gone    time.Time   // end of the last connection
	sent    []*sentCall // oldest first
	habit   dialect.Habit

	listings *rate.Limiter
	hellos   *rate.Limiter // of conversations that are relayed
	dials    *rate.Limiter // of WebSockets
}

// newDevice starts the ids at a random point, so that an answer to a call of an
// earlier process meets no call of this one.
func newDevice(id fleet.DeviceID) *device {
	return &device{id: id, ids: mcp.NewIDs(rand.Int32()), gone: time.Now(),
		listings: rate.NewLimiter(rate.Every(listingEvery), listingBurst),
		hellos:   rate.NewLimiter(rate.Every(voiceHelloEvery), voiceHelloBurst),
		dials:    rate.NewLimiter(rate.Every(dialEvery), dialBurst)}
}

func (d *device) connection() *connection {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.current
}

// take makes c the device's connection.
func (d *device) take(c *connection) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.current = c
}

// release ends what registry.hold began. Pointers are compared, since a later
// connection may long be the device's.
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

// A device can make fleetd store what it offers only so often: a hostile one
// would offer something else at every connection.
const (
	listingBurst = 3
	listingEvery = time.Minute // one more
)

// mayList reports whether one more listing may be stored now.
func (d *device) mayList(now time.Time) bool { return d.listings.AllowN(now, 1) }
