package broker

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"golang.org/x/sync/semaphore"

	"fleetd/fleet"
	"fleetd/internal/bounded"
)

// drainTimeout bounds a shutdown.
const drainTimeout = 5 * time.Second

// A Broker accepts devices and delivers calls to them.
type Broker struct {
	o       Options
	log     *slog.Logger
	server  *mqtt.Server
	tcp     *listener           // nil if off
	tls     *listener           // nil if off
	gate    *semaphore.Weighted // limits the connections; while it is full, accepting pauses
	devices Devices

	sockets     sockets
	registry    registry
	pool        pool
	prober      prober
	inventories inventories
	refusals    throttle
	stats       counters
	epoch       atomic.Int64

	life context.Context // ends after all connections have been closed
	end  context.CancelFunc
	late sync.WaitGroup // callbacks for late answers
}

var _ fleet.Link = (*Broker)(nil)

// New creates a broker and binds its addresses, so a port in use is reported before anything
// runs. [Broker.Run] starts it.
func New(o Options) (*Broker, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	b := &Broker{o: o, log: o.Logger, devices: o.Devices, gate: semaphore.NewWeighted(int64(o.MaxConnections)),
		inventories: inventories{bounded.New[string, fleet.Inventory](maxInventories)}}
	b.life, b.end = context.WithCancel(context.Background())
	b.registry.init()
	b.sockets.init()
	b.pool.limit = o.OnboardingLimit
	b.server = newServer(o.Logger)
	if err := b.server.AddHook(&hook{broker: b}, nil); err != nil {
		return nil, fmt.Errorf("broker: %w", err)
	}
	if err := b.listen(); err != nil {
		return nil, err
	}
	return b, nil
}

func (b *Broker) listen() (err error) {
	if b.o.Addr != "" {
		if b.tcp, err = b.newListener("mqtt", b.o.Addr); err != nil {
			return err
		}
	}
	if b.o.TLSAddr != "" {
		if b.tls, err = b.newListener("mqtts", b.o.TLSAddr); err != nil {
			if b.tcp != nil {
				b.tcp.stop()
			}
			return err
		}
	}
	for _, l := range b.listeners() {
		if err := b.server.AddListener(l); err != nil {
			return fmt.Errorf("broker: %w", err)
		}
	}
	return nil
}

func (b *Broker) listeners() (all []*listener) {
	for _, l := range []*listener{b.tcp, b.tls} {
		if l != nil {
			all = append(all, l)
		}
	}
	return all
}

// Addr returns the address of the plain listener, or nil if plain MQTT is off.
func (b *Broker) Addr() net.Addr { return b.tcp.addr() }

// TLSAddr returns the address of the TLS listener, or nil if TLS is off.
func (b *Broker) TLSAddr() net.Addr { return b.tls.addr() }

// Run serves devices until ctx ends, then closes their connections within a few seconds. Calls
// that still wait for an answer fail with [fleet.ErrLost]. An orderly stop returns nil.
func (b *Broker) Run(ctx context.Context) error {
	if err := b.server.Serve(); err != nil {
		return fmt.Errorf("broker: %w", err)
	}
	probing := make(chan struct{})
	go func() { defer close(probing); b.watch() }()
	<-ctx.Done()
	return b.shutdown(probing)
}

func (b *Broker) shutdown(probing <-chan struct{}) error {
	deadline := time.Now().Add(drainTimeout)
	for _, l := range b.listeners() {
		l.stop()
	}
	for _, l := range b.listeners() {
		<-l.ended
	}
	b.sockets.stop()
	b.stopConnections(time.Second)
	for _, l := range b.listeners() {
		l.closeConnections()
	}
	ok := within(time.Second, b.sockets.serving.Wait) // lets stopped sockets write their reason
	b.sockets.closeAll()
	for _, l := range b.listeners() {
		ok = within(time.Until(deadline), l.handlers.Wait) && ok
	}
	ok = within(time.Until(deadline), b.sockets.serving.Wait) && ok
	b.end()
	<-probing
	ok = within(time.Until(deadline), b.pool.running.Wait) && ok
	ok = within(time.Until(deadline), b.late.Wait) && ok
	if !ok {
		return fmt.Errorf("broker: some connections did not end within %v", drainTimeout)
	}
	// Mochi's Close sends a DISCONNECT, which MQTT 3.1.1 does not define, to each connection and
	// waits for all of them without a limit. It therefore runs last, when no connection is left.
	return b.server.Close()
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
	c.stop(causeError{cause})
	return true
}
