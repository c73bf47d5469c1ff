// Package broker is the MQTT server of the fleet: it authenticates devices, keeps one connection
// per device, sends calls to devices and returns their answers.
//
// The MQTT protocol is implemented by mochi-mqtt, unpatched. The broker adds a listener that
// survives hostile sockets, a hook that decides what a client may do, and a registry of devices
// that outlives their connections. Nothing is ever routed by topic: a device publishes to the
// broker only, and messages to it are written directly to its connection, so no SUBSCRIBE is
// needed.
//
// A connection has a carrier, which is MQTT or a WebSocket, and a dialect, which defines what the
// device's messages mean and how it is addressed: see package dialect. Nothing else depends on
// the kind of a device.
//
// The broker knows no SQL and no operators. It queries and notifies the domain through [Devices];
// callers reach devices through it as a [fleet.Link].
//
// # Locks
//
// Locks are acquired in this order, each for a few instructions: registryShard.mu, device.mu,
// connection.mu. None is held while a method of mqtt.Client, mcp.Session or Devices runs: a stuck
// socket keeps the client's lock for seconds. device.takeover comes before all of them. A
// connection holds it from OnSessionEstablish to OnSessionEstablished, including the DISCONNECT
// of the previous connection; only later connections of the device wait for it. handshakes.mu is
// acquired alone.
package broker
