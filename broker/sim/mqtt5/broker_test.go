package mqtt5

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"
	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/listeners"
	"github.com/mochi-mqtt/server/v2/packets"
	"go.uber.org/goleak"

	"fleetd/fleet/fleettest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	control    = "$mcp-server/sim-1/sim/lamp/sim-1"
	presence   = "$mcp-server/presence/sim-1/sim/lamp/sim-1"
	capability = "$mcp-server/capability/sim-1/sim/lamp/sim-1"
)

// A broker is a foreign one, which retains and routes messages as MQTT says, with an MCP client
// that is connected to it.
type broker struct {
	t      *testing.T
	server *mqtt.Server
	addr   string

	mu         sync.Mutex
	connects   []packets.Packet
	subscribed []string       // filters of the device, in order
	refuse     bool           // all CONNECTs of devices
	published  []paho.Publish // what the MCP client received
}

// newBroker starts a broker and the client.
func newBroker(t *testing.T) *broker {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &broker{t: t, addr: ln.Addr().String(), server: mqtt.New(&mqtt.Options{Logger: slog.New(slog.DiscardHandler)})}
	l := &listener{Listener: ln, serving: make(chan struct{}), ended: make(chan struct{})}
	for _, err := range []error{b.server.AddHook(&hook{b: b}, nil), b.server.AddListener(l), b.server.Serve()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	<-l.serving
	t.Cleanup(func() {
		l.Listener.Close()
		<-l.ended
		l.accepted.Wait()
		b.server.Close()
	})
	return b
}

// A listener differs from mochi's own in that a test can wait for its goroutines before it closes
// the server: mochi's wait groups race otherwise.
type listener struct {
	net.Listener
	serving, ended chan struct{}
	accepted       sync.WaitGroup
}

func (l *listener) Init(*slog.Logger) error { return nil }
func (l *listener) ID() string              { return "test" }
func (l *listener) Address() string         { return l.Addr().String() }
func (l *listener) Protocol() string        { return "tcp" }
func (l *listener) Close(listeners.CloseFn) { l.Listener.Close() }

func (l *listener) Serve(establish listeners.EstablishFn) {
	close(l.serving)
	defer close(l.ended)
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		l.accepted.Go(func() { _ = establish(l.ID(), conn) })
	}
}

type hook struct {
	mqtt.HookBase
	b *broker
}

func (h *hook) Provides(event byte) bool {
	return slices.Contains([]byte{mqtt.OnConnectAuthenticate, mqtt.OnACLCheck, mqtt.OnSubscribed, mqtt.OnPacketRead,
		mqtt.OnWill}, event)
}

func (h *hook) OnConnectAuthenticate(cl *mqtt.Client, p packets.Packet) bool {
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	if cl.ID == mcpClient {
		return true
	}
	return !h.b.refuse && string(p.Connect.Username) == "user" && string(p.Connect.Password) == "secret"
}

// OnPacketRead gives an empty will a payload until it is published: mochi refuses one.
func (h *hook) OnPacketRead(_ *mqtt.Client, p packets.Packet) (packets.Packet, error) {
	if p.FixedHeader.Type == packets.Connect && p.Connect.WillFlag {
		h.b.mu.Lock()
		defer h.b.mu.Unlock()
		h.b.connects = append(h.b.connects, p)
		p.Connect.WillPayload = []byte("empty")
	}
	return p, nil
}

func (h *hook) OnWill(_ *mqtt.Client, will mqtt.Will) (mqtt.Will, error) {
	will.Payload = nil
	return will, nil
}

func (h *hook) OnACLCheck(*mqtt.Client, string, bool) bool { return true }

func (h *hook) OnSubscribed(cl *mqtt.Client, p packets.Packet, _ []byte) {
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	for _, f := range p.Filters {
		if cl.ID != mcpClient {
			h.b.subscribed = append(h.b.subscribed, fmt.Sprintf("%s no-local=%t", f.Filter, f.NoLocal))
		}
	}
}

// start runs a fleet until the test ends, or until stop.
func (b *broker) start(o Options) (f *Fleet, stop func()) {
	b.t.Helper()
	if o.Credentials == nil {
		o.Credentials = func(_ context.Context, id string) (Credentials, error) {
			return Credentials{Broker: b.addr, ClientID: id, Username: "user", Password: "secret"}, nil
		}
	}
	o.RetryDelay = 20 * time.Millisecond
	f, err := New(o)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			b.t.Error(err)
		}
	})
	b.t.Cleanup(stop)
	return f, stop
}

const mcpClient = "mcp-client" // its id in MQTT; each initialize names another one

// A client is an MCP client of one device.
type client struct {
	*broker
	mqtt *paho.Client
	id   string // mcp-client-id
}

func (b *broker) client() *client {
	b.t.Helper()
	conn, err := net.Dial("tcp", b.addr)
	if err != nil {
		b.t.Fatal(err)
	}
	c := &client{broker: b, id: "c1"}
	c.mqtt = paho.NewClient(paho.ClientConfig{ClientID: mcpClient, Conn: conn,
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(p paho.PublishReceived) (bool, error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.published = append(b.published, *p.Packet)
			return true, nil
		}}})
	ack, err := c.mqtt.Connect(b.t.Context(), &paho.Connect{ClientID: mcpClient, KeepAlive: 60, CleanStart: true})
	if err != nil || ack.ReasonCode != 0 {
		b.t.Fatal(ack, err)
	}
	b.t.Cleanup(func() { _ = c.mqtt.Disconnect(&paho.Disconnect{}) })
	_, err = c.mqtt.Subscribe(b.t.Context(), &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{
		{Topic: "$mcp-server/presence/#"}, {Topic: "$mcp-server/capability/#"}, {Topic: "$mcp-rpc/#", NoLocal: true}}})
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

// received waits for a message on topic, and returns it.
func (c *client) received(topic string, ok func(paho.Publish) bool) (found paho.Publish) {
	c.t.Helper()
	fleettest.Eventually(c.t, "a message on "+topic, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		i := slices.IndexFunc(c.published, func(p paho.Publish) bool { return p.Topic == topic && ok(p) })
		if i >= 0 {
			found = c.published[i]
			c.published = slices.Delete(c.published, 0, i+1)
		}
		return i >= 0
	})
	return found
}

func online(p paho.Publish) bool  { return len(p.Payload) > 0 }
func offline(p paho.Publish) bool { return len(p.Payload) == 0 }

func (c *client) rpc() string { return "$mcp-rpc/" + c.id + "/sim-1/sim/lamp/sim-1" }

func (c *client) send(topic, payload string) {
	c.t.Helper()
	_, err := c.mqtt.Publish(c.t.Context(), &paho.Publish{Topic: topic, Payload: []byte(payload),
		Properties: &paho.PublishProperties{User: paho.UserProperties{{Key: "MCP-COMPONENT-TYPE", Value: "mcp-client"},
			{Key: "MCP-MQTT-CLIENT-ID", Value: c.id}}}})
	if err != nil {
		c.t.Fatal(err)
	}
}

// ask sends a request and returns the answer's result, or its error.
func (c *client) ask(id int, method, params string) string {
	c.t.Helper()
	topic := c.rpc()
	if method == "initialize" {
		topic = control
	}
	c.send(topic, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, id, method, params))
	var answer struct {
		ID            int
		Result, Error json.RawMessage
	}
	c.received(c.rpc(), func(p paho.Publish) bool { return json.Unmarshal(p.Payload, &answer) == nil && answer.ID == id })
	return string(answer.Result) + string(answer.Error)
}

func (c *client) call(id int, tool, arguments string) string {
	c.t.Helper()
	return c.ask(id, "tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, tool, arguments))
}

const initialize = `{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"test","version":"1"}}`

// wants checks that got has want.
func wants(t *testing.T, what, got, want string) {
	t.Helper()
	if !strings.Contains(got, want) {
		t.Errorf("%s: %s, want %s", what, got, want)
	}
}

func TestConformingDevice(t *testing.T) {
	b := newBroker(t)
	c := b.client()
	f, stop := b.start(Options{})
	d := f.Device(0)

	p := c.received(presence, online)
	wants(t, "presence", string(p.Payload), `"server_name":"sim/lamp/sim-1"`)
	if got := p.Properties.User.Get("MCP-MQTT-CLIENT-ID"); got != "sim-1" {
		t.Errorf("presence is sent by %q", got)
	}
	if _, retained := b.server.Topics.Retained.Get(presence); !retained {
		t.Error("the presence is not retained")
	}
	b.mu.Lock()
	hello := b.connects[0]
	b.mu.Unlock()
	if h := hello.Connect; !h.Clean || !h.WillRetain || h.WillTopic != presence || len(h.WillPayload) != 0 ||
		h.Keepalive != 60 {
		t.Errorf("CONNECT %+v", h)
	}
	wants(t, "properties of CONNECT", fmt.Sprint(hello.Properties.User), "MCP-COMPONENT-TYPE mcp-server")
	wants(t, "properties of CONNECT", fmt.Sprint(hello.Properties.User), "MCP-META")

	wants(t, "an unsupported version", c.ask(1, "initialize", `{"protocolVersion":"2020-01-01"}`),
		`"requested":"2020-01-01"`)
	wants(t, "initialize", c.ask(2, "initialize", initialize), `"protocolVersion":"2025-03-26"`)
	b.mu.Lock()
	subscribed := slices.Clone(b.subscribed)
	b.mu.Unlock()
	if want := []string{control + " no-local=false", "$mcp-client/presence/c1 no-local=false",
		"$mcp-client/capability/c1 no-local=false", c.rpc() + " no-local=true"}; !slices.Equal(subscribed, want) {
		t.Errorf("subscriptions %q, want %q", subscribed, want)
	}
	c.send(c.rpc(), `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	wants(t, "ping", c.ask(3, "ping", `{}`), `{}`)
	wants(t, "an unknown method", c.ask(4, "resources/list", `{}`), `"code":-32601`)

	list := c.ask(5, "tools/list", `{}`)
	wants(t, "tools", list, `"on":{"type":"boolean"}`)
	if strings.Contains(list, "read_temperature") {
		t.Error("the tool of the sensor is listed without a sensor")
	}
	wants(t, "a call", c.call(6, "set_light", `{"brightness":40,"on":true}`), `"isError":false`)
	wants(t, "a call without arguments", c.call(7, "get_status", `{}`), `\"brightness\":40`)
	if s := d.State(); !s.Light || s.Brightness != 40 {
		t.Errorf("state %+v", s)
	}
	for i, bad := range []string{`{"on":true}`, `{"on":1,"brightness":40}`, `{"on":null,"brightness":40}`,
		`{"on":false,"brightness":101}`, `{"kwargs":{"on":false,"brightness":1}}`, `[]`} {
		wants(t, bad, c.call(10+i, "set_light", bad), `"code":-32602`)
	}
	wants(t, "an unknown tool", c.call(20, "read_temperature", `{}`), `"code":-32602`)
	if s := d.State(); !s.Light || s.Brightness != 40 {
		t.Errorf("state %+v after calls that were refused", s)
	}

	c.call(21, "attach_sensor", `{"attached":true}`)
	wants(t, "capability", string(c.received(capability, online).Payload), "notifications/tools/list_changed")
	wants(t, "tools", c.ask(22, "tools/list", `{}`), `"name":"read_temperature"`)
	wants(t, "the new tool", c.call(23, "read_temperature", `{}`), "21.5")

	d.Crash()
	c.received(presence, offline) // its will
	c.received(presence, online)
	c.id = "c2"
	wants(t, "initialize after a crash", c.ask(24, "initialize", initialize), `"serverInfo"`)

	stop()
	c.received(presence, offline)
	if _, retained := b.server.Topics.Retained.Get(presence); retained {
		t.Error("the presence of a device that left is retained")
	}
}

func TestDeviceWithSDK(t *testing.T) {
	b := newBroker(t)
	c := b.client()
	f, stop := b.start(Options{SDK: 1})
	d := f.Device(0)

	if p := c.received(presence, online); len(p.Properties.User) != 0 {
		t.Errorf("properties %v", p.Properties.User)
	}
	b.mu.Lock()
	hello := b.connects[0]
	b.mu.Unlock()
	if h := hello.Connect; h.WillRetain || h.WillTopic != presence || h.WillProperties.WillDelayInterval != 1 ||
		h.Keepalive != 10 || hello.Properties.SessionExpiryInterval != 10 {
		t.Errorf("CONNECT %+v", h)
	}
	wants(t, "initialize", c.ask(1, "initialize", initialize), `"version":"0.0.1"`)
	wants(t, "tools", c.ask(2, "tools/list", `{}`), `"on":{"type":true}`)
	for i, tt := range []struct{ tool, arguments, want string }{
		{"set_light", `{"on":true,"brightness":40}`, `"code":-32600`}, // no kwargs
		{"set_light", `{"kwargs":{"brightness":40,"on":true}}`, `"code":-32601`},
		{"set_light", `{"kwargs":{"on":true}}`, `"code":-32601`},
		{"get_status", `{"kwargs":{}}`, `"code":-32601`},
		{"attach_sensor", `{"kwargs":{"attached":true}}`, `"code":-32601`},
	} {
		wants(t, tt.tool+tt.arguments, c.call(10+i, tt.tool, tt.arguments), tt.want)
	}
	if s := d.State(); s.Light {
		t.Errorf("state %+v after calls that were refused", s)
	}
	if got, want := c.call(20, "set_light", `{"kwargs":{"on":true,"brightness":40}}`),
		`{"content":[{"text":"true","type":"text"}]}`; got != want || !d.State().Light {
		t.Errorf("call: %s, want %s", got, want)
	}
	// A ping gets no answer: the answer to the next request comes first.
	c.send(c.rpc(), `{"jsonrpc":"2.0","id":21,"method":"ping"}`)
	c.ask(22, "tools/list", `{}`)

	subscriptions := func() int {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.subscribed)
	}
	before := subscriptions() // control topic and RPC topic
	d.Crash()
	c.received(presence, online)
	c.ask(23, "initialize", initialize) // the same client again
	fleettest.Eventually(t, "the control topic is subscribed again", func() bool { return subscriptions() == before+1 })
	c.id = "c2"
	c.ask(24, "initialize", initialize)
	fleettest.Eventually(t, "a new client's RPC topic is subscribed", func() bool { return subscriptions() == before+2 })

	stop()
	if _, retained := b.server.Topics.Retained.Get(presence); !retained {
		t.Error("the presence was cleared")
	}
}

// A device that is refused tries again with longer and longer pauses.
func TestRefusedDeviceTriesAgain(t *testing.T) {
	b := newBroker(t)
	b.refuse = true
	f, _ := b.start(Options{Devices: 2})
	fleettest.Eventually(t, "four attempts", func() bool { return f.Stats().ConnectFailures >= 4 })
	b.mu.Lock()
	b.refuse = false
	b.mu.Unlock()
	fleettest.Eventually(t, "both connected", func() bool { return f.Stats().Connected == 2 })
}

// If the first device gets no credentials, the fleet does not run. Other devices ask again.
func TestCredentialsFail(t *testing.T) {
	b := newBroker(t)
	forbidden := errors.New("role viewer may not create devices")
	f, err := New(Options{Credentials: func(context.Context, string) (Credentials, error) {
		return Credentials{}, forbidden
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Run(t.Context()); !errors.Is(err, forbidden) {
		t.Errorf("the fleet ended with %v, want %v", err, forbidden)
	}

	asked := make(map[string]int)
	var mu sync.Mutex
	f, _ = b.start(Options{Devices: 3, Credentials: func(_ context.Context, id string) (Credentials, error) {
		mu.Lock()
		defer mu.Unlock()
		if asked[id]++; id == "sim-2" && asked[id] < 3 {
			return Credentials{}, errors.New("the server restarts")
		}
		return Credentials{Broker: b.addr, ClientID: id, Username: "user", Password: "secret"}, nil
	}})
	fleettest.Eventually(t, "all connected", func() bool { return f.Stats().Connected == 3 })
	f.Device(0).Crash()
	fleettest.Eventually(t, "connected again", func() bool { return f.Stats().Connects == 4 })
	mu.Lock()
	defer mu.Unlock()
	if asked["sim-1"] != 1 || asked["sim-2"] != 3 {
		t.Errorf("requests for credentials: %v", asked)
	}
}

// An idle device pings within its keepalive.
func TestKeepalive(t *testing.T) {
	b := newBroker(t)
	f, _ := b.start(Options{Keepalive: time.Second})
	fleettest.Eventually(t, "connected", func() bool { return f.Stats().Connected == 1 })
	time.Sleep(2500 * time.Millisecond) // mochi ends it after 1.5 s of silence
	if s := f.Stats(); s.Connects != 1 || s.Connected != 1 {
		t.Errorf("%+v, want one connection", s)
	}
}
