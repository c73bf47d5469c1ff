package broker

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// evictAfter is how long a peer may keep a handshake waiting while others wait
// for its place.
const evictAfter = time.Second

// handshakes bounds what TLS handshakes cost. Only so many compute at a time: a
// handshake costs a millisecond of a core, and when a whole fleet returns, calls
// to the devices that are back already must not wait for the others. No peer
// can hold a place among them, since a handshake that waits for bytes gives it
// up. How many wait is bounded too; when all places are taken, the one that
// waited longest for its peer makes room.
type handshakes struct {
	slots chan struct{} // those that compute

	mu      sync.Mutex
	limit   int
	pending map[*handshake]struct{}
	evicted int64
}

// A handshake is a socket until its TLS session stands.
type handshake struct {
	net.Conn
	all      *handshakes
	deadline time.Time
	stop     <-chan struct{}
	slot     bool      // held; belongs to the goroutine that reads
	finished bool      // belongs to it too
	since    time.Time // of waiting for the peer; zero while computing; under all.mu
}

func newHandshakes(computing, limit int) *handshakes {
	return &handshakes{slots: make(chan struct{}, computing), limit: limit, pending: make(map[*handshake]struct{})}
}

// room waits until another handshake may begin. It returns false when done is
// closed first. One goroutine calls it, then add.
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

// makeRoom evicts a handshake if it has to and may.
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
	_ = slowest.Close() // its reader finds out
	return true
}

// add registers a socket. Until it has sent something it waits for its peer.
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

// remove ends the handshake's part in the bounds, however it went. It may be
// called again.
func (p *handshake) remove() {
	p.leave()
	p.finished = true
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	delete(p.all.pending, p)
}

// waits notes that the handshake waits for its peer from now on. It may wait
// already: for the first bytes since it was accepted.
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

// Read gives up the place among those that compute for as long as it waits.
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

// shakeHands makes nc a TLS connection. The socket's deadline bounds it.
func (l *listener) shakeHands(nc *netConn) error {
	defer nc.handshake.remove()
	c := tls.Server(nc.handshake, l.tls)
	if err := c.Handshake(); err != nil {
		l.broker.stats.handshakesFailed.Add(1)
		return fmt.Errorf("TLS handshake: %w", err)
	}
	nc.Conn = c
	return nil
}
