package edge

import (
	"errors"
	"net"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"fleetd/broker/dialect"
)

// A netConn is a device's socket as mochi sees it. It refuses bytes that mochi must not see, and
// does not let a device that reads nothing block a writer.
type netConn struct {
	net.Conn                     // for reads and writes: the socket, or TLS over it
	raw          net.Conn        // the socket
	plain        syscall.RawConn // the socket; nil with TLS
	remote       net.Addr        // the device's address as a proxy reports it; nil: the socket's
	writeTimeout time.Duration
	handshake    *handshake // with TLS only

	// The rest belongs to the reader's goroutine.
	guard   frameGuard
	bad     error         // the error in the bytes after those already returned
	will    *dialect.Will // from CONNECT, until it is accepted; nil without one
	carrier *mqttCarrier  // nil until the device is identified
	agent   *agentClient  // nil until the agent is authenticated
}

// Read returns whole packets up to a bad one, so the packets before it are answered first. It
// handles plain messages here, because mochi would copy each of them many times.
func (c *netConn) Read(p []byte) (int, error) {
	for {
		if c.bad != nil {
			return 0, c.refuse()
		}
		mayHandle := c.guard.betweenPackets() && c.carrier != nil && c.carrier.established
		n, err := c.Conn.Read(p)
		n, c.bad = c.guard.check(p[:n])
		handled := 0
		if mayHandle {
			handled = c.carrier.handle(p[:n])
			n = copy(p, p[handled:n])
		}
		switch {
		case c.bad == nil && (n > 0 || err != nil || handled == 0):
			return n, err
		case c.bad != nil && n > 0:
			return n, nil
		}
	}
}

// refuse replies to a bad packet as MQTT requires, before the connection ends.
func (c *netConn) refuse() error {
	switch {
	case c.carrier != nil:
		c.carrier.broken(codeOf(c.bad), brokenRules(c.bad.Error()))
	case errors.Is(c.bad, errProtocolLevel):
		_, _ = c.Write([]byte{packets.Connack << 4, 2, 0, packets.Err3UnsupportedProtocolVersion.Code})
	}
	return c.bad
}

// codeOf returns the reason code that an MQTT 5 client is sent for a bad packet.
func codeOf(bad error) packets.Code {
	switch {
	case errors.Is(bad, errLongPacket):
		return packets.ErrPacketTooLarge
	case errors.Is(bad, errUnexpected):
		return packets.ErrProtocolViolation
	}
	return packets.ErrMalformedPacket
}

// RemoteAddr returns the device's address, also behind a proxy.
func (c *netConn) RemoteAddr() net.Addr {
	if c.remote != nil {
		return c.remote
	}
	return c.raw.RemoteAddr()
}

// Write sends all of p in time or closes the socket: after a partial packet, everything that
// follows would be read as garbage.
func (c *netConn) Write(p []byte) (int, error) {
	done, err := c.writeNow(p)
	if err != nil || done == len(p) {
		return done, err
	}
	if err := c.raw.SetWriteDeadline(time.Now().Add(c.writeTimeout)); err != nil {
		return done, err
	}
	n, err := c.Conn.Write(p[done:])
	switch {
	case err != nil:
		_ = c.Close()
	case c.plain != nil:
		_ = c.raw.SetWriteDeadline(time.Time{}) // writeNow would fail with an expired deadline
	}
	return done + n, err
}

// writeNow sends as much of p as the socket accepts at once. Over TLS it sends nothing, because a
// record cannot be sent in part. After an error the socket is closed.
func (c *netConn) writeNow(p []byte) (int, error) {
	if c.plain == nil {
		return 0, nil
	}
	w := writers.Get().(*writer)
	w.p = p
	err := c.plain.Write(w.do)
	if err == nil {
		err = w.err
	}
	n := w.n
	w.p, w.n, w.err = nil, 0, nil
	writers.Put(w)
	if err != nil {
		_ = c.Close()
	}
	return n, err
}

// A writer is one attempt to write to a socket. It avoids a closure for each write.
type writer struct {
	p   []byte
	n   int
	err error
	do  func(fd uintptr) bool
}

var writers = sync.Pool{New: func() any {
	w := new(writer)
	w.do = w.write
	return w
}}

// write returns true, so that RawConn.Write does not wait to send the rest.
func (w *writer) write(fd uintptr) bool {
	for {
		n, err := syscall.Write(int(fd), w.p)
		if err == syscall.EINTR {
			continue
		}
		if w.n = max(n, 0); err != syscall.EAGAIN {
			w.err = err
		}
		return true
	}
}

// setConnectDeadline bounds the time until CONNACK. Mochi's writes already have deadlines; those
// of a TLS handshake have none.
func (c *netConn) setConnectDeadline(t time.Time) error {
	if c.plain != nil {
		return c.raw.SetReadDeadline(t)
	}
	return c.raw.SetDeadline(t)
}

// SetDeadline is called by mochi to enforce the keepalive, and sets the read deadline only.
// Writes have a separate deadline. Mochi truncates 1.5 times an odd keepalive to whole seconds,
// which is half a second too early; that half second is added here.
func (c *netConn) SetDeadline(t time.Time) error {
	if !t.IsZero() {
		t = t.Add(time.Second / 2)
	}
	return c.raw.SetReadDeadline(t)
}

// Close never blocks: TLS would first try for five seconds to send a stuck device its close
// alert, while the device's next connection waits.
func (c *netConn) Close() error { return c.raw.Close() }

// stack returns the stack of a recovered panic, shortened.
func stack() string {
	s := debug.Stack()
	return string(s[:min(len(s), 4096)])
}
