package edge

import (
	"encoding/binary"
	"errors"
	"os"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"fleetd/broker/dialect"
	"fleetd/broker/link"
	"fleetd/fleet"
)

// An mqttCarrier is the MQTT side of a connection.
type mqttCarrier struct {
	*connection
	client *mqtt.Client
	outbox outbox // under connection.mu

	// These belong to the reader's goroutine.
	topic       string              // of the latest plain message
	expiryAsked bool                // CONNECT requested a session that outlives the connection
	unreleased  map[uint16]struct{} // received QoS 2 messages that await their PUBREL
	filters     []string            // of the device's subscriptions
}

// v5 reports whether the device speaks MQTT 5, which defines a DISCONNECT from the server and
// reason codes in acknowledgements.
func (c *mqttCarrier) v5() bool { return c.client.Properties.ProtocolVersion >= 5 }

func (c *mqttCarrier) greeted(int)            {}
func (c *mqttCarrier) stream() Stream         { return nil }
func (c *mqttCarrier) Stop(cause fleet.Cause) { c.stopped(cause) }

// Finish drops the queued messages: no dialect over MQTT ends its connection with a conversation.
func (c *mqttCarrier) Finish() { c.stop(link.ErrConversationOver) }

// farewell sends an MQTT 5 device a DISCONNECT. Earlier versions define none from the server.
func (c *mqttCarrier) farewell(why link.CauseError, d time.Duration) {
	if !c.v5() {
		return
	}
	code := packets.ErrServerShuttingDown
	switch why.Reason.Code {
	case fleet.CauseTakenOver:
		code = packets.ErrSessionTakenOver
	case fleet.CauseEdgeDrained:
		code = packets.ErrServerMoved
	}
	within(d, func() { _ = c.say(code) })
}

func (c *mqttCarrier) leave(why link.CauseError, busy func() bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if busy() {
		return false
	}
	c.asked.Store(true)
	if c.outbox.last = &why; !c.outbox.writing {
		go c.part(why)
	}
	return true
}

// part ends the connection when all messages are written.
func (c *mqttCarrier) part(why link.CauseError) {
	c.farewell(why, movedGoodbye)
	c.stop(why)
}

func (c *mqttCarrier) shut(cause error) {
	c.mu.Lock()
	c.outbox.clear()
	c.mu.Unlock()
	c.client.Stop(cause)
}

func (c *mqttCarrier) silence(err error) (link.CauseError, bool) {
	return link.CauseOf(fleet.CauseNoKeepalive, "no sign of life within 1.5 times its keepalive"),
		errors.Is(err, os.ErrDeadlineExceeded)
}

// say sends an MQTT 5 device a DISCONNECT with the reason.
func (c *mqttCarrier) say(why packets.Code) error {
	return c.client.WritePacket(packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Disconnect},
		ReasonCode:  why.Code,
	})
}

// broken ends the connection of a device that violates the MQTT protocol. It runs on the reader's
// goroutine.
func (c *mqttCarrier) broken(how packets.Code, cause link.CauseError) {
	e := c.edge
	e.stats.protocolErrors.Add(1)
	if ok, skipped := e.refusals.allow(c.clientID+cause.Text, time.Now()); ok {
		e.log.Warn("connection ended: the device violates the MQTT protocol", "device", c.device, "remote", c.remoteAddr,
			"code", how.Code, "reason", cause.Text, "not_logged", skipped)
	}
	if c.v5() && c.established {
		_ = c.say(how)
	}
	c.stop(cause)
}

// ended cleans up after a connection, whatever ended it. err is the error that mochi returned.
func (e *Edge) ended(nc *netConn, err error) {
	if a := nc.agent; a != nil {
		if cl, ok := e.server.Clients.Get(a.client.ID); ok && cl == a.client {
			e.server.Clients.Delete(a.client.ID)
		}
		if a.up {
			e.stats.agents.Add(-1)
			a.Disconnected()
		}
		return
	}
	c := nc.carrier
	if c == nil {
		e.endedUnknown(err)
		return
	}
	if cl, ok := e.server.Clients.Get(c.clientID); ok && cl == c.client {
		e.server.Clients.Delete(c.clientID) // still there after a panic
	}
	c.end(err)
}

// endedUnknown counts sockets that were never bound to a device. Sockets that the hook refused
// are already counted.
func (e *Edge) endedUnknown(err error) {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		e.stats.refuse("silent")
	case errors.Is(err, errNoConnect), errors.Is(err, errLongConnect), errors.Is(err, errBadLength),
		errors.Is(err, errShortContents), errors.Is(err, errBadFlags), errors.Is(err, errProtocolName):
		e.stats.refuse("malformed_connect")
	case errors.Is(err, errProtocolLevel):
		e.stats.refuse("protocol_level")
	}
}

// handle processes the messages at the start of b and returns their length in bytes. The rest is
// left to mochi: it begins with an incomplete packet, or with one that is not a QoS 0 message
// without properties to a topic of the device.
func (c *mqttCarrier) handle(b []byte) (handled int) {
	payload, next := c.plainMessage(b)
	if next == 0 {
		return 0
	}
	now := time.Now()
	c.seen(now)
	for ; next > 0 && !c.client.Closed(); payload, next = c.plainMessage(b[handled:]) {
		handled += next
		c.receive(c.topic, payload, nil)
	}
	if k := c.client.State.Keepalive; k > 0 { // as mochi does for the packets that it reads
		_ = c.client.Net.Conn.SetDeadline(now.Add(time.Duration(k+k/2) * time.Second))
	}
	return handled
}

// plainMessage returns the payload and the length of the packet at the start of b. The length is
// 0 if handle must leave the packet to mochi. The topic is c.topic.
func (c *mqttCarrier) plainMessage(b []byte) (payload []byte, length int) {
	if len(b) < 2 || b[0] != packetPublish<<4 {
		return nil, 0
	}
	remaining, n := binary.Uvarint(b[1:])
	if n <= 0 || remaining > uint64(len(b)-1-n) {
		return nil, 0
	}
	length = 1 + n + int(remaining)
	body := b[1+n : length]
	if len(body) < 2 {
		return nil, 0
	}
	end := 2 + int(binary.BigEndian.Uint16(body))
	if end > len(body) || !c.publishesTo(body[2:end]) {
		return nil, 0
	}
	payload = body[end:]
	if !c.v5() {
		return payload, length
	}
	if len(payload) == 0 || payload[0] != 0 {
		return nil, 0
	}
	return payload[1:], length
}

// publishesTo reports whether the device may publish to the topic, which becomes c.topic. A
// device nearly always publishes to the same topic; that case allocates nothing.
func (c *mqttCarrier) publishesTo(topic []byte) bool {
	if string(topic) == c.topic {
		return len(topic) > 0
	}
	t := string(topic)
	if !c.dialect.MayPublish(t) {
		return false
	}
	c.topic = t
	return true
}

// maxFixedHeader is the longest fixed header of an MQTT packet.
const maxFixedHeader = 1 + binary.MaxVarintLen32

// Begin returns a PUBLISH packet with room for its fixed header, which endPublish fills in.
func (c *mqttCarrier) Begin(to dialect.Address, size int) []byte {
	packet := make([]byte, maxFixedHeader, maxFixedHeader+2+len(to.Topic)+1+size)
	packet = append(binary.BigEndian.AppendUint16(packet, uint16(len(to.Topic))), to.Topic...)
	if c.v5() {
		packet = appendProperties(packet, to.Properties)
	}
	return packet
}

// appendProperties appends MQTT 5 user properties.
func appendProperties(packet []byte, properties []dialect.Property) []byte {
	size := 0
	for _, p := range properties {
		size += 1 + 2 + len(p.Key) + 2 + len(p.Value)
	}
	packet = binary.AppendUvarint(packet, uint64(size))
	for _, p := range properties {
		packet = append(packet, propertyUser)
		packet = append(binary.BigEndian.AppendUint16(packet, uint16(len(p.Key))), p.Key...)
		packet = append(binary.BigEndian.AppendUint16(packet, uint16(len(p.Value))), p.Value...)
	}
	return packet
}

const propertyUser = 0x26

// endPublish fills in the fixed header. It uses QoS 0, because a device cannot distinguish a
// repeated call from a new one.
func endPublish(packet []byte) []byte {
	header := binary.AppendUvarint([]byte{packetPublish << 4}, uint64(len(packet)-maxFixedHeader))
	start := maxFixedHeader - len(header)
	copy(packet[start:], header)
	return packet[start:]
}
