package feed

import (
	"errors"
	"net"
	"strings"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"fleetd/fleet"
)

// A hook decides for mochi who may connect, and what clients may do. It runs on the goroutine that reads
// the client's socket.
type hook struct {
	mqtt.HookBase
	all *Service
}

func (h *hook) ID() string { return "feed" }

func (h *hook) Provides(event byte) bool {
	switch event {
	case mqtt.OnPacketRead, mqtt.OnPacketEncode, mqtt.OnConnect, mqtt.OnConnectAuthenticate, mqtt.OnSessionEstablished,
		mqtt.OnACLCheck, mqtt.OnSubscribed, mqtt.OnUnsubscribed, mqtt.OnPublish:
		return true
	}
	return false
}

func connOf(cl *mqtt.Client) *conn {
	c, _ := cl.Net.Conn.(*conn)
	return c
}

func clientOf(cl *mqtt.Client) *client {
	if c := connOf(cl); c != nil {
		return c.client
	}
	return nil
}

// OnPacketRead sees each packet before mochi acts on it. [packets.ErrRejectPacket] ends the connection;
// mochi ignores other errors.
func (h *hook) OnPacketRead(cl *mqtt.Client, pk packets.Packet) (packets.Packet, error) {
	c := clientOf(cl)
	if c == nil {
		return h.connecting(cl, pk), nil
	}
	switch pk.FixedHeader.Type {
	case packets.Publish:
		if pk.FixedHeader.Retain {
			return pk, c.reject(packets.ErrRetainNotSupported)
		}
		if pk.FixedHeader.Qos > 1 {
			return pk, c.reject(packets.ErrQosNotSupported)
		}
	case packets.Puback:
		c.confirmed(pk.PacketID) // mochi does not know of the message
	case packets.Pubrec, packets.Pubrel, packets.Pubcomp, packets.Auth:
		return pk, c.reject(packets.ErrProtocolViolation)
	case packets.Disconnect:
		pk.Properties.SessionExpiryInterval, pk.Properties.SessionExpiryIntervalFlag = 0, false
	}
	return pk, nil
}

// connecting removes from a CONNECT what the feed does not offer.
func (h *hook) connecting(cl *mqtt.Client, pk packets.Packet) packets.Packet {
	if pk.FixedHeader.Type != packets.Connect {
		return pk // mochi ends the connection
	}
	p := &pk.Connect
	if c := connOf(cl); c != nil && p.WillFlag {
		// Home Assistant says with it that it has gone, which concerns no other client.
		c.hasWill = !h.all.o.HomeAssistant || p.WillTopic != statusTopic
	}
	p.WillFlag, p.WillQos, p.WillRetain, p.WillTopic, p.WillPayload = false, 0, false, "", nil
	p.WillProperties = packets.Properties{}
	p.Clean = true
	p.ClientIdentifier = strings.Clone(p.ClientIdentifier)
	p.PasswordFlag = len(p.Password) > 0 // mochi calls an empty password malformed
	return pk
}

// OnConnect admits a client. Mochi's hook for authentication can refuse with one code only.
func (h *hook) OnConnect(cl *mqtt.Client, pk packets.Packet) error {
	code := h.admit(cl, &pk)
	if code != packets.CodeSuccess {
		h.all.stats.refused.Add(1)
		if pk.ProtocolVersion < 5 {
			code = earlier(code)
		}
		_ = h.all.server.SendConnack(cl, code, false, nil)
		return code
	}
	switch v5 := pk.ProtocolVersion >= 5; {
	case cl.State.Keepalive > maxKeepalive:
		cl.State.Keepalive, cl.State.ServerKeepalive = maxKeepalive, v5
	case cl.State.Keepalive == 0:
		cl.State.Keepalive, cl.State.ServerKeepalive = defaultKeepalive, v5
		if !v5 { // it need not ping
			cl.State.Keepalive = 0
		}
	}
	cl.Properties.Props.User, cl.Properties.Username = nil, nil // not needed any more
	return nil
}

// earlier returns the code that mochi translates for versions before MQTT 5.
func earlier(code packets.Code) packets.Code {
	if code == packets.ErrNotAuthorized {
		return packets.ErrBadUsernameOrPassword // both are 5 then
	}
	if _, known := packets.V5CodesToV3[code]; !known {
		return packets.ErrServerUnavailable
	}
	return code
}

// admit authenticates a client by its password, a token. Its name inside mochi contains the principal:
// otherwise a client of another token could take over the connection.
func (h *hook) admit(cl *mqtt.Client, pk *packets.Packet) packets.Code {
	c, id := connOf(cl), cl.ID
	switch {
	case c == nil:
		return packets.ErrUnspecifiedError
	case pk.Properties.AuthenticationMethod != "":
		return packets.ErrBadAuthenticationMethod
	case len(id) > maxClientID || strings.ContainsAny(id, "/+#") || id != fleet.CleanText(id, maxClientID):
		return packets.ErrClientIdentifierNotValid
	}
	address := cl.Net.Remote
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	token := string(pk.Connect.Password)
	by, err := h.all.authenticate(address, token)
	switch {
	case errors.Is(err, fleet.ErrForbidden):
		return packets.ErrBadUsernameOrPassword
	case errors.Is(err, fleet.ErrTooMany):
		return packets.ErrQuotaExceeded
	case err != nil:
		h.all.log.Warn("client not admitted to the feed", "remote", address, "err", err)
		return packets.ErrServerUnavailable
	case by.Kind != fleet.KindProgram: // as REST: a language model may not read the audit log
		return packets.ErrNotAuthorized
	case c.hasWill:
		return packets.ErrNotAuthorized
	case h.all.full(by):
		return packets.ErrQuotaExceeded
	}
	cl.ID = by.ID + "/" + id
	c.client = newClient(h.all, cl, by, id, address, token)
	return packets.CodeSuccess
}

// OnConnectAuthenticate reports whether OnConnect admitted the client.
func (h *hook) OnConnectAuthenticate(cl *mqtt.Client, _ packets.Packet) bool {
	return clientOf(cl) != nil
}

// OnPacketEncode adds to CONNACK what mochi leaves out.
func (h *hook) OnPacketEncode(_ *mqtt.Client, pk packets.Packet) packets.Packet {
	if pk.FixedHeader.Type == packets.Connack && pk.ReasonCode == packets.CodeSuccess.Code {
		p := &pk.Properties
		p.MaximumPacketSize = maxPacket
		p.RetainAvailable, p.RetainAvailableFlag = 0, true
		p.SubIDAvailable, p.SubIDAvailableFlag = 0, true
		p.SharedSubAvailable, p.SharedSubAvailableFlag = 0, true
	}
	return pk
}

func (h *hook) OnSessionEstablished(cl *mqtt.Client, _ packets.Packet) {
	if c := connOf(cl); c != nil {
		c.accepted = true
		c.client.start()
	}
}

// OnACLCheck allows the filters and topics of the feed.
func (h *hook) OnACLCheck(cl *mqtt.Client, topic string, write bool) bool {
	c := clientOf(cl)
	switch {
	case c == nil:
		return false
	case write:
		return c.mayPublish(topic)
	}
	return c.maySubscribe(topic)
}

func (h *hook) OnSubscribed(cl *mqtt.Client, pk packets.Packet, codes []byte) {
	c := clientOf(cl)
	for i, f := range pk.Filters {
		if codes[i] < packets.ErrUnspecifiedError.Code {
			c.subscribed(f)
		}
	}
}

func (h *hook) OnUnsubscribed(cl *mqtt.Client, pk packets.Packet) {
	for _, f := range pk.Filters {
		clientOf(cl).index.Unsubscribe(f.Filter, self)
	}
}

// OnPublish receives a message to a permitted topic. It goes to no other client.
func (h *hook) OnPublish(cl *mqtt.Client, pk packets.Packet) (packets.Packet, error) {
	clientOf(cl).received(pk.TopicName, string(pk.Payload))
	return pk, packets.CodeSuccessIgnore
}
