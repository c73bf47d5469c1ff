package main

import (
	"encoding/json"
	"log/slog"
	"net"
	"testing"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/listeners"
	"github.com/mochi-mqtt/server/v2/packets"
)

// A rawBroker is a broker that passes on any message: a device may meet one if
// fleetd is not in between.
type rawBroker struct {
	t      *testing.T
	addr   string
	server *mqtt.Server
	up     chan string
	device chan *mqtt.Client // each whose CONNECT was answered
}

// anybody lets every client do anything.
type anybody struct {
	mqtt.HookBase
	connected chan<- *mqtt.Client
}

func (*anybody) ID() string { return "anybody" }

func (*anybody) Provides(b byte) bool {
	return b == mqtt.OnConnectAuthenticate || b == mqtt.OnACLCheck || b == mqtt.OnSessionEstablished
}

func (*anybody) OnConnectAuthenticate(*mqtt.Client, packets.Packet) bool { return true }

func (*anybody) OnACLCheck(*mqtt.Client, string, bool) bool { return true }

// A client is listed before the broker answers its CONNECT, and a message that
// overtakes the answer ends its connection.
func (a *anybody) OnSessionEstablished(c *mqtt.Client, _ packets.Packet) {
	select {
	case a.connected <- c:
	default: // no test waits for so many
	}
}

func newRawBroker(t *testing.T) *rawBroker {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &rawBroker{t: t, addr: ln.Addr().String(), up: make(chan string, 64),
		device: make(chan *mqtt.Client, 8),
		server: mqtt.New(&mqtt.Options{InlineClient: true, Logger: slog.New(slog.DiscardHandler)})}
	t.Cleanup(func() { _ = b.server.Close() })
	if err := b.server.AddHook(&anybody{connected: b.device}, nil); err != nil {
		t.Fatal(err)
	}
	if err := b.server.AddListener(listeners.NewNet("raw", ln)); err != nil {
		t.Fatal(err)
	}
	if err := b.server.Serve(); err != nil {
		t.Fatal(err)
	}
	err = b.server.Subscribe("#", 1, func(_ *mqtt.Client, _ packets.Subscription, p packets.Packet) {
		select {
		case b.up <- string(p.Payload):
		default: // no test waits for these
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// ask sends a message and returns the answer with the id, as JSON.
func (b *rawBroker) ask(c *mqtt.Client, id int, wire string) (answer struct {
	Payload struct {
		ID     *int
		Result json.RawMessage
		Error  *struct {
			Code    int
			Message string
		}
	}
}) {
	b.t.Helper()
	err := c.WritePacket(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Publish}, TopicName: "down",
		Payload: []byte(wire)})
	if err != nil {
		b.t.Fatal(err)
	}
	for timeout := time.After(time.Minute); ; {
		select {
		case text := <-b.up:
			if json.Unmarshal([]byte(text), &answer) == nil && answer.Payload.ID != nil && *answer.Payload.ID == id {
				return answer
			}
		case <-timeout:
			b.t.Fatalf("no answer to %s", wire)
		}
	}
}

// A client that reaches the device without fleetd is not an operator: the
// device itself keeps its tools for people from models.
func unitGuardsItself(t *testing.T, d *daemon) {
	b := newRawBroker(t)
	u := newUnit(t, d, 5, "--broker", b.addr)
	u.start()
	d.claimed(u)
	var c *mqtt.Client
	select {
	case c = <-b.device:
	case <-time.After(time.Minute):
		t.Fatal("the unit does not connect")
	}

	tests := []struct {
		id   int
		wire string
		code int // 0: it runs
	}{
		{1, `{"type":"mcp","payload":{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"self.get_device_status","arguments":{}}}}`, 0},
		{2, `{"type":"mcp","payload":{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"self.reboot","arguments":{}}}}`, -32001},
		{3, `{"type":"mcp","scope":"model","payload":{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"self.get_system_info","arguments":{}}}}`, -32001},
		{4, `{"type":"mcp","scope":"operator","payload":{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"self.get_system_info","arguments":{}}}}`, 0},
		{5, `{"type":"mcp","payload":{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"self.nope","arguments":{}}}}`, -32602},
	}
	for _, tt := range tests {
		a := b.ask(c, tt.id, tt.wire).Payload
		switch {
		case tt.code == 0 && (a.Error != nil || len(a.Result) == 0):
			t.Errorf("%s: %+v", tt.wire, a)
		case tt.code != 0 && (a.Error == nil || a.Error.Code != tt.code):
			t.Errorf("%s: %+v, want %d", tt.wire, a, tt.code)
		}
	}
}
