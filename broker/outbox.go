package broker

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/mochi-mqtt/server/v2/packets"

	"fleetd/mcp"
)

// maxOutbox is how many messages wait for a device that does not read. One
// call is in flight at a time, so a healthy device never has more than three.
const maxOutbox = 16

var errOutboxFull = errors.New("the device does not read what it is sent")

// An outbox holds the messages to be written to one device. While it has any,
// one goroutine writes them: a device that does not read blocks no other, and an
// idle one costs no goroutine.
type outbox struct {
	waiting [][]byte
	writing bool
}

func (o *outbox) clear() { o.waiting = nil }

// Send makes a connection the transport of its MCP session.
func (c *connection) Send(_ context.Context, msg []byte, scope mcp.Scope) error {
	return c.deliver(mcp.AppendEnvelope(make([]byte, 0, len(msg)+64), msg, scope))
}

// deliver queues a message to the device, or returns an error if it was not
// sent. A nil error does not prove delivery: only an answer does.
func (c *connection) deliver(payload []byte) error {
	if limit := c.client.Properties.Props.MaximumPacketSize; limit > 0 && len(payload)+len(c.down)+16 > int(limit) {
		return fmt.Errorf("%w: the device takes packets of at most %d bytes", mcp.ErrNotSent, limit)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.cause != nil:
		return fmt.Errorf("%w: %w", mcp.ErrNotSent, c.cause)
	case len(c.outbox.waiting) >= maxOutbox:
		c.broker.stats.outboxFull.Add(1)
		return fmt.Errorf("%w: %w", mcp.ErrNotSent, errOutboxFull)
	}
	c.outbox.waiting = append(c.outbox.waiting, payload)
	if !c.outbox.writing {
		c.outbox.writing = true
		go c.write()
	}
	return nil
}

// write empties the outbox.
func (c *connection) write() {
	for {
		payload, ok := c.nextMessage()
		if !ok {
			return
		}
		c.broker.stats.publishesOut.Add(1)
		// QoS 0: a device does not distinguish a repeated call from a new one.
		err := c.client.WritePacket(packets.Packet{
			FixedHeader: packets.FixedHeader{Type: packets.Publish},
			TopicName:   c.down,
			Payload:     payload,
		})
		if errors.Is(err, os.ErrDeadlineExceeded) {
			c.stop(errNotTaken)
		}
		if err != nil {
			c.client.Stop(err) // its reader knows better why it ended
			return
		}
	}
}

func (c *connection) nextMessage() ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := &c.outbox
	if len(o.waiting) == 0 {
		o.writing = false
		return nil, false
	}
	payload := o.waiting[0]
	o.waiting[0] = nil
	if o.waiting = o.waiting[1:]; len(o.waiting) == 0 {
		o.waiting = nil
	}
	return payload, true
}
