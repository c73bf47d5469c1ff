package broker

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"
)

// handshakeTimeout bounds how long one handshake may hold its slot.
const handshakeTimeout = 5 * time.Second

// handshake makes nc a TLS connection. Only so many run at a time: a handshake
// costs a millisecond of a core, and when a whole fleet returns, calls to the
// devices that are back already must not wait for the others.
//
// A socket takes a slot only once it has sent a byte, so that silent ones
// cannot hold all of them.
func (l *listener) handshake(nc *netConn) error {
	first := make([]byte, 1)
	if _, err := nc.raw.Read(first); err != nil {
		return fmt.Errorf("TLS handshake: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), l.broker.o.ConnectTimeout)
	defer cancel()
	select {
	case l.slots <- struct{}{}:
		defer func() { <-l.slots }()
	case <-l.done:
		return net.ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("TLS handshake: no slot in time: %w", ctx.Err())
	}
	return l.shakeHands(ctx, nc, first)
}

func (l *listener) shakeHands(ctx context.Context, nc *netConn, first []byte) error {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	c := tls.Server(&resumedConn{Conn: nc.raw, unread: first}, l.tls)
	if err := c.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("TLS handshake: %w", err)
	}
	nc.Conn = c
	return nil
}

// A resumedConn gives out bytes that were read before.
type resumedConn struct {
	net.Conn
	unread []byte
}

func (c *resumedConn) Read(p []byte) (int, error) {
	if len(c.unread) > 0 {
		n := copy(p, c.unread)
		c.unread = c.unread[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}
