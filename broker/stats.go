package broker

import (
	"maps"
	"sync"
	"sync/atomic"
)

// Stats are the broker's counters since its start. A field marked "now" is a current value.
type Stats struct {
	Connections  int64 // now
	Sockets      int64 // now, including unauthenticated ones
	WebSockets   int64 // now; included in Sockets
	Unresponsive int64 // now: devices whose last request timed out
	Onboarding   int64 // now: devices whose tools are being listed or wait to be
	Agents       int64 // now: MCP clients; included in Sockets
	Channels     int64 // now: conversations without voice, kept open for the device's tools

	Connects  int64
	Takeovers int64            // connections that replaced another of the same device
	Refused   map[string]int64 // connections that were refused, by reason

	PublishesIn    int64
	PublishesOut   int64
	ForeignTopics  int64 // publishes dropped because the topic was not the device's own
	Unreadable     int64 // publishes that were not a valid message of a device
	OutboxFull     int64 // messages not sent because the device does not read
	Unmatched      int64 // answers that match no request
	Late           int64 // answers to calls that had been given up
	ProtocolErrors int64 // connections ended because the device violated the MQTT protocol
	Duplicates     int64 // repeated QoS 2 messages, handled only once
	AudioDropped   int64 // frames over WebSockets that came too late, too often, or outside of a conversation
	WillsRemoved   int64
	Hellos         int64

	Handshakes        int64 // now: TLS handshakes that are not finished
	HandshakesFailed  int64
	HandshakesEvicted int64 // ended because others waited for their slot; included in the failed

	Listings       int64
	ListingsFailed int64

	AcceptErrors int64
	Panics       int64
}

type counters struct {
	connections, connects, takeovers               atomic.Int64
	publishesIn, publishesOut, foreignTopics       atomic.Int64
	unreadable, outboxFull, unmatched, late        atomic.Int64
	willsRemoved, hellos, listings, listingsFailed atomic.Int64
	acceptErrors, panics, channels                 atomic.Int64
	protocolErrors, duplicates, handshakesFailed   atomic.Int64
	audioDropped, agents                           atomic.Int64

	mu      sync.Mutex
	refused map[string]int64 // there are few reasons: constants here and in fleet
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

// Stats returns the broker's counters.
func (b *Broker) Stats() Stats {
	s := &b.stats
	workers, waiting := b.pool.busy()
	stats := Stats{
		Connections: s.connections.Load(), Sockets: b.countSockets(), WebSockets: b.sockets.len(),
		Unresponsive: int64(b.prober.len()), Onboarding: int64(workers + waiting), Channels: s.channels.Load(),
		Agents:   s.agents.Load(),
		Connects: s.connects.Load(), Takeovers: s.takeovers.Load(), Refused: s.refusals(),
		PublishesIn: s.publishesIn.Load(), PublishesOut: s.publishesOut.Load(),
		ForeignTopics: s.foreignTopics.Load(), Unreadable: s.unreadable.Load(), OutboxFull: s.outboxFull.Load(),
		Unmatched: s.unmatched.Load(), Late: s.late.Load(),
		ProtocolErrors: s.protocolErrors.Load(), Duplicates: s.duplicates.Load(),
		AudioDropped: s.audioDropped.Load(), WillsRemoved: s.willsRemoved.Load(), Hellos: s.hellos.Load(),
		Listings: s.listings.Load(), ListingsFailed: s.listingsFailed.Load(),
		AcceptErrors: s.acceptErrors.Load(), Panics: s.panics.Load(), HandshakesFailed: s.handshakesFailed.Load(),
	}
	if b.tls != nil {
		stats.Handshakes, stats.HandshakesEvicted = b.tls.shaking.numbers()
	}
	return stats
}

func (b *Broker) countSockets() (n int64) {
	n = b.sockets.len()
	for _, l := range b.listeners() {
		l.mu.Lock()
		n += int64(len(l.conns))
		l.mu.Unlock()
	}
	return n
}
