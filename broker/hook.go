package broker

import (
	"errors"
	"strings"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/redact"
)

// A hook decides for mochi who may connect and what they may do. All of it runs
// on the goroutine that reads the device's socket. Ends of connections are not
// handled here but in listener.serve, which also sees those that panic.
type hook struct {
	mqtt.HookBase
	broker *Broker
}

func (h *hook) ID() string { return "fleet" }

func (h *hook) Provides(event byte) bool {
	switch event {
	case mqtt.OnPacketRead, mqtt.OnPacketEncode, mqtt.OnConnect, mqtt.OnConnectAuthenticate, mqtt.OnSessionEstablish,
		mqtt.OnSessionEstablished, mqtt.OnACLCheck, mqtt.OnSubscribed, mqtt.OnPublish:
		return true
	}
	return false
}

func linkOf(cl *mqtt.Client) *connection {
	if nc, ok := cl.Net.Conn.(*netConn); ok {
		return nc.link
	}
	return nil
}

// OnPacketRead sees each packet before mochi acts on it. [packets.ErrRejectPacket]
// ends the connection; mochi takes no notice of other errors.
func (h *hook) OnPacketRead(cl *mqtt.Client, pk packets.Packet) (packets.Packet, error) {
	c := linkOf(cl)
	if c == nil {
		return h.connecting(cl, pk)
	}
	c.seen(time.Now())
	switch pk.FixedHeader.Type {
	case packets.Publish:
		if pk.FixedHeader.Qos > 0 || pk.FixedHeader.Retain || pk.TopicName != c.up {
			return c.publishing(pk)
		}
	case packets.Pubrel:
		return c.releasing(pk)
	case packets.Subscribe:
		return c.subscribing(pk)
	case packets.Disconnect:
		return c.disconnecting(pk)
	}
	return pk, nil
}

// connecting takes out of a CONNECT what the fleet does not offer. Mochi would
// publish a will without asking the ACL, so that one device could forge a call
// to another, and would keep sessions of devices that are gone.
func (h *hook) connecting(cl *mqtt.Client, pk packets.Packet) (packets.Packet, error) {
	if pk.FixedHeader.Type != packets.Connect {
		return pk, nil // mochi ends the connection
	}
	if malformedConnect(&pk) {
		h.broker.stats.refuse("malformed_connect")
		return pk, packets.ErrRejectPacket
	}
	if pk.Connect.WillFlag {
		h.broker.stats.willsRemoved.Add(1)
	}
	if nc, ok := cl.Net.Conn.(*netConn); ok {
		nc.willRetained = pk.Connect.WillRetain && pk.ProtocolVersion >= 5
	}
	pk.Connect.WillFlag, pk.Connect.WillQos, pk.Connect.WillRetain = false, 0, false
	pk.Connect.WillTopic, pk.Connect.WillPayload = "", nil
	pk.Connect.WillProperties = packets.Properties{}
	pk.Connect.Clean = true
	// An empty password is a wrong one. Mochi would answer that it is malformed.
	pk.Connect.PasswordFlag = len(pk.Connect.Password) > 0
	return pk, nil
}

// malformedConnect finds what mochi does not, or would answer in MQTT 3.1.1 with
// a code that it does not have.
func malformedConnect(pk *packets.Packet) bool {
	c := &pk.Connect
	switch {
	case pk.ReservedBit != 0,
		!c.WillFlag && (c.WillQos != 0 || c.WillRetain),
		c.WillFlag && (c.WillQos > 2 || c.WillTopic == "" || strings.ContainsAny(c.WillTopic, "+#")),
		c.PasswordFlag && !c.UsernameFlag && pk.ProtocolVersion < 5:
		return true
	}
	return false
}

// OnPacketEncode adds to the CONNACK of MQTT 5 clients the limits and missing
// features that mochi leaves out; mochi itself adds what else differs from the
// CONNECT. It also runs outside of listener.serve, where a panic would end the
// process.
func (h *hook) OnPacketEncode(_ *mqtt.Client, pk packets.Packet) packets.Packet {
	if pk.FixedHeader.Type == packets.Connack && pk.ReasonCode == packets.CodeSuccess.Code {
		p := &pk.Properties
		p.MaximumPacketSize = maxPacket
		p.RetainAvailable, p.RetainAvailableFlag = 0, true
		p.WildcardSubAvailable, p.WildcardSubAvailableFlag = 0, true
		p.SubIDAvailable, p.SubIDAvailableFlag = 0, true
		p.SharedSubAvailable, p.SharedSubAvailableFlag = 0, true
	}
	return pk
}

// OnConnect refuses what cannot be a device of the fleet, and binds the connection to
// the device that the credentials belong to. Mochi's hook for the latter knows one code of
// refusal alone.
func (h *hook) OnConnect(cl *mqtt.Client, pk packets.Packet) error {
	code, reason := connectRefusal(cl, &pk)
	if reason == "" {
		code, reason = h.authenticate(cl, &pk)
	}
	if reason != "" {
		h.broker.refused(cl, reason)
		_ = h.broker.server.SendConnack(cl, code, false, nil)
		return code
	}
	clampKeepalive(cl)
	return nil
}

func connectRefusal(cl *mqtt.Client, pk *packets.Packet) (code packets.Code, reason string) {
	nc, _ := cl.Net.Conn.(*netConn)
	switch {
	case pk.Properties.AuthenticationMethod != "":
		return packets.ErrBadAuthenticationMethod, "auth_method"
	case len(pk.Properties.AuthenticationData) > 0:
		return packets.ErrProtocolViolation, "malformed_connect"
	case nc != nil && nc.willRetained:
		return packets.ErrRetainNotSupported, "will_retained"
	case deviceOfClientID(cl.ID) == "":
		return packets.ErrClientIdentifierNotValid, "client_id"
	}
	return packets.CodeSuccess, ""
}

const (
	defaultKeepalive = 240   // seconds; the default of stock firmware
	maxKeepalive     = 43690 // mochi multiplies by 1.5 in 16 bits: more wraps round
)

// clampKeepalive bounds the time after which a silent connection is closed. The
// CONNACK gives MQTT 5 devices the value. MQTT 3.1.1 has no such field: a device
// without a keepalive is left to TCP's.
func clampKeepalive(cl *mqtt.Client) {
	v5 := cl.Properties.ProtocolVersion >= 5
	switch {
	case cl.State.Keepalive > maxKeepalive:
		cl.State.Keepalive = maxKeepalive
	case cl.State.Keepalive == 0 && v5:
		cl.State.Keepalive = defaultKeepalive
	default:
		return
	}
	cl.State.ServerKeepalive = v5
}

// OnConnectAuthenticate follows OnConnect, which did it.
func (h *hook) OnConnectAuthenticate(cl *mqtt.Client, _ packets.Packet) bool {
	return linkOf(cl) != nil
}

// authenticate binds the connection to the device that the credentials belong to. A
// device that cannot be let in now is to try again: its credentials are not wrong.
func (h *hook) authenticate(cl *mqtt.Client, pk *packets.Packet) (code packets.Code, reason string) {
	b := h.broker
	id, err := b.devices.Authenticate(cl.ID, string(pk.Connect.Username), pk.Connect.Password, hostOf(cl.Net.Remote))
	if err == nil && id != deviceOfClientID(cl.ID) {
		err = errors.New("the client id names another device than the credentials")
	}
	nc, ok := cl.Net.Conn.(*netConn)
	switch {
	case errors.Is(err, enrolment.CredentialsLater):
		return packets.ErrServerUnavailable, refusal(err)
	case err != nil:
		return packets.ErrBadUsernameOrPassword, refusal(err)
	case !ok:
		return packets.ErrUnspecifiedError, "credentials"
	}
	nc.link = b.newConnection(id, cl.ID, cl.Net.Listener, hostOf(cl.Net.Remote))
	nc.link.client = cl
	nc.link.expiryAsked = pk.Properties.SessionExpiryInterval > 0
	return packets.CodeSuccess, ""
}

func refusal(err error) string {
	var reason enrolment.CredentialsError
	if errors.As(err, &reason) {
		return string(reason)
	}
	return "credentials"
}

// OnSessionEstablish runs before mochi takes over an older session of the same
// client id. That would write to the old socket, and wait for seconds if it is
// stuck, so the old connection is stopped first.
func (h *hook) OnSessionEstablish(cl *mqtt.Client, _ packets.Packet) {
	h.broker.establish(linkOf(cl))
}

func (h *hook) OnSessionEstablished(cl *mqtt.Client, _ packets.Packet) {
	h.broker.established(linkOf(cl))
}

// OnACLCheck allows two topics: the one that the device publishes to and, for
// foreign clients that cannot do without SUBSCRIBE, the one of messages to it.
func (h *hook) OnACLCheck(cl *mqtt.Client, topic string, write bool) bool {
	c := linkOf(cl)
	if c == nil {
		return false
	}
	if write {
		return topic == c.up
	}
	return topic == c.down
}

// OnSubscribed runs before mochi sends the codes, and says more exactly why a
// subscription of MQTT 5 is refused.
func (h *hook) OnSubscribed(cl *mqtt.Client, pk packets.Packet, codes []byte) {
	if cl.Properties.ProtocolVersion < 5 {
		return
	}
	for i, f := range pk.Filters {
		switch {
		case codes[i] < packets.ErrUnspecifiedError.Code:
		case mqtt.IsSharedFilter(f.Filter):
			codes[i] = packets.ErrSharedSubscriptionsNotSupported.Code
		case codes[i] == packets.ErrNotAuthorized.Code && strings.ContainsAny(f.Filter, "+#"):
			codes[i] = packets.ErrWildcardSubscriptionsNotSupported.Code
		}
	}
}

// OnPublish takes what a device says. It goes nowhere else.
func (h *hook) OnPublish(cl *mqtt.Client, pk packets.Packet) (packets.Packet, error) {
	if c := linkOf(cl); c != nil {
		c.receive(pk.Payload)
	}
	return pk, packets.CodeSuccessIgnore
}

// refused counts a refused CONNECT and logs it now and then.
func (b *Broker) refused(cl *mqtt.Client, reason string) {
	b.stats.refuse(reason)
	if ok, skipped := b.refusals.allow(cl.ID+reason, time.Now()); ok {
		client := redact.Text(fleet.CleanText(cl.ID, 128), fleet.CleanText(uuidOf(cl.ID), 128))
		b.log.Warn("connection refused", "client", client, "remote", hostOf(cl.Net.Remote),
			"reason", reason, "not_logged", skipped)
	}
}
