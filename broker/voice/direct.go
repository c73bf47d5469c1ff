package voice

import (
	"encoding/binary"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
)

// A directConn is the socket under an upstream's WebSocket. The goroutine that read an audio
// frame may write it here, and must not wait: the writer's goroutine sends the remainder that the
// socket does not accept at once. With TLS, frames cannot be written in this way.
type directConn struct {
	net.Conn
	raw syscall.RawConn // nil if frames cannot be written directly

	in    []byte // the buffer of Read
	got   int
	inErr error
	read  func(fd uintptr) bool // read and write are created once: a closure for each call would be an allocation

	mu      sync.Mutex
	message []byte // the current message
	rest    []byte // remainder of a partly sent message: it must be sent before any other
	n       int
	err     error
	write   func(fd uintptr)
}

func newDirectConn(conn net.Conn) *directConn {
	c := &directConn{Conn: conn}
	if s, ok := conn.(syscall.Conn); ok && direct {
		c.raw, _ = s.SyscallConn() // fails only for a nil connection
	}
	c.write = func(fd uintptr) { c.n, c.err = writeNow(fd, c.message) }
	c.read = func(fd uintptr) (ready bool) {
		c.got, ready, c.inErr = readNow(fd, c.in)
		return ready
	}
	return c
}

// Read implements net.Conn.
func (c *directConn) Read(p []byte) (int, error) {
	if c.raw == nil || len(p) == 0 {
		return c.Conn.Read(p)
	}
	c.in = p
	if err := c.raw.Read(c.read); err != nil {
		return 0, err
	}
	return c.got, c.inErr
}

// Write implements net.Conn. It may wait until the write deadline.
func (c *directConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.flush(); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

func (c *directConn) flush() error {
	if len(c.rest) == 0 {
		return nil
	}
	n, err := c.Conn.Write(c.rest)
	c.rest = c.rest[n:]
	return err
}

// Flush writes the remainder of a message that the socket accepted in part.
func (c *directConn) Flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.flush()
}

// writeBinary sends a binary message if the socket accepts it now. whole is false if the
// remainder is left to Flush. It never waits.
func (c *directConn) writeBinary(header, payload []byte) (sent, whole bool) {
	if c.raw == nil || !c.mu.TryLock() {
		return false, false
	}
	defer c.mu.Unlock()
	if len(c.rest) > 0 {
		return false, false
	}
	c.message = appendBinary(c.message[:0], header, payload)
	if err := c.raw.Control(c.write); err != nil || c.err != nil || c.n <= 0 {
		return false, false // the writer sees the error, unless it was only a full buffer
	}
	c.rest = c.message[c.n:]
	return true, len(c.rest) == 0
}

// appendBinary appends a client's binary message as one masked frame (RFC 6455, 5.2).
func appendBinary(b, header, payload []byte) []byte {
	const finalBinary, masked = 0x82, 0x80
	n := len(header) + len(payload)
	b = append(b, finalBinary)
	switch {
	case n < 126:
		b = append(b, masked|byte(n))
	default:
		b = binary.BigEndian.AppendUint16(append(b, masked|126), uint16(n))
	}
	var mask [4]byte
	binary.BigEndian.PutUint32(mask[:], rand.Uint32())
	b = append(b, mask[:]...)
	start := len(b)
	b = append(append(b, header...), payload...)
	for i := range b[start:] {
		b[start+i] ^= mask[i&3]
	}
	return b
}
