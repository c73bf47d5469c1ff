package edge

import (
	"errors"
	"fmt"
	"os"
	"time"

	"fleetd/broker/link"
	"fleetd/mcp"
)

// maxOutbox is how many messages may wait for a device that does not read. One call is in flight
// at a time, so a healthy device never has more than three.
const maxOutbox = 16

var errOutboxFull = errors.New("the device does not read what it is sent")

// An outbox holds the packets to be written to one device. The sender to an idle device writes as
// much of the packet as the socket accepts at once. One goroutine writes the remainder and the
// packets that arrive meanwhile: a device that does not read blocks no other, and an idle one
// costs no goroutine.
type outbox struct {
	waiting [][]byte
	writing bool
	last    *link.CauseError // nothing is accepted any more, and the connection ends for it when all is written; or nil
}

func (o *outbox) clear() { o.waiting = nil }

// Post implements [link.Carrier].
func (c *mqttCarrier) Post(packet []byte) error {
	c.posted.Store(time.Now().UnixNano())
	return c.Notify(packet)
}

// Notify implements [link.Carrier].
func (c *mqttCarrier) Notify(packet []byte) error {
	packet = endPublish(packet)
	if limit := c.client.Properties.Props.MaximumPacketSize; limit > 0 && len(packet) > int(limit) {
		return fmt.Errorf("%w: the device accepts packets of at most %d bytes", mcp.ErrNotSent, limit)
	}
	if first, err := c.enqueue(packet); !first {
		return err
	}
	c.writeNow(packet)
	return nil
}

// enqueue adds a packet to the outbox. If first is true, the packet was not added and the caller
// must write it.
func (c *mqttCarrier) enqueue(packet []byte) (first bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := &c.outbox
	switch {
	case c.cause != nil:
		return false, fmt.Errorf("%w: %w", mcp.ErrNotSent, c.cause)
	case o.last != nil:
		return false, fmt.Errorf("%w: %w", mcp.ErrNotSent, *o.last)
	case !o.writing:
		o.writing = true
		return true, nil
	case len(o.waiting) >= maxOutbox:
		c.edge.stats.outboxFull.Add(1)
		return false, fmt.Errorf("%w: %w", mcp.ErrNotSent, errOutboxFull)
	}
	o.waiting = append(o.waiting, packet)
	return false, nil
}

// writeNow writes the first packet without waiting, and leaves the remainder to a goroutine.
func (c *mqttCarrier) writeNow(packet []byte) {
	c.edge.stats.publishesOut.Add(1)
	nc, ok := c.client.Net.Conn.(*netConn)
	if !ok || !c.client.TryLock() { // mochi is writing
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

// write writes a packet or the remainder of one, then the packets in the outbox. They must not
// mix with mochi's packets: locked means that the caller holds the client's lock.
func (c *mqttCarrier) write(packet []byte, locked bool) {
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

// written ends the connection if a write failed. It reports whether the write succeeded.
func (c *mqttCarrier) written(err error) bool {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.stop(errNotTaken)
	}
	if err != nil {
		c.client.Stop(err) // the reader knows better why the connection ended
	}
	return err == nil
}

func (c *mqttCarrier) nextPacket() ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := &c.outbox
	if len(o.waiting) == 0 || c.cause != nil {
		if o.writing = false; o.last != nil {
			go c.part(*o.last)
		}
		return nil, false
	}
	packet := o.waiting[0]
	o.waiting[0] = nil
	if o.waiting = o.waiting[1:]; len(o.waiting) == 0 {
		o.waiting = nil
	}
	c.edge.stats.publishesOut.Add(1)
	return packet, true
}
