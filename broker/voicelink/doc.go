// Package voicelink lets an edge relay conversations whose decisions are the core's. [Client] is the
// core as the relay of an edge sees it: package voice calls it in place of the services of one process.
// [Core] answers its requests in the core that leads.
//
// Audio, the UDP socket and the WebSocket of the voice server stay at the edge, with the token for one
// conversation. The keys that make tokens, and the accounts of devices, stay with the core.
//
// # What an edge may ask
//
// A core chooses the voice server of a device only for the edge that holds the device's connection at
// that moment. It hands out a pass: a signed statement that names the conversation, the device, the
// edge and the voice server. All further requests need the pass; lists of tools and calls also need the
// device to be connected to the edge still. Every core of the cluster accepts the passes of the others,
// so conversations go on when another core takes over.
//
// A call is sent to a core at most once. If its outcome is not known it is not repeated. All other
// requests may be repeated, since they change nothing the second time.
package voicelink
