package server

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/paho"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

// A foreignMQTT5 is a device of MCP over MQTT, played by a foreign client from the protocol: either
// a conforming one, or one with the deviations of the ESP-IDF SDK 0.0.1.
type foreignMQTT5 struct {
	t                  *testing.T
	id, user, password string
	sdk                bool
	tls                *tls.Config                // nil: MQTT without TLS
	refused            chan autopaho.ConnackError // CONNACKs that refuse

	mu       sync.Mutex
	manager  *autopaho.ConnectionManager // the latest
	tools    string
	inits    []string // mcp-client-ids of initialize, in order
	calls    []string // params of tools/call
	received []string // topics
}

const foreignName = "light/desk"

// newMQTT5 creates a device by REST and returns it unconnected.
func (d *testServer) newMQTT5(t *testing.T, id string, sdk bool) *foreignMQTT5 {
	t.Helper()
	var c struct {
		ClientID                   string `json:"client_id"`
		Username, Password, Broker string
	}
	d.mqtt5REST(t, http.MethodPost, "/devices", fmt.Sprintf(`{"id":%q,"name":"Lamp"}`, id), http.StatusCreated, &c)
	if c.ClientID != id || c.Broker == "" {
		t.Fatalf("credentials %+v", c)
	}
	f := &foreignMQTT5{t: t, id: id, user: c.Username, password: c.Password, sdk: sdk,
		refused: make(chan autopaho.ConnackError, 10)}
	f.tools = `[{"name":"light.set","description":"Sets the lamp","inputSchema":{"type":"object","properties":` +
		`{"on":{"type":"boolean"},"level":{"type":"integer"}},"required":["on","level"]}},` +
		`{"name":"light.read","inputSchema":{"type":"object","properties":{}}}]`
	if sdk {
		f.tools = strings.ReplaceAll(f.tools, `"boolean"`, `true`)
	}
	return f
}

func (d *testServer) mqtt5REST(t *testing.T, method, path, body string, want int, into any) {
	t.Helper()
	r, _ := http.NewRequestWithContext(t.Context(), method, "http://"+d.http+"/api/v1"+path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+d.token)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var text bytes.Buffer
	_, _ = text.ReadFrom(resp.Body)
	if resp.StatusCode != want {
		t.Fatalf("%s %s: %d %s, want %d", method, path, resp.StatusCode, text.Bytes(), want)
	}
	if into != nil {
		if err := json.Unmarshal(text.Bytes(), into); err != nil {
			t.Fatal(err)
		}
	}
}

func (f *foreignMQTT5) presence() string { return "$mcp-server/presence/" + f.id + "/" + foreignName }

// connect connects the device as clientID, its own id unless a test claims another's.
func (f *foreignMQTT5) connect(d *testServer, clientID string) {
	f.t.Helper()
	u, _ := url.Parse("mqtt://" + d.mqtt)
	if f.tls != nil {
		u, _ = url.Parse("mqtts://" + d.MQTTSAddr().String())
	}
	config := autopaho.ClientConfig{
		ServerUrls: []*url.URL{u}, KeepAlive: 10, ReconnectBackoff: autopaho.NewConstantBackoff(50 * time.Millisecond),
		CleanStartOnInitialConnection: true,
		ConnectUsername:               f.user, ConnectPassword: []byte(f.password), TlsCfg: f.tls,
		WillMessage: &paho.WillMessage{Topic: "$mcp-server/presence/" + clientID + "/" + foreignName, Retain: !f.sdk},
		OnConnectError: func(err error) {
			no, refused := errors.AsType[*autopaho.ConnackError](err)
			if !refused {
				return
			}
			select {
			case f.refused <- *no:
			default:
			}
		},
		OnConnectionUp: func(m *autopaho.ConnectionManager, _ *paho.Connack) { go f.online(m) },
		ClientConfig: paho.ClientConfig{ClientID: clientID,
			OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(p paho.PublishReceived) (bool, error) {
				go f.handle(p.Packet)
				return true, nil
			}}},
	}
	if !f.sdk {
		config.ConnectPacketBuilder = func(c *paho.Connect, _ *url.URL) (*paho.Connect, error) {
			c.Properties = &paho.ConnectProperties{User: f.properties().User, RequestProblemInfo: true}
			return c, nil
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var err error
	if f.manager, err = autopaho.NewConnection(f.t.Context(), config); err != nil {
		f.t.Fatal(err)
	}
}

// client returns the latest client.
func (f *foreignMQTT5) client() *autopaho.ConnectionManager {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.manager
}

func (f *foreignMQTT5) properties() *paho.PublishProperties {
	if f.sdk {
		return nil
	}
	return &paho.PublishProperties{User: paho.UserProperties{{Key: "MCP-COMPONENT-TYPE", Value: "mcp-server"},
		{Key: "MCP-MQTT-CLIENT-ID", Value: f.id}}}
}

func (f *foreignMQTT5) publish(topic, payload string, retain bool) {
	_, _ = f.client().Publish(f.t.Context(), &paho.Publish{Topic: topic, Payload: []byte(payload), Retain: retain,
		Properties: f.properties()})
}

func (f *foreignMQTT5) online(m *autopaho.ConnectionManager) {
	_, _ = m.Subscribe(f.t.Context(), &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{
		{Topic: "$mcp-server/" + f.id + "/" + foreignName}}})
	_, _ = m.Publish(f.t.Context(), &paho.Publish{Topic: f.presence(), Retain: true, Properties: f.properties(),
		Payload: []byte(`{"jsonrpc":"2.0","method":"notifications/server/online","params":{"server_name":"light/desk"}}`)})
}

// handle answers as such a server does. The SDK answers nothing that it does not know.
func (f *foreignMQTT5) handle(p *paho.Publish) {
	var r struct {
		ID     *int64
		Method string
		Params json.RawMessage
	}
	f.mu.Lock()
	f.received = append(f.received, p.Topic)
	tools := f.tools
	f.mu.Unlock()
	if json.Unmarshal(p.Payload, &r) != nil || r.ID == nil {
		return
	}
	caller := p.Properties.User.Get("MCP-MQTT-CLIENT-ID")
	rpc := "$mcp-rpc/" + caller + "/" + f.id + "/" + foreignName
	answer := func(member string) { f.publish(rpc, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,%s}`, *r.ID, member), false) }
	switch {
	case r.Method == "initialize" && p.Topic == "$mcp-server/"+f.id+"/"+foreignName:
		f.mu.Lock()
		known := slices.Contains(f.inits, caller)
		f.inits = append(f.inits, caller)
		f.mu.Unlock()
		if !f.sdk || !known {
			_, _ = f.client().Subscribe(f.t.Context(), &paho.Subscribe{
				Subscriptions: []paho.SubscribeOptions{{Topic: rpc, NoLocal: true}}})
		}
		answer(`"result":{"protocolVersion":"2025-03-26","capabilities":{"tools":{}},"serverInfo":{"name":"Lamp","version":"1.2"}}`)
	case p.Topic != rpc:
	case r.Method == "tools/list":
		answer(`"result":{"tools":` + tools + `}`)
	case r.Method == "tools/call":
		f.mu.Lock()
		f.calls = append(f.calls, string(r.Params))
		f.mu.Unlock()
		answer(f.run(r.Params))
	case r.Method == "ping" && !f.sdk:
		answer(`"result":{}`)
	}
}

func (f *foreignMQTT5) run(params json.RawMessage) string {
	want := `"arguments":{"level":3,"on":true}`
	if f.sdk {
		want = `"arguments":{"kwargs":{"on":true,"level":3}}`
	}
	if !f.sdk && strings.Contains(string(params), "light.read") || strings.Contains(string(params), want) {
		return `"result":{"content":[{"type":"text","text":"lit"}]}`
	}
	return `"error":{"code":-32600,"message":"Invalid params"}`
}

func (f *foreignMQTT5) log() (inits, calls, received []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.inits), slices.Clone(f.calls), slices.Clone(f.received)
}

// called is the record of a call.
type called struct {
	State string
	Error struct{ Code string }
}

func (d *testServer) callREST(t *testing.T, id, tool, arguments string) (c called) {
	t.Helper()
	d.mqtt5REST(t, http.MethodPost, "/devices/"+id+"/calls",
		fmt.Sprintf(`{"tool":%q,"arguments":%s,"timeout_ms":5000}`, tool, arguments), http.StatusOK, &c)
	return c
}

func TestMQTT5Devices(t *testing.T) {
	d := startTestServer(t, func(c *Config) { c.Enrolment = "code" })
	for _, sdk := range []bool{false, true} {
		id := map[bool]string{false: "lamp-1", true: "lamp-2"}[sdk]
		t.Run(id, func(t *testing.T) {
			f := d.newMQTT5(t, id, sdk)
			f.connect(d, id)
			fleettest.Eventually(t, "its tools are listed", func() bool {
				dev, err := d.Devices.Device(t.Context(), fleet.DeviceID(id))
				return err == nil && dev.ToolsCount == 2 && dev.Presence == fleet.PresenceOnline && dev.Kind == fleet.DeviceMQTT5
			})
			inv, err := d.Devices.Tools(t.Context(), fleet.DeviceID(id))
			if err != nil || !strings.Contains(string(inv.Tools[0].InputSchema), `"boolean"`) {
				t.Errorf("inventory %s, %v", inv.Tools[0].InputSchema, err)
			}
			if c := d.callREST(t, id, "light.set", `{"level":3,"on":true}`); c.State != "succeeded" {
				t.Errorf("call: %+v", c)
			}
			read := d.callREST(t, id, "light.read", `{}`)
			if want := map[bool]string{false: "succeeded", true: "invalid"}[sdk]; read.State != want {
				t.Errorf("a tool without arguments: %+v, want %s", read, want)
			}
			inits, calls, _ := f.log()
			if want := map[bool]int{false: 2, true: 1}[sdk]; len(calls) != want || len(inits) != 1 {
				t.Errorf("%d initialize, calls %q", len(inits), calls)
			}

			// The list changes.
			f.mu.Lock()
			f.tools = strings.Replace(f.tools, `"light.read"`, `"light.state"`, 1)
			f.mu.Unlock()
			f.publish("$mcp-server/capability/"+id+"/"+foreignName,
				`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`, false)
			fleettest.Eventually(t, "the tools are listed again", func() bool {
				inv, err := d.Devices.Tools(t.Context(), fleet.DeviceID(id))
				return err == nil && inv.Tools[1].Name == "light.state"
			})

			// It clears its presence: its connection ends, and the client connects again.
			f.publish(f.presence(), "", true)
			fleettest.Eventually(t, "it is initialized again, with another id", func() bool {
				inits, _, _ := f.log()
				return len(inits) == 2 && inits[0] != inits[1]
			})
			if c := d.callREST(t, id, "light.set", `{"on":true,"level":3}`); sdk && c.State != "succeeded" {
				t.Errorf("call after the reconnect: %+v", c)
			}

			// Credentials can be revoked.
			d.mqtt5REST(t, http.MethodDelete, "/devices/"+id+"/credentials", "", http.StatusNoContent, nil)
			select {
			case no := <-f.refused:
				if no.ReasonCode != 0x86 {
					t.Errorf("refused with %#x %q, want bad user name or password", no.ReasonCode, no.Reason)
				}
			case <-time.After(10 * time.Second):
				t.Error("a device with revoked credentials was not refused")
			}
			_ = f.client().Disconnect(t.Context())
		})
	}
}

// A device that claims another's id is refused, and the other stays connected. It sees no presence
// of others, although they publish it with the retain flag.
func TestMQTT5Impostor(t *testing.T) {
	d := startTestServer(t, nil)
	victim, impostor := d.newMQTT5(t, "lamp-1", false), d.newMQTT5(t, "lamp-2", false)
	victim.connect(d, "lamp-1")
	fleettest.Eventually(t, "the victim is introduced", func() bool { return d.broker.Introduced("lamp-1") })
	before, _ := d.broker.Connection("lamp-1")

	impostor.connect(d, "lamp-1")
	select {
	case no := <-impostor.refused:
		if no.ReasonCode != 0x85 || !strings.Contains(no.Reason, "another client id") {
			t.Errorf("the impostor is refused with %#x %q", no.ReasonCode, no.Reason)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the impostor was not refused")
	}
	_ = impostor.client().Disconnect(t.Context())
	if after, ok := d.broker.Connection("lamp-1"); !ok || after.Epoch != before.Epoch {
		t.Error("the victim lost its connection")
	}

	impostor.connect(d, "lamp-2")
	fleettest.Eventually(t, "the other device is introduced", func() bool { return d.broker.Introduced("lamp-2") })
	ack, err := impostor.client().Subscribe(t.Context(), &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{
		{Topic: "$mcp-server/presence/#"}, {Topic: "$mcp-server/presence/lamp-1/" + foreignName}, {Topic: "$mcp-rpc/#"}}})
	if ack == nil || !bytes.Equal(ack.Reasons, []byte{0x87, 0x87, 0x87}) {
		t.Errorf("SUBACK %+v, %v", ack, err)
	}
	impostor.publish("$mcp-server/presence/lamp-1/"+foreignName, "", true) // must not clear the victim's
	victim.publish(victim.presence(), `{"jsonrpc":"2.0","method":"notifications/server/online"}`, true)
	if c := d.callREST(t, "lamp-1", "light.set", `{"level":3,"on":true}`); c.State != "succeeded" {
		t.Errorf("call to the victim: %+v", c)
	}
	victims := func(topic string) bool { return strings.Contains(topic, "lamp-1") }
	if _, _, received := impostor.log(); slices.ContainsFunc(received, victims) {
		t.Errorf("the other device received %q", received)
	}
	if n := d.edge.Stats().ForeignTopics; n != 1 {
		t.Errorf("%d messages to foreign topics", n)
	}
}
