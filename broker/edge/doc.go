// Package edge holds the connections of devices: MQTT, with and without TLS, and WebSockets. What the
// messages mean, and which device may connect, is decided by the core, which it reaches through
// package link: in the same process, or on another machine.
//
// The MQTT protocol is implemented by mochi-mqtt, unpatched. The edge adds a listener that survives
// hostile sockets, and a hook that limits what a client may do. Nothing is ever routed by topic: a
// device publishes to fleetd only, and messages to it are written directly to its connection, so no
// SUBSCRIBE is needed. Conversations with a voice server stay here, so they go on without the core.
//
// No lock is held while a method of mqtt.Client or of a link.Connection runs: a stuck socket keeps
// the client's lock for seconds.
package edge
