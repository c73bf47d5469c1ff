package mqtt5

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// The ESP-IDF SDK 0.0.1 deviates from the protocol:
//
//   - It reads the arguments of a call from the member kwargs of arguments. It requires all declared
//     ones, in their order, and refuses a tool without any.
//   - It lists the type of a Boolean as true, and every argument as required.
//   - Its will has no retain flag, and a delay; it does not clear its presence when it stops.
//   - Its messages have no user properties.
//   - It does not subscribe again for an mcp-client-id that it knows, not even after a reconnect.
//   - It answers initialize without waiting for the subscription, and no method that it does not know.
//   - It cuts topics off.
const (
	sdkKeepalive     = 10 * time.Second
	sdkSessionExpiry = 10  // seconds
	sdkWillDelay     = 1   // seconds
	sdkTopicLength   = 127 // bytes that fit its buffers
)

// sdkConnect makes hello the CONNECT of the SDK.
func sdkConnect(hello *packets.Connect) {
	expiry, delay := uint32(sdkSessionExpiry), uint32(sdkWillDelay)
	hello.WillRetain, hello.WillProperties.WillDelayInterval = false, &delay
	hello.Properties = &packets.Properties{SessionExpiryInterval: &expiry,
		User: []packets.User{{Key: componentType, Value: component}}}
}

func sdkTopic(topic string) string { return topic[:min(len(topic), sdkTopicLength)] }

func (s *session) sdkInitialize(r request, client, rpc string) error {
	d := s.device
	if !d.known[client] {
		if d.known == nil {
			d.known = make(map[string]bool)
		}
		d.known[strings.Clone(client)] = true
		if err := s.subscribe(nil, packets.SubOptions{Topic: rpc, NoLocal: true}); err != nil {
			return err
		}
	}
	return s.answer(r, rpc, `{"protocolVersion":"2024-11-05","serverInfo":{"name":"mcp","version":"0.0.1"},`+
		`"capabilities":{"tools":{"listChanged":true}}}`)
}

// sdkCall runs a tool with the arguments of kwargs.
func (d *Device) sdkCall(params json.RawMessage) (string, error) {
	var call struct {
		Name      string
		Arguments struct{ Kwargs json.RawMessage }
	}
	invalid := &rpcError{Code: codeInvalidRequest, Message: "Invalid params"}
	if json.Unmarshal(params, &call) != nil || call.Name == "" {
		return "", invalid
	}
	names, values, ok := members(call.Arguments.Kwargs)
	if !ok {
		return "", invalid
	}
	t, _ := d.tool(call.Name)
	unknown := &rpcError{Code: codeUnknownMethod, Message: "Method not found"}
	if t == nil || len(names) == 0 || len(names) != len(t.params) {
		return "", unknown
	}
	args := make([]int, len(names))
	for i, p := range t.params {
		if names[i] != p.name {
			return "", unknown
		}
		args[i], _ = p.read(values[i]) // a wrong type becomes 0
	}
	return d.run(t, args), nil
}

// members returns the members of an object in their order.
func members(object json.RawMessage) (names []string, values []json.RawMessage, ok bool) {
	dec := json.NewDecoder(bytes.NewReader(object))
	if begin, err := dec.Token(); err != nil || begin != json.Delim('{') {
		return nil, nil, false
	}
	for dec.More() {
		name, err := dec.Token()
		var value json.RawMessage
		if err != nil || dec.Decode(&value) != nil {
			return nil, nil, false
		}
		names, values = append(names, name.(string)), append(values, value)
	}
	return names, values, true
}
