package broker

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"fleetd/broker/dialect"
	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/mcp"
)

// thirdDialect implements enough of EMQX's dialect, MCP over MQTT, to show that the broker needs
// no change for another dialect: other topics and client ids, wildcards, retained presence that
// arrives before any request, user properties, no envelope, and arguments in a member kwargs.
type thirdDialect struct {
	dialect.Mute
	device, server string
}

const thirdClient = "f1-7" // fleetd, as an MCP client

func thirdOverMQTT(c dialect.Connect) (dialect.Dialect, fleet.DeviceID) {
	id, err := fleet.ParseDeviceID(c.ClientID)
	server, named := strings.CutPrefix(c.Will.Topic, "$mcp-server/presence/"+c.ClientID+"/")
	if err != nil || !named || c.Version != 5 ||
		!slices.Contains(c.Properties, dialect.Property{Key: "MCP-COMPONENT-TYPE", Value: "mcp-server"}) {
		return dialect.OverMQTT(c)
	}
	return &thirdDialect{device: c.ClientID, server: server}, id
}

func (d *thirdDialect) presence() string { return "$mcp-server/presence/" + d.device + "/" + d.server }
func (d *thirdDialect) control() string  { return "$mcp-server/" + d.device + "/" + d.server }
func (d *thirdDialect) rpc() string {
	return "$mcp-rpc/" + thirdClient + "/" + d.device + "/" + d.server
}

func (d *thirdDialect) Opening() dialect.Opening {
	return dialect.Opening{Initialize: true, Retain: true, Wildcards: true,
		Properties: []dialect.Property{{Key: "MCP-SERVER-NAME", Value: d.server}}}
}

func (d *thirdDialect) MayPublish(topic string) bool {
	return topic == d.presence() || topic == d.rpc()
}

func (d *thirdDialect) MaySubscribe(filter string) bool {
	return filter == d.control() || filter == "$mcp-rpc/+/"+d.device+"/#"
}

func (d *thirdDialect) Decode(topic string, payload []byte, _ []dialect.Property) (dialect.Message, error) {
	switch {
	case topic == d.rpc():
		return dialect.Message{Kind: dialect.RPC, Payload: payload}, nil
	case len(payload) > 0:
		return dialect.Message{Kind: dialect.Ready, Payload: payload}, nil
	}
	return dialect.Message{}, nil // the device is about to disconnect
}

func (d *thirdDialect) Address(msg []byte) dialect.Address {
	to := dialect.Address{Topic: d.rpc(), Properties: []dialect.Property{
		{Key: "MCP-COMPONENT-TYPE", Value: "mcp-client"}, {Key: "MCP-MQTT-CLIENT-ID", Value: thirdClient}}}
	var request struct{ Method string }
	if json.Unmarshal(msg, &request) == nil && request.Method == "initialize" {
		to.Topic = d.control()
	}
	return to
}

func (d *thirdDialect) Wrap(dst, msg []byte, _ mcp.Scope) []byte { return append(dst, msg...) }

func (d *thirdDialect) Call(inv fleet.Invocation) (mcp.CallToolParams, error) {
	if string(inv.Arguments) == "{}" {
		return mcp.CallToolParams{}, fmt.Errorf("%w: this firmware runs no tool without arguments", mcp.ErrInvalid)
	}
	arguments := slices.Concat([]byte(`{"kwargs":`), inv.Arguments, []byte(`}`))
	return mcp.CallToolParams{Name: inv.Tool, Arguments: arguments}, nil
}

// thirdDevices admits devices with a client id of their dialect.
type thirdDevices struct{ *domain }

func (d thirdDevices) Authenticate(clientID, _ string, password []byte, _ string) (fleet.DeviceID, error) {
	if string(password) != passwordOf(clientID) {
		return "", errors.New("wrong password")
	}
	return fleet.ParseDeviceID(clientID)
}

// userProperty returns an MQTT 5 user property in wire format.
func userProperty(key, value string) []byte { return slices.Concat([]byte{0x26}, str(key), str(value)) }

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

func TestThirdDialect(t *testing.T) {
	w := newWire(t, 5, func(o *Options) {
		o.overMQTT, o.Devices, o.VisionURL = thirdOverMQTT, thirdDevices{o.Devices.(*domain)}, nil
	})
	id, _ := fleet.ParseDeviceID("02:00:00:00:00:09")
	w.id = id
	d := thirdDialect{device: string(id), server: "lamp/desk"}
	h := w.hello()
	h.flags |= 0x04 | 0x20 // a will, retained
	h.props = userProperty("MCP-COMPONENT-TYPE", "mcp-server")
	h.payload = slices.Concat(str(d.device), []byte{0}, str(d.presence()), str(""), str("user"), str(passwordOf(d.device)))
	w.write(h.bytes())
	connack := w.expect(0x20)
	if connack[1] != 0 || !bytes.Contains(connack, userProperty("MCP-SERVER-NAME", d.server)) ||
		!bytes.Contains(connack, []byte{0x25, 1}) || !bytes.Contains(connack, []byte{0x28, 1}) {
		t.Errorf("CONNACK %x", connack)
	}
	codes := w.subscribe(9, nil, wish{d.control(), 0}, wish{"$mcp-rpc/+/" + d.device + "/#", 4}, wish{"$mcp-rpc/#", 0})
	if !bytes.Equal(codes, []byte{0, 0, 0x87}) {
		t.Errorf("SUBACK with codes %x", codes)
	}
	if w.b.Introduced(id) || w.b.Stats().PublishesOut != 0 {
		t.Error("the device was asked before it was ready")
	}

	w.write(w.messageTo(d.presence(), 1, 0, nil, `{"jsonrpc":"2.0","method":"notifications/server/online"}`))
	topic, properties, request := w.sent()
	if topic != d.control() || request.Method != "initialize" ||
		!bytes.Contains(properties, userProperty("MCP-MQTT-CLIENT-ID", thirdClient)) {
		t.Fatalf("%s %q %+v", topic, properties, request)
	}
	w.write(w.messageTo(d.rpc(), 0, 0, userProperty("MCP-COMPONENT-TYPE", "mcp-server"),
		fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,%s}`, request.ID, initResult)))
	if topic, _, request = w.sent(); topic != d.rpc() || request.Method != "notifications/initialized" {
		t.Errorf("%s %+v", topic, request)
	}
	fleettest.Eventually(t, "it is introduced", func() bool { return w.b.Introduced(id) })

	answer := make(chan error, 1)
	go func() {
		a, err := makeCall(w.b, id, "lamp", `{"on":true}`, deadline, nil)
		if err == nil && a.Text != "lit" {
			err = fmt.Errorf("answer %+v", a)
		}
		answer <- err
	}()
	topic, _, request = w.sent()
	if topic != d.rpc() || string(request.Params) != `{"name":"lamp","arguments":{"kwargs":{"on":true}}}` {
		t.Errorf("%s %+v", topic, request)
	}
	foreign := "$mcp-rpc/" + thirdClient + "/020000000001/lamp"
	w.write(w.messageTo(foreign, 0, 0, nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,%s}`, request.ID, textResult("forged"))))
	w.write(w.messageTo(d.rpc(), 0, 0, nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,%s}`, request.ID, textResult("lit"))))
	if err := <-answer; err != nil {
		t.Error(err)
	}
	if s := w.b.Stats(); s.ForeignTopics != 1 || s.Unreadable != 0 || s.ProtocolErrors != 0 {
		t.Errorf("%+v", s)
	}

	preview, err := w.b.EncodeCall(id, fleet.Invocation{Tool: "lamp", Arguments: json.RawMessage(`{"on":true}`)})
	if err != nil || string(preview.Message) != string(preview.Request) ||
		!strings.Contains(string(preview.Message), "kwargs") {
		t.Errorf("%+v, %v", preview, err)
	}
	if _, err := makeCall(w.b, id, "lamp", `{}`, deadline, nil); !errors.Is(err, fleet.ErrInvalid) {
		t.Errorf("a call that the dialect refuses: %v", err)
	}

	// The device leaves.
	w.write(w.messageTo(d.presence(), 1, 0, nil, ""))
	w.ping()
	w.write([]byte{0xe0, 0})
	fleettest.Eventually(t, "it has left", func() bool {
		return w.dom.count("disconnected "+string(id)+" clean=true") == 1
	})
}
