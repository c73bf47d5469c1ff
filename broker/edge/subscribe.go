package edge

import (
	"slices"
	"strings"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"
)

// maxSubscriptions is how many subscriptions a device may have. One of MCP over MQTT has four.
const maxSubscriptions = 32

// subscribing answers SUBSCRIBE in place of mochi. No message is routed by subscriptions, and
// mochi's index of topics would take more memory for four of them than for the rest of a connection.
func (c *mqttCarrier) subscribing(pk packets.Packet) (packets.Packet, error) {
	if pk.SubscribeValidate() != packets.CodeSuccess {
		return pk, nil // mochi ends the connection
	}
	codes := make([]byte, len(pk.Filters))
	for i, f := range pk.Filters {
		code := c.subscribe(f, len(pk.Properties.SubscriptionIdentifier) > 0)
		if code.Code >= packets.ErrUnspecifiedError.Code && !c.v5() {
			code = packets.ErrUnspecifiedError
		}
		codes[i] = code.Code
	}
	_ = c.client.WritePacket(packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Suback}, PacketID: pk.PacketID, ReasonCodes: codes,
	})
	return ignored, nil
}

// subscribe returns the QoS that is granted, or the reason for a refusal.
func (c *mqttCarrier) subscribe(f packets.Subscription, identified bool) packets.Code {
	known := slices.Contains(c.filters, f.Filter)
	switch {
	case identified:
		return packets.ErrSubscriptionIdentifiersNotSupported
	case mqtt.IsSharedFilter(f.Filter):
		return packets.ErrSharedSubscriptionsNotSupported
	case !mqtt.IsValidFilter(f.Filter, false):
		return packets.ErrTopicFilterInvalid
	case !c.dialect.MaySubscribe(f.Filter) && !c.dialect.Opening().Wildcards && strings.ContainsAny(f.Filter, "+#"):
		return packets.ErrWildcardSubscriptionsNotSupported
	case !c.dialect.MaySubscribe(f.Filter):
		return packets.ErrNotAuthorized
	case !known && len(c.filters) >= maxSubscriptions:
		return packets.ErrQuotaExceeded
	case !known:
		c.filters = append(c.filters, strings.Clone(f.Filter)) // f is a part of the packet
	}
	return packets.Code{Code: min(f.Qos, 2)}
}

// unsubscribing answers UNSUBSCRIBE in place of mochi.
func (c *mqttCarrier) unsubscribing(pk packets.Packet) (packets.Packet, error) {
	if pk.UnsubscribeValidate() != packets.CodeSuccess {
		return pk, nil // mochi ends the connection
	}
	codes := make([]byte, len(pk.Filters))
	for i, f := range pk.Filters {
		codes[i] = packets.CodeNoSubscriptionExisted.Code
		if at := slices.Index(c.filters, f.Filter); at >= 0 {
			codes[i] = packets.CodeSuccess.Code
			c.filters = slices.Delete(c.filters, at, at+1)
		}
	}
	_ = c.client.WritePacket(packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Unsuback}, PacketID: pk.PacketID, ReasonCodes: codes,
	})
	return ignored, nil
}
