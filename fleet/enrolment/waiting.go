package enrolment

import (
	"cmp"
	"container/list"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"fleetd/fleet"
)

const (
	// A board that waits asks every three seconds (protocol 1.5). One that asked
	// again after steadyAfter, and not longer than steadyTTL ago, keeps its place.
	steadyAfter = 2 * time.Second
	steadyTTL   = 2 * time.Minute

	maxUnlisted = 100           // networks that are counted one by one
	unlistedTTL = time.Hour     // for which a count is shown after its latest request
	evictTries  = 64            // networks looked at to make room
	evictQueue  = 2 * maxListed // ids to be deleted from the store
	maxListed   = 100_000
)

// A waitingList bounds the requests to be enrolled: of each network, so that
// made-up addresses from one place do not fill every place, and in
// all. Who asked once and not again loses its place first, in the network that
// has the most; who keeps asking keeps it.
type waitingList struct {
	limit, quota int
	bits4, bits6 int

	mu       sync.Mutex
	networks map[netip.Prefix]*waitingNetwork
	bySize   []*list.List // of *waitingNetwork; the index is how many requests it has
	largest  int
	count    int
	gone     []fleet.DeviceID // stored devices that lost their place
	unlisted map[netip.Prefix]*UnlistedNetwork
	total    int64 // requests not listed
}

// A waitingNetwork has requests of one network, each list by latest contact.
type waitingNetwork struct {
	prefix  netip.Prefix
	exempt  bool // from the quota: a proxy on this machine, or an unknown address
	count   int
	once    list.List // asked once
	steady  list.List // asked again
	pinned  int       // of enrolled devices: never evicted
	in      *list.List
	element *list.Element
}

// An UnlistedNetwork counts requests that were not listed, or lost their place,
// since their network had too many. The zero Network counts all further ones.
type UnlistedNetwork struct {
	Network  netip.Prefix
	Requests int
	Since    time.Time
	Last     time.Time
}

func newWaitingList(o Options) *waitingList {
	return &waitingList{limit: min(o.MaxWaiting, maxListed), quota: o.MaxWaitingPerNetwork, bits4: o.NetworkBits4,
		bits6:    o.NetworkBits6,
		networks: make(map[netip.Prefix]*waitingNetwork), unlisted: make(map[netip.Prefix]*UnlistedNetwork)}
}

// networkOf returns the network that the address counts for; exempt says that
// its quota does not hold.
func (w *waitingList) networkOf(addr string) (p netip.Prefix, exempt bool) {
	ip, err := netip.ParseAddr(addr)
	if err != nil {
		return netip.Prefix{}, true
	}
	ip = ip.Unmap().WithZone("")
	bits := w.bits6
	if ip.Is4() {
		bits = w.bits4
	}
	p, _ = ip.Prefix(bits) // the bits were checked at the start
	return p, ip.IsLoopback()
}

// enter lists the request of a device at addr. If another lost its place for
// it, that one is returned; ok is false if there was no place to be had.
// crowded says that the network, or the list, was full.
func (w *waitingList) enter(r *request, addr string, now time.Time) (evicted *request, crowded, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	prefix, exempt := w.networkOf(addr)
	n := w.networks[prefix]
	if n == nil {
		n = &waitingNetwork{prefix: prefix, exempt: exempt}
	}
	switch {
	case !n.exempt && n.count >= w.quota:
		crowded, evicted = true, n.weakest(now)
	case w.count >= w.limit:
		crowded, evicted = true, w.weakest(n.count, now)
	}
	if crowded {
		if evicted == nil {
			w.note(prefix, now)
			return nil, true, false
		}
		w.note(evicted.network.prefix, now)
		w.remove(evicted)
		if evicted.stored {
			w.forget(evicted.device)
		}
	}
	w.networks[prefix] = n // it may have lost its last request just now
	r.network, r.contact = n, now
	if r.pinned {
		n.pinned++
	} else {
		r.element = n.once.PushBack(r)
	}
	w.resize(n, 1)
	return evicted, crowded, true
}

// weakest returns the request that the network can best do without.
func (n *waitingNetwork) weakest(now time.Time) *request {
	var once, steady *request
	if e := n.once.Front(); e != nil {
		once = e.Value.(*request)
	}
	if e := n.steady.Front(); e != nil && now.Sub(e.Value.(*request).contact) > steadyTTL {
		steady = e.Value.(*request)
	}
	if once == nil || steady != nil && steady.contact.Before(once.contact) {
		return steady
	}
	return once
}

// weakest returns the request that makes room for one of a network that has
// size requests: of the network that has the most, and never of a smaller one.
func (w *waitingList) weakest(size int, now time.Time) *request {
	tries := 0
	for at := w.largest; at >= max(size, 1); at-- {
		if w.bySize[at] == nil {
			continue
		}
		for e := w.bySize[at].Front(); e != nil; e = e.Next() {
			if r := e.Value.(*waitingNetwork).weakest(now); r != nil {
				return r
			}
			if tries++; tries == evictTries {
				return nil
			}
		}
	}
	return nil
}

// touch notes that a listed device asked again.
func (w *waitingList) touch(r *request, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.network == nil || now.Before(r.contact) {
		return
	}
	again := r.steady || now.Sub(r.contact) >= steadyAfter
	r.contact = now
	switch {
	case r.element == nil:
	case r.steady:
		r.network.steady.MoveToBack(r.element)
	case again:
		r.network.once.Remove(r.element)
		r.element, r.steady = r.network.steady.PushBack(r), true
	default:
		r.network.once.MoveToBack(r.element)
	}
}

// leave removes a request from the list; false if it was not listed any more.
func (w *waitingList) leave(r *request) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	listed := r.network != nil
	w.remove(r)
	return listed
}

// remove removes a request from the list; one that is not listed stays out.
func (w *waitingList) remove(r *request) {
	n := r.network
	switch {
	case n == nil:
		return
	case r.element == nil:
		n.pinned--
	case r.steady:
		n.steady.Remove(r.element)
	default:
		n.once.Remove(r.element)
	}
	r.network, r.element = nil, nil
	w.resize(n, -1)
}

func (w *waitingList) resize(n *waitingNetwork, by int) {
	if n.in != nil {
		n.in.Remove(n.element)
	}
	n.count += by
	w.count += by
	if n.count == 0 {
		n.in = nil
		delete(w.networks, n.prefix)
	} else {
		for len(w.bySize) <= n.count {
			w.bySize = append(w.bySize, nil)
		}
		if w.bySize[n.count] == nil {
			w.bySize[n.count] = list.New()
		}
		n.in = w.bySize[n.count]
		n.element = n.in.PushBack(n)
	}
	w.largest = max(w.largest, n.count)
	for w.largest > 0 && (w.bySize[w.largest] == nil || w.bySize[w.largest].Len() == 0) {
		w.largest--
	}
}

// saved notes that the store has the device, or is about to.
func (w *waitingList) saved(r *request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r.unsaved, r.stored = nil, true
}

// listed reports whether the request still has its place.
func (w *waitingList) listed(r *request) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return r.network != nil
}

// note counts a request that is not listed.
func (w *waitingList) note(p netip.Prefix, now time.Time) {
	w.total++
	u := w.unlisted[p]
	if u != nil && now.Sub(u.Last) > unlistedTTL {
		delete(w.unlisted, p)
		u = nil
	}
	if u == nil && len(w.unlisted) >= maxUnlisted {
		for p, old := range w.unlisted {
			if now.Sub(old.Last) > unlistedTTL {
				delete(w.unlisted, p)
			}
		}
		if len(w.unlisted) >= maxUnlisted {
			p = netip.Prefix{}
			u = w.unlisted[p]
		}
	}
	if u == nil {
		u = &UnlistedNetwork{Network: p, Since: now}
		w.unlisted[p] = u
	}
	u.Requests++
	u.Last = now
}

// forgotten notes a device that is to be deleted from the store.
func (w *waitingList) forgotten(id fleet.DeviceID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forget(fleet.DeviceID(strings.Clone(string(id))))
}

func (w *waitingList) forget(id fleet.DeviceID) {
	if len(w.gone) < evictQueue { // ForgetWaiting finds the rest
		w.gone = append(w.gone, id)
	}
}

// takeGone returns the stored devices that lost their place since it was asked.
func (w *waitingList) takeGone() []fleet.DeviceID {
	w.mu.Lock()
	defer w.mu.Unlock()
	gone := w.gone
	w.gone = nil
	return gone
}

// Unlisted returns the networks of which requests were not listed in the last
// hour, most requests first.
func (e *Service) Unlisted() []UnlistedNetwork {
	w, now := e.waiting, e.o.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []UnlistedNetwork
	for _, u := range w.unlisted {
		if now.Sub(u.Last) <= unlistedTTL {
			all = append(all, *u)
		}
	}
	slices.SortFunc(all, func(a, b UnlistedNetwork) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), a.Network.Addr().Compare(b.Network.Addr()))
	})
	return all
}

// Stats are numbers for the metrics.
type Stats struct {
	Waiting  int   // requests listed
	Unlisted int64 // requests not listed, or displaced, since the start of the process
}

// Stats counts what waits to be enrolled.
func (e *Service) Stats() Stats {
	e.waiting.mu.Lock()
	defer e.waiting.mu.Unlock()
	return Stats{Waiting: e.waiting.count, Unlisted: e.waiting.total}
}
