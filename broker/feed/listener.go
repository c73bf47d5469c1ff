package feed

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"github.com/mochi-mqtt/server/v2/listeners"
	"github.com/mochi-mqtt/server/v2/packets"
	"golang.org/x/sync/semaphore"
)

// A listener accepts sockets for mochi. Mochi's own ends with the first error of accept, waits without
// a limit for CONNECT, and a panic in it ends the process.
type listener struct {
	all      *Service
	id       string
	ln       net.Listener
	tls      *tls.Config         // nil for plain
	gate     *semaphore.Weighted // of all listeners
	life     context.Context     // until stop
	end      context.CancelFunc
	handlers sync.WaitGroup

	mu    sync.Mutex
	conns map[*conn]struct{}
}

var _ listeners.Listener = (*listener)(nil)

// A conn is the socket of a client.
type conn struct {
	net.Conn
	client   *client // nil before it is admitted
	hasWill  bool    // CONNECT has a will that is not Home Assistant's
	accepted bool    // the client is connected; belongs to the reader's goroutine
}

// SetDeadline sets the one for reads: mochi moves it with each packet, and a client that sends but does
// not read would never be closed.
func (c *conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

func (c *conn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

func (s *Service) listen() (err error) {
	gate := semaphore.NewWeighted(maxSockets)
	if s.o.Addr != "" {
		if s.tcp, err = s.newListener("events", s.o.Addr, nil, gate); err != nil {
			return err
		}
	}
	if s.o.TLSAddr != "" {
		config := s.o.TLSConfig.Clone()
		config.ClientAuth, config.ClientCAs = tls.NoClientCert, nil // devices have certificates
		if s.tls, err = s.newListener("events-tls", s.o.TLSAddr, config, gate); err != nil {
			s.stopListening()
			return err
		}
	}
	for _, l := range s.listeners() {
		if err := s.server.AddListener(l); err != nil {
			s.stopListening()
			return fmt.Errorf("feed: %w", err)
		}
	}
	return nil
}

func (s *Service) newListener(id, addr string, config *tls.Config, gate *semaphore.Weighted) (*listener, error) {
	ln, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("cannot listen for %s on %s: %w", id, addr, err)
	}
	l := &listener{all: s, id: id, ln: ln, tls: config, gate: gate, conns: map[*conn]struct{}{}}
	l.life, l.end = context.WithCancel(context.Background())
	return l, nil
}

func (s *Service) listeners() (all []*listener) {
	for _, l := range []*listener{s.tcp, s.tls} {
		if l != nil {
			all = append(all, l)
		}
	}
	return all
}

func (s *Service) stopListening() {
	for _, l := range s.listeners() {
		l.stop()
	}
}

// Addr returns the address of the plain listener, or nil.
func (s *Service) Addr() net.Addr { return s.tcp.addr() }

// TLSAddr returns the address of the TLS listener, or nil.
func (s *Service) TLSAddr() net.Addr { return s.tls.addr() }

func (l *listener) addr() net.Addr {
	if l == nil {
		return nil
	}
	return l.ln.Addr()
}

func (l *listener) Init(*slog.Logger) error   { return nil } // already bound
func (l *listener) ID() string                { return l.id }
func (l *listener) Address() string           { return l.ln.Addr().String() }
func (l *listener) Protocol() string          { return l.id }
func (l *listener) Close(_ listeners.CloseFn) { l.stop() }
func (l *listener) closed(err error) (end bool) {
	return errors.Is(err, net.ErrClosed) || l.life.Err() != nil
}

func (l *listener) stop() {
	l.end()
	_ = l.ln.Close() // an error only means a second stop
}

const acceptPause = 100 * time.Millisecond // after an error, such as a lack of descriptors

// Serve accepts until the listener is stopped. While all sockets are in use, it waits.
func (l *listener) Serve(establish listeners.EstablishFn) {
	for l.gate.Acquire(l.life, 1) == nil {
		raw, err := l.ln.Accept()
		if err == nil {
			l.start(raw, establish)
			continue
		}
		l.gate.Release(1)
		if l.closed(err) {
			return
		}
		select {
		case <-time.After(acceptPause):
		case <-l.life.Done():
		}
	}
}

func (l *listener) start(raw net.Conn, establish listeners.EstablishFn) {
	if l.tls != nil {
		raw = tls.Server(raw, l.tls)
	}
	c := &conn{Conn: raw}
	l.mu.Lock()
	l.conns[c] = struct{}{}
	l.mu.Unlock()
	l.handlers.Go(func() {
		defer l.finish(c)
		_ = c.SetReadDeadline(time.Now().Add(connectTimeout)) // an error means that it is closed
		_ = establish(l.id, c)                                // hooks have seen why it ended
	})
}

// finish ends a connection, whatever ended it.
func (l *listener) finish(c *conn) {
	if p := recover(); p != nil {
		l.all.log.Error("connection ended by a panic", "listener", l.id, "panic", fmt.Sprint(p),
			"stack", string(debug.Stack()))
	}
	_ = c.Close()
	if c.client != nil {
		c.client.ended(c.accepted)
	}
	l.mu.Lock()
	delete(l.conns, c)
	l.mu.Unlock()
	l.gate.Release(1)
}

func (l *listener) closeConnections() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		_ = c.Close()
	}
}

// shutdown sends clients of MQTT 5 the reason, and closes all connections.
func (s *Service) shutdown() error {
	s.stopListening()
	for _, c := range s.connected() {
		c.leave(packets.ErrServerShuttingDown)
	}
	done := make(chan struct{})
	go func() {
		for _, l := range s.listeners() {
			l.handlers.Wait()
		}
		close(done)
	}()
	closing := time.AfterFunc(farewellTimeout, func() {
		for _, l := range s.listeners() {
			l.closeConnections()
		}
	})
	defer closing.Stop()
	select {
	case <-done:
	case <-time.After(stopTimeout):
		return fmt.Errorf("feed: some connections did not end within %v", stopTimeout)
	}
	return s.server.Close()
}
