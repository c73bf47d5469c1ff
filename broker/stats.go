package broker

import "sync/atomic"

// Stats are the broker's counters since its start. A field marked "now" is a current value.
type Stats struct {
	Connections  int64 // now
	Unresponsive int64 // now: devices whose last request timed out
	Onboarding   int64 // now: devices whose tools are being listed or wait to be
	Channels     int64 // now: conversations without voice, kept open for the device's tools

	Messages  int64 // of devices to the core
	Connects  int64
	Takeovers int64 // connections that replaced another of the same device

	Unreadable int64 // publishes that were not a valid message of a device
	Unmatched  int64 // answers that match no request
	Late       int64 // answers to calls that had been given up
	Hellos     int64 // answered without a voice server

	Listings       int64
	ListingsFailed int64
}

type counters struct {
	connections, connects, takeovers           atomic.Int64
	messages, unreadable, unmatched, late      atomic.Int64
	hellos, listings, listingsFailed, channels atomic.Int64
}

// Stats returns the broker's counters.
func (b *Broker) Stats() Stats {
	s := &b.stats
	workers, waiting := b.pool.busy()
	return Stats{
		Connections: s.connections.Load(), Unresponsive: int64(b.prober.len()), Onboarding: int64(workers + waiting),
		Channels: s.channels.Load(), Messages: s.messages.Load(), Connects: s.connects.Load(), Takeovers: s.takeovers.Load(),
		Unreadable: s.unreadable.Load(), Unmatched: s.unmatched.Load(), Late: s.late.Load(), Hellos: s.hellos.Load(),
		Listings: s.listings.Load(), ListingsFailed: s.listingsFailed.Load(),
	}
}
