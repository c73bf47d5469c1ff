package dialect_test

import (
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"testing"

	"fleetd/broker/dialect"
	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/mcp"
)

var (
	serverProperty = dialect.Property{Key: "MCP-COMPONENT-TYPE", Value: "mcp-server"}
	lampWill       = dialect.Will{Topic: "$mcp-server/presence/lamp-1/light/desk"}
)

func TestMCPOverMQTTIsRecognised(t *testing.T) {
	server := []dialect.Property{serverProperty}
	tests := []struct {
		name string
		c    dialect.Connect
		want fleet.DeviceID
	}{
		{"by its property", dialect.Connect{ClientID: "lamp-1", Version: 5, Properties: server}, "lamp-1"},
		{"by its will", dialect.Connect{ClientID: "lamp-1", Version: 5, Will: lampWill}, "lamp-1"},
		{"by its username", dialect.Connect{ClientID: "lamp-1", Version: 5, Username: "mcp.x"}, "lamp-1"},
		{"an MQTT 3.1.1 client", dialect.Connect{ClientID: "lamp-1", Version: 4, Will: lampWill}, ""},
		{"without a sign", dialect.Connect{ClientID: "lamp-1", Version: 5}, ""},
		{"an MCP client", dialect.Connect{ClientID: "agent", Version: 5,
			Properties: []dialect.Property{{Key: "MCP-COMPONENT-TYPE", Value: "mcp-client"}}}, ""},
		{"a plug-in's id", dialect.Connect{ClientID: "plugin.lamp", Version: 5, Properties: server}, ""},
		{"upper case", dialect.Connect{ClientID: "Lamp-1", Version: 5, Properties: server}, ""},
		{"two levels", dialect.Connect{ClientID: "lamp/1", Version: 5, Properties: server}, ""},
		{"a reserved id", dialect.Connect{ClientID: "presence", Version: 5, Properties: server}, ""},
	}
	for _, tt := range tests {
		if d, id := dialect.OverMQTT(tt.c); id != tt.want || (d == nil) != (tt.want == "") {
			t.Errorf("%s: device %q of dialect %v, want %q", tt.name, id, d, tt.want)
		}
	}
}

// lamp returns the dialect of a device that published its presence, with properties or without.
func lamp(t *testing.T, properties ...dialect.Property) dialect.Dialect {
	t.Helper()
	d, _ := dialect.OverMQTT(dialect.Connect{ClientID: "lamp-1", Version: 5, Will: lampWill})
	m, err := d.Decode(lampWill.Topic, []byte(`{}`), properties)
	if err != nil || m.Kind != dialect.Ready {
		t.Fatalf("presence: %+v, %v", m, err)
	}
	return d
}

func TestMCPOverMQTTTopics(t *testing.T) {
	d := lamp(t, serverProperty)
	request := d.Address([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
	caller := request.Properties[1].Value
	if want := "$mcp-rpc/" + caller + "/lamp-1/light/desk"; request.Topic != want || len(caller) > 9 {
		t.Errorf("a request goes to %s, want %s", request.Topic, want)
	}
	opening := d.Address([]byte(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`))
	if opening.Topic != "$mcp-server/lamp-1/light/desk" {
		t.Errorf("initialize goes to %s", opening.Topic)
	}
	call := d.Address([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"method":"initialize"}}`))
	if call.Topic != request.Topic {
		t.Errorf("a call that mentions initialize goes to %s", call.Topic)
	}
	if other := lamp(t).Address(nil).Properties[1].Value; other == caller {
		t.Errorf("two connections have the mcp-client-id %s", caller)
	}

	tests := []struct {
		topic              string
		publish, subscribe bool
	}{
		{"$mcp-server/presence/lamp-1/light/desk", true, false},
		{"$mcp-server/capability/lamp-1/light/desk", true, false},
		{"$mcp-server/lamp-1/light/desk", false, true},
		{request.Topic, true, true},
		{"$mcp-rpc/fabcdefgh/lamp-1/light/desk", true, true}, // of an earlier connection
		{"$mcp-rpc/+/lamp-1/#", false, true},
		{"$mcp-server/lamp-1/#", false, true},
		{"$mcp-client/presence/" + caller, false, true},
		{"$mcp-client/capability/" + caller, false, true},
		{"$mcp-server/presence/lamp-1/other", false, false},
		{"$mcp-server/presence/lamp-2/light/desk", false, false},
		{"$mcp-server/presence/+/#", false, false},
		{"$mcp-server/presence/#", false, false},
		{"$mcp-server/+/light/desk", false, false},
		{"$mcp-server/lamp-2/light/desk", false, false},
		{"$mcp-server/#", false, false},
		{"$mcp-rpc/" + caller + "/lamp-2/light/desk", false, false},
		{"$mcp-rpc/+/+/#", false, false},
		{"$mcp-rpc/#", false, false},
		{"$mcp-client/presence/+", false, false},
		{"$mcp-client/presence/" + caller + "/x", false, false},
		{"fleet/lamp-1/up", false, false},
		{"#", false, false},
		{"", false, false},
	}
	for _, tt := range tests {
		if p, s := d.MayPublish(tt.topic), d.MaySubscribe(tt.topic); p != tt.publish || s != tt.subscribe {
			t.Errorf("%s: may publish %v, subscribe %v, want %v, %v", tt.topic, p, s, tt.publish, tt.subscribe)
		}
	}
}

// The longest topics of a device with a long id and name fit the SDK's buffers of 128 bytes.
func TestMCPOverMQTTTopicsAreShort(t *testing.T) {
	id, name := strings.Repeat("i", 40), strings.Repeat("n", 60)
	d, _ := dialect.OverMQTT(dialect.Connect{ClientID: id, Version: 5,
		Will: dialect.Will{Topic: "$mcp-server/presence/" + id + "/" + name}})
	if topic := d.Address(nil).Topic; len(topic) > 127 {
		t.Errorf("%d bytes: %s", len(topic), topic)
	}
}

func TestMCPOverMQTTMessages(t *testing.T) {
	d := lamp(t)
	rpc := d.Address(nil).Topic
	for _, tt := range []struct {
		topic, payload string
		want           dialect.Kind
	}{
		{rpc, `{"id":1}`, dialect.RPC},
		{"$mcp-server/capability/lamp-1/light/desk", `{"method":"notifications/tools/list_changed"}`, dialect.RPC},
		{lampWill.Topic, ``, dialect.Left},
		{lampWill.Topic, `{}`, dialect.Ready},
	} {
		if m, err := d.Decode(tt.topic, []byte(tt.payload), nil); err != nil || m.Kind != tt.want {
			t.Errorf("%s %s: %+v, %v", tt.topic, tt.payload, m, err)
		}
	}
}

var lampTools = []mcp.Tool{
	{Name: "set", InputSchema: json.RawMessage(`{"type":"object","properties":{"on":{"type":true},"level":{"type":"integer"},` +
		`"type":{"type":"string","default":"warm"}},"required":["on","level"]}`)},
	{Name: "read", InputSchema: json.RawMessage(`{"type":"object","properties":{}}`)},
}

func TestMCPOverMQTTCalls(t *testing.T) {
	conforming, sdk := lamp(t, serverProperty), lamp(t)
	for _, d := range []dialect.Dialect{conforming, sdk} {
		want := strings.Replace(string(lampTools[0].InputSchema), `{"type":true}`, `{"type":"boolean"}`, 1)
		if got := d.Listed(lampTools); string(got[0].InputSchema) != want {
			t.Errorf("schema %s, want %s", got[0].InputSchema, want)
		}
	}
	again := lamp(t) // the next connection, before it lists
	again.Follow(sdk)
	tests := []struct {
		tool, arguments string
		flat            string // what a conforming device gets
		wrapped, code   string // what the SDK gets, or why it gets nothing
	}{
		{"set", `{"level":3,"on":true,"type":"cold"}`, `{"level":3,"on":true,"type":"cold"}`,
			`{"kwargs":{"on":true,"level":3,"type":"cold"}}`, ""},
		{"set", `{"level":3,"on":true}`, `{"level":3,"on":true}`, `{"kwargs":{"on":true,"level":3,"type":"warm"}}`, ""},
		{"set", `{"on":true}`, `{"on":true}`, "", "argument_missing"},
		{"set", `{"on":true,"level":3,"x":1}`, `{"on":true,"level":3,"x":1}`, "", "argument_unknown"},
		{"read", `{}`, `{}`, "", "uncallable_tool"},
		{"unlisted", `{"a":1}`, `{"a":1}`, "", "tool_schema_unknown"},
	}
	for _, tt := range tests {
		inv := fleet.Invocation{Tool: tt.tool, Arguments: json.RawMessage(tt.arguments)}
		if p, err := conforming.Call(inv); err != nil || string(p.Arguments) != tt.flat {
			t.Errorf("%s %s: conforming device gets %s, %v", tt.tool, tt.arguments, p.Arguments, err)
		}
		for _, d := range []dialect.Dialect{sdk, again} {
			p, err := d.Call(inv)
			refused, _ := errors.AsType[*fleet.Error](err)
			if tt.code == "" && (err != nil || string(p.Arguments) != tt.wrapped) ||
				tt.code != "" && (refused == nil || refused.Code != tt.code || !errors.Is(err, fleet.ErrInvalid)) {
				t.Errorf("%s %s: SDK gets %s, %v", tt.tool, tt.arguments, p.Arguments, err)
			}
		}
	}
}

// Devices with the same tools share the memory of their schemas.
func TestMCPOverMQTTListingsAreShared(t *testing.T) {
	const devices, schema = 200, 16 << 10 // bytes
	tool := func() mcp.Tool {
		return mcp.Tool{Name: "set", InputSchema: json.RawMessage(`{"type":"object","properties":{"on":{"type":true,` +
			`"description":"` + strings.Repeat("x", schema) + `"}}}`)}
	}
	for _, properties := range [][]dialect.Property{{serverProperty}, nil} { // conforming, and the old SDK
		all := make([]dialect.Dialect, devices)
		per := fleettest.HeapPer(devices, func(i int) {
			all[i] = lamp(t, properties...)
			all[i].Listed([]mcp.Tool{tool()})
		})
		if per > schema/4 {
			t.Errorf("properties %v: a device with a schema of %d bytes takes %d", properties, schema, per)
		}
		runtime.KeepAlive(all)
	}
}

func FuzzNormalSchema(f *testing.F) {
	f.Add(string(lampTools[0].InputSchema))
	f.Add(`{"items":{"type":true},"properties":true}`)
	f.Fuzz(func(t *testing.T, schema string) {
		if !json.Valid([]byte(schema)) {
			return
		}
		d := lamp(t)
		got := d.Listed([]mcp.Tool{{Name: "x", InputSchema: json.RawMessage(schema)}})
		if !json.Valid(got[0].InputSchema) {
			t.Errorf("%s became %s", schema, got[0].InputSchema)
		}
		_, _ = d.Call(fleet.Invocation{Tool: "x", Arguments: json.RawMessage(`{"a":1}`)})
	})
}
