package mqtt5

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

const (
	networkWait = 10 * time.Second
	tlsPort     = "8883"
	readBuffer  = 256 // most packets for a device fit
)

var errNoPong = errors.New("no answer to PINGREQ")

// A conn is an MQTT connection. One goroutine reads; any may write. The read deadline serves as
// keepalive timer, so an idle device needs none.
type conn struct {
	net.Conn
	in        *bufio.Reader // reads from the conn itself
	keepalive time.Duration // 0 during the handshake
	pingSent  time.Time     // zero if no answer is awaited; used by the reader
	lastSent  atomic.Int64  // Unix nanoseconds
	write     sync.Mutex
}

// dial opens a connection to host:port.
func dial(ctx context.Context, broker string, local *net.TCPAddr) (*conn, error) {
	host, port, err := net.SplitHostPort(broker)
	if err != nil {
		return nil, fmt.Errorf("address of the broker %q: want host:port", broker)
	}
	dialer := net.Dialer{Timeout: networkWait, KeepAlive: -1}
	if local != nil {
		dialer.LocalAddr = local
	}
	raw, err := dialer.DialContext(ctx, "tcp", broker)
	if err != nil {
		return nil, err
	}
	if port == tlsPort {
		ctx, cancel := context.WithTimeout(ctx, networkWait)
		defer cancel()
		secure := tls.Client(raw, &tls.Config{ServerName: host})
		if err := secure.HandshakeContext(ctx); err != nil {
			raw.Close()
			return nil, err
		}
		raw = secure
	}
	c := &conn{Conn: raw}
	c.in = bufio.NewReaderSize(c, readBuffer)
	return c, nil
}

// next reads one packet, and pings the broker meanwhile.
func (c *conn) next() (*packets.ControlPacket, error) {
	p, err := packets.ReadPacket(c.in)
	if err == nil && p.Type == packets.PINGRESP {
		c.pingSent = time.Time{}
	}
	return p, err
}

// Read waits for bytes, and sends PINGREQ if nothing else was sent for half of the keepalive.
func (c *conn) Read(p []byte) (int, error) {
	for {
		if err := c.SetReadDeadline(c.nextDuty()); err != nil {
			return 0, err
		}
		n, err := c.Conn.Read(p)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if err := c.doDuty(); err != nil {
			return 0, err
		}
	}
}

// nextDuty returns when the next action is due if nothing arrives before.
func (c *conn) nextDuty() time.Time {
	sent := time.Unix(0, c.lastSent.Load())
	switch {
	case c.keepalive == 0:
		return sent.Add(networkWait)
	case !c.pingSent.IsZero():
		return c.pingSent.Add(c.keepalive)
	}
	return sent.Add(c.keepalive / 2)
}

func (c *conn) doDuty() error {
	now := time.Now()
	switch {
	case c.keepalive == 0:
		return errors.New("no answer to CONNECT")
	case !c.pingSent.IsZero():
		return errNoPong
	case now.Before(c.nextDuty()):
		return nil // something was sent meanwhile
	}
	c.pingSent = now
	return c.send(packets.NewControlPacket(packets.PINGREQ))
}

// send writes one whole packet.
func (c *conn) send(p *packets.ControlPacket) error {
	var b bytes.Buffer
	if _, err := p.WriteTo(&b); err != nil {
		return err
	}
	c.write.Lock()
	defer c.write.Unlock()
	if err := c.SetWriteDeadline(time.Now().Add(networkWait)); err != nil {
		return err
	}
	_, err := c.Conn.Write(b.Bytes())
	c.lastSent.Store(time.Now().UnixNano())
	return err
}

func (c *conn) publish(p packets.Publish) error {
	if p.Properties == nil {
		p.Properties = &packets.Properties{}
	}
	return c.send(&packets.ControlPacket{Content: &p, FixedHeader: packets.FixedHeader{Type: packets.PUBLISH}})
}

func (c *conn) subscribe(id uint16, filters ...packets.SubOptions) error {
	p := packets.NewControlPacket(packets.SUBSCRIBE)
	s := p.Content.(*packets.Subscribe)
	s.PacketID, s.Subscriptions = id, filters
	return c.send(p)
}

// acknowledge answers a PUBLISH of QoS 1 or 2, or a PUBREL.
func (c *conn) acknowledge(p *packets.ControlPacket) error {
	var kind byte
	switch content := p.Content.(type) {
	case *packets.Publish:
		kind = [...]byte{0, packets.PUBACK, packets.PUBREC, 0}[content.QoS&3]
	case *packets.Pubrel:
		kind = packets.PUBCOMP
	}
	if kind == 0 {
		return nil
	}
	answer := packets.NewControlPacket(kind)
	switch content := answer.Content.(type) {
	case *packets.Puback:
		content.PacketID = p.PacketID()
	case *packets.Pubrec:
		content.PacketID = p.PacketID()
	case *packets.Pubcomp:
		content.PacketID = p.PacketID()
	}
	return c.send(answer)
}

// hangUp sends DISCONNECT, after which the broker publishes no will, and closes the socket.
func (c *conn) hangUp() {
	_ = c.send(packets.NewControlPacket(packets.DISCONNECT)) // the socket closes either way
	c.Close()
}

// handshake sends CONNECT and returns the properties of a CONNACK that accepts.
func (c *conn) handshake(hello *packets.Connect) (*packets.Properties, error) {
	err := c.send(&packets.ControlPacket{Content: hello, FixedHeader: packets.FixedHeader{Type: packets.CONNECT}})
	if err != nil {
		return nil, err
	}
	p, err := c.next()
	if err != nil {
		return nil, fmt.Errorf("no CONNACK: %w", err)
	}
	ack, ok := p.Content.(*packets.Connack)
	switch {
	case !ok:
		return nil, fmt.Errorf("%s in place of CONNACK", p.PacketType())
	case ack.ReasonCode != packets.ConnackSuccess:
		return nil, fmt.Errorf("CONNECT refused with %#x %s", ack.ReasonCode, ack.Properties.ReasonString)
	}
	return ack.Properties, nil
}
