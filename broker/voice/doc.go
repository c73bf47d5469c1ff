// Package voice relays conversations between devices and a voice server, the
// upstream: audio over UDP on the device's side, a WebSocket on the other, and
// the JSON messages of both.
//
// It decides nothing about tools. The language model behind an upstream lists
// the tools that fleetd has on record, and each of its tools/call becomes a call
// of fleetd by a principal of kind voice, judged and recorded like any other;
// nothing of its MCP reaches the device. No audio and no words are stored.
//
// # Goroutines and locks
//
// One goroutine reads the UDP socket for all conversations and never waits for
// one: it writes a frame to the conversation's WebSocket if the socket accepts it
// at once. Else the frame goes into the bounded queue of its conversation, and the
// oldest frame leaves a full queue. Each conversation has two goroutines, one
// reads and one writes its WebSocket, and one more for each tools/call in flight.
// Locks are held for a few instructions; while something is sent, only locks of
// that conversation are held.
package voice
