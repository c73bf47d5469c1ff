// Package dialect defines what differs between kinds of device: the topics they use, the wire
// format of a message, how a connection begins, what its end shows, and the parameters of a call.
// The rest is the same for every device and belongs to package broker: credentials, presence,
// inventory, calls, the order in which they are sent.
//
// A [Dialect] is the language of one connection. There are two, both of xiaozhi firmware: over
// MQTT ([OverMQTT]) and over a WebSocket ([XiaozhiWebSocket]).
//
// # A third dialect
//
// A third dialect gets a file in this package, with a type that implements [Dialect]. It is
// selected where a device connects: over MQTT by its row in the table of [OverMQTT], over a
// WebSocket by the address that the device dials, whose handler in package broker creates the
// connection with it. Package broker needs no other change: it does not branch on the kind of a
// device.
//
// The type supplies seven methods, and embeds [Mute] if its devices hold no conversations with
// people:
//
//   - Opening: whether fleetd sends the first request or waits for the device, whether each
//     connection needs initialize, and what CONNACK offers.
//   - MayPublish, MaySubscribe: the topics.
//   - Decode: from what the device published to a [Message].
//   - Address, Wrap: from a JSON-RPC message to topic, properties and payload.
//   - Call: the parameters of tools/call, as this firmware reads them. If it needs
//     more of the tool than its name, a schema for instance, that becomes a field
//     of [fleet.Invocation].
//
// MCP over MQTT (EMQX), for example, waits for the device's presence, which is [Ready]; needs
// initialize; allows retained messages and wildcards; and addresses initialize to the control
// topic and all else to the topic of its RPCs, under a client id that it draws for each
// connection and names in a user property. A device that dials in with plain JSON-RPC has no
// topics, gets the first request at once, and wraps nothing. A test of package broker runs the
// first of the two.
//
// # What it does not know
//
// Packets, frames, sockets, queues and deadlines belong to the broker's carriers. Package dialect
// does no input or output, uses no locks, and starts no goroutines.
package dialect
