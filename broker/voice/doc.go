// Package voice relays conversations between devices and a voice server, the upstream: audio over
// UDP on the device's side, over a WebSocket on the upstream's side, and the JSON messages of
// both.
//
// It decides nothing about tools. The language model behind an upstream lists the tools that
// fleetd has on record, and each of its tools/call becomes a call of fleetd by a principal of
// kind voice, judged and recorded like any other; none of its MCP messages reach the device.
// Neither audio nor speech is stored.
//
// # Goroutines and locks
//
// One goroutine reads the UDP socket for all conversations and never waits for any of them: it
// writes a frame to the conversation's WebSocket if the socket accepts it at once. Otherwise the
// frame goes into the bounded queue of its conversation, and a full queue drops its oldest frame.
// Each conversation has one goroutine that reads its WebSocket, one that writes it, and one for
// each tools/call in flight. Locks are held for a few instructions; while data is sent, only
// locks of that conversation are held.
package voice
