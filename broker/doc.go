// Package broker gives the connections of devices their meaning: it admits devices, keeps one
// connection for each, sends calls to them and returns their answers. It is the core's half of the
// MQTT broker; package broker/edge holds the sockets, and package broker/link is what they know of
// each other.
//
// A connection has a carrier at an edge, which is MQTT or a WebSocket, and a dialect, which defines
// what the device's messages mean and how it is addressed: see package dialect. Nothing else depends
// on the kind of a device. The registry of devices outlives their connections.
//
// The broker knows no SQL and no operators. It queries and notifies the domain through [Devices];
// callers reach devices through it as a [fleet.Link].
//
// # Locks
//
// Locks are acquired in this order, each for a few instructions: registryShard.mu, device.mu,
// connection.mu. None is held while a method of link.Carrier, mcp.Session or Devices runs.
// device.takeover comes before all of them. A connection holds it from Establish to Established,
// including the DISCONNECT of the previous connection; only later connections of the device wait
// for it.
package broker
