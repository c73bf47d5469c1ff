package enrolment

import (
	"context"
	"slices"
	"strings"
	"time"
	"unique"

	"fleetd/fleet"
)

// A stock device proves nothing: a client with its Client-Id can poll in its place and would
// receive its credentials. Two signs show a second unit, and a poll with either sign is held:
// its answer contains only the time. A board then continues with the credentials that it has
// saved (protocol 1.5); another unit cannot use such an answer.
//
// The first sign is an answer to a ping over the device's connection, sent after the poll: a board
// polls when it starts and has no connection then. An open socket proves nothing, because the
// socket of a board without power stays open for a while. The second sign is polls from A, B and A
// again within [addressesWithin], where B only received credentials: it never connected, and was
// offered nothing to install. A board that moves, or whose address changes, connects in between.
const (
	// pingTimeout is how long the connection may take to answer. It also delays the start of a
	// board that lost power and returns with another address. With the same address its network
	// stack ends the old connection at once. A board waits 30 seconds for the answer to a poll.
	pingTimeout = 5 * time.Second
	// addressesWithin is the longest time between the first and the last of three polls.
	addressesWithin = time.Hour
	// maxHeld bounds the addresses whose polls are held for one device; beyond that, polls from
	// all addresses are held.
	maxHeld = 8
)

// A pollOrigin is the origin of an answered poll.
type pollOrigin struct {
	addr unique.Handle[string]
	at   uint32 // Unix seconds, which end in 2106; 0: no such poll
	// settled reports that the unit has since done more than poll for credentials: it
	// connected, or got something else to do first.
	settled bool
}

// A ping waits for a sign of life on a device's connection, on behalf of all polls that arrive
// meanwhile.
type ping struct {
	done chan struct{}
	conn fleet.Connection
	ok   bool
}

// hold reports whether a second unit sent the poll. If the device has a connection, hold waits
// for it to answer.
func (e *Service) hold(p BootPoll) bool {
	if !e.claimsToBe(p) || e.hasKey(p.Device) {
		return false // a proof decides and needs no signs
	}
	if e.heldBefore(p) {
		return true
	}
	if conn, ok := e.answering(p); ok {
		e.holdFrom(p, conn.RemoteAddr, fleet.EvidenceConnectionAnswers, p.RemoteAddr)
		return true
	}
	if first, ok := e.alternates(p); ok {
		e.holdFrom(p, first, fleet.EvidenceAddressesAlternate, p.RemoteAddr, first)
		return true
	}
	return false
}

// hasKey reports whether the device has a bound key.
func (e *Service) hasKey(id fleet.DeviceID) (has bool) {
	e.with(id, func(st *standing) { has = st.key != "" })
	return has
}

// refuseKey records the conflict of a poll or a CONNECT that lacks the device's proof.
func (e *Service) refuseKey(p BootPoll, kind fleet.ConflictEvidence) {
	other := p.RemoteAddr
	e.with(p.Device, func(st *standing) {
		if st.last.at != 0 {
			other = st.last.addr.Value()
		}
	})
	e.holdFrom(p, other, kind)
}

// claimsToBe reports whether the poll has the Client-Id of an enrolled device.
func (e *Service) claimsToBe(p BootPoll) (claims bool) {
	e.with(p.Device, func(st *standing) {
		claims = st.enrolled() && p.ClientID != "" && p.ClientID == st.clientID
	})
	return claims
}

// heldBefore reports whether polls from the address are held until the conflict ends. The unit
// that had credentials before the other appeared continues to get them.
func (e *Service) heldBefore(p BootPoll) (held bool) {
	c, ok := e.duplicates.conflict(p.Device)
	if !ok || !c.Active(p.At) || !slices.ContainsFunc(c.Evidence, sharesClientID) {
		return false
	}
	e.with(p.Device, func(st *standing) {
		held = st.last.at == 0 || st.last.addr.Value() != p.RemoteAddr || e.duplicates.holds(p.Device, p.RemoteAddr)
	})
	return held
}

func sharesClientID(kind fleet.ConflictEvidence) bool {
	return kind == fleet.EvidenceConnectionAnswers || kind == fleet.EvidenceAddressesAlternate
}

// answering returns the device's connection if it answers. Polls that arrive during a ping
// share its result.
func (e *Service) answering(p BootPoll) (fleet.Connection, bool) {
	conn, ok := e.o.Connection(p.Device)
	if _, client, _ := parseMQTTClientID(conn.ClientID); !ok || e.o.Ping == nil || client != p.ClientID {
		return fleet.Connection{}, false
	}
	e.pingsMu.Lock()
	asked := e.pings[p.Device]
	first := asked == nil
	if first {
		asked = &ping{done: make(chan struct{})}
		e.pings[fleet.DeviceID(strings.Clone(string(p.Device)))] = asked
	}
	e.pingsMu.Unlock()
	if first {
		// This does not use the context of the request: others wait for the result, too.
		ctx, cancel := context.WithTimeout(context.Background(), pingTimeout)
		asked.conn, asked.ok = e.o.Ping(ctx, p.Device)
		cancel()
		e.pingsMu.Lock()
		delete(e.pings, p.Device)
		e.pingsMu.Unlock()
		close(asked.done)
	}
	<-asked.done
	return asked.conn, asked.ok
}

// alternates reports whether the poll comes from the address that the device had before it
// polled from another, and the other did nothing but poll. It returns that other address.
func (e *Service) alternates(p BootPoll) (other string, ok bool) {
	e.with(p.Device, func(st *standing) {
		last, before := st.last, st.before
		ok = last.at != 0 && before.at != 0 && !last.settled && last.addr.Value() != p.RemoteAddr &&
			before.addr.Value() == p.RemoteAddr && p.At.Unix()-int64(before.at) < int64(addressesWithin/time.Second)
		if ok {
			other = last.addr.Value()
		}
	})
	return other, ok
}

// holdFrom records the conflict of a poll with the unit at another address, and holds the polls
// from the addresses held.
func (e *Service) holdFrom(p BootPoll, other string, kind fleet.ConflictEvidence, held ...string) {
	e.o.Log.Warn("a second unit has the Client-Id of a device; its polls get no credentials", "device", p.Device,
		"remote", p.RemoteAddr, "other", other, "evidence", string(kind))
	e.duplicates.shared(p, other, kind, held)
}

// answered records the origin of a poll that got credentials.
func (st *standing) answered(p BootPoll) {
	from := unique.Make(p.RemoteAddr)
	if st.last.at == 0 || st.last.addr != from {
		st.before = st.last
	}
	st.last = pollOrigin{addr: from, at: uint32(p.At.Unix())}
}

// Settled records that the unit whose poll was answered last uses what it was given.
func (e *Service) Settled(id fleet.DeviceID) {
	e.with(id, func(st *standing) { st.last.settled = true })
}

// shared records that a unit polled with the Client-Id of another at the address other.
func (d *duplicates) shared(p BootPoll, other string, kind fleet.ConflictEvidence, held []string) {
	d.sign(p.Device, func() *suspect { return &suspect{device: p.Device} }, func(s *suspect) bool {
		s.linked(p.ClientID, other, p.At)
		s.linked(p.ClientID, p.RemoteAddr, p.At)
		s.describe(p)
		for _, addr := range held {
			if len(s.held) < maxHeld && !slices.Contains(s.held, addr) {
				s.held = append(s.held, strings.Clone(addr))
			}
		}
		s.evidence(kind, p.At, s.links)
		return true
	})
}

// holds reports whether polls from the address are held.
func (d *duplicates) holds(id fleet.DeviceID, addr string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.devices[id]
	return s != nil && (len(s.held) >= maxHeld || slices.Contains(s.held, addr))
}
