package broker

import (
	"maps"
	"sync"
	"sync/atomic"
)

// Stats are the broker's numbers since its start. Those named as such are of
// the moment.
type Stats struct {
	Connections  int64 // now
	Sockets      int64 // now, those not authenticated included
	WebSockets   int64 // now; among the sockets
	Unresponsive int64 // now: devices that let their last request time out
	Onboarding   int64 // now: devices being asked for their tools, or waiting to be
	Channels     int64 // now: conversations without voice, kept open for the device's tools

	Connects  int64
	Takeovers int64            // connections that replaced another of the same device
	Refused   map[string]int64 // connections that were refused, by reason

	PublishesIn    int64
	PublishesOut   int64
	ForeignTopics  int64 // publishes dropped since their topic was not the device's own
	Unreadable     int64 // publishes that were no message of a device
	OutboxFull     int64 // messages not sent since the device does not read
	Unmatched      int64 // answers to nothing that was asked
	Late           int64 // answers to calls given up before
	ProtocolErrors int64 // connections ended since the device broke the rules of MQTT
	Duplicates     int64 // QoS 2 messages that came again, and were handled once
	AudioDropped   int64 // frames over WebSockets that came too late, too often, or outside of a conversation
	WillsRemoved   int64
	Hellos         int64

	Handshakes        int64 // now: TLS handshakes that are not finished
	HandshakesFailed  int64
	HandshakesEvicted int64 // ended since others waited for their place; among the failed

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
	audioDropped                                   atomic.Int64

	mu      sync.Mutex
	refused map[string]int64 // reasons are few: constants, and those of fleet
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

// Stats returns the broker's numbers.
func (b *Broker) Stats() Stats {
	s := &b.stats
	workers, waiting := b.pool.busy()
	stats := Stats{
		Connections: s.connections.Load(), Sockets: b.countSockets(), WebSockets: b.sockets.len(),
		Unresponsive: int64(b.prober.len()), Onboarding: int64(workers + waiting), Channels: s.channels.Load(),
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
