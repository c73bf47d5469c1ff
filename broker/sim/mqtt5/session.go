package mqtt5

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/eclipse/paho.golang/packets"
)

// Topics continue with {server-id}/{server-name}, except where noted.
const (
	controlPrefix    = "$mcp-server/"
	presencePrefix   = "$mcp-server/presence/"
	capabilityPrefix = "$mcp-server/capability/"
	rpcPrefix        = "$mcp-rpc/" // then {mcp-client-id}/

	clientPresencePrefix   = "$mcp-client/presence/"   // then {mcp-client-id} alone
	clientCapabilityPrefix = "$mcp-client/capability/" // then {mcp-client-id} alone
)

// User properties.
const (
	componentType = "MCP-COMPONENT-TYPE"
	component     = "mcp-server"
	senderID      = "MCP-MQTT-CLIENT-ID"
	suggestedName = "MCP-SERVER-NAME"
)

// revisions are the revisions of MCP that a conforming device supports, the preferred one first.
var revisions = []string{"2025-06-18", "2025-03-26"}

// Error codes of JSON-RPC.
const (
	codeInvalidRequest = -32600
	codeUnknownMethod  = -32601
	codeInvalidParams  = -32602
)

// A session is one connection after CONNACK. Its methods run on the device's goroutine, except
// for leave.
type session struct {
	device *Device
	conn   *conn
	name   string // server-name

	lastID      uint16
	granted     map[uint16]func() error // runs when the broker has granted the subscription
	initialized bool

	presence  sync.Mutex // guards the two below, and their order on the wire
	announced bool       // the presence is published
	left      bool
}

// serve announces the device and answers requests until the connection ends.
func (s *session) serve() error {
	control := packets.SubOptions{Topic: s.device.topic(controlPrefix, s.name), NoLocal: s.device.sdk}
	if err := s.subscribe(s.announce, control); err != nil {
		return err
	}
	for {
		p, err := s.conn.next()
		if err != nil {
			return err
		}
		switch content := p.Content.(type) {
		case *packets.Suback:
			err = s.onSuback(content)
		case *packets.Publish:
			err = s.onPublish(content)
		case *packets.Disconnect:
			err = fmt.Errorf("the broker disconnects with %#x", content.ReasonCode)
		}
		if err == nil {
			err = s.conn.acknowledge(p)
		}
		if err != nil {
			return err
		}
	}
}

// subscribe runs granted when the broker has granted all filters.
func (s *session) subscribe(granted func() error, filters ...packets.SubOptions) error {
	s.lastID++
	if s.granted == nil {
		s.granted = make(map[uint16]func() error)
	}
	s.granted[s.lastID] = granted
	return s.conn.subscribe(s.lastID, filters...)
}

func (s *session) onSuback(p *packets.Suback) error {
	granted := s.granted[p.PacketID]
	delete(s.granted, p.PacketID)
	if i := slices.IndexFunc(p.Reasons, func(code byte) bool { return code >= 0x80 }); i >= 0 {
		return fmt.Errorf("subscription %d of SUBSCRIBE %d refused with %#x", i+1, p.PacketID, p.Reasons[i])
	}
	if granted == nil {
		return nil
	}
	return granted()
}

// announce publishes the presence.
func (s *session) announce() error {
	online, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "method": "notifications/server/online",
		"params": map[string]any{"server_name": s.name, "description": "A simulated lamp.", "meta": map[string]any{}}})
	if err != nil {
		return err
	}
	s.presence.Lock()
	defer s.presence.Unlock()
	if s.left {
		return nil
	}
	s.announced = true
	if err := s.publish(s.device.topic(presencePrefix, s.name), online, true); err != nil {
		return err
	}
	s.device.online(s.conn)
	return nil
}

// leave ends the session cleanly. A conforming device clears its presence; the SDK does not.
func (s *session) leave() {
	s.presence.Lock()
	defer s.presence.Unlock()
	s.left = true
	if s.announced && !s.device.sdk {
		_ = s.publish(s.device.topic(presencePrefix, s.name), nil, true) // the session ends either way
	}
	s.conn.hangUp()
}

func (s *session) publish(topic string, payload []byte, retain bool) error {
	p := packets.Publish{Topic: topic, Payload: payload, Retain: retain}
	if !s.device.sdk {
		p.Properties = &packets.Properties{User: []packets.User{{Key: componentType, Value: component},
			{Key: senderID, Value: s.device.id}}}
	}
	return s.conn.publish(p)
}

// A request is a request or a notification of JSON-RPC. A notification has no id.
type request struct {
	JSONRPC string
	ID      json.RawMessage
	Method  string
	Params  json.RawMessage
}

// onPublish handles a message on the control topic, or on the RPC topic of an MCP client.
func (s *session) onPublish(p *packets.Publish) error {
	var r request
	if json.Unmarshal(p.Payload, &r) != nil || r.JSONRPC != "2.0" || r.Method == "" || len(r.ID) == 0 {
		return nil // a notification, or unreadable
	}
	switch {
	case p.Topic == s.device.topic(controlPrefix, s.name):
		i := slices.IndexFunc(p.Properties.User, func(u packets.User) bool { return u.Key == senderID })
		if r.Method != "initialize" || i < 0 {
			return nil
		}
		return s.initialize(r, p.Properties.User[i].Value)
	case strings.HasPrefix(p.Topic, rpcPrefix):
		return s.onRPC(r, p.Topic)
	}
	return nil
}

// initialize subscribes to the topics of the MCP client, and then answers on its RPC topic.
func (s *session) initialize(r request, client string) error {
	s.device.fleet.stats.initialized.Add(1)
	s.initialized = true
	rpc := s.device.topic(rpcPrefix+client+"/", s.name)
	if s.device.sdk {
		return s.sdkInitialize(r, client, rpc)
	}
	var params struct{ ProtocolVersion string }
	_ = json.Unmarshal(r.Params, &params) // no version is an unsupported one
	if !slices.Contains(revisions, params.ProtocolVersion) {
		data, err := json.Marshal(map[string]any{"supported": revisions, "requested": params.ProtocolVersion})
		if err != nil {
			return err
		}
		return s.refuse(r, rpc, &rpcError{codeInvalidParams, "Unsupported protocol version", data})
	}
	answer := func() error {
		return s.answer(r, rpc, fmt.Sprintf(`{"protocolVersion":%q,"capabilities":{"tools":{"listChanged":true}},`+
			`"serverInfo":{"name":"fleetd sim","version":"1.0.0"}}`, params.ProtocolVersion))
	}
	return s.subscribe(answer, packets.SubOptions{Topic: clientPresencePrefix + client},
		packets.SubOptions{Topic: clientCapabilityPrefix + client}, packets.SubOptions{Topic: rpc, NoLocal: true})
}

func (s *session) onRPC(r request, rpc string) error {
	switch r.Method {
	case "tools/list":
		s.device.fleet.stats.listings.Add(1)
		return s.answer(r, rpc, s.device.listing())
	case "tools/call":
		return s.call(r, rpc)
	}
	switch {
	case s.device.sdk: // knows neither ping nor errors for other methods
		return nil
	case r.Method == "ping":
		return s.answer(r, rpc, `{}`)
	}
	return s.refuse(r, rpc, &rpcError{Code: codeUnknownMethod, Message: "Method not found"})
}

// call runs a tool. Its result has no isError with the SDK.
func (s *session) call(r request, rpc string) error {
	before := s.device.State()
	run := s.device.call
	if s.device.sdk {
		run = s.device.sdkCall
	}
	text, err := run(r.Params)
	if refusal, ok := errors.AsType[*rpcError](err); ok {
		return s.refuse(r, rpc, refusal)
	}
	s.device.fleet.stats.calls.Add(1)
	content, err := json.Marshal([]map[string]string{{"type": "text", "text": text}})
	if err != nil {
		return err
	}
	result := fmt.Sprintf(`{"content":%s,"isError":false}`, content)
	if s.device.sdk {
		result = fmt.Sprintf(`{"content":%s}`, content)
	}
	if err := s.answer(r, rpc, result); err != nil {
		return err
	}
	if s.device.State().Sensor != before.Sensor {
		return s.publish(s.device.topic(capabilityPrefix, s.name),
			[]byte(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`), false)
	}
	return nil
}

func (s *session) answer(r request, topic, result string) error {
	return s.publish(topic, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":%s}`, r.ID, result), false)
}

func (s *session) refuse(r request, topic string, refusal *rpcError) error {
	s.device.fleet.stats.refused.Add(1)
	text, err := json.Marshal(refusal)
	if err != nil {
		return err
	}
	return s.publish(topic, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"error":%s}`, r.ID, text), false)
}

// An rpcError is an error of JSON-RPC.
type rpcError struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

func (e *rpcError) Error() string { return e.Message }
