package edge

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"fleetd/broker/link"
)

// stopTimeout bounds a shutdown.
const stopTimeout = 5 * time.Second

// An Edge accepts devices and passes on their messages.
type Edge struct {
	o      Options
	log    *slog.Logger
	core   link.Core
	server *mqtt.Server
	tcp    *listener           // nil if off
	tls    *listener           // nil if off
	gate   *semaphore.Weighted // limits the connections; while it is full, accepting pauses

	sockets  sockets
	refusals throttle
	stats    counters

	draining atomic.Pointer[drain] // nil unless a drain is under way

	mu          sync.Mutex
	connections map[*connection]struct{} // the established ones
	stopping    bool
}

// New creates an edge and binds its addresses, so a port in use is reported before anything runs.
// [Edge.Run] starts it.
func New(o Options) (*Edge, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	e := &Edge{o: o, log: o.Logger, core: o.Core, gate: semaphore.NewWeighted(int64(o.MaxConnections)),
		connections: make(map[*connection]struct{})}
	e.sockets.init()
	e.server = newServer(o.Logger)
	if err := e.server.AddHook(&hook{edge: e}, nil); err != nil {
		return nil, fmt.Errorf("edge: %w", err)
	}
	if err := e.listen(); err != nil {
		return nil, err
	}
	return e, nil
}

func (e *Edge) listen() (err error) {
	if e.o.Addr != "" {
		if e.tcp, err = e.newListener(link.MQTT, e.o.Addr); err != nil {
			return err
		}
	}
	if e.o.TLSAddr != "" {
		if e.tls, err = e.newListener(link.MQTTS, e.o.TLSAddr); err != nil {
			if e.tcp != nil {
				e.tcp.stop()
			}
			return err
		}
	}
	for _, l := range e.listeners() {
		if err := e.server.AddListener(l); err != nil {
			return fmt.Errorf("edge: %w", err)
		}
	}
	return nil
}

func (e *Edge) listeners() (all []*listener) {
	for _, l := range []*listener{e.tcp, e.tls} {
		if l != nil {
			all = append(all, l)
		}
	}
	return all
}

// Addr returns the address of the plain listener, or nil if plain MQTT is off.
func (e *Edge) Addr() net.Addr { return e.tcp.addr() }

// TLSAddr returns the address of the TLS listener, or nil if TLS is off.
func (e *Edge) TLSAddr() net.Addr { return e.tls.addr() }

// MQTT returns mochi's server, for its counters.
func (e *Edge) MQTT() *mqtt.Server { return e.server }

// Run serves devices until ctx ends, then closes their connections within a few seconds. An
// orderly stop returns nil.
func (e *Edge) Run(ctx context.Context) error {
	// Mochi's Serve would also walk all clients twice a second, to expire sessions, wills and unacknowledged
	// messages. Devices have none of them.
	e.server.Listeners.ServeAll(e.server.EstablishConnection)
	<-ctx.Done()
	return e.shutdown()
}

func (e *Edge) shutdown() error {
	deadline := time.Now().Add(stopTimeout)
	e.stopDraining()
	for _, l := range e.listeners() {
		l.stop()
	}
	for _, l := range e.listeners() {
		<-l.ended
	}
	e.sockets.stop()
	e.stopConnections(time.Second)
	for _, l := range e.listeners() {
		l.closeConnections()
	}
	ok := within(time.Second, e.sockets.serving.Wait) // lets stopped sockets write their reason
	e.sockets.closeAll()
	for _, l := range e.listeners() {
		ok = within(time.Until(deadline), l.handlers.Wait) && ok
	}
	ok = within(time.Until(deadline), e.sockets.serving.Wait) && ok
	if !ok {
		return fmt.Errorf("edge: some connections did not end within %v", stopTimeout)
	}
	// Mochi's Close sends a DISCONNECT, which MQTT 3.1.1 does not define, to each connection and
	// waits for all of them without a limit. It therefore runs last, when no connection is left.
	return e.server.Close()
}

// stopConnections ends every device's connection. Devices that speak MQTT 5 get a DISCONNECT with
// the reason, if they read it within d; earlier versions define no DISCONNECT from the server.
func (e *Edge) stopConnections(d time.Duration) {
	all := e.established()
	var g errgroup.Group
	g.SetLimit(64)
	within(d, func() {
		for _, c := range all {
			g.Go(func() error { c.carrier.farewell(link.ErrStopping, d); return nil })
		}
		_ = g.Wait()
	})
	for _, c := range all {
		c.stop(link.ErrStopping)
	}
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
