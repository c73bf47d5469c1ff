package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// MQTT 3.1.1 control packets, as the high half of the first byte.
const (
	pktConnect    = 1
	pktConnack    = 2
	pktPublish    = 3
	pktPuback     = 4
	pktPubrec     = 5
	pktPubrel     = 6
	pktPubcomp    = 7
	pktPingreq    = 12
	pktPingresp   = 13
	pktDisconnect = 14
)

const (
	maxConnect  = 1024      // esp-mqtt's buffer, which CONNECT must fit
	maxIncoming = 512 << 10 // a payload beyond this would not fit any board's RAM
	networkWait = 10 * time.Second
)

var errNoPong = errors.New("no answer to PINGREQ")

// An mqttConn is a connection with the part of MQTT 3.1.1 that the firmware uses. One goroutine
// reads; any may write.
type mqttConn struct {
	net.Conn
	keepalive time.Duration
	breakAt   time.Time // the connection breaks then, unless zero: CONNACK too late, or the flap fault

	lastSent atomic.Int64 // Unix nanoseconds
	pingSent time.Time    // zero if no answer is awaited

	write sync.Mutex

	r, w int // unread part of buf
	buf  [256]byte
}

// A packet is valid until the next call of next.
type packet struct {
	kind    byte
	flags   byte
	payload []byte // all behind the fixed header
}

// next reads one packet and pings the server meanwhile.
func (c *mqttConn) next() (packet, error) {
	first, err := c.readByte()
	if err != nil {
		return packet{}, err
	}
	size, err := c.readLength()
	if err != nil {
		return packet{}, err
	}
	p := packet{kind: first >> 4, flags: first & 15}
	p.payload, err = c.readN(size)
	if p.kind == pktPingresp {
		c.pingSent = time.Time{}
	}
	return p, err
}

func (c *mqttConn) readLength() (size int, err error) {
	for shift := 0; shift < 28; shift += 7 {
		b, err := c.readByte()
		if err != nil {
			return 0, err
		}
		if size |= int(b&127) << shift; b < 128 {
			if size > maxIncoming {
				return 0, fmt.Errorf("packet of %d bytes is too long for the device", size)
			}
			return size, nil
		}
	}
	return 0, errors.New("malformed remaining length")
}

// readN returns the next n bytes, from the buffer if they fit into it.
func (c *mqttConn) readN(n int) ([]byte, error) {
	if n > len(c.buf) {
		long := make([]byte, n)
		got := copy(long, c.buf[c.r:c.w])
		c.r += got
		return long, c.readFull(long[got:])
	}
	if c.r+n > len(c.buf) {
		c.w = copy(c.buf[:], c.buf[c.r:c.w])
		c.r = 0
	}
	for c.w-c.r < n {
		if err := c.fill(); err != nil {
			return nil, err
		}
	}
	c.r += n
	return c.buf[c.r-n : c.r], nil
}

func (c *mqttConn) readFull(p []byte) error {
	for len(p) > 0 {
		n, err := c.read(p)
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

func (c *mqttConn) readByte() (byte, error) {
	if c.r == c.w {
		c.r, c.w = 0, 0
		if err := c.fill(); err != nil {
			return 0, err
		}
	}
	c.r++
	return c.buf[c.r-1], nil
}

func (c *mqttConn) fill() error {
	n, err := c.read(c.buf[c.w:])
	c.w += n
	return err
}

// read waits for bytes. The read deadline serves as keepalive timer, so an idle device needs
// none.
func (c *mqttConn) read(p []byte) (int, error) {
	for {
		if err := c.SetReadDeadline(c.nextDuty()); err != nil {
			return 0, err
		}
		n, err := c.Conn.Read(p)
		if n > 0 || err == nil {
			return n, nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, err
		}
		if err := c.doDuty(); err != nil {
			return 0, err
		}
	}
}

// nextDuty returns when the next action is due if nothing arrives before.
func (c *mqttConn) nextDuty() time.Time {
	due := time.Unix(0, c.lastSent.Load()).Add(c.keepalive / 2)
	if !c.pingSent.IsZero() {
		due = c.pingSent.Add(c.keepalive)
	}
	if !c.breakAt.IsZero() && c.breakAt.Before(due) {
		due = c.breakAt
	}
	return due
}

func (c *mqttConn) doDuty() error {
	now := time.Now()
	switch {
	case !c.breakAt.IsZero() && !now.Before(c.breakAt):
		return errors.New("time is up for this connection")
	case !c.pingSent.IsZero():
		return errNoPong
	case now.Before(time.Unix(0, c.lastSent.Load()).Add(c.keepalive / 2)):
		return nil // something was sent meanwhile
	}
	c.pingSent = now
	return c.send([]byte{pktPingreq << 4, 0})
}

// send writes one whole packet.
func (c *mqttConn) send(packet []byte) error {
	c.write.Lock()
	defer c.write.Unlock()
	if err := c.SetWriteDeadline(time.Now().Add(networkWait)); err != nil {
		return err
	}
	_, err := c.Conn.Write(packet)
	c.lastSent.Store(time.Now().UnixNano())
	return err
}

// acknowledge answers a PUBLISH or PUBREL; QoS 0 needs nothing.
func (c *mqttConn) acknowledge(kind byte, id []byte) error {
	return c.send([]byte{kind << 4, 2, id[0], id[1]})
}

// hangUp ends the session cleanly: DISCONNECT, then the socket.
func (c *mqttConn) hangUp() {
	_ = c.send([]byte{pktDisconnect << 4, 0}) // the socket closes either way
	c.Close()
}

// A publication is an incoming PUBLISH. The device ignores its topic.
type publication struct {
	qos     byte
	id      []byte
	payload []byte
}

func parsePublish(p packet) (publication, error) {
	pub := publication{qos: p.flags >> 1 & 3}
	b := p.payload
	if len(b) < 2 {
		return pub, io.ErrUnexpectedEOF
	}
	topic := 2 + int(binary.BigEndian.Uint16(b))
	head := topic
	if pub.qos > 0 {
		head += 2
	}
	if len(b) < head || pub.qos == 3 {
		return pub, errors.New("malformed PUBLISH")
	}
	pub.id, pub.payload = b[topic:head], b[head:]
	return pub, nil
}

// appendHeader appends a fixed header.
func appendHeader(b []byte, kind byte, size int) []byte {
	b = append(b, kind<<4)
	for size >= 128 {
		b = append(b, byte(size)|128)
		size >>= 7
	}
	return append(b, byte(size))
}

func appendText(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}

// publishPacket returns a PUBLISH with QoS 0, not retained, like all of the firmware's.
func publishPacket(b []byte, topic string, payload []byte) []byte {
	b = appendHeader(b, pktPublish, 2+len(topic)+len(payload))
	return append(appendText(b, topic), payload...)
}

// connectPacket requests a clean session without a will (2).
func connectPacket(clientID, username, password string, keepalive uint16) ([]byte, error) {
	const clean, hasPassword, hasUser = 1 << 1, 1 << 6, 1 << 7
	flags := byte(clean)
	body := appendText(nil, clientID)
	if username != "" {
		flags |= hasUser
		body = appendText(body, username)
	}
	if password != "" {
		flags |= hasPassword
		body = appendText(body, password)
	}
	b := appendHeader(nil, pktConnect, 10+len(body))
	b = append(appendText(b, "MQTT"), 4, flags, byte(keepalive>>8), byte(keepalive))
	if b = append(b, body...); len(b) > maxConnect {
		return nil, fmt.Errorf("CONNECT has %d bytes; the device's buffer holds %d", len(b), maxConnect)
	}
	return b, nil
}
