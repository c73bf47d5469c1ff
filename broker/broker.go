package broker

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"fleetd/broker/link"
	"fleetd/fleet"
	"fleetd/internal/bounded"
)

// drainTimeout bounds a shutdown.
const drainTimeout = 5 * time.Second

// A Broker admits devices and delivers calls to them.
type Broker struct {
	o       Options
	log     *slog.Logger
	devices Devices

	registry    registry
	pool        pool
	prober      prober
	inventories inventories
	stats       counters
	epoch       atomic.Int64
	began       time.Time

	life context.Context // ends with Run
	end  context.CancelFunc
	late sync.WaitGroup // callbacks for late answers
}

var (
	_ fleet.Link   = (*Broker)(nil)
	_ link.Adopter = (*Broker)(nil)
)

// New creates a broker. [Broker.Run] starts it.
func New(o Options) (*Broker, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	b := &Broker{o: o, log: o.Logger, devices: o.Devices, began: time.Now(),
		inventories: inventories{bounded.New[string, fleet.Inventory](maxInventories)}}
	b.life, b.end = context.WithCancel(context.Background())
	b.advanceEpoch(o.LatestEpoch)
	b.registry.init()
	b.pool.limit = o.OnboardingLimit
	return b, nil
}

// Run serves the connections of the edges until ctx ends. The edges in this process must have ended
// by then. Calls that still wait for an answer fail with [fleet.ErrLost]. An orderly stop returns
// nil.
func (b *Broker) Run(ctx context.Context) error {
	probing := make(chan struct{})
	go func() { defer close(probing); b.watch() }()
	<-ctx.Done()
	deadline := time.Now().Add(drainTimeout)
	b.end()
	for _, c := range b.registry.connections() {
		c.end(link.ErrStopping) // the device stays connected to its edge, for the next core
	}
	<-probing
	ok := within(time.Until(deadline), b.pool.running.Wait)
	ok = within(time.Until(deadline), b.late.Wait) && ok
	if !ok {
		return fmt.Errorf("broker: some requests did not end within %v", drainTimeout)
	}
	return nil
}

// within reports whether wait returned in time.
func within(d time.Duration, wait func()) bool {
	done := make(chan struct{})
	go func() { wait(); close(done) }()
	select {
	case <-done:
		return true
	case <-time.After(d):
		return false
	}
}

// nextEpoch returns the number of a new connection. Numbers increase, also across restarts of the
// process.
func (b *Broker) nextEpoch(now time.Time) int64 {
	for {
		last := b.epoch.Load()
		next := max(last+1, now.UnixMicro())
		if b.epoch.CompareAndSwap(last, next) {
			return next
		}
	}
}

// advanceEpoch makes the numbers of new connections greater than known.
func (b *Broker) advanceEpoch(known int64) {
	for last := b.epoch.Load(); last < known && !b.epoch.CompareAndSwap(last, known); last = b.epoch.Load() {
	}
}

// Connection returns the device's current connection.
func (b *Broker) Connection(id fleet.DeviceID) (fleet.Connection, bool) {
	c := b.registry.connection(id)
	if c == nil {
		return fleet.Connection{}, false
	}
	return c.Connection, true
}

// Kick ends the device's connection, if it has one. It is used when the device is revoked or
// retired: the device must return with other credentials or not at all.
func (b *Broker) Kick(id fleet.DeviceID, cause fleet.Cause) bool {
	c := b.registry.connection(id)
	if c == nil {
		return false
	}
	c.stop(link.CauseError{Cause: cause})
	return true
}
