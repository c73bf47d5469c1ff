package edge

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/mochi-mqtt/server/v2/listeners"
)

// A listener accepts sockets for mochi and protects the process from them: it continues to accept
// after errors, closes silent sockets, and limits a panic to one connection.
type listener struct {
	edge     *Edge
	id       string // "mqtt" or "mqtts": the transport's name
	ln       net.Listener
	tls      *tls.Config     // nil for plain
	shaking  *handshakes     // nil for plain
	life     context.Context // until stop
	end      context.CancelFunc
	ended    chan struct{} // closed when Serve returns: no handler is added later
	handlers sync.WaitGroup

	mu    sync.Mutex
	conns map[*netConn]struct{}
}

var _ listeners.Listener = (*listener)(nil)

// Go's default, a probe every 15 s, would keep waking idle radios.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 2 * time.Minute, Interval: 30 * time.Second, Count: 3}

func (e *Edge) newListener(id, addr string) (*listener, error) {
	config := net.ListenConfig{KeepAliveConfig: keepAlive}
	ln, err := config.Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("cannot listen for %s on %s: %w", id, addr, err)
	}
	l := &listener{edge: e, id: id, ln: ln, ended: make(chan struct{}), conns: make(map[*netConn]struct{})}
	l.life, l.end = context.WithCancel(context.Background())
	if id == "mqtts" {
		l.tls = e.o.TLSConfig
		l.shaking = newHandshakes(e.o.MaxHandshakes, min(e.o.MaxPendingHandshakes, max(1, e.o.MaxConnections/4)))
	}
	return l, nil
}

func (l *listener) addr() net.Addr {
	if l == nil {
		return nil
	}
	return l.ln.Addr()
}

func (l *listener) Init(*slog.Logger) error { return nil } // already bound
func (l *listener) ID() string              { return l.id }
func (l *listener) Address() string         { return l.ln.Addr().String() }
func (l *listener) Protocol() string        { return l.id }

// Close is called by mochi after Run has closed everything in a better order.
func (l *listener) Close(listeners.CloseFn) { l.stop() }

// stop ends accepting.
func (l *listener) stop() {
	l.end()
	_ = l.ln.Close() // an error only means a second stop
}

func (l *listener) closeConnections() {
	for _, c := range l.snapshot() {
		_ = c.Close()
	}
}

func (l *listener) snapshot() []*netConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]*netConn, 0, len(l.conns))
	for c := range l.conns {
		all = append(all, c)
	}
	return all
}

// Serve accepts until the listener is stopped. It waits and retries after an error, such as a
// temporary lack of descriptors: mochi's own listener would end here and no device could connect
// until a restart.
func (l *listener) Serve(establish listeners.EstablishFn) {
	defer close(l.ended)
	wait := time.Duration(0)
	for l.mayAccept() {
		raw, err := l.ln.Accept()
		if err == nil {
			wait = 0
			l.start(raw, establish)
			continue
		}
		l.edge.gate.Release(1)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		wait = l.backOff(wait, err)
	}
}

// mayAccept waits until there is room for another socket, and returns false if the listener is
// stopped first. Unfinished TLS handshakes use at most a quarter of the capacity, so they cannot
// keep others out.
func (l *listener) mayAccept() bool {
	return (l.shaking == nil || l.shaking.room(l.life.Done())) && l.edge.gate.Acquire(l.life, 1) == nil
}

const maxAcceptWait = 500 * time.Millisecond

func (l *listener) backOff(last time.Duration, err error) time.Duration {
	l.edge.stats.acceptErrors.Add(1)
	if last == 0 {
		l.edge.log.Error("accepting connections failed; retrying", "listener", l.id, "err", err)
	}
	wait := min(max(5*time.Millisecond, 2*last), maxAcceptWait)
	select {
	case <-time.After(wait):
	case <-l.life.Done():
	}
	return wait
}

// start serves one socket on a separate goroutine. The socket is counted before the goroutine
// runs, so closeConnections misses none.
func (l *listener) start(raw net.Conn, establish listeners.EstablishFn) {
	nc := &netConn{Conn: raw, raw: raw, writeTimeout: l.edge.o.WriteTimeout}
	if size := l.edge.o.WriteBuffer; size > 0 {
		if tcp, ok := raw.(*net.TCPConn); ok {
			_ = tcp.SetWriteBuffer(size) // an error means that the socket is closed
		}
	}
	deadline := time.Now().Add(l.edge.o.ConnectTimeout)
	if l.shaking != nil {
		nc.handshake = l.shaking.add(raw, deadline, l.life.Done())
	} else if tcp, ok := raw.(*net.TCPConn); ok {
		nc.plain, _ = tcp.SyscallConn() // an error means that tcp is not a connection
	}
	l.handlers.Add(1)
	l.mu.Lock()
	l.conns[nc] = struct{}{}
	l.mu.Unlock()
	go func() {
		defer l.finish(nc)
		l.serve(nc, deadline, establish)
	}()
}

func (l *listener) finish(nc *netConn) {
	_ = nc.Close()
	if nc.handshake != nil {
		nc.handshake.remove() // needed if shakeHands was not reached
	}
	l.mu.Lock()
	delete(l.conns, nc)
	l.mu.Unlock()
	l.edge.gate.Release(1)
	l.handlers.Done()
}

// serve runs one connection to its end. Mochi reads, decodes and calls the hook on this
// goroutine, so recovering here contains a panic in any of them. Such a panic skips mochi's
// end-of-connection hook, so the end is handled here.
func (l *listener) serve(nc *netConn, deadline time.Time, establish listeners.EstablishFn) {
	var err error
	defer func() {
		if p := recover(); p != nil {
			l.edge.stats.panics.Add(1)
			l.edge.log.Error("connection ended by a panic", "listener", l.id, "panic", fmt.Sprint(p), "stack", stack())
			err = errPanic
		}
		l.edge.ended(nc, err)
	}()
	select {
	case <-l.life.Done():
		return
	default:
	}
	if err = nc.setConnectDeadline(deadline); err != nil {
		return
	}
	if l.edge.fromProxy(nc.raw.RemoteAddr()) {
		if nc.remote, err = readProxyHeader(nc.raw); err != nil {
			l.edge.refusedHeader(nc, err)
			return
		}
	}
	if l.tls != nil {
		if err = l.shakeHands(nc); err != nil {
			return
		}
	}
	err = establish(l.id, nc)
}
