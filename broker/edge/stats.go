package edge

import (
	"maps"
	"sync"
	"sync/atomic"
)

// Stats are the edge's counters since its start. A field marked "now" is a current value.
type Stats struct {
	Sockets    int64 // now, including unauthenticated ones
	WebSockets int64 // now; included in Sockets
	Agents     int64 // now: MCP clients; included in Sockets

	Connects int64            // of devices
	Refused  map[string]int64 // connections that were refused, by reason

	PublishesIn    int64
	PublishesOut   int64
	ForeignTopics  int64 // publishes dropped because the topic was not the device's own
	OutboxFull     int64 // messages not sent because the device does not read
	ProtocolErrors int64 // connections ended because the device violated the MQTT protocol
	Duplicates     int64 // repeated QoS 2 messages, handled only once
	AudioDropped   int64 // frames over WebSockets that came too late, too often, or outside of a conversation
	WillsRemoved   int64
	Hellos         int64 // that began a conversation with a voice server

	Handshakes        int64 // now: TLS handshakes that are not finished
	HandshakesFailed  int64
	HandshakesEvicted int64 // ended because others waited for their slot; included in the failed

	AcceptErrors int64
	Panics       int64
}

type counters struct {
	connects, publishesIn, publishesOut, foreignTopics atomic.Int64
	outboxFull, willsRemoved, hellos, acceptErrors     atomic.Int64
	panics, protocolErrors, duplicates                 atomic.Int64
	handshakesFailed, audioDropped, agents             atomic.Int64

	mu      sync.Mutex
	refused map[string]int64 // there are few reasons: constants here, in link and in enrolment
}

func (c *counters) refuse(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refused == nil {
		c.refused = make(map[string]int64)
	}
	c.refused[reason]++
}

func (c *counters) refusals() map[string]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.refused)
}

// Stats returns the edge's counters.
func (e *Edge) Stats() Stats {
	s := &e.stats
	stats := Stats{
		Sockets: e.countSockets(), WebSockets: e.sockets.len(), Agents: s.agents.Load(),
		Connects: s.connects.Load(), Refused: s.refusals(),
		PublishesIn: s.publishesIn.Load(), PublishesOut: s.publishesOut.Load(),
		ForeignTopics: s.foreignTopics.Load(), OutboxFull: s.outboxFull.Load(),
		ProtocolErrors: s.protocolErrors.Load(), Duplicates: s.duplicates.Load(),
		AudioDropped: s.audioDropped.Load(), WillsRemoved: s.willsRemoved.Load(), Hellos: s.hellos.Load(),
		AcceptErrors: s.acceptErrors.Load(), Panics: s.panics.Load(), HandshakesFailed: s.handshakesFailed.Load(),
	}
	if e.tls != nil {
		stats.Handshakes, stats.HandshakesEvicted = e.tls.shaking.numbers()
	}
	return stats
}

func (e *Edge) countSockets() (n int64) {
	n = e.sockets.len()
	for _, l := range e.listeners() {
		l.mu.Lock()
		n += int64(len(l.conns))
		l.mu.Unlock()
	}
	return n
}
