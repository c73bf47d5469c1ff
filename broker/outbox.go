package broker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"fleetd/mcp"
)

// maxOutbox is how many messages wait for a device that does not read. One
// call is in flight at a time, so a healthy device never has more than three.
const maxOutbox = 16

var errOutboxFull = errors.New("the device does not read what it is sent")

// An outbox holds the packets to be written to one device. Whoever sends to an
// idle device writes the packet, as far as the socket accepts it at once. For
// what is left, and what comes meanwhile, there is one goroutine: a device that
// does not read blocks no other, and an idle one costs no goroutine.
type outbox struct {
	waiting [][]byte
	writing bool
}

func (o *outbox) clear() { o.waiting = nil }

// Send makes a connection the transport of its MCP session.
func (c *connection) Send(_ context.Context, msg []byte, scope mcp.Scope) error {
	return c.post(mcp.AppendEnvelope(c.beginPublish(len(msg)+64), msg, scope))
}

// deliver sends a message to the device. See [connection.post].
func (c *connection) deliver(payload []byte) error {
	return c.post(append(c.beginPublish(len(payload)), payload...))
}

// maxFixedHeader is the longest fixed header of an MQTT packet.
const maxFixedHeader = 1 + binary.MaxVarintLen32

// beginPublish returns a PUBLISH packet to the device, with room for a payload
// of so many bytes. The payload is to be appended.
func (c *connection) beginPublish(size int) []byte {
	if c.socket != nil { // a message is a frame there
		return make([]byte, 0, size)
	}
	packet := make([]byte, maxFixedHeader, maxFixedHeader+2+len(c.down)+1+size) // the fixed header comes last
	packet = append(binary.BigEndian.AppendUint16(packet, uint16(len(c.down))), c.down...)
	if c.v5() {
		packet = append(packet, 0) // no properties
	}
	return packet
}

// endPublish fills in the fixed header. QoS 0: a device does not distinguish a
// repeated call from a new one.
func endPublish(packet []byte) []byte {
	header := binary.AppendUvarint([]byte{packetPublish << 4}, uint64(len(packet)-maxFixedHeader))
	start := maxFixedHeader - len(header)
	copy(packet[start:], header)
	return packet[start:]
}

// post sends a packet of beginPublish with its payload, or returns an error if it
// was not sent. It does not wait for the device. A nil error does not prove
// delivery: only an answer does.
func (c *connection) post(packet []byte) error {
	if c.socket != nil {
		return c.socket.post(packet, false)
	}
	packet = endPublish(packet)
	if limit := c.client.Properties.Props.MaximumPacketSize; limit > 0 && len(packet) > int(limit) {
		return fmt.Errorf("%w: the device takes packets of at most %d bytes", mcp.ErrNotSent, limit)
	}
	if first, err := c.enqueue(packet); !first {
		return err
	}
	c.writeNow(packet)
	return nil
}

// enqueue puts a packet in the outbox, unless it is the first: then the caller
// has to write it.
func (c *connection) enqueue(packet []byte) (first bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := &c.outbox
	switch {
	case c.cause != nil:
		return false, fmt.Errorf("%w: %w", mcp.ErrNotSent, c.cause)
	case !o.writing:
		o.writing = true
		return true, nil
	case len(o.waiting) >= maxOutbox:
		c.broker.stats.outboxFull.Add(1)
		return false, fmt.Errorf("%w: %w", mcp.ErrNotSent, errOutboxFull)
	}
	o.waiting = append(o.waiting, packet)
	return false, nil
}

// writeNow writes the first packet without waiting for anything, and leaves the
// rest to a goroutine.
func (c *connection) writeNow(packet []byte) {
	c.broker.stats.publishesOut.Add(1)
	nc, ok := c.client.Net.Conn.(*netConn)
	if !ok || !c.client.TryLock() { // mochi writes
		go c.write(packet, false)
		return
	}
	n, err := nc.writeNow(packet)
	if err == nil && n < len(packet) {
		go c.write(packet[n:], true)
		return
	}
	c.client.Unlock()
	if c.written(err) {
		if next, ok := c.nextPacket(); ok {
			go c.write(next, false)
		}
	}
}

// write writes a packet, or the rest of one, then what is in the outbox. Packets
// must not mix with those of mochi: locked means that the caller holds the
// client's lock.
func (c *connection) write(packet []byte, locked bool) {
	for ok := true; ok; packet, ok = c.nextPacket() {
		if !locked {
			c.client.Lock()
		}
		locked = false
		_, err := c.client.Net.Conn.Write(packet)
		c.client.Unlock()
		if !c.written(err) {
			return
		}
	}
}

// written ends the connection if a write failed.
func (c *connection) written(err error) bool {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.stop(errNotTaken)
	}
	if err != nil {
		c.client.Stop(err) // its reader knows better why it ended
	}
	return err == nil
}

func (c *connection) nextPacket() ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := &c.outbox
	if len(o.waiting) == 0 {
		o.writing = false
		return nil, false
	}
	packet := o.waiting[0]
	o.waiting[0] = nil
	if o.waiting = o.waiting[1:]; len(o.waiting) == 0 {
		o.waiting = nil
	}
	c.broker.stats.publishesOut.Add(1)
	return packet, true
}
