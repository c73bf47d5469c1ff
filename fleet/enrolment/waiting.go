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
	// A waiting board polls every three seconds (protocol 1.5). If it polled again after
	// steadyAfter, and its last poll is no older than steadyTTL, it keeps its place.
	steadyAfter = 2 * time.Second
	steadyTTL   = 2 * time.Minute

	maxUnlisted = 100           // networks with their own count
	unlistedTTL = time.Hour     // how long a count is shown after the network's latest request
	evictTries  = 64            // networks examined to make room
	evictQueue  = 2 * maxListed // ids to delete from the store
	maxListed   = 100_000
)

// A waitingList bounds the requests to be enrolled, both in total and per network, so invented
// devices from one network cannot fill every place. The network with the most requests loses a place
// first, and in it a device that polled only once. A device that keeps polling keeps its place.
type waitingList struct {
	limit, quota int
	bits4, bits6 int

	mu       sync.Mutex
	networks map[netip.Prefix]*waitingNetwork
	bySize   []*list.List // of *waitingNetwork; the index is its number of requests
	largest  int
	count    int
	gone     []fleet.DeviceID // stored devices that lost their place
	unlisted map[netip.Prefix]*UnlistedNetwork
	total    int64 // requests that were not listed
}

// A waitingNetwork has the requests of one network. Each of its lists is sorted by latest contact.
type waitingNetwork struct {
	prefix  netip.Prefix
	exempt  bool // from the quota: a proxy on this machine, or an unknown address
	count   int
	once    list.List // polled once
	steady  list.List // polled again
	pinned  int       // of enrolled devices: never evicted
	in      *list.List
	element *list.Element
}

// An UnlistedNetwork counts requests that were not listed, or lost their place, because their
// network had too many. The zero Network counts those of all further networks.
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

// networkOf returns the network that the address counts for. exempt reports that its quota does
// not apply.
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

// enter lists the request of a device at addr. evicted is the request that lost its place for it, if
// any. ok is false if there was no place, and crowded reports that the network or the list was full.
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

// weakest returns the request that the network should evict first.
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

// weakest returns the request to evict for one of a network with size requests. It belongs to
// the network with the most requests, never to a smaller one.
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

// touch records that a listed device polled again.
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

// leave removes a request from the list. It returns false if it was no longer listed.
func (w *waitingList) leave(r *request) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	listed := r.network != nil
	w.remove(r)
	return listed
}

// remove removes a request from the list. A request that is not listed is left alone.
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

// saved records that the store has the device, or is about to.
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

// forgotten queues a device for deletion from the store.
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

// takeGone returns the stored devices that lost their place since the last call.
func (w *waitingList) takeGone() []fleet.DeviceID {
	w.mu.Lock()
	defer w.mu.Unlock()
	gone := w.gone
	w.gone = nil
	return gone
}

// Unlisted returns the networks with unlisted requests in the last hour, most requests first.
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

// Stats returns the numbers of requests.
func (e *Service) Stats() Stats {
	e.waiting.mu.Lock()
	defer e.waiting.mu.Unlock()
	return Stats{Waiting: e.waiting.count, Unlisted: e.waiting.total}
}
