package voice

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// A socket is the single UDP socket of all conversations.
type socket struct {
	conn *net.UDPConn

	mu       sync.RWMutex
	channels map[uint32]*channel // by ssrc

	received  atomic.Int64 // datagrams
	malformed atomic.Int64 // received datagrams that are not packets of audio
	unknown   atomic.Int64 // received packets that belong to no conversation
	failed    atomic.Int64 // packets that could not be sent
}

// socketBuffer is how much the kernel buffers while the reader is busy: a second of 2,000
// conversations.
const socketBuffer = 8 << 20

func listenUDP(addr string) (*socket, error) {
	var lc net.ListenConfig
	conn, err := lc.ListenPacket(context.Background(), "udp", addr)
	if err != nil {
		return nil, fmt.Errorf("voice: cannot listen on %s: %w", addr, err)
	}
	s := &socket{conn: conn.(*net.UDPConn), channels: make(map[uint32]*channel)}
	_ = s.conn.SetReadBuffer(socketBuffer) // the system may allow less
	_ = s.conn.SetWriteBuffer(socketBuffer)
	return s, nil
}

// enter assigns an ssrc to a channel. Numbers are random: an attacker that does not see the
// packets of a conversation has to guess.
func (s *socket) enter(c *channel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c.ssrc == 0 || s.channels[c.ssrc] != nil {
		c.ssrc = rand.Uint32()
	}
	s.channels[c.ssrc] = c
}

func (s *socket) leave(c *channel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.channels[c.ssrc] == c {
		delete(s.channels, c.ssrc)
	}
}

func (s *socket) channel(ssrc uint32) *channel {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.channels[ssrc]
}

// run reads until the socket is closed.
func (s *socket) run() error {
	r := newReader(s.conn)
	for {
		n, err := r.read()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil { // an ICMP reply to one of our datagrams, or a lack of memory: both are temporary
			time.Sleep(time.Millisecond)
			continue
		}
		at := time.Now()
		for i := range n {
			b, from := r.datagram(i)
			s.receive(b, from, at)
		}
	}
}

// receive passes a datagram to its conversation. A datagram that belongs to none is dropped and
// never answered.
func (s *socket) receive(b []byte, from netip.AddrPort, at time.Time) {
	s.received.Add(1)
	h, ok := parseHeader(b)
	if !ok {
		s.malformed.Add(1)
		return
	}
	c := s.channel(h.ssrc)
	if c == nil {
		s.unknown.Add(1)
		return
	}
	c.receive(h, b, from, at)
}

func (s *socket) close() { _ = s.conn.Close() }

// portOf converts a port from network byte order, which the kernel's structures use.
func portOf(b [2]byte) uint16 { return binary.BigEndian.Uint16(b[:]) }
