package enrolment

import (
	"container/list"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"fleetd/fleet"
)

const (
	// alternateWithin is the longest time between the signs of two units: boards poll only when
	// they start.
	alternateWithin = 24 * time.Hour
	// aliveAfter is how long after another unit's poll a packet proves that the older
	// connection is in use. A unit that was just flashed leaves a dead connection, on which at
	// most a late packet arrives.
	aliveAfter = 3 * time.Second
	// takeoverTurns is how many times, within the time below, connections must take over from
	// each other to count as two units. If the address of one unit changes, it takes over from
	// new addresses.
	takeoverTurns  = 3
	takeoverWithin = 2 * time.Minute

	maxConflictSides = 4
	maxSuspects      = 5000 // devices watched, and the same number with a conflict
	conflictRewrite  = time.Minute
)

// duplicates detects two units that use one Device-Id. It has state only for the few devices that used
// an unexpected Client-Id or address. Conflicts are stored and shown; suspicions end with the process.
//
// Each sign of life names a Client-Id. A then B is one unit whose memory was erased; A, B, A is
// two units. If both units have the same Client-Id, as after a copy of the memory, only
// connections that take over from each other reveal it.
type duplicates struct {
	max   int
	found func(fleet.DeviceID) // called without the lock for a conflict to store

	watched atomic.Int64 // devices in the map; if zero, most signs of life need no lock

	mu        sync.Mutex
	devices   map[fleet.DeviceID]*suspect
	suspects  list.List // of *suspect without a conflict, the latest sign last
	conflicts list.List // of *suspect with a conflict
}

// A suspect is a device that two units may use.
type suspect struct {
	device   fleet.DeviceID
	sides    []suspectSide // by Client-Id
	last     string        // Client of the side of the latest sign
	link     string        // Client of the side that has the connection; "" if unknown
	turns    []takeover
	links    []suspectSide // by Client-Id and address, for takeovers and for units with one Client-Id
	held     []string      // addresses whose polls get no credentials
	conflict *fleet.DeviceConflict
	stored   time.Time // LastSeen of the conflict, as last queued for the store
	element  *list.Element
}

type suspectSide struct {
	fleet.ConflictSide
	clientID string // "" for a side read from the store
}

type takeover struct {
	by, over string
	at       time.Time
}

func newDuplicates(limit int, found func(fleet.DeviceID)) *duplicates {
	return &duplicates{max: limit, found: found, devices: make(map[fleet.DeviceID]*suspect)}
}

// quiet reports whether no device is watched.
func (d *duplicates) quiet() bool { return d.watched.Load() == 0 }

// polled records a boot poll of an enrolled device whose credentials were bound to the
// Client-Id bound. linked returns its connection and is called only if needed.
func (d *duplicates) polled(p BootPoll, bound string, linked func(fleet.DeviceID) (fleet.Connection, bool)) {
	if p.ClientID == "" || p.ClientID == bound && d.quiet() {
		return
	}
	d.sign(p.Device, func() *suspect {
		if p.ClientID == bound || bound == "" || bound == unboundClientID {
			return nil
		}
		return d.open(p.Device, bound, p.At, linked)
	}, func(s *suspect) bool {
		found := s.seen(p.ClientID, p.RemoteAddr, p.At, fleet.EvidenceClientIDsAlternate)
		s.describe(p)
		return found
	})
}

// refused records genuine credentials of a Client-Id that is no longer bound.
func (d *duplicates) refused(id fleet.DeviceID, client, bound string, at time.Time,
	linked func(fleet.DeviceID) (fleet.Connection, bool)) {
	if bound == "" || bound == unboundClientID {
		return
	}
	d.sign(id, func() *suspect { return d.open(id, bound, at, linked) }, func(s *suspect) bool {
		return s.seen(client, "", at, fleet.EvidenceBothAlive)
	})
}

// connected records a connection.
func (d *duplicates) connected(c fleet.Connection) {
	_, client, ok := parseMQTTClientID(c.ClientID)
	if !ok {
		return
	}
	over := c.OverClientID != "" && (c.OverClientID != c.ClientID || c.OverRemoteAddr != c.RemoteAddr)
	if !over && d.quiet() {
		return
	}
	d.sign(c.Device, func() *suspect {
		if !over {
			return nil
		}
		return &suspect{device: c.Device}
	}, func(s *suspect) (found bool) {
		if len(s.sides) > 0 {
			found = s.seen(client, c.RemoteAddr, c.At, fleet.EvidenceBothAlive)
			s.link = fleet.ClientTag(client)
		}
		if over {
			found = s.tookOver(c, client) || found
		}
		return found
	})
}

// heard records a packet on the device's connection.
func (d *duplicates) heard(id fleet.DeviceID, at time.Time) {
	if d.quiet() {
		return
	}
	d.sign(id, func() *suspect { return nil }, func(s *suspect) bool {
		if s.link == "" || s.link == s.last {
			return false
		}
		i, j := s.side(s.link), s.side(s.last)
		if i < 0 || j < 0 || at.Sub(s.sides[j].LastSeen) < aliveAfter {
			return false
		}
		return s.again(i, "", at, fleet.EvidenceBothAlive)
	})
}

// sign calls note with the device's suspect and reports new evidence of a conflict. If the
// device has no suspect, begin creates it.
func (d *duplicates) sign(id fleet.DeviceID, begin func() *suspect, note func(*suspect) bool) {
	d.mu.Lock()
	s := d.devices[id]
	if s == nil {
		d.mu.Unlock()
		if s = begin(); s == nil {
			return
		}
		d.mu.Lock()
		if other := d.devices[id]; other != nil {
			s = other
		} else {
			s.device = fleet.DeviceID(strings.Clone(string(id)))
			d.devices[s.device] = s
			d.watched.Add(1)
		}
	}
	before := kinds(s.conflict)
	found := note(s)
	d.place(s)
	write := found && (kinds(s.conflict) != before || s.conflict.LastSeen.Sub(s.stored) >= conflictRewrite)
	if write {
		s.stored = s.conflict.LastSeen
	}
	d.mu.Unlock()
	if write {
		d.found(s.device)
	}
}

// kinds returns the number of kinds of evidence in a conflict.
func kinds(c *fleet.DeviceConflict) int {
	if c == nil {
		return 0
	}
	return len(c.Evidence)
}

// place moves a suspect to the end of its list. If there are too many, it removes the one that
// was silent for longest.
func (d *duplicates) place(s *suspect) {
	in := &d.suspects
	if s.conflict != nil {
		in = &d.conflicts
	}
	d.unlist(s)
	s.element = in.PushBack(s)
	if in.Len() > d.max {
		d.drop(in.Front().Value.(*suspect))
	}
}

func (d *duplicates) unlist(s *suspect) {
	if s.element != nil {
		d.suspects.Remove(s.element) // from whichever of the two lists contains it
		d.conflicts.Remove(s.element)
		s.element = nil
	}
}

func (d *duplicates) drop(s *suspect) {
	d.unlist(s)
	delete(d.devices, s.device)
	d.watched.Add(-1)
}

// open starts to watch a device, with the side that its credentials are bound to.
func (d *duplicates) open(id fleet.DeviceID, bound string, at time.Time,
	linked func(fleet.DeviceID) (fleet.Connection, bool)) *suspect {
	s := &suspect{device: id, last: fleet.ClientTag(bound)}
	side := suspectSide{clientID: strings.Clone(bound),
		ConflictSide: fleet.ConflictSide{Client: s.last, FirstSeen: at, LastSeen: at}}
	if c, ok := linked(id); ok {
		if _, client, ok := parseMQTTClientID(c.ClientID); ok && client == bound {
			side.RemoteAddr, side.FirstSeen, s.link = c.RemoteAddr, c.At, s.last
		}
	}
	s.sides = []suspectSide{side}
	return s
}

func (s *suspect) side(client string) int {
	return slices.IndexFunc(s.sides, func(o suspectSide) bool { return o.Client == client })
}

// seen records a sign of life with a Client-Id and reports whether it is evidence of two units.
func (s *suspect) seen(clientID, remote string, at time.Time, kind fleet.ConflictEvidence) bool {
	tag := fleet.ClientTag(clientID)
	i := s.side(tag)
	if i < 0 {
		s.sides = append(s.sides, suspectSide{ConflictSide: fleet.ConflictSide{Client: tag, FirstSeen: at}})
		if len(s.sides) > maxConflictSides {
			oldest := 0
			for j := range s.sides[:maxConflictSides] {
				if s.sides[j].LastSeen.Before(s.sides[oldest].LastSeen) {
					oldest = j
				}
			}
			s.sides = slices.Delete(s.sides, oldest, oldest+1)
		}
		i = len(s.sides) - 1
		s.last = tag
	}
	s.sides[i].clientID = strings.Clone(clientID)
	return s.again(i, remote, at, kind)
}

// again records a sign of life of a side. It is evidence if the previous sign came from another side.
func (s *suspect) again(i int, remote string, at time.Time, kind fleet.ConflictEvidence) bool {
	side := &s.sides[i]
	j := s.side(s.last)
	found := s.last != side.Client && j >= 0 && at.Sub(s.sides[j].LastSeen) < alternateWithin
	side.LastSeen, s.last = at, side.Client
	if remote != "" {
		side.RemoteAddr = strings.Clone(remote)
	}
	if found {
		s.evidence(kind, at, s.sides)
	}
	return found
}

// describe records the board and version that the poll of a side names.
func (s *suspect) describe(p BootPoll) {
	if p.Board == "" && p.Version == "" {
		return // a CONNECT, or a poll without claims
	}
	tag := fleet.ClientTag(p.ClientID)
	fill := func(o *suspectSide) {
		o.Chip, o.Board = strings.Clone(p.Chip), strings.Clone(p.Board)
		o.Version, o.ELFSHA256 = strings.Clone(p.Version), strings.Clone(p.ELFSHA256)
	}
	if i := s.side(tag); i >= 0 {
		fill(&s.sides[i])
	}
	for i := range s.links {
		if o := &s.links[i]; o.Client == tag && o.RemoteAddr == p.RemoteAddr {
			fill(o)
		}
	}
	s.refresh()
}

// tookOver records a connection that took over from one with another address or Client-Id. It
// is evidence if each of the latest takeovers reversed the previous one.
func (s *suspect) tookOver(c fleet.Connection, client string) bool {
	_, overClient, _ := parseMQTTClientID(c.OverClientID)
	t := takeover{by: client + " " + c.RemoteAddr, over: overClient + " " + c.OverRemoteAddr, at: c.At}
	if n := len(s.turns); n > 0 && (s.turns[n-1].by != t.over || s.turns[n-1].over != t.by) {
		s.turns, s.links = nil, nil
	}
	s.turns = append(s.turns, t)
	if len(s.turns) > takeoverTurns {
		s.turns = slices.Delete(s.turns, 0, 1)
	}
	s.linked(overClient, c.OverRemoteAddr, c.At)
	s.linked(client, c.RemoteAddr, c.At)
	if len(s.turns) < takeoverTurns || t.at.Sub(s.turns[0].at) > takeoverWithin {
		return false
	}
	s.evidence(fleet.EvidenceTakeoversAlternate, c.At, s.links)
	return true
}

func (s *suspect) linked(client, remote string, at time.Time) {
	tag := fleet.ClientTag(client)
	i := slices.IndexFunc(s.links, func(o suspectSide) bool { return o.Client == tag && o.RemoteAddr == remote })
	if i < 0 {
		s.links = append(s.links, suspectSide{clientID: strings.Clone(client), ConflictSide: fleet.ConflictSide{Client: tag,
			RemoteAddr: strings.Clone(remote), FirstSeen: at}})
		i = len(s.links) - 1
	}
	s.links[i].LastSeen = at
}

func (s *suspect) evidence(kind fleet.ConflictEvidence, at time.Time, sides []suspectSide) {
	if !s.conflict.Active(at) {
		s.conflict = &fleet.DeviceConflict{Code: fleet.ConflictDuplicateID, FirstSeen: at.UTC()}
	}
	c := s.conflict
	c.LastSeen = at.UTC()
	if !slices.Contains(c.Evidence, kind) {
		c.Evidence = append(slices.Clone(c.Evidence), kind)
	}
	c.Sides = nil
	for _, o := range sides {
		c.Sides = append(c.Sides, o.ConflictSide)
	}
}

// refresh copies the claims of the sides to the conflict.
func (s *suspect) refresh() {
	if s.conflict == nil {
		return
	}
	sides := slices.Clone(s.conflict.Sides)
	for i := range sides {
		for _, o := range slices.Concat(s.sides, s.links) {
			if o.Client == sides[i].Client && o.RemoteAddr == sides[i].RemoteAddr {
				sides[i] = o.ConflictSide
			}
		}
	}
	s.conflict.Sides = sides
}

// restore adds a conflict from the store.
func (d *duplicates) restore(r ConflictRecord) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &suspect{device: r.Device, conflict: &r.Conflict, stored: r.Conflict.LastSeen}
	for _, side := range r.Conflict.Sides {
		if s.side(side.Client) >= 0 { // from takeovers: one Client-Id at two addresses
			s.sides, s.last = nil, ""
			break
		}
		if j := s.side(s.last); j < 0 || s.sides[j].LastSeen.Before(side.LastSeen) {
			s.last = side.Client
		}
		s.sides = append(s.sides, suspectSide{ConflictSide: side})
	}
	d.devices[r.Device] = s
	d.watched.Add(1)
	d.place(s)
}

// conflict returns the device's conflict, if it has one.
func (d *duplicates) conflict(id fleet.DeviceID) (fleet.DeviceConflict, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.devices[id]
	if s == nil || s.conflict == nil {
		return fleet.DeviceConflict{}, false
	}
	return *s.conflict, true
}

// clientIDs returns the known Client-Ids of the device's sides.
func (d *duplicates) clientIDs(id fleet.DeviceID) (ids []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.devices[id]; s != nil {
		for _, o := range slices.Concat(s.sides, s.links) {
			if o.clientID != "" {
				ids = append(ids, o.clientID)
			}
		}
	}
	return ids
}

// forget removes a device's suspect.
func (d *duplicates) forget(id fleet.DeviceID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.devices[id]; s != nil {
		d.drop(s)
	}
}

// count returns the number of open conflicts.
func (d *duplicates) count(now time.Time) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for e := d.conflicts.Front(); e != nil; e = e.Next() {
		if e.Value.(*suspect).conflict.Active(now) {
			n++
		}
	}
	return n
}
