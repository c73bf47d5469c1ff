// Package dialect says what differs between kinds of device: the topics they use,
// how a message looks on the wire, what a connection begins with and what its end
// shows, and the parameters of a call. All else is the same for every device, and
// stays in package broker: credentials, presence, inventory, calls, the order in
// which they are sent.
//
// A [Dialect] is the language of one connection. There are two, both of xiaozhi
// firmware: over MQTT ([OverMQTT]) and over a WebSocket ([XiaozhiWebSocket]).
//
// # A third dialect
//
// It gets a file in this package, with a type that implements [Dialect], and is
// found where a device connects: over MQTT by its row in the table of [OverMQTT],
// over a WebSocket by the address that the device dials, whose handler in package
// broker makes the connection with it. Package broker needs no other change: it
// does not branch on the kind of a device.
//
// The type supplies seven methods, and embeds [Mute] if its devices hold no
// conversations with people:
//
//   - Opening: whether fleetd asks first or waits for the device, whether each
//     connection needs initialize, and what CONNACK offers.
//   - MayPublish, MaySubscribe: the topics.
//   - Decode: from what the device published to a [Message].
//   - Address, Wrap: from a JSON-RPC message to topic, properties and payload.
//   - Call: the parameters of tools/call, as this firmware reads them. If it needs
//     more of the tool than its name, a schema for instance, that becomes a field
//     of [fleet.Invocation].
//
// MCP over MQTT (EMQX), for example, waits for the device's presence, which is
// [Ready]; needs initialize; allows retained messages and wildcards; and addresses
// initialize to the control topic and all else to the topic of its RPCs, under a
// client id that it draws for each connection and names in a user property. A
// device that dials in with plain JSON-RPC has no topics, is asked at once, and
// wraps nothing. A test of package broker runs the first of the two.
//
// # What it does not know
//
// Packets, frames, sockets, queues and deadlines: the broker's carriers have them.
// It does no input or output, keeps no locks, and starts no goroutines.
package dialect
