package broker

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"fleetd/broker/dialect"
	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

// lampDevices admits devices with a client id of MCP over MQTT.
type lampDevices struct{ *domain }

func (d lampDevices) Authenticate(clientID, _ string, password []byte, _ string) (fleet.DeviceID, error) {
	if string(password) != passwordOf(clientID) {
		return "", errors.New("wrong password")
	}
	return fleet.ParseDeviceID(clientID)
}

// userProperty returns an MQTT 5 user property in wire format.
func userProperty(key, value string) []byte { return slices.Concat([]byte{0x26}, str(key), str(value)) }

var mcpServer = userProperty(dialect.MCPComponent, dialect.MCPServer)

// sent returns the next message to the device.
func (w *wire) sent() (topic string, properties []byte, request rpc) {
	w.t.Helper()
	body := w.expect(0x30)
	n := 2 + int(binary.BigEndian.Uint16(body))
	topic, body = string(body[2:n]), body[n:]
	size, used := binary.Uvarint(body)
	end := used + int(size)
	properties = body[used:end]
	if err := json.Unmarshal(body[end:], &request); err != nil {
		w.t.Fatal(err)
	}
	return topic, properties, request
}

// A lampWire is a device of MCP over MQTT, byte by byte.
type lampWire struct {
	*wire
	presence, control string
	caller            string // the mcp-client-id of the latest initialize
}

const lampID = "lamp-1"

func newLamp(t *testing.T) *lampWire {
	w := newWire(t, 5, func(o *options) {
		o.Devices = lampDevices{o.Devices.(*domain)}
		o.VisionURL = func(string) (string, string) { return "http://photo", "t" }
		o.onboardingDelays = []time.Duration{time.Hour}
	})
	w.id = lampID
	return &lampWire{wire: w, presence: dialect.MCPPresence + lampID + "/light/desk",
		control: dialect.MCPControl + lampID + "/light/desk"}
}

// hello returns a CONNECT with a will, retained; "" is no will.
func (l *lampWire) hello(will string) hello {
	h := l.wire.hello()
	h.props = mcpServer
	h.payload = slices.Concat(str(lampID), str("user"), str(passwordOf(lampID)))
	if will != "" {
		h.flags |= 0x04 | 0x20
		h.payload = slices.Concat(str(lampID), []byte{0}, str(will), str(""), str("user"), str(passwordOf(lampID)))
	}
	return h
}

func (l *lampWire) rpc() string { return dialect.MCPRPC + l.caller + "/" + lampID + "/light/desk" }

// publish publishes as a conforming device does.
func (l *lampWire) publish(topic, payload string) {
	flags := byte(0)
	if topic == l.presence {
		flags = 1
	}
	l.write(l.messageTo(topic, flags, 0, mcpServer, payload))
}

const lampOnline = `{"jsonrpc":"2.0","method":"notifications/server/online","params":{"server_name":"light/desk"}}`

func (l *lampWire) reply(id int64, member string) {
	l.publish(l.rpc(), fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,%s}`, id, member))
}

// initialize receives initialize and returns its number and parameters.
func (l *lampWire) initialize() (id int64, params string) {
	l.t.Helper()
	topic, properties, request := l.sent()
	if topic != l.control || request.Method != "initialize" ||
		!bytes.Contains(properties, userProperty(dialect.MCPComponent, dialect.MCPClient)) {
		l.t.Fatalf("%s %q %+v, want initialize", topic, properties, request)
	}
	_, sender, _ := bytes.Cut(properties, str(dialect.MCPSender))
	l.caller = string(sender[2 : 2+binary.BigEndian.Uint16(sender)])
	return request.ID, string(request.Params)
}

// answers answers the next request to the RPC topic, which must be of the method.
func (l *lampWire) answers(method, member string) (params string) {
	l.t.Helper()
	topic, _, request := l.sent()
	if topic != l.rpc() || request.Method != method {
		l.t.Fatalf("%s %+v, want %s", topic, request, method)
	}
	if member != "" {
		l.reply(request.ID, member)
	}
	return string(request.Params)
}

const lampTools = `"result":{"tools":[{"name":"lamp","inputSchema":{"type":"object","properties":{"on":{"type":"boolean"}}}}]}`

// introduce connects the lamp and answers until its tools are listed.
func (l *lampWire) introduce() {
	l.t.Helper()
	l.write(l.hello(l.presence).bytes())
	l.expect(0x20)
	l.publish(l.presence, lampOnline)
	id, _ := l.initialize()
	l.reply(id, initResult)
	l.answers("notifications/initialized", "")
	l.answers("tools/list", lampTools)
	fleettest.Eventually(l.t, "it is introduced", func() bool { return l.b.Introduced(lampID) })
}

func TestMCPOverMQTTOnTheWire(t *testing.T) {
	l := newLamp(t)
	l.write(l.hello(l.presence).bytes())
	connack := l.expect(0x20)
	if connack[1] != 0 || bytes.Contains(connack, str(dialect.MCPServerName)) ||
		!bytes.Contains(connack, []byte{0x25, 1}) || !bytes.Contains(connack, []byte{0x28, 1}) {
		t.Errorf("CONNACK %x", connack)
	}
	codes := l.subscribe(9, nil, wish{l.control, 0}, wish{"$mcp-rpc/+/" + lampID + "/#", 4}, wish{"$mcp-rpc/#", 0})
	if !bytes.Equal(codes, []byte{0, 0, 0x87}) {
		t.Errorf("SUBACK with codes %x", codes)
	}

	fleettest.Eventually(t, "it is connected", func() bool { _, ok := l.b.Connection(lampID); return ok })

	// A call waits until the device has answered initialize and listed its tools.
	answer := make(chan error, 1)
	go func() {
		a, err := makeCall(l.b, lampID, "lamp", `{"on":true}`, deadline, nil)
		if err == nil && a.Text != "lit" {
			err = fmt.Errorf("answer %+v", a)
		}
		answer <- err
	}()
	l.ping()
	if l.b.Introduced(lampID) || l.b.Stats().PublishesOut != 0 {
		t.Error("the device was sent a request before it was ready")
	}
	l.publish(l.presence, lampOnline)
	id, params := l.initialize()
	if !strings.Contains(params, `"2025-03-26"`) || strings.Contains(params, "vision") {
		t.Errorf("initialize with %s", params)
	}
	l.reply(id, initResult)
	l.answers("notifications/initialized", "")
	l.answers("tools/list", lampTools)
	topic, _, request := l.sent()
	if topic != l.rpc() || string(request.Params) != `{"name":"lamp","arguments":{"on":true}}` {
		t.Errorf("%s %+v", topic, request)
	}

	// The answer to a call counts on the device's topic only.
	foreign := dialect.MCPRPC + l.caller + "/lamp-2/light/desk"
	l.publish(foreign, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,%s}`, request.ID, textResult("forged")))
	l.reply(request.ID, textResult("lit"))
	if err := <-answer; err != nil {
		t.Error(err)
	}
	if s := l.b.Stats(); s.ForeignTopics != 1 || s.Unreadable != 0 || s.ProtocolErrors != 0 {
		t.Errorf("%+v", s)
	}
	preview, err := l.b.EncodeCall(lampID, fleet.Invocation{Tool: "lamp", Arguments: json.RawMessage(`{"on":true}`)})
	if err != nil || string(preview.Message) != string(preview.Request) {
		t.Errorf("%+v, %v", preview, err)
	}

	// Its tools change, and it is alive if it lists them: devices of this kind need not know ping.
	l.publish(dialect.MCPCapability+lampID+"/light/desk", `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
	l.answers("tools/list", strings.ReplaceAll(lampTools, `"lamp"`, `"beam"`))
	fleettest.Eventually(t, "the changed list is stored", func() bool {
		all := l.dom.listed()
		return len(all) == 2 && all[1].Inventory.Tools[0].Name == "beam"
	})
	alive := make(chan error, 1)
	go func() {
		_, err := l.b.Ping(context.Background(), lampID)
		alive <- err
	}()
	l.answers("tools/list", lampTools)
	if err := <-alive; err != nil {
		t.Errorf("ping: %v", err)
	}

	// An empty presence ends the connection: a call would have no receiver.
	l.publish(l.presence, "")
	l.closed(0)
	fleettest.Eventually(t, "it has left", func() bool {
		return l.dom.count("disconnected "+lampID+" clean=true") == 1
	})
}

// A device that supports another revision of MCP is initialized with that one.
func TestMCPOverMQTTRevision(t *testing.T) {
	l := newLamp(t)
	l.write(l.hello("").bytes())
	if connack := l.expect(0x20); !bytes.Contains(connack, userProperty(dialect.MCPServerName, "mqtt5/"+lampID)) {
		t.Errorf("no server-name is suggested to a device without a will: CONNACK %x", connack)
	}
	l.publish(l.presence, lampOnline)
	id, _ := l.initialize()
	l.reply(id, `"error":{"code":-32602,"message":"Unsupported protocol version",`+
		`"data":{"supported":["2024-11-05"],"requested":"2025-03-26"}}`)
	id, params := l.initialize()
	if !strings.Contains(params, `"2024-11-05"`) {
		t.Errorf("the second initialize has %s", params)
	}
	l.reply(id, initResult)
	l.answers("notifications/initialized", "")
	l.answers("tools/list", lampTools)
	fleettest.Eventually(t, "it is introduced", func() bool { return l.b.Introduced(lampID) })
}

// Each connection is initialized, under another mcp-client-id, even if its tools are on record:
// the SDK does not subscribe again for a client that it knows.
func TestMCPOverMQTTConnectsAgain(t *testing.T) {
	l := newLamp(t)
	l.introduce()
	before := l.caller
	l.publish(l.rpc(), `{"jsonrpc":"2.0","method":"notifications/disconnected"}`)
	l.closed(0)
	again := *l
	again.wire = l.again()
	again.introduce()
	if again.caller == before {
		t.Errorf("the mcp-client-id %s is used twice", before)
	}
}

func TestMCPOverMQTTForeignWill(t *testing.T) {
	for _, will := range []string{"$mcp-server/presence/lamp-2/light/desk", "$mcp-rpc/x/lamp-2/light/desk",
		"$mcp-server/lamp-1/light/desk"} {
		l := newLamp(t)
		l.write(l.hello(will).bytes())
		if connack := l.expect(0x20); connack[1] != 0x87 {
			t.Errorf("will to %s: CONNACK %x", will, connack)
		}
	}
}
