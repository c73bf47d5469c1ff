package broker

import (
	"net"
	"runtime/debug"
	"time"
)

// A netConn is a device's socket as mochi sees it. It refuses bytes that mochi
// must not see, and does not let a device that takes nothing block a writer.
type netConn struct {
	net.Conn              // what to read from and write to: the socket, or TLS over it
	raw          net.Conn // the socket
	writeTimeout time.Duration

	// The rest belongs to the goroutine that reads.
	guard frameGuard
	link  *connection // nil until the device is known
}

func (c *netConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if bad := c.guard.check(p[:n]); bad != nil {
		return 0, bad
	}
	return n, err
}

// Write sends all of p in time or closes the socket: after a part of a packet,
// everything that follows would be read as garbage.
func (c *netConn) Write(p []byte) (int, error) {
	if err := c.raw.SetWriteDeadline(time.Now().Add(c.writeTimeout)); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(p)
	if err != nil {
		_ = c.Close()
	}
	return n, err
}

// SetDeadline is how mochi enforces the keepalive, on what it reads. Writes
// have a deadline of their own.
func (c *netConn) SetDeadline(t time.Time) error { return c.raw.SetReadDeadline(t) }

// Close never blocks: TLS would try to say goodbye to a stuck device for five
// seconds first, during which its next connection waited.
func (c *netConn) Close() error { return c.raw.Close() }

// stack is where a recovered panic came from.
func stack() string {
	s := debug.Stack()
	return string(s[:min(len(s), 4096)])
}
