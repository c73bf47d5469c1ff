package edge

import (
	"strings"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"fleetd/broker/dialect"
	"fleetd/broker/link"
	"fleetd/fleet"
	"fleetd/fleet/redact"
)

// A hook decides for mochi which clients may connect and what they may do. It runs on the
// goroutine that reads the device's socket. The end of a connection is handled not here but in
// listener.serve, which also handles connections that panic.
type hook struct {
	mqtt.HookBase
	edge *Edge
}

func (h *hook) ID() string { return "fleet" }

func (h *hook) Provides(event byte) bool {
	switch event {
	case mqtt.OnPacketRead, mqtt.OnPacketEncode, mqtt.OnConnect, mqtt.OnConnectAuthenticate, mqtt.OnSessionEstablish,
		mqtt.OnSessionEstablished, mqtt.OnACLCheck, mqtt.OnSubscribed, mqtt.OnUnsubscribed, mqtt.OnPublish:
		return true
	}
	return false
}

func carrierOf(cl *mqtt.Client) *mqttCarrier {
	if nc, ok := cl.Net.Conn.(*netConn); ok {
		return nc.carrier
	}
	return nil
}

// OnPacketRead sees each packet before mochi acts on it. [packets.ErrRejectPacket] ends the
// connection; mochi ignores other errors.
func (h *hook) OnPacketRead(cl *mqtt.Client, pk packets.Packet) (packets.Packet, error) {
	if a := agentOf(cl); a != nil {
		return a.read(pk)
	}
	c := carrierOf(cl)
	if c == nil {
		return h.connecting(cl, pk)
	}
	c.seen(time.Now())
	switch pk.FixedHeader.Type {
	case packets.Publish:
		if pk.FixedHeader.Qos > 0 || pk.FixedHeader.Retain || !c.dialect.MayPublish(pk.TopicName) {
			return c.publishing(pk)
		}
	case packets.Pubrel:
		return c.releasing(pk)
	case packets.Subscribe:
		return c.subscribing(pk)
	case packets.Unsubscribe:
		return c.unsubscribing(pk)
	case packets.Disconnect:
		return c.disconnecting(pk)
	}
	return pk, nil
}

// connecting removes from a CONNECT what the broker does not offer. Mochi would publish a will
// without checking the ACL, so one device could forge a call to another, and would keep sessions
// of devices that are gone. The will is passed to the dialect.
func (h *hook) connecting(cl *mqtt.Client, pk packets.Packet) (packets.Packet, error) {
	if pk.FixedHeader.Type != packets.Connect {
		return pk, nil // mochi ends the connection
	}
	if malformedConnect(&pk) {
		h.edge.stats.refuse("malformed_connect")
		return pk, packets.ErrRejectPacket
	}
	if pk.Connect.WillFlag {
		h.edge.stats.willsRemoved.Add(1)
		if nc, ok := cl.Net.Conn.(*netConn); ok {
			nc.will = &dialect.Will{Topic: pk.Connect.WillTopic, Retain: pk.Connect.WillRetain}
		}
	}
	pk.Connect.WillFlag, pk.Connect.WillQos, pk.Connect.WillRetain = false, 0, false
	pk.Connect.WillTopic, pk.Connect.WillPayload = "", nil
	pk.Connect.WillProperties = packets.Properties{}
	pk.Connect.Clean = true
	pk.Connect.ClientIdentifier = strings.Clone(pk.Connect.ClientIdentifier) // lives longer than the packet
	// An empty password counts as a wrong password. Mochi would call it malformed.
	pk.Connect.PasswordFlag = len(pk.Connect.Password) > 0
	return pk, nil
}

// malformedConnect detects errors that mochi does not detect, or would report in MQTT 3.1.1 with
// a code that this version does not have.
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

// OnPacketEncode adds to the CONNACK of MQTT 5 clients the limits and missing features that mochi
// leaves out; mochi adds the other differences from the CONNECT. It also runs outside of
// listener.serve, where a panic would end the process.
func (h *hook) OnPacketEncode(cl *mqtt.Client, pk packets.Packet) packets.Packet {
	if pk.FixedHeader.Type != packets.Connack || pk.ReasonCode != packets.CodeSuccess.Code {
		return pk
	}
	if a := agentOf(cl); a != nil {
		a.limits(&pk.Properties)
		return pk
	}
	var o dialect.Opening
	if c := carrierOf(cl); c != nil {
		o = c.dialect.Opening()
	}
	p := &pk.Properties
	p.MaximumPacketSize = maxPacket
	p.RetainAvailable, p.RetainAvailableFlag = available(o.Retain), true
	p.WildcardSubAvailable, p.WildcardSubAvailableFlag = available(o.Wildcards), true
	p.SubIDAvailable, p.SubIDAvailableFlag = 0, true
	p.SharedSubAvailable, p.SharedSubAvailableFlag = 0, true
	for _, property := range o.Properties {
		p.User = append(p.User, packets.UserProperty{Key: property.Key, Val: property.Value})
	}
	return pk
}

func available(set bool) byte {
	if set {
		return 1
	}
	return 0
}

// OnConnect refuses clients that cannot be a device of the fleet, and has the core admit the
// others. It does the latter here because mochi's authentication
// hook can refuse with one code only.
func (h *hook) OnConnect(cl *mqtt.Client, pk packets.Packet) error {
	said := connectOf(cl, &pk)
	var code packets.Code
	var reason string
	if h.edge.draining.Load() != nil {
		code, reason = packets.ErrServerUnavailable, refusedDrains
		if said.Version >= 5 {
			code = packets.ErrUseAnotherServer
		}
	} else if h.edge.isAgent(said) {
		code, reason = h.admitAgent(cl, &pk)
	} else {
		speaks, id := h.edge.o.OverMQTT(said)
		if code, reason = connectRefusal(said, &pk, speaks); reason == "" {
			code, reason = h.admit(cl, &pk, said, speaks, id)
		}
	}
	if reason != "" {
		h.edge.refused(cl, reason)
		_ = h.edge.server.SendConnack(cl, code, false, nil)
		return code
	}
	clampKeepalive(cl)
	cl.Properties.Props.User, cl.Properties.Username = nil, nil // not needed any more
	return nil
}

// connectOf returns the properties of a CONNECT that identify its dialect.
func connectOf(cl *mqtt.Client, pk *packets.Packet) dialect.Connect {
	c := dialect.Connect{ClientID: cl.ID, Username: string(pk.Connect.Username), Version: pk.ProtocolVersion}
	if nc, ok := cl.Net.Conn.(*netConn); ok && nc.will != nil {
		c.Will, nc.will = *nc.will, nil
	}
	c.Properties = propertiesOf(pk)
	return c
}

// propertiesOf returns the user properties of a packet of MQTT 5.
func propertiesOf(pk *packets.Packet) (all []dialect.Property) {
	for _, p := range pk.Properties.User {
		all = append(all, dialect.Property{Key: p.Key, Value: p.Val})
	}
	return all
}

// connectRefusal returns the code and reason for refusing a CONNECT. speaks is nil if no dialect
// recognises the client.
func connectRefusal(said dialect.Connect, pk *packets.Packet, speaks dialect.Dialect) (code packets.Code,
	reason string) {
	mayRetain := said.Version < 5 || speaks != nil && speaks.Opening().Retain
	switch {
	case pk.Properties.AuthenticationMethod != "":
		return packets.ErrBadAuthenticationMethod, "auth_method"
	case len(pk.Properties.AuthenticationData) > 0:
		return packets.ErrProtocolViolation, "malformed_connect"
	case said.Will.Retain && !mayRetain:
		return packets.ErrRetainNotSupported, "will_retained"
	case speaks == nil:
		return packets.ErrClientIdentifierNotValid, "client_id"
	case strings.HasPrefix(said.Will.Topic, "$mcp-") && !speaks.MayPublish(said.Will.Topic):
		return packets.ErrNotAuthorized, "will_topic"
	}
	return packets.CodeSuccess, ""
}

const (
	defaultKeepalive = 240   // seconds; the default of stock firmware
	maxKeepalive     = 43690 // mochi multiplies by 1.5 in 16 bits: a higher value wraps around
)

// clampKeepalive limits the time after which a silent connection is closed. The CONNACK gives
// MQTT 5 devices the value. MQTT 3.1.1 has no such field: for a device without a keepalive only
// TCP's keepalive remains.
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

// OnConnectAuthenticate reports whether OnConnect authenticated the client.
func (h *hook) OnConnectAuthenticate(cl *mqtt.Client, _ packets.Packet) bool {
	return carrierOf(cl) != nil || agentOf(cl) != nil
}

// admit binds the connection to the device that the credentials belong to. A device that cannot be
// admitted now is invited to try again, since its credentials are not wrong.
func (h *hook) admit(cl *mqtt.Client, pk *packets.Packet, said dialect.Connect, speaks dialect.Dialect,
	named fleet.DeviceID) (code packets.Code, reason string) {
	nc, ok := cl.Net.Conn.(*netConn)
	if !ok {
		return packets.ErrUnspecifiedError, string(link.RefusedCredentials)
	}
	c := &mqttCarrier{connection: &connection{edge: h.edge, dialect: speaks, lost: make(chan struct{})}, client: cl,
		expiryAsked: pk.Properties.SessionExpiryInterval > 0}
	c.carrier = c
	q := link.Connect{Device: named, ClientID: cl.ID, Username: said.Username, Password: pk.Connect.Password,
		Transport: cl.Net.Listener, RemoteAddr: hostOf(cl.Net.Remote), LocalHost: hostOf(nc.LocalAddr().String()), Said: said}
	if !pk.Connect.UsernameFlag && !pk.Connect.PasswordFlag {
		q.Certificate = nc.verifiedCertificate()
	}
	if err := c.open(q); err != nil {
		why := refusal(err)
		switch why {
		case link.RefusedLater:
			code = packets.ErrServerUnavailable
		case link.RefusedOtherDevice:
			code = packets.Code{Code: packets.ErrClientIdentifierNotValid.Code,
				Reason: "these credentials belong to another client id"}
		default:
			code = packets.ErrBadUsernameOrPassword
		}
		return code, string(why)
	}
	nc.carrier = c
	return packets.CodeSuccess, ""
}

// OnSessionEstablish runs before mochi takes over an older session of the same client id. The
// takeover would write to the old socket, and wait for seconds if it is stuck, so the old
// connection is stopped first.
func (h *hook) OnSessionEstablish(cl *mqtt.Client, _ packets.Packet) {
	if c := carrierOf(cl); c != nil {
		c.establish()
	}
}

func (h *hook) OnSessionEstablished(cl *mqtt.Client, _ packets.Packet) {
	if a := agentOf(cl); a != nil {
		a.up = true
		h.edge.stats.agents.Add(1)
		a.Connected(a)
		return
	}
	carrierOf(cl).establishedNow()
}

// OnACLCheck allows the topics of the device's dialect, or of the agent. Mochi sees no subscriptions
// of devices.
func (h *hook) OnACLCheck(cl *mqtt.Client, topic string, write bool) bool {
	if c := carrierOf(cl); c != nil {
		return write && c.dialect.MayPublish(topic)
	}
	a := agentOf(cl)
	if a == nil {
		return false
	}
	if write {
		return a.MayPublish(topic)
	}
	return a.MaySubscribe(topic)
}

// OnSubscribed passes on the filters of an agent.
func (h *hook) OnSubscribed(cl *mqtt.Client, pk packets.Packet, codes []byte) {
	if a := agentOf(cl); a != nil {
		a.subscribed(pk, codes)
	}
}

// OnUnsubscribed passes on the filters of an agent.
func (h *hook) OnUnsubscribed(cl *mqtt.Client, pk packets.Packet) {
	if a := agentOf(cl); a != nil {
		for _, f := range pk.Filters {
			a.Unsubscribed(f.Filter)
		}
	}
}

// OnPublish receives a device's or an agent's message. The message is not routed further.
func (h *hook) OnPublish(cl *mqtt.Client, pk packets.Packet) (packets.Packet, error) {
	if c := carrierOf(cl); c != nil {
		c.receive(pk.TopicName, pk.Payload, propertiesOf(&pk))
	} else if a := agentOf(cl); a != nil {
		a.receive(pk)
	}
	return pk, packets.CodeSuccessIgnore
}

// refused counts a refused CONNECT and logs it occasionally.
func (e *Edge) refused(cl *mqtt.Client, reason string) {
	e.stats.refuse(reason)
	if ok, skipped := e.refusals.allow(cl.ID+reason, time.Now()); ok {
		client := redact.Text(fleet.CleanText(cl.ID, 128), fleet.CleanText(dialect.UUIDOf(cl.ID), 128))
		e.log.Warn("connection refused", "client", client, "remote", hostOf(cl.Net.Remote),
			"reason", reason, "not_logged", skipped)
	}
}
