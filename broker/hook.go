package broker

import (
	"errors"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"fleetd/fleet"
)

// A hook tells mochi who may connect and what they may do. All of it runs on
// the goroutine that reads the device's socket. Ends of connections are not
// handled here but in listener.serve, which also sees those that panic.
type hook struct {
	mqtt.HookBase
	broker *Broker
}

func (h *hook) ID() string { return "fleet" }

func (h *hook) Provides(event byte) bool {
	switch event {
	case mqtt.OnPacketRead, mqtt.OnPacketEncode, mqtt.OnConnect, mqtt.OnConnectAuthenticate, mqtt.OnSessionEstablish,
		mqtt.OnSessionEstablished, mqtt.OnACLCheck, mqtt.OnPublish:
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

// OnPacketRead sees each packet before mochi acts on it.
func (h *hook) OnPacketRead(cl *mqtt.Client, pk packets.Packet) (packets.Packet, error) {
	c := linkOf(cl)
	if c == nil {
		if pk.FixedHeader.Type == packets.Connect {
			h.plainConnect(&pk)
		}
		return pk, nil
	}
	c.seen(time.Now())
	switch pk.FixedHeader.Type {
	case packets.Disconnect:
		c.clean = true
	case packets.Publish:
		// A QoS 1 publish that the ACL refuses would make mochi disconnect an
		// MQTT 3.1.1 client with a packet which that does not know. As QoS 0
		// it is dropped alone.
		if pk.TopicName != c.up && pk.ProtocolVersion < 5 {
			pk.FixedHeader.Qos, pk.PacketID = 0, 0
		}
	}
	return pk, nil
}

// plainConnect takes out of a CONNECT what the fleet does not offer. Mochi
// would publish a will without asking the ACL, so that one device could forge
// a call to another, and would keep sessions of devices that are gone.
func (h *hook) plainConnect(pk *packets.Packet) {
	if pk.Connect.WillFlag {
		h.broker.stats.willsRemoved.Add(1)
	}
	pk.Connect.WillFlag, pk.Connect.WillQos, pk.Connect.WillRetain = false, 0, false
	pk.Connect.WillTopic, pk.Connect.WillPayload = "", nil
	pk.Connect.WillProperties = packets.Properties{}
	pk.Connect.Clean = true
	pk.Properties.SessionExpiryInterval, pk.Properties.SessionExpiryIntervalFlag = 0, false
}

// OnPacketEncode tells MQTT 5 clients what they must do without, which mochi
// leaves out. It also runs outside of listener.serve, where a panic would end
// the process.
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

// OnConnect refuses client ids that cannot be a device's.
func (h *hook) OnConnect(cl *mqtt.Client, pk packets.Packet) error {
	if deviceOfClientID(cl.ID) == "" {
		h.broker.refused(cl, "client_id")
		_ = h.broker.server.SendConnack(cl, packets.ErrClientIdentifierNotValid, false, nil)
		return packets.ErrClientIdentifierNotValid
	}
	clampKeepalive(cl)
	return nil
}

const (
	defaultKeepalive = 240   // what stock firmware uses by itself, in seconds
	maxKeepalive     = 43690 // mochi multiplies by 1.5 in 16 bits: more wraps round
)

// clampKeepalive bounds the time after which a silent connection is given up.
// MQTT 5 devices are told. One of MQTT 3.1.1 that wants none cannot be, and is
// left to TCP's keepalive.
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

// OnConnectAuthenticate binds the connection to the device that the credentials
// belong to.
func (h *hook) OnConnectAuthenticate(cl *mqtt.Client, pk packets.Packet) bool {
	b := h.broker
	id, err := b.devices.Authenticate(cl.ID, string(pk.Connect.Username), pk.Connect.Password)
	if err == nil && id != deviceOfClientID(cl.ID) {
		err = errors.New("the client id names another device than the credentials")
	}
	if err != nil {
		b.refused(cl, refusal(err))
		return false
	}
	nc, ok := cl.Net.Conn.(*netConn)
	if !ok {
		return false
	}
	nc.link = b.newConnection(id, cl)
	return true
}

func refusal(err error) string {
	var reason fleet.CredentialsError
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

// OnACLCheck allows two topics: what the device publishes to, and, for foreign
// clients that cannot do without SUBSCRIBE, what it is told by.
func (h *hook) OnACLCheck(cl *mqtt.Client, topic string, write bool) bool {
	c := linkOf(cl)
	if c == nil {
		return false
	}
	if write && topic != c.up {
		h.broker.stats.foreignTopics.Add(1)
		return false
	}
	return write || topic == c.down
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
		b.log.Warn("connection refused", "client", fleet.CleanText(cl.ID, 128), "remote", hostOf(cl.Net.Remote),
			"reason", reason, "not_logged", skipped)
	}
}
