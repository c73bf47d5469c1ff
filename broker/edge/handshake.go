package edge

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// evictAfter is how long a peer may delay a handshake while other handshakes wait for its slot.
const evictAfter = time.Second

// handshakes limits the cost of TLS handshakes. Only a limited number compute at a time: a
// handshake costs a millisecond of a core, and when a whole fleet returns, calls to devices that
// are already back must not wait for the others. No peer can occupy a slot, since a handshake
// gives it up while it waits for bytes. The number of waiting handshakes is limited too: if all
// places are taken, the handshake that has waited longest for its peer is evicted.
type handshakes struct {
	slots chan struct{} // of the handshakes that compute

	mu      sync.Mutex
	limit   int
	pending map[*handshake]struct{}
	evicted int64
}

// A handshake is a socket until its TLS session is established.
type handshake struct {
	net.Conn
	all      *handshakes
	deadline time.Time
	stop     <-chan struct{}
	slot     bool      // holds a slot; belongs to the reader's goroutine
	finished bool      // belongs to the reader's goroutine too
	since    time.Time // start of the wait for the peer; zero while computing; under all.mu
}

func newHandshakes(computing, limit int) *handshakes {
	return &handshakes{slots: make(chan struct{}, computing), limit: limit, pending: make(map[*handshake]struct{})}
}

// room waits until another handshake may begin. It returns false if done is closed first. One
// goroutine calls it, then add.
func (h *handshakes) room(done <-chan struct{}) bool {
	for !h.makeRoom(time.Now()) {
		select {
		case <-done:
			return false
		case <-time.After(20 * time.Millisecond):
		}
	}
	return true
}

// makeRoom evicts a handshake if that is needed and allowed.
func (h *handshakes) makeRoom(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.pending) < h.limit {
		return true
	}
	var slowest *handshake
	for p := range h.pending {
		if !p.since.IsZero() && (slowest == nil || p.since.Before(slowest.since)) {
			slowest = p
		}
	}
	if slowest == nil || now.Sub(slowest.since) < evictAfter {
		return false
	}
	delete(h.pending, slowest)
	h.evicted++
	_ = slowest.Close() // its reader notices
	return true
}

// add registers a socket. It counts as waiting for its peer until the peer sends something.
func (h *handshakes) add(raw net.Conn, deadline time.Time, stop <-chan struct{}) *handshake {
	p := &handshake{Conn: raw, all: h, deadline: deadline, stop: stop, since: time.Now()}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pending[p] = struct{}{}
	return p
}

func (h *handshakes) numbers() (pending, evicted int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return int64(len(h.pending)), h.evicted
}

// remove ends the handshake's registration, whatever the outcome. It may be called again.
func (p *handshake) remove() {
	p.leave()
	p.finished = true
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	delete(p.all.pending, p)
}

// waits records that the handshake now waits for its peer. It may already be waiting, for the
// first bytes after accept.
func (p *handshake) waits() {
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	if p.since.IsZero() {
		p.since = time.Now()
	}
}

func (p *handshake) computes() {
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	p.since = time.Time{}
}

// Read gives up the handshake's slot while it waits for bytes.
func (p *handshake) Read(b []byte) (int, error) {
	if p.finished {
		return p.Conn.Read(b)
	}
	p.leave()
	p.waits()
	n, err := p.Conn.Read(b)
	p.computes()
	if err != nil {
		return n, err
	}
	return n, p.enter()
}

func (p *handshake) leave() {
	if p.slot {
		p.slot = false
		<-p.all.slots
	}
}

func (p *handshake) enter() error {
	select {
	case p.all.slots <- struct{}{}:
		p.slot = true
		return nil
	default:
	}
	timeout := time.NewTimer(time.Until(p.deadline))
	defer timeout.Stop()
	select {
	case p.all.slots <- struct{}{}:
		p.slot = true
		return nil
	case <-p.stop:
		return net.ErrClosed
	case <-timeout.C:
		return os.ErrDeadlineExceeded
	}
}

// shakeHands performs the TLS handshake of nc. The socket's deadline bounds it.
func (l *listener) shakeHands(nc *netConn) error {
	defer nc.handshake.remove()
	c := tls.Server(nc.handshake, l.tls)
	if err := c.Handshake(); err != nil {
		l.edge.stats.handshakesFailed.Add(1)
		return fmt.Errorf("TLS handshake: %w", err)
	}
	nc.Conn = c
	return nil
}
