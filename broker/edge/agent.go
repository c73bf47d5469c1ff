package edge

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"fleetd/broker/dialect"
	"fleetd/fleet"
)

// Agents serves the MQTT 5 clients that are no devices: MCP clients, with an API token as their
// password. Like devices they publish to fleetd only, and receive only what fleetd writes to them.
type Agents interface {
	// Admit returns what serves a client. Its error matches [fleet.ErrForbidden] if the token is
	// not valid, [fleet.ErrTooMany] if the client must wait, and [ErrNoAgents] if none is served.
	Admit(c AgentConnect) (Agent, error)
}

// An AgentConnect is the CONNECT of an agent.
type AgentConnect struct {
	ClientID   string `json:"client_id"`
	Token      string `json:"token"`
	RemoteAddr string `json:"remote_addr"`
	MaxPacket  uint32 `json:"max_packet,omitempty"` // bytes that it accepts; 0 is no limit
}

// An Agent serves one connection. Its methods, except Principal, are called by the goroutine that
// reads the connection, and may wait.
type Agent interface {
	// Principal identifies the owner of the token. Clients of different principals may have the
	// same client id.
	Principal() string
	MayPublish(topic string) bool
	MaySubscribe(filter string) bool

	Connected(link AgentLink)
	Subscribed(filter string)
	Unsubscribed(filter string)
	// Received is called for each message to a permitted topic. sender is the mcp-client-id in its
	// user properties, "" without one.
	Received(topic string, payload []byte, sender string)
	// Disconnected is called once after Connected.
	Disconnected()
}

// An AgentLink sends to one agent. It may be used by any goroutine.
type AgentLink interface {
	// Publish writes the message and waits until the socket has accepted it. [ErrAgentPacket] does
	// not end the connection; other errors do.
	Publish(m AgentMessage) error
	// End ends the connection.
	End(why AgentEnd)
}

// ErrAgentPacket means that a message is longer than the client accepts.
var ErrAgentPacket = errors.New("the message is longer than the client accepts")

// An AgentMessage is a message to an agent.
type AgentMessage struct {
	Topic    string `json:"topic"`
	Payload  []byte `json:"payload,omitempty"`
	ServerID string `json:"server_id"`        // the MCP server that sends it
	Retain   bool   `json:"retain,omitempty"` // it was there before the client subscribed
}

// Size returns the most bytes that its packet has.
func (m *AgentMessage) Size() int {
	const lengths, property = 5 + 2 + 4, 1 + 2 + 2 // of the packet, the topic and the properties
	return lengths + len(m.Topic) + len(m.Payload) + 2*property + len(dialect.MCPComponent) + len(dialect.MCPServer) +
		len(dialect.MCPSender) + len(m.ServerID)
}

// An AgentEnd is why fleetd ends an agent's connection: a reason code of MQTT 5.
type AgentEnd byte

const (
	AgentCoreGone AgentEnd = 0x8B // the core that served it has gone; it may connect again
	AgentRevoked  AgentEnd = 0x87 // its token is not valid any more
	AgentChanged  AgentEnd = 0x98 // its rights are others now; it may connect again
	AgentMoved    AgentEnd = 0x9D // the edge is drained; it may connect to another one
)

// agentPrefix begins mochi's names of agents. No client id of a device has it.
const agentPrefix = "agent/"

// An agentClient is the connection of an agent.
type agentClient struct {
	Agent
	client *mqtt.Client
	up     bool        // Connected was called; belongs to the reader's goroutine
	asked  atomic.Bool // to connect to another edge
}

func agentOf(cl *mqtt.Client) *agentClient {
	if nc, ok := cl.Net.Conn.(*netConn); ok {
		return nc.agent
	}
	return nil
}

// isAgent reports whether a CONNECT is that of an agent.
func (e *Edge) isAgent(said dialect.Connect) bool {
	return said.Version >= 5 &&
		slices.Contains(said.Properties, dialect.Property{Key: dialect.MCPComponent, Value: dialect.MCPClient})
}

// ErrNoAgents means that no MCP client can be served over MQTT.
var ErrNoAgents = errors.New("the core does not serve MCP clients over MQTT")

// refusedNoAgents refuses agents while the core of the cluster has an earlier version.
var refusedNoAgents = packets.Code{Code: packets.ErrServerUnavailable.Code,
	Reason: "this cluster does not serve MCP clients over MQTT yet; connect to /mcp over HTTP"}

// admitAgent authenticates an agent. Its name inside mochi contains its principal: otherwise a
// client with the client id of a device, or of another's agent, would take over that connection.
func (h *hook) admitAgent(cl *mqtt.Client, pk *packets.Packet) (code packets.Code, reason string) {
	nc, ok := cl.Net.Conn.(*netConn)
	if !ok {
		return packets.ErrUnspecifiedError, "credentials"
	}
	id := cl.ID
	switch {
	case h.edge.o.Agents == nil:
		return refusedNoAgents, "no_agents"
	case pk.Properties.AuthenticationMethod != "":
		return packets.ErrBadAuthenticationMethod, "auth_method"
	case len(pk.Properties.AuthenticationData) > 0:
		return packets.ErrProtocolViolation, "malformed_connect"
	case len(id) > 128 || strings.ContainsAny(id, "/+#") || id != fleet.CleanText(id, 128):
		return packets.ErrClientIdentifierNotValid, "client_id"
	}
	agent, err := h.edge.o.Agents.Admit(AgentConnect{ClientID: id, Token: string(pk.Connect.Password),
		RemoteAddr: hostOf(cl.Net.Remote), MaxPacket: pk.Properties.MaximumPacketSize})
	switch {
	case errors.Is(err, ErrNoAgents):
		return refusedNoAgents, "no_agents"
	case errors.Is(err, fleet.ErrUnavailable): // no core leads, or its database is away
		return packets.ErrServerUnavailable, "agent_unavailable"
	case errors.Is(err, fleet.ErrForbidden):
		return packets.ErrBadUsernameOrPassword, "agent_token"
	case errors.Is(err, fleet.ErrTooMany):
		return packets.ErrQuotaExceeded, "agent_limit"
	case err != nil:
		h.edge.log.Error("agent not admitted", "remote", cl.Net.Remote, "err", err)
		return packets.ErrServerUnavailable, "agent_unavailable"
	}
	nc.agent = &agentClient{Agent: agent, client: cl}
	cl.ID = agentPrefix + agent.Principal() + "/" + id
	return packets.CodeSuccess, ""
}

// read sees each packet before mochi acts on it.
func (a *agentClient) read(pk packets.Packet) (packets.Packet, error) {
	p := &pk.Properties
	switch pk.FixedHeader.Type {
	case packets.Publish:
		switch {
		case pk.FixedHeader.Retain:
			return pk, a.refuse(packets.ErrRetainNotSupported)
		case pk.FixedHeader.Qos > 1:
			return pk, a.refuse(packets.ErrQosNotSupported)
		}
	case packets.Disconnect:
		if p.SessionExpiryInterval > 0 {
			return pk, a.refuse(packets.ErrProtocolViolationZeroNonZeroExpiry)
		}
		p.SessionExpiryInterval, p.SessionExpiryIntervalFlag = 0, false
	}
	return pk, nil
}

func (a *agentClient) refuse(why packets.Code) error {
	a.End(AgentEnd(why.Code))
	return packets.ErrRejectPacket
}

// subscribed passes on the accepted filters.
func (a *agentClient) subscribed(pk packets.Packet, codes []byte) {
	for i, f := range pk.Filters {
		if codes[i] < packets.ErrUnspecifiedError.Code {
			a.Subscribed(f.Filter)
		}
	}
}

// receive passes on a message.
func (a *agentClient) receive(pk packets.Packet) {
	sender := ""
	for _, p := range pk.Properties.User {
		if p.Key == dialect.MCPSender {
			sender = p.Val
		}
	}
	a.Received(pk.TopicName, pk.Payload, sender)
}

// Publish implements [AgentLink].
func (a *agentClient) Publish(m AgentMessage) error {
	err := a.client.WritePacket(packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Publish, Retain: m.Retain},
		TopicName:   m.Topic, Payload: m.Payload, Created: time.Now().Unix(),
		Properties: packets.Properties{User: []packets.UserProperty{
			{Key: dialect.MCPComponent, Val: dialect.MCPServer}, {Key: dialect.MCPSender, Val: m.ServerID}}},
	})
	if errors.Is(err, packets.ErrPacketTooLarge) {
		return ErrAgentPacket
	}
	return err
}

// End implements [AgentLink].
func (a *agentClient) End(why AgentEnd) {
	_ = a.client.WritePacket(packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Disconnect}, ReasonCode: byte(why)})
	a.client.Stop(nil)
}

// limits adds to CONNACK what holds for agents.
func (a *agentClient) limits(p *packets.Properties) {
	p.MaximumPacketSize = maxPacket
	p.MaximumQos, p.MaximumQosFlag = 1, true
	p.WildcardSubAvailable, p.WildcardSubAvailableFlag = 1, true
	p.RetainAvailable, p.RetainAvailableFlag = 0, true
	p.SubIDAvailable, p.SubIDAvailableFlag = 0, true
	p.SharedSubAvailable, p.SharedSubAvailableFlag = 0, true
	p.User = append(p.User, packets.UserProperty{Key: dialect.MCPServerNameFilters, Val: `["#"]`})
}
