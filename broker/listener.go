package broker

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

// A listener accepts sockets for mochi and does not let them harm the process:
// accepting goes on after errors, a socket that says nothing is closed, and a
// panic costs one connection.
type listener struct {
	broker   *Broker
	id       string // "mqtt" or "mqtts": the transport's name
	ln       net.Listener
	tls      *tls.Config     // nil for plain
	shaking  *handshakes     // nil for plain
	life     context.Context // until stop
	end      context.CancelFunc
	ended    chan struct{} // closed when Serve returns: handlers gets no more then
	handlers sync.WaitGroup

	mu    sync.Mutex
	conns map[*netConn]struct{}
}

var _ listeners.Listener = (*listener)(nil)

// Go's default of a probe every 15 s would keep waking idle radios.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 2 * time.Minute, Interval: 30 * time.Second, Count: 3}

func (b *Broker) newListener(id, addr string) (*listener, error) {
	config := net.ListenConfig{KeepAliveConfig: keepAlive}
	ln, err := config.Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("cannot listen for %s on %s: %w", id, addr, err)
	}
	l := &listener{broker: b, id: id, ln: ln, ended: make(chan struct{}), conns: make(map[*netConn]struct{})}
	l.life, l.end = context.WithCancel(context.Background())
	if id == "mqtts" {
		l.tls = b.o.TLSConfig
		l.shaking = newHandshakes(b.o.MaxHandshakes, min(b.o.MaxPendingHandshakes, max(1, b.o.MaxConnections/4)))
	}
	return l, nil
}

func (l *listener) addr() net.Addr {
	if l == nil {
		return nil
	}
	return l.ln.Addr()
}

func (l *listener) Init(*slog.Logger) error { return nil } // bound already
func (l *listener) ID() string              { return l.id }
func (l *listener) Address() string         { return l.ln.Addr().String() }
func (l *listener) Protocol() string        { return l.id }

// Close is called by mochi, after Run has closed everything in better order.
func (l *listener) Close(listeners.CloseFn) { l.stop() }

// stop ends accepting.
func (l *listener) stop() {
	l.end()
	_ = l.ln.Close() // an error is that of a second stop
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

// Serve accepts until the listener is stopped. An error, such as a moment
// without free descriptors, is waited out: mochi's own listener would end here
// and no device could connect until a restart.
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
		l.broker.gate.Release(1)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		wait = l.backOff(wait, err)
	}
}

// mayAccept waits until there is room for another socket, and returns false when
// the listener is stopped first. Unfinished TLS handshakes take a quarter of the
// room at most, so that they cannot keep others out.
func (l *listener) mayAccept() bool {
	return (l.shaking == nil || l.shaking.room(l.life.Done())) && l.broker.gate.Acquire(l.life, 1) == nil
}

const maxAcceptWait = 500 * time.Millisecond

func (l *listener) backOff(last time.Duration, err error) time.Duration {
	l.broker.stats.acceptErrors.Add(1)
	if last == 0 {
		l.broker.log.Error("accepting connections failed, trying on", "listener", l.id, "err", err)
	}
	wait := min(max(5*time.Millisecond, 2*last), maxAcceptWait)
	select {
	case <-time.After(wait):
	case <-l.life.Done():
	}
	return wait
}

// start serves one socket on its own goroutine. The socket is counted before the
// goroutine runs, so that closeConnections misses none.
func (l *listener) start(raw net.Conn, establish listeners.EstablishFn) {
	nc := &netConn{Conn: raw, raw: raw, writeTimeout: l.broker.o.WriteTimeout}
	deadline := time.Now().Add(l.broker.o.ConnectTimeout)
	if l.shaking != nil {
		nc.handshake = l.shaking.add(raw, deadline, l.life.Done())
	} else if tcp, ok := raw.(*net.TCPConn); ok {
		nc.plain, _ = tcp.SyscallConn() // an error is of a connection that is not one
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
		nc.handshake.remove() // it may not have come to shakeHands
	}
	l.mu.Lock()
	delete(l.conns, nc)
	l.mu.Unlock()
	l.broker.gate.Release(1)
	l.handlers.Done()
}

// serve runs one connection to its end. Mochi reads, decodes and calls the hook
// on this goroutine, so that recovering here contains a panic in any of them;
// its own end-of-connection hook is skipped then, so ends are handled here.
func (l *listener) serve(nc *netConn, deadline time.Time, establish listeners.EstablishFn) {
	var err error
	defer func() {
		if p := recover(); p != nil {
			l.broker.stats.panics.Add(1)
			l.broker.log.Error("connection ended by a panic", "listener", l.id, "panic", fmt.Sprint(p), "stack", stack())
			err = errPanic
		}
		l.broker.ended(nc, err)
	}()
	select {
	case <-l.life.Done():
		return
	default:
	}
	if err = nc.setConnectDeadline(deadline); err != nil {
		return
	}
	if l.broker.fromProxy(nc.raw.RemoteAddr()) {
		if nc.remote, err = readProxyHeader(nc.raw); err != nil {
			l.broker.refusedHeader(nc, err)
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
