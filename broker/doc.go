// Package broker is the fleet's side of MQTT: it lets devices in, keeps one
// connection per device, and carries calls to them and answers back.
//
// The MQTT protocol itself is mochi-mqtt's, unpatched. Around it stand a
// listener that survives hostile sockets, a hook that says who may do what, and
// a registry of devices that outlives their connections. Nothing is ever routed
// by topic: a device publishes to the fleet alone, and messages to it are
// written straight to its connection, so that no SUBSCRIBE is needed.
//
// A connection has a carrier, which is MQTT or a WebSocket, and a dialect, which
// says what the device's messages mean and how it is addressed: see package
// dialect. Nothing else depends on the kind of a device.
//
// The broker knows no SQL and no operators. It queries and notifies the domain
// through [Devices]; callers reach devices through it as a [fleet.Link].
//
// # Locks
//
// In this order, each held for a few instructions: registryShard.mu, device.mu,
// connection.mu. None is held while a method of mqtt.Client, mcp.Session or
// Devices runs: a stuck socket keeps the client's own lock for seconds. Before
// all of them comes device.takeover, which a connection holds from OnSessionEstablish
// to OnSessionEstablished, the DISCONNECT of the one before it included; only later
// connections of the device want it. handshakes.mu is held alone.
package broker
