package edge

import (
	"github.com/mochi-mqtt/server/v2/packets"
)

// receiveMaximum is how many QoS 2 messages of an MQTT 5 device may be unreleased at a time. MQTT
// 3.1.1 defines no such limit: there the number of packet identifiers is the limit, and only the
// identifiers are stored.
const receiveMaximum = 16

// ignored is a packet on which mochi does nothing: the acknowledgement of a message that was
// never sent. Mochi gets it in place of a packet that was answered here.
var ignored = packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Puback}}

// publishing answers publishes that mochi would not answer as the specification requires. A
// message to a foreign topic is acknowledged and dropped [MQTT-3.3.5-2], where mochi sends MQTT
// 3.1.1 clients a packet that they do not know, or nothing. QoS 2 is handled only here: mochi
// counts quotas that version 3.1.1 does not have, and answers a repeated message with an error.
func (c *mqttCarrier) publishing(pk packets.Packet) (packets.Packet, error) {
	qos := pk.FixedHeader.Qos
	switch {
	case pk.PublishValidate(0) != packets.CodeSuccess:
		return pk, nil // mochi ends the connection
	case pk.FixedHeader.Retain && c.v5() && !c.dialect.Opening().Retain:
		return c.rejected(pk, packets.ErrRetainNotSupported)
	case !c.dialect.MayPublish(pk.TopicName):
		c.edge.stats.foreignTopics.Add(1)
		c.refuseMessage(qos, pk.PacketID)
		return ignored, nil
	case qos == 2:
		return c.receiveOnce(pk)
	}
	return pk, nil
}

// rejected ends the connection because of a packet.
func (c *mqttCarrier) rejected(pk packets.Packet, why packets.Code) (packets.Packet, error) {
	c.broken(why, brokenRules(why.Reason))
	return pk, packets.ErrRejectPacket
}

// refuseMessage acknowledges a dropped message. Version 3.1.1 cannot express the refusal.
func (c *mqttCarrier) refuseMessage(qos byte, id uint16) {
	code := packets.ErrNotAuthorized
	if !c.v5() {
		code = packets.CodeSuccess
	}
	switch qos {
	case 1:
		c.acknowledge(packets.Puback, id, code)
	case 2:
		c.acknowledge(packets.Pubrec, id, code)
	}
}

// receiveOnce handles a QoS 2 message at its first arrival, and acknowledges it at every arrival.
func (c *mqttCarrier) receiveOnce(pk packets.Packet) (packets.Packet, error) {
	_, again := c.unreleased[pk.PacketID]
	switch {
	case again:
		c.edge.stats.duplicates.Add(1)
	case c.v5() && len(c.unreleased) >= receiveMaximum:
		return c.rejected(pk, packets.ErrReceiveMaximum)
	default:
		if c.unreleased == nil {
			c.unreleased = make(map[uint16]struct{})
		}
		c.unreleased[pk.PacketID] = struct{}{}
		c.receive(pk.TopicName, pk.Payload, propertiesOf(&pk))
	}
	c.acknowledge(packets.Pubrec, pk.PacketID, packets.CodeSuccess)
	return ignored, nil
}

// releasing ends the exchange of a QoS 2 message, after which its identifier may be reused.
func (c *mqttCarrier) releasing(pk packets.Packet) (packets.Packet, error) {
	_, known := c.unreleased[pk.PacketID]
	code := packets.CodeSuccess
	if !known && c.v5() {
		code = packets.ErrPacketIdentifierNotFound
	}
	if delete(c.unreleased, pk.PacketID); len(c.unreleased) == 0 {
		c.unreleased = nil // a map does not shrink
	}
	c.acknowledge(packets.Pubcomp, pk.PacketID, code)
	return ignored, nil
}

// acknowledge writes an acknowledgement. If that fails, the socket is closed and its reader
// notices.
func (c *mqttCarrier) acknowledge(kind byte, id uint16, code packets.Code) {
	_ = c.client.WritePacket(packets.Packet{
		FixedHeader: packets.FixedHeader{Type: kind}, PacketID: id, ReasonCode: code.Code,
	})
}

// disconnecting records that the device disconnects cleanly. Requesting only now that the session
// be kept violates the protocol; a request in CONNECT was already refused by CONNACK.
func (c *mqttCarrier) disconnecting(pk packets.Packet) (packets.Packet, error) {
	p := &pk.Properties
	if p.SessionExpiryInterval > 0 && !c.expiryAsked {
		return c.rejected(pk, packets.ErrProtocolViolationZeroNonZeroExpiry)
	}
	p.SessionExpiryInterval, p.SessionExpiryIntervalFlag = 0, false
	c.clean = true
	return pk, nil
}
