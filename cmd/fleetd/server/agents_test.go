package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/paho"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/operator"
)

// A foreignAgent is an MCP client that speaks MCP over MQTT, played by a foreign MQTT client.
type foreignAgent struct {
	t       *testing.T
	id      string
	manager *autopaho.ConnectionManager
	up      chan struct{}
	refused chan autopaho.ConnackError
	ended   chan byte // reason codes of DISCONNECT
	next    atomic.Int64

	mu       sync.Mutex
	presence map[string]string // latest payload by topic
	changed  []string          // payloads of capability topics
	answers  map[int64]chan rpcAnswer
	stray    []string // answers without a number
}

type rpcAnswer struct {
	Result json.RawMessage
	Error  *struct {
		Code    int
		Message string
	}
}

// agent connects an agent with a token. The largest packet that it accepts is max; 0 is no limit.
func (d *testServer) agent(t *testing.T, id, token string, max uint32) *foreignAgent {
	t.Helper()
	return agentAt(t, d.mqtt, id, token, max)
}

func agentAt(t *testing.T, addr, id, token string, max uint32) *foreignAgent {
	t.Helper()
	a := &foreignAgent{t: t, id: id, up: make(chan struct{}, 8), refused: make(chan autopaho.ConnackError, 8),
		ended: make(chan byte, 8), presence: map[string]string{}, answers: map[int64]chan rpcAnswer{}}
	u, _ := url.Parse("mqtt://" + addr)
	var err error
	a.manager, err = autopaho.NewConnection(t.Context(), autopaho.ClientConfig{ServerUrls: []*url.URL{u}, KeepAlive: 10,
		ReconnectBackoff: autopaho.NewConstantBackoff(50 * time.Millisecond), CleanStartOnInitialConnection: true,
		ConnectUsername: "agent", ConnectPassword: []byte(token),
		WillMessage: &paho.WillMessage{Topic: "$mcp-client/presence/" + id,
			Payload: []byte(`{"jsonrpc":"2.0","method":"notifications/disconnected"}`)},
		ConnectPacketBuilder: func(c *paho.Connect, _ *url.URL) (*paho.Connect, error) {
			c.Properties = &paho.ConnectProperties{User: paho.UserProperties{{Key: "MCP-COMPONENT-TYPE", Value: "mcp-client"}},
				RequestProblemInfo: true}
			if max > 0 {
				c.Properties.MaximumPacketSize = &max
			}
			return c, nil
		},
		OnConnectError: func(err error) {
			if no, ok := errors.AsType[*autopaho.ConnackError](err); ok {
				select {
				case a.refused <- *no:
				default:
				}
			}
		},
		OnConnectionUp: func(*autopaho.ConnectionManager, *paho.Connack) { a.up <- struct{}{} },
		ClientConfig: paho.ClientConfig{ClientID: id,
			OnServerDisconnect: func(p *paho.Disconnect) {
				select {
				case a.ended <- p.ReasonCode:
				default:
				}
			},
			OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(p paho.PublishReceived) (bool, error) {
				a.handle(p.Packet)
				return true, nil
			}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.manager.Disconnect(t.Context()) })
	return a
}

func (a *foreignAgent) handle(p *paho.Publish) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case strings.HasPrefix(p.Topic, "$mcp-server/presence/"):
		a.presence[strings.TrimPrefix(p.Topic, "$mcp-server/presence/")] = string(p.Payload)
	case strings.HasPrefix(p.Topic, "$mcp-server/capability/"):
		a.changed = append(a.changed, p.Topic+" "+string(p.Payload))
	default:
		var m struct{ ID *int64 }
		var r rpcAnswer
		if json.Unmarshal(p.Payload, &m) != nil || m.ID == nil || json.Unmarshal(p.Payload, &r) != nil ||
			a.answers[*m.ID] == nil {
			a.stray = append(a.stray, string(p.Payload))
			return
		}
		a.answers[*m.ID] <- r
	}
}

// online waits for the connection.
func (a *foreignAgent) online() *foreignAgent {
	a.t.Helper()
	select {
	case <-a.up:
	case no := <-a.refused:
		a.t.Fatalf("refused: %#x %q", no.ReasonCode, no.Reason)
	case <-time.After(10 * time.Second):
		a.t.Fatal("not connected")
	}
	return a
}

// subscribe returns the reason codes.
func (a *foreignAgent) subscribe(filters ...string) []byte {
	a.t.Helper()
	s := &paho.Subscribe{}
	for _, f := range filters {
		s.Subscriptions = append(s.Subscriptions, paho.SubscribeOptions{Topic: f, NoLocal: true})
	}
	ack, err := a.manager.Subscribe(a.t.Context(), s)
	if ack == nil {
		a.t.Fatalf("subscribe %q: %v", filters, err)
	}
	return ack.Reasons
}

func (a *foreignAgent) publish(topic, payload string) error {
	_, err := a.manager.Publish(a.t.Context(), &paho.Publish{Topic: topic, Payload: []byte(payload), QoS: 1,
		Properties: &paho.PublishProperties{User: paho.UserProperties{
			{Key: "MCP-COMPONENT-TYPE", Value: "mcp-client"}, {Key: "MCP-MQTT-CLIENT-ID", Value: a.id}}}})
	return err
}

// request sends a request to a server, such as lamp-1/mqtt5, and returns its answer.
func (a *foreignAgent) request(server, method, params string) rpcAnswer {
	a.t.Helper()
	id, answer := a.next.Add(1), make(chan rpcAnswer, 1)
	a.mu.Lock()
	a.answers[id] = answer
	a.mu.Unlock()
	topic := "$mcp-rpc/" + a.id + "/" + server
	if method == "initialize" {
		topic = "$mcp-server/" + server
	}
	if err := a.publish(topic, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, id, method, params)); err != nil {
		a.t.Errorf("publish to %s: %v", topic, err)
	}
	select {
	case r := <-answer:
		return r
	case <-time.After(10 * time.Second):
		a.t.Errorf("%s of %s was not answered", method, server)
		return rpcAnswer{}
	}
}

const agentInitialize = `{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"agent","version":"1"}}`

// open opens a session with a server.
func (a *foreignAgent) open(server string) {
	a.t.Helper()
	r := a.request(server, "initialize", agentInitialize)
	if r.Error != nil || !strings.Contains(string(r.Result), "2025-03-26") {
		a.t.Fatalf("initialize %s: %+v %s", server, r.Error, r.Result)
	}
	_ = a.publish("$mcp-rpc/"+a.id+"/"+server, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

func (a *foreignAgent) sees(server string) (payload string, known bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	payload, known = a.presence[server]
	return payload, known
}

func (d *testServer) newToken(t *testing.T, r operator.TokenRequest) (operator.Token, string) {
	t.Helper()
	token, secret, err := d.Operators.NewToken(t.Context(), testOperator, r)
	if err != nil {
		t.Fatal(err)
	}
	return token, secret
}

// newLamp connects a device of MCP over MQTT.
func (d *testServer) newLamp(t *testing.T, id string) *foreignMQTT5 {
	t.Helper()
	f := d.newMQTT5(t, id, false)
	f.connect(d, id)
	fleettest.Eventually(t, id+" is introduced", func() bool {
		dev, err := d.Devices.Device(t.Context(), fleet.DeviceID(id))
		return err == nil && dev.ToolsCount == 2 && d.broker.Introduced(fleet.DeviceID(id))
	})
	return f
}

// An agent of a model sees the devices of its scope, and its calls pass the gate.
func TestAgentsUnderTheGate(t *testing.T) {
	d := startTestServer(t, nil)
	mine, other := d.newLamp(t, "lamp-1"), d.newLamp(t, "lamp-2")
	d.mqtt5REST(t, "PATCH", "/devices/lamp-1", `{"tags":["lab"]}`, 200, nil)
	token, secret := d.newToken(t, operator.TokenRequest{Name: "desk agent", Kind: fleet.KindModel, Role: fleet.RoleOperator,
		Scope: "tag:lab", Tools: []string{"light.read"}})

	a := d.agent(t, "agent-1", secret, 0).online()
	if codes := a.subscribe("$mcp-server/presence/+/#", "$mcp-server/capability/+/#", "$mcp-rpc/agent-1/#"); string(codes) != "\x00\x00\x00" {
		t.Fatalf("SUBACK %v", codes)
	}
	fleettest.Eventually(t, "the presence of its device", func() bool {
		payload, _ := a.sees("lamp-1/mqtt5")
		_, whole := a.sees("fleetd/fleetd")
		return strings.Contains(payload, "notifications/server/online") && strings.Contains(payload, "Lamp") && whole
	})
	if payload, known := a.sees("lamp-2/mqtt5"); known {
		t.Errorf("the agent sees a device outside of its scope: %s", payload)
	}

	a.open("lamp-1/mqtt5")
	if r := a.request("lamp-1/mqtt5", "tools/list", `{}`); !strings.Contains(string(r.Result), `"light.read"`) {
		t.Errorf("tools: %+v", r)
	}
	if r := a.request("lamp-1/mqtt5", "tools/call", `{"name":"light.read","arguments":{}}`); !strings.Contains(string(r.Result), "lit") {
		t.Errorf("call: %s %+v", r.Result, r.Error)
	}
	_, before, _ := mine.log()
	if r := a.request("lamp-1/mqtt5", "tools/call", `{"name":"light.set","arguments":{"on":true,"level":3}}`); !strings.Contains(string(r.Result), `"isError":true`) && r.Error == nil {
		t.Errorf("call of a tool that the token lacks: %s", r.Result)
	}
	if _, after, _ := mine.log(); len(after) != len(before) {
		t.Error("the device received a call that the token may not make")
	}
	if r := a.request("lamp-2/mqtt5", "initialize", agentInitialize); r.Error == nil || !strings.Contains(r.Error.Message, "lamp-2") {
		t.Errorf("initialize outside of the scope: %+v", r)
	}
	a.open("fleetd/fleetd")
	found := a.request("fleetd/fleetd", "tools/call", `{"name":"find_devices","arguments":{}}`)
	if s := string(found.Result); !strings.Contains(s, "lamp-1") || strings.Contains(s, "lamp-2") {
		t.Errorf("find_devices: %s", s)
	}
	calls := d.get("/devices/lamp-1/calls")
	if !strings.Contains(calls, `"desk agent"`) || !strings.Contains(calls, `"model"`) {
		t.Errorf("the record of calls: %s", calls)
	}

	// It cannot reach a device around the gate.
	for topic, payload := range map[string]string{
		"$mcp-rpc/" + mine.caller() + "/lamp-1/" + foreignName:  `{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"light.set","arguments":{"level":3,"on":true}}}`,
		"$mcp-rpc/" + other.caller() + "/lamp-2/" + foreignName: `{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"light.set","arguments":{"level":3,"on":true}}}`,
		"$mcp-server/presence/lamp-2/" + foreignName:            "",
		"$mcp-server/capability/lamp-2/" + foreignName:          `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`,
	} {
		_ = a.publish(topic, payload)
	}
	if codes := a.subscribe("#", "$mcp-client/presence/#", "device/#", "$SYS/#"); string(codes) != "\x87\x87\x87\x87" {
		t.Errorf("SUBACK of foreign topics %#v", codes)
	}
	if c := d.callREST(t, "lamp-2", "light.set", `{"level":3,"on":true}`); c.State != "succeeded" {
		t.Errorf("the other device: %+v", c)
	}
	if inits, calls, _ := other.log(); len(inits) != 1 || len(calls) != 1 {
		t.Errorf("the other device received %d initialize and the calls %q", len(inits), calls)
	}

	// Its tools change, it leaves the scope, and it comes back.
	mine.mu.Lock()
	mine.tools = strings.Replace(mine.tools, `"light.set"`, `"light.dim"`, 1)
	mine.mu.Unlock()
	mine.publish("$mcp-server/capability/lamp-1/"+foreignName, `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`, false)
	fleettest.Eventually(t, "the agent is told of changed tools", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.changed) > 0 && strings.HasPrefix(a.changed[0], "$mcp-server/capability/lamp-1/mqtt5 ")
	})
	d.mqtt5REST(t, "PATCH", "/devices/lamp-1", `{"tags":["home"]}`, 200, nil)
	fleettest.Eventually(t, "the device left the scope", func() bool { p, _ := a.sees("lamp-1/mqtt5"); return p == "" })
	if r := a.request("lamp-1/mqtt5", "tools/call", `{"name":"light.read","arguments":{}}`); r.Error == nil && !strings.Contains(string(r.Result), `"isError":true`) {
		t.Errorf("call outside of the scope: %s", r.Result)
	}
	d.mqtt5REST(t, "PATCH", "/devices/lamp-1", `{"tags":["lab"]}`, 200, nil)
	fleettest.Eventually(t, "the device is back", func() bool { p, _ := a.sees("lamp-1/mqtt5"); return p != "" })

	// The token is revoked.
	if err := d.Operators.Revoke(t.Context(), testOperator, token.ID); err != nil {
		t.Fatal(err)
	}
	select {
	case code := <-a.ended:
		if code != 0x87 {
			t.Errorf("DISCONNECT %#x after the revocation", code)
		}
	case <-time.After(5 * time.Second):
		t.Error("a revoked agent stays connected")
	}
	select {
	case no := <-a.refused:
		if no.ReasonCode != 0x86 {
			t.Errorf("CONNACK %#x with a revoked token", no.ReasonCode)
		}
	case <-time.After(5 * time.Second):
		t.Error("a revoked agent is not refused")
	}
}

// caller returns the latest mcp-client-id of fleetd.
func (f *foreignMQTT5) caller() string {
	inits, _, _ := f.log()
	return inits[len(inits)-1]
}

// Bad agents are refused, and others keep their connections.
func TestAgentsRefused(t *testing.T) {
	d := startTestServer(t, nil)
	d.newLamp(t, "lamp-1")
	before, _ := d.broker.Connection("lamp-1")
	_, secret := d.newToken(t, operator.TokenRequest{Name: "agent", Role: fleet.RoleOperator})

	wrong := d.agent(t, "agent-1", "flt_wrong", 0)
	select {
	case no := <-wrong.refused:
		if no.ReasonCode != 0x86 {
			t.Errorf("a wrong token is refused with %#x %q", no.ReasonCode, no.Reason)
		}
	case <-time.After(5 * time.Second):
		t.Error("a wrong token is not refused")
	}
	_ = wrong.manager.Disconnect(t.Context())

	// With the client id of a device, or of another's agent.
	a := d.agent(t, "lamp-1", secret, 4096).online()
	_, second := d.newToken(t, operator.TokenRequest{Name: "other", Role: fleet.RoleViewer})
	b := d.agent(t, "lamp-1", second, 0).online()
	a.subscribe("$mcp-rpc/lamp-1/#")
	a.open("lamp-1/mqtt5")
	if r := a.request("lamp-1/mqtt5", "ping", `{}`); r.Error != nil {
		t.Errorf("ping: %+v", r.Error)
	}
	if after, ok := d.broker.Connection("lamp-1"); !ok || after.Epoch != before.Epoch {
		t.Error("the device lost its connection to an agent of its name")
	}
	if len(b.ended) > 0 || len(a.ended) > 0 {
		t.Error("agents of one client id and two tokens end each other")
	}
	// b has no session, although a has one of the same topic, and may call nothing.
	if r := b.request("lamp-1/mqtt5", "tools/list", `{}`); r.Error == nil || !strings.Contains(r.Error.Message, "initialize") {
		t.Errorf("request without a session: %+v %s", r.Error, r.Result)
	}
	b.open("lamp-1/mqtt5")
	if r := b.request("lamp-1/mqtt5", "tools/call", `{"name":"light.set","arguments":{"on":true,"level":3}}`); r.Error == nil && !strings.Contains(string(r.Result), `"isError":true`) {
		t.Errorf("call of a viewer: %s", r.Result)
	}

	// Wrong messages.
	if r := a.request("nobody/mqtt5", "initialize", agentInitialize); r.Error == nil {
		t.Error("initialize of an unknown server succeeds")
	}
	_ = a.publish("$mcp-server/lamp-1/mqtt5", `{"jsonrpc":"2.0","id":77,"method":"tools/call","params":{"name":"light.set"}}`)
	_ = a.publish("$mcp-rpc/lamp-1/lamp-1/mqtt5", `{]`)
	fleettest.Eventually(t, "errors for them", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		all := strings.Join(a.stray, "\n")
		return strings.Contains(all, "for initialize alone") && strings.Contains(all, "not a JSON-RPC message")
	})

	// An answer that is longer than the client accepts.
	a.open("fleetd/fleetd")
	if r := a.request("fleetd/fleetd", "tools/list", `{}`); r.Error == nil || !strings.Contains(r.Error.Message, "Maximum Packet Size") {
		t.Errorf("long answer: %+v", r.Error)
	}

	// The session ends when the client leaves it.
	_ = a.publish("$mcp-client/presence/lamp-1", `{"jsonrpc":"2.0","method":"notifications/disconnected"}`)
	if r := a.request("lamp-1/mqtt5", "ping", `{}`); r.Error == nil {
		t.Error("a session that the client ended goes on")
	}
	if _, err := a.manager.Publish(t.Context(), &paho.Publish{Topic: "$mcp-client/presence/lamp-1", Retain: true}); err == nil {
		t.Error("CONNACK offers retained messages")
	}
	if c := d.callREST(t, "lamp-1", "light.set", `{"level":3,"on":true}`); c.State != "succeeded" {
		t.Errorf("the device: %+v", c)
	}
}
