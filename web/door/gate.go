package door

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"
)

// Why a request was not passed on.
var (
	errNoLeader   = errors.New("no core leads")
	errNoRoom     = errors.New("too many requests wait for a leader")
	errStopping   = errors.New("the edge stops")
	errNotHandled = errors.New("the core did not handle the request, and its body has been read")
	errExpired    = errors.New("the certificate of this edge has expired")
	errUnknown    = errors.New("the connection to the core ended after the request was sent")
)

// A rank is the importance of a request that waits. A lower one is more important.
type rank int

const (
	knownPolls rank = iota // boot polls of devices that this edge has seen answered
	questions              // of the edge itself: a person in a conversation waits for them
	polls                  // other boot polls
	others
	ranks
)

const (
	// maxReleases bounds how many requests that waited are under way to a new leader at a time,
	// until their responses begin.
	maxReleases = 64
	// releaseTimeout is after how long a request without a response makes room for others: it may
	// be a call that takes minutes.
	releaseTimeout = time.Second
	// retryEvery is how often one request tries a leader that is not reachable.
	retryEvery = 200 * time.Millisecond
	// maxHeldBytes bounds the headers of requests that wait.
	maxHeldBytes = 32 << 20
)

// A gate lets requests pass to the leader, and holds them while no core leads or the leader is not
// reachable. A request that waits is one goroutine with its headers.
type gate struct {
	max int

	mu       sync.Mutex
	to       *leader // nil: no core leads
	away     bool    // to was not reachable at the last attempt: one request at a time tries
	retryAt  time.Time
	stopped  bool
	held     [ranks]list.List // of *waiter, oldest first
	n        int              // length of all lists
	bytes    int              // cost of all waiters
	releases int              // requests that were let go and have no response yet
	retry    *time.Timer
}

func newGate(most int) *gate { return &gate{max: most} }

// A waiter is a request's place at the gate.
type waiter struct {
	cost  int  // bytes of its headers
	rank  rank // set before it waits
	since time.Time

	ready    chan struct{}
	element  *list.Element // while it waits
	to       *leader
	err      error
	released bool        // counts as one of gate.releases
	timer    *time.Timer // of releaseTimeout
}

// open sets the leader, and reports whether it changed.
func (g *gate) open(to *leader) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.to == to {
		return false
	}
	g.to, g.away = to, false
	g.pump()
	return true
}

// stop refuses the requests that wait, and all later ones that would have to.
func (g *gate) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stopped = true
	for i := range g.held {
		for e := g.held[i].Front(); e != nil; e = g.held[i].Front() {
			g.drop(e.Value.(*waiter), errStopping)
		}
	}
}

// now returns the leader if a new request need not wait.
func (g *gate) now() *leader {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.away || g.n > 0 {
		return nil
	}
	return g.to
}

// wait returns the leader once the request may pass. again is for a request that passed before; it
// keeps its place among those of its rank.
func (g *gate) wait(ctx context.Context, w *waiter, holdFor time.Duration, again bool) (*leader, error) {
	g.mu.Lock()
	if g.to != nil && !g.away && g.n == 0 {
		defer g.mu.Unlock()
		return g.to, nil
	}
	if w.since.IsZero() {
		w.since = time.Now()
	}
	if err := g.hold(w, again); err != nil {
		g.mu.Unlock()
		return nil, err
	}
	g.pump()
	g.mu.Unlock()

	timer := time.NewTimer(time.Until(w.since.Add(holdFor)))
	defer timer.Stop()
	why := errNoLeader
	select {
	case <-w.ready:
		return w.to, w.err
	case <-timer.C:
	case <-ctx.Done():
		why = ctx.Err()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if w.element != nil {
		g.drop(w, why)
	}
	return w.to, w.err // it may have been let go meanwhile
}

// hold adds w to its list, or returns an error if there is no room. Less important requests make
// room for it: the newest of the lowest rank first.
func (g *gate) hold(w *waiter, again bool) error {
	if g.stopped {
		return errStopping
	}
	for g.n >= g.max || g.bytes+w.cost > maxHeldBytes {
		lowest := others
		for lowest > 0 && g.held[lowest].Len() == 0 {
			lowest--
		}
		newest := g.held[lowest].Back()
		if newest == nil || w.rank > lowest || w.rank == lowest && !again {
			return errNoRoom
		}
		g.drop(newest.Value.(*waiter), errNoRoom)
	}
	w.ready, w.to, w.err = make(chan struct{}), nil, nil
	if again {
		w.element = g.held[w.rank].PushFront(w)
	} else {
		w.element = g.held[w.rank].PushBack(w)
	}
	g.n++
	g.bytes += w.cost
	return nil
}

// drop ends the wait of w with an error.
func (g *gate) drop(w *waiter, err error) {
	g.remove(w)
	w.err = err
	close(w.ready)
}

func (g *gate) remove(w *waiter) {
	g.held[w.rank].Remove(w.element)
	w.element = nil
	g.n--
	g.bytes -= w.cost
}

// pump lets requests go, the most important and oldest first.
func (g *gate) pump() {
	for g.to != nil && g.n > 0 && g.releases < maxReleases {
		if g.away {
			if g.releases > 0 {
				return // its end calls pump
			}
			if d := time.Until(g.retryAt); d > 0 {
				if g.retry == nil {
					g.retry = time.AfterFunc(d, func() {
						g.mu.Lock()
						defer g.mu.Unlock()
						g.retry = nil
						g.pump()
					})
				}
				return
			}
		}
		for i := range g.held {
			if first := g.held[i].Front(); first != nil {
				g.release(first.Value.(*waiter))
				break
			}
		}
	}
}

func (g *gate) release(w *waiter) {
	g.remove(w)
	w.to, w.released = g.to, true
	g.releases++
	to := g.to
	w.timer = time.AfterFunc(releaseTimeout, func() { g.reached(w, to) }) // else it would have failed
	close(w.ready)
}

// reached is called when the leader answers a request.
func (g *gate) reached(w *waiter, to *leader) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.away && g.to == to {
		g.away = false
	}
	g.unlock(w)
}

// missed is called when the leader could not be reached, or handles no requests.
func (g *gate) missed(w *waiter, to *leader) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.to == to {
		g.away, g.retryAt = true, time.Now().Add(retryEvery)
	}
	g.unlock(w)
}

// leave is called at the end of each request, with any outcome.
func (g *gate) leave(w *waiter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unlock(w)
}

// unlock makes room for the next release.
func (g *gate) unlock(w *waiter) {
	if w.released {
		w.released = false
		w.timer.Stop()
		g.releases--
	}
	g.pump()
}
