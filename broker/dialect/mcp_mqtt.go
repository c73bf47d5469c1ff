package dialect

import (
	"bytes"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"fleetd/fleet"
	"fleetd/internal/bounded"
	"fleetd/internal/jsonscan"
	"fleetd/mcp"
)

// MCP over MQTT, of EMQX: https://github.com/mqtt-ai/mcp-over-mqtt. The device is the MCP server.
// Its MQTT client id is the server-id, and fleetd, the broker, is the only MCP client: it publishes
// without a connection, under an mcp-client-id that is new for each connection of the device.
//
// Nothing is retained and nothing is routed: a message of a device reaches fleetd alone. A device that
// subscribes to the presence of others therefore never sees any, stale or not.
const (
	MCPPresence   = "$mcp-server/presence/"   // {server-id}/{server-name}
	MCPCapability = "$mcp-server/capability/" // {server-id}/{server-name}
	MCPControl    = "$mcp-server/"            // {server-id}/{server-name}
	MCPRPC        = "$mcp-rpc/"               // {mcp-client-id}/{server-id}/{server-name}

	MCPClientPresence   = "$mcp-client/presence/"   // {mcp-client-id}
	MCPClientCapability = "$mcp-client/capability/" // {mcp-client-id}
)

// User properties of MCP over MQTT.
const (
	MCPComponent = "MCP-COMPONENT-TYPE" // of the sender: [MCPServer] or [MCPClient]
	MCPSender    = "MCP-MQTT-CLIENT-ID" // of the sender

	MCPServer = "mcp-server"
	MCPClient = "mcp-client"

	MCPServerName        = "MCP-SERVER-NAME"         // in CONNACK: the name that a device adopts
	MCPServerNameFilters = "MCP-SERVER-NAME-FILTERS" // in CONNACK: filters of the server-names that a client may see
)

// mcpRevision is the revision of MCP on which the protocol is based.
const mcpRevision = "2025-03-26"

// maxServerName is the longest server-name that is accepted, in bytes.
const maxServerName = 256

// MCPOverMQTTUsername begins the usernames that fleetd issues for these devices. A client is also
// recognised by it, because a device may send neither properties nor a will.
const MCPOverMQTTUsername = "mcp."

// mcpMQTT is MCP over MQTT. Two behaviours exist. A conforming device sends the user properties of
// the protocol with each message. The SDKs of 2025 (ESP-IDF 0.0.1, and the one on Paho) send none
// with any message, and share a parser of calls that reads the arguments from a member kwargs,
// requires all of them in the declared order, and refuses a tool without any. The presence message
// decides: it is the first message of a connection, and precedes every call.
type mcpMQTT struct {
	Mute
	id     string // server-id
	caller string // mcp-client-id of fleetd on this connection

	unnamed bool // the CONNECT named no server-name: fleetd suggests one

	name    atomic.Pointer[string] // server-name; nil before the will or the first message gives it
	oldSDK  atomic.Bool
	mu      sync.Mutex
	listing map[string]json.RawMessage // input schemas as the device listed them, with the old SDK; shared, nil before
}

var _ Dialect = (*mcpMQTT)(nil)

func mcpOverMQTT(c Connect) (Dialect, fleet.DeviceID) {
	id, err := fleet.ParseMQTT5ID(c.ClientID)
	if err != nil || string(id) != c.ClientID || c.Version < 5 {
		return nil, ""
	}
	isServer := slices.Contains(c.Properties, Property{MCPComponent, MCPServer})
	if !isServer && !strings.HasPrefix(c.Will.Topic, MCPPresence) &&
		!strings.HasPrefix(c.Username, MCPOverMQTTUsername) {
		return nil, ""
	}
	d := newMCPMQTT(c.ClientID)
	if name, ok := d.nameIn(c.Will.Topic, MCPPresence); ok {
		d.setName(name)
	} else {
		d.unnamed = true
	}
	return d, id
}

func newMCPMQTT(id string) *mcpMQTT { return &mcpMQTT{id: id, caller: newCaller()} }

var callerEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

const callerLength = 1 + 8

// newCaller returns an mcp-client-id. It is short, because the SDK builds topics in buffers of 128
// bytes, and it is new: the SDK does not subscribe again for a client that it knows.
func newCaller() string { return "f" + callerEncoding.EncodeToString(random(5)) }

func isCaller(s string) bool {
	return len(s) == callerLength && s[0] == 'f' && !strings.ContainsAny(s, "/+#")
}

func (d *mcpMQTT) Opening() Opening {
	o := Opening{Initialize: true, Standard: true, Revision: mcpRevision, Retain: true, Wildcards: true}
	if d.unnamed {
		o.Properties = []Property{{MCPServerName, "mqtt5/" + d.id}}
	}
	return o
}

// nameIn returns the server-name in a topic of this device below the prefix.
func (d *mcpMQTT) nameIn(topic, prefix string) (name string, ok bool) {
	rest, ok := strings.CutPrefix(topic, prefix)
	if !ok {
		return "", false
	}
	name, ok = strings.CutPrefix(rest, d.id+"/")
	return name, ok && name != "" && len(name) <= maxServerName && !strings.ContainsAny(name, "+#")
}

// setName keeps a copy of the server-name, which is a part of a packet.
func (d *mcpMQTT) setName(name string) {
	if known := d.name.Load(); known == nil || *known != name {
		d.name.Store(new(strings.Clone(name)))
	}
}

// published returns the server-name in a topic to which the device may publish, and whether it is
// the topic of its presence or of its answers.
func (d *mcpMQTT) published(topic string) (name string, presence, rpc, ok bool) {
	if name, ok = d.nameIn(topic, MCPPresence); ok {
		return name, true, false, true
	}
	if name, ok = d.nameIn(topic, MCPCapability); ok {
		return name, false, false, true
	}
	if rest, isRPC := strings.CutPrefix(topic, MCPRPC); isRPC {
		// An answer may be late: to a call of an earlier connection, whose ids are never used again.
		caller, rest, _ := strings.Cut(rest, "/")
		name, ok = d.nameIn(rest, "")
		return name, false, true, ok && isCaller(caller)
	}
	return "", false, false, false
}

func (d *mcpMQTT) MayPublish(topic string) bool {
	name, presence, _, ok := d.published(topic)
	known := d.name.Load()
	return ok && (known == nil && presence || known != nil && *known == name)
}

// MaySubscribe allows wildcards in the place of the server-name, and in that of the client's id
// before the device's own.
func (d *mcpMQTT) MaySubscribe(filter string) bool {
	if rest, ok := strings.CutPrefix(filter, MCPRPC); ok {
		caller, rest, _ := strings.Cut(rest, "/")
		return (caller == "+" || isCaller(caller)) && d.subscribes(rest)
	}
	for _, prefix := range []string{MCPClientPresence, MCPClientCapability} {
		if caller, ok := strings.CutPrefix(filter, prefix); ok {
			return isCaller(caller)
		}
	}
	rest, ok := strings.CutPrefix(filter, MCPControl)
	return ok && d.subscribes(rest)
}

func (d *mcpMQTT) subscribes(rest string) bool {
	name, ok := strings.CutPrefix(rest, d.id+"/")
	return ok && name != ""
}

func (d *mcpMQTT) Decode(topic string, payload []byte, properties []Property) (Message, error) {
	name, presence, rpc, ok := d.published(topic)
	switch {
	case !ok:
		return Message{}, nil
	case presence && len(payload) == 0:
		return Message{Kind: Left}, nil
	case presence:
		d.setName(name)
		d.oldSDK.Store(!slices.ContainsFunc(properties, func(p Property) bool {
			return p.Key == MCPComponent || p.Key == MCPSender
		}))
		return Message{Kind: Ready, Payload: payload}, nil
	case rpc, len(payload) > 0: // what changed arrives on the capability topic as a notification
		return Message{Kind: RPC, Payload: payload}, nil
	}
	return Message{}, nil
}

func (d *mcpMQTT) Address(msg []byte) Address {
	name := ""
	if known := d.name.Load(); known != nil {
		name = *known
	}
	to := Address{Topic: MCPRPC + d.caller + "/" + d.id + "/" + name,
		Properties: []Property{{MCPComponent, MCPClient}, {MCPSender, d.caller}}}
	if opens(msg) {
		to.Topic = MCPControl + d.id + "/" + name
	}
	return to
}

// opens reports whether msg is the request initialize, which alone goes to the control topic.
func opens(msg []byte) (is bool) {
	_ = jsonscan.Members(msg, func(key, value []byte) error {
		is = is || string(key) == "method" && string(value) == `"initialize"`
		return nil
	})
	return is
}

// Wrap adds nothing: the protocol has no envelope, and no scope.
func (*mcpMQTT) Wrap(dst, msg []byte, _ mcp.Scope) []byte { return append(dst, msg...) }

// Follow takes over the schemas, until the device lists its tools on the new connection.
func (d *mcpMQTT) Follow(previous Dialect) {
	if p, ok := previous.(*mcpMQTT); ok {
		p.mu.Lock()
		listing := p.listing
		p.mu.Unlock()
		d.mu.Lock()
		defer d.mu.Unlock()
		d.listing = listing
	}
}

// A mcpState is the state of a connection of MCP over MQTT.
type mcpState struct {
	Caller string `json:"caller"`
	Name   string `json:"name,omitempty"`
	OldSDK bool   `json:"old_sdk,omitempty"`
}

func (d *mcpMQTT) State() []byte {
	s := mcpState{Caller: d.caller, OldSDK: d.oldSDK.Load()}
	if name := d.name.Load(); name != nil {
		s.Name = *name
	}
	text, _ := json.Marshal(s) // cannot fail
	return text
}

func (d *mcpMQTT) Restore(state []byte) {
	var s mcpState
	if json.Unmarshal(state, &s) != nil || !isCaller(s.Caller) {
		return
	}
	d.caller = s.Caller
	d.oldSDK.Store(s.OldSDK)
	if s.Name != "" {
		d.setName(s.Name)
	}
}

// Listed normalises the schemas. With the old SDK it keeps them as the device sent them: the SDK
// needs the arguments in their order, and the database does not keep the order of members.
func (d *mcpMQTT) Listed(tools []mcp.Tool) []mcp.Tool {
	tools = slices.Clone(tools)
	for i, t := range tools {
		tools[i].InputSchema = normalSchema(t.InputSchema)
	}
	var listing map[string]json.RawMessage
	if d.oldSDK.Load() {
		listing = sharedListing(tools)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.listing = listing
	return tools
}

// listings are the latest listings by their digests: devices with the same firmware share one.
var listings = bounded.New[[sha256.Size]byte, map[string]json.RawMessage](256)

// sharedListing returns the schemas of the tools by their names.
func sharedListing(tools []mcp.Tool) map[string]json.RawMessage {
	digest := sha256.New()
	for _, t := range tools {
		fmt.Fprintf(digest, "%d %s %d ", len(t.Name), t.Name, len(t.InputSchema))
		digest.Write(t.InputSchema)
	}
	key := [sha256.Size]byte(digest.Sum(nil))
	if listing, known := listings.Get(key); known {
		return listing
	}
	listing := make(map[string]json.RawMessage, len(tools))
	for _, t := range tools {
		listing[strings.Clone(t.Name)] = bytes.Clone(t.InputSchema)
	}
	listings.Add(key, listing)
	return listing
}

// normalSchema replaces "type": true, which the ESP-IDF SDK writes for a Boolean property.
func normalSchema(schema json.RawMessage) json.RawMessage {
	if !bytes.Contains(schema, []byte("true")) {
		return schema
	}
	return appendNormal(make([]byte, 0, len(schema)+16), schema)
}

func appendNormal(dst, schema []byte) []byte {
	return appendObject(dst, schema, func(dst, key, value []byte) []byte {
		switch {
		case string(key) == "type" && string(value) == "true":
			return append(dst, `"boolean"`...)
		case string(key) == "properties":
			return appendObject(dst, value, func(dst, _, value []byte) []byte { return appendNormal(dst, value) })
		case string(key) == "items":
			return appendNormal(dst, value)
		}
		return append(dst, value...)
	})
}

// appendObject appends object with its values replaced by what member appends, and anything else
// unchanged.
func appendObject(dst, object []byte, member func(dst, key, value []byte) []byte) []byte {
	start := len(dst)
	dst = append(dst, '{')
	err := jsonscan.Members(object, func(key, value []byte) error {
		if len(dst) > start+1 {
			dst = append(dst, ',')
		}
		dst = append(append(append(dst, '"'), key...), `":`...)
		dst = member(dst, key, value)
		return nil
	})
	if err != nil {
		return append(dst[:start], object...)
	}
	return append(dst, '}')
}

// Call decides from the evidence of this connection how the arguments are sent, and never tries
// both ways: the tool could run twice.
func (d *mcpMQTT) Call(inv fleet.Invocation) (mcp.CallToolParams, error) {
	if !d.oldSDK.Load() {
		return mcp.CallToolParams{Name: inv.Tool, Arguments: inv.Arguments}, nil
	}
	arguments, err := d.sdkArguments(inv)
	return mcp.CallToolParams{Name: inv.Tool, Arguments: arguments}, err
}

// sdkArguments returns the arguments as the old SDK reads them: {"kwargs":{...}} with all declared
// arguments, in their order. It refuses a call that the device would not run.
func (d *mcpMQTT) sdkArguments(inv fleet.Invocation) (json.RawMessage, error) {
	d.mu.Lock()
	schema, listed := d.listing[inv.Tool]
	d.mu.Unlock()
	if !listed {
		return nil, fleet.Refuse(fleet.ErrInvalid, "tool_schema_unknown", "tool", inv.Tool)
	}
	declared := declaredArguments(schema)
	if len(declared) == 0 {
		return nil, fleet.Refuse(fleet.ErrInvalid, "uncallable_tool", "tool", inv.Tool)
	}
	given := map[string]json.RawMessage{}
	if len(inv.Arguments) > 0 {
		if err := json.Unmarshal(inv.Arguments, &given); err != nil {
			return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_arguments.not_json")
		}
	}
	out := []byte(`{"kwargs":{`)
	for i, a := range declared {
		value, ok := given[a.name]
		delete(given, a.name)
		if !ok {
			if value = a.fallback; value == nil {
				return nil, fleet.Refuse(fleet.ErrInvalid, "argument_missing", "tool", inv.Tool, "argument", fleet.CleanText(a.name, 100))
			}
		}
		if i > 0 {
			out = append(out, ',')
		}
		name, _ := json.Marshal(a.name) // a string
		out = append(append(append(out, name...), ':'), value...)
	}
	for name := range given {
		return nil, fleet.Refuse(fleet.ErrInvalid, "argument_unknown", "tool", inv.Tool, "argument", fleet.CleanText(name, 100))
	}
	return append(out, "}}"...), nil
}

// A declaredArgument is a property of an input schema.
type declaredArgument struct {
	name     string
	fallback json.RawMessage // its default; nil without one
}

// declaredArguments returns the properties of an input schema in their order.
func declaredArguments(schema []byte) (all []declaredArgument) {
	_ = jsonscan.Members(schema, func(key, value []byte) error {
		if string(key) != "properties" {
			return nil
		}
		return jsonscan.Members(value, func(key, value []byte) error {
			a := declaredArgument{}
			if json.Unmarshal(slices.Concat([]byte{'"'}, key, []byte{'"'}), &a.name) != nil {
				return nil
			}
			_ = jsonscan.Members(value, func(key, value []byte) error {
				if string(key) == "default" {
					a.fallback = value
				}
				return nil
			})
			all = append(all, a)
			return nil
		})
	})
	return all
}
