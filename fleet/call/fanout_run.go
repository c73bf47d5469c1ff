package call

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// A fanOutRun runs a fan-out. Workers make the calls, as many at a time as may be in flight,
// and one coordinator gives them the devices. Disconnected devices that the fan-out waits for
// occupy no worker; they are called when their presence changes, or when the wait ends.
//
// No error of the database ends the run. The run waits, reads from the record which devices
// have had their call, and goes on.
type fanOutRun struct {
	s      *FanOuts
	f      FanOut
	sent   json.RawMessage // the arguments as sent to the devices
	lost   error           // why these cannot be read
	ctx    context.Context
	cancel context.CancelFunc

	orders  chan fanOutOrder
	results chan fanOutResult // with room for all calls in flight
	acting  sync.RWMutex      // read-locked by workers, except while they wait for a call
	over    bool              // under acting: workers no longer write records

	// These fields belong to the coordinator.
	ready    []fleet.DeviceID
	parked   map[fleet.DeviceID]time.Time // disconnected devices, with the latest time of their next check
	talks    map[fleet.DeviceID]talkWait  // conversations that the run waits or waited for
	inTalk   map[fleet.DeviceID]bool      // parked because of a conversation
	absent   map[fleet.DeviceID]bool      // already disconnected before fleetd started: they get no grace
	wake     time.Time                    // no later than the earliest time in parked; zero without one
	inFlight int                          // orders without a result
	named    map[fleet.DeviceID]ToolBuild // from the approval; nil: without approval, or not read yet
	approver fleet.Principal              // zero: no approval was needed
	targets  []fleet.DeviceID             // of a new fan-out until they are ready: not called yet
	after    fleet.DeviceID               // the last target read
	allRead  bool
	failed   error               // of a device without any record: the fan-out must not complete
	stopped  error               // [fleet.ErrActorGone]: no further device is called
	gone     chan struct{}       // closed when the maker of the fan-out may no longer act
	presence *fleet.Subscription // nil if the run waits for no device

	changed     atomic.Bool // since the last announcement
	awaitOnline atomic.Int64
	awaitTalk   atomic.Int64
	mu          sync.Mutex
	stuck       int       // workers and reads that wait for the database
	stuckSince  time.Time // since when stuck is above 0
}

// A fanOutOrder orders a call from a worker.
type fanOutOrder struct {
	device        fleet.DeviceID
	unlessOffline bool
	outwaited     uuid.UUID // conversation whose wait is over; or zero
	grant         *grant    // nil: no approval was needed
}

// A fanOutResult reports whether the device was offline or in a conversation, and so can be
// tried again, or whether it has no record at all.
type fanOutResult struct {
	device  fleet.DeviceID
	offline bool
	talking bool
	gone    bool  // the maker of the fan-out may no longer act
	err     error // the device has neither a call nor a reason on record
}

// launch starts running a fan-out, unless fleetd is stopping or not up yet (Run then finds the
// fan-out on record). Nil targets are read from the record.
func (s *FanOuts) launch(f FanOut, targets []fleet.DeviceID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life == nil || s.life.Err() != nil || s.runs[f.ID] != nil {
		return
	}
	workers := min(f.MaxInFlight, f.Targets)
	r := &fanOutRun{s: s, f: f, targets: targets, parked: make(map[fleet.DeviceID]time.Time),
		absent: make(map[fleet.DeviceID]bool),
		gone:   make(chan struct{}),
		talks:  make(map[fleet.DeviceID]talkWait), inTalk: make(map[fleet.DeviceID]bool),
		orders: make(chan fanOutOrder, workers), results: make(chan fanOutResult, 2*workers)}
	r.sent, r.lost = s.calls.trueArguments(f.ID, f.Arguments, f.Sealed)
	r.ctx, r.cancel = context.WithCancel(s.life)
	s.runs[f.ID] = r
	s.running.Go(func() {
		defer r.cancel()
		r.carryOut(workers)
		s.mu.Lock()
		delete(s.runs, f.ID)
		s.mu.Unlock()
		s.announce(f.ID)
	})
}

// carryOut calls every waiting target and closes the fan-out. If the run is canceled, carryOut
// stops sending and leaves the record unchanged.
func (r *fanOutRun) carryOut(workers int) {
	live, stopLive := context.WithCancel(r.ctx)
	defer stopLive()
	go r.announceWhile(live)
	go r.watchActor(live)
	for range workers {
		go r.work()
	}
	err := r.callAll()
	stopping := r.ctx.Err() != nil
	actorGone := errors.Is(err, fleet.ErrActorGone)
	if err != nil && !actorGone {
		r.cancel()
	}
	r.release()
	if err != nil && !actorGone {
		if !stopping {
			r.s.log.Error("fan-out stopped; it goes on at the next start", "fanout", r.f.ID, "err", err)
		}
		return
	}
	err = r.persist(func(ctx context.Context) error {
		// All calls are done: record that even while fleetd stops.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fanOutDBTimeout)
		defer cancel()
		if actorGone {
			return r.s.store.StopFanOut(ctx, r.f.ID, fleet.CodeActorGone, r.s.now())
		}
		return r.s.store.FinishFanOut(ctx, systemActor, r.f.ID, FanOutCompleted, r.s.now())
	})
	if err != nil && !errors.Is(err, fleet.ErrConflict) && r.ctx.Err() == nil { // conflict: it already ended
		r.s.log.Error("end of fan-out not stored", "fanout", r.f.ID, "err", err)
	}
}

// callAll returns when every target has had its call or a reason for having no call, or the run
// is canceled.
func (r *fanOutRun) callAll() error {
	if r.lost != nil {
		return r.lost
	}
	if err := r.readNamed(); err != nil {
		return err
	}
	if r.f.OfflineWait > 0 || r.s.now().Before(r.graceEnd()) || r.waitsForTalks() {
		r.follow()
		defer func() { r.presence.Close() }()
	}
	alarm := time.NewTimer(time.Hour)
	defer alarm.Stop()
	gone := r.gone
	for {
		if err := r.fill(cap(r.orders)); err != nil {
			return err
		}
		for len(r.results) > 0 {
			r.handle(<-r.results)
		}
		for len(r.ready) > 0 && len(r.orders) < cap(r.orders) && r.inFlight < cap(r.results) {
			r.orders <- r.order(r.ready[0])
			r.ready = r.ready[1:]
			r.inFlight++
			r.changed.Store(true)
		}
		if r.allRead && len(r.ready) == 0 && r.inFlight == 0 && len(r.parked) == 0 {
			return cmp.Or(r.stopped, r.failed)
		}
		r.awaitOnline.Store(int64(len(r.parked) - len(r.inTalk)))
		r.awaitTalk.Store(int64(len(r.inTalk)))
		if !r.wake.IsZero() {
			alarm.Reset(max(r.wake.Sub(r.s.now()), time.Millisecond))
		}
		select {
		case result := <-r.results:
			r.handle(result)
		case e, ok := <-r.seen():
			r.online(e, ok)
		case <-gone:
			if gone = nil; !r.allRead || len(r.ready)+len(r.parked) > 0 { // otherwise the calls in flight are the last
				r.stop()
			}
		case <-alarm.C:
			r.wakeUp()
		case <-r.ctx.Done():
			return r.ctx.Err()
		}
	}
}

// fill reads more targets before the workers run out of them.
func (r *fanOutRun) fill(workers int) error {
	for !r.allRead && len(r.ready) <= workers {
		page, err := r.nextTargets()
		if err != nil {
			return err
		}
		if len(page) == 0 {
			r.allRead = true
			return nil
		}
		if err := r.sortOut(page); err != nil {
			return err
		}
		// Load all devices at once; after an error each call loads its own.
		_, _ = r.s.calls.o.Targets.Load(r.ctx, r.ready, r.s.now())
	}
	return nil
}

// nextTargets returns some targets that have not had their call, and none at the end.
func (r *fanOutRun) nextTargets() (page []fleet.DeviceID, err error) {
	if r.targets != nil {
		n := min(fanOutPage, len(r.targets))
		page, r.targets = r.targets[:n], r.targets[n:]
		return page, nil
	}
	err = r.persist(func(ctx context.Context) (err error) {
		page, err = r.s.store.PendingTargets(ctx, r.f.ID, r.after, fanOutPage)
		return err
	})
	if len(page) > 0 {
		r.after = page[len(page)-1]
	}
	return page, err
}

// order returns the order for a call to the device now.
func (r *fanOutRun) order(id fleet.DeviceID) fanOutOrder {
	o := fanOutOrder{device: id, unlessOffline: r.s.now().Before(r.waitFor(id)), outwaited: r.outwaited(id)}
	if r.f.Approval != uuid.Nil {
		o.grant = &grant{policy: r.f.PolicyVersion, build: r.named[id], by: r.approver}
	}
	return o
}

// readNamed reads the fan-out's approval, if any: the approver, and the tool and firmware of
// each device.
func (r *fanOutRun) readNamed() error {
	if r.f.Approval == uuid.Nil {
		return nil
	}
	return r.persist(func(ctx context.Context) error {
		a, err := r.s.approvals.Approval(ctx, r.f.Approval)
		if err != nil {
			return err
		}
		r.approver = a.DecidedBy
		targets, err := r.s.approvals.ApprovalTargets(ctx, r.f.ID)
		r.named = make(map[fleet.DeviceID]ToolBuild, len(targets))
		for _, t := range targets {
			r.named[t.Device] = t.Build
		}
		return err
	})
}

// handle processes the result of a call. A device is tried again only if it was offline or in a
// conversation and the run still waits for it.
func (r *fanOutRun) handle(result fanOutResult) {
	r.changed.Store(true)
	r.inFlight--
	switch {
	case result.gone:
		r.stop()
	case r.stopped != nil:
	case result.offline:
		r.parkOrCall(result.device)
	case result.talking:
		r.parkTalking(result.device)
	}
	if r.failed == nil {
		r.failed = result.err
	}
}

// stop ends the calls to further devices: the maker of the fan-out may no longer act. Calls in
// flight run to their outcomes.
func (r *fanOutRun) stop() {
	r.stopped, r.allRead, r.ready, r.targets = fleet.ErrActorGone, true, nil, nil
	clear(r.parked)
	clear(r.inTalk)
	r.changed.Store(true)
}

// actorPeriod is the time between two checks of a fan-out's maker while the fan-out waits.
const actorPeriod = time.Second

// watchActor closes gone when the maker of the fan-out may no longer act. Each call also checks
// that just before it is made.
func (r *fanOutRun) watchActor(ctx context.Context) {
	if r.s.calls.o.Authority == nil {
		return
	}
	tick := time.NewTicker(actorPeriod)
	defer tick.Stop()
	for {
		if _, err := r.s.calls.principalNow(ctx, r.f.Actor); errors.Is(err, fleet.ErrActorGone) {
			close(r.gone)
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// work makes calls until there are no more orders.
func (r *fanOutRun) work() {
	r.acting.RLock()
	for o := range r.orders {
		r.results <- r.call(o)
	}
	r.acting.RUnlock()
}

// release ends the workers. It does not wait for workers that wait for a call: they find later
// that the run is over.
func (r *fanOutRun) release() {
	close(r.orders)
	r.acting.Lock()
	r.over = true
	r.acting.Unlock()
}

// halt stops running a fan-out: no further call is sent.
func (s *FanOuts) halt(id uuid.UUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.runs[id]; r != nil {
		r.cancel()
	}
}

// Progress counts the fan-out's calls and reports what blocks it.
func (s *FanOuts) Progress(ctx context.Context, id uuid.UUID) (FanOutProgress, error) {
	p, err := s.store.Progress(ctx, id)
	if err != nil {
		return p, err
	}
	s.mu.Lock()
	r := s.runs[id]
	s.mu.Unlock()
	if r != nil {
		p.AwaitOnline = min(int(r.awaitOnline.Load()), p.Waiting)
		p.InConversation = min(int(r.awaitTalk.Load()), p.Waiting-p.AwaitOnline)
		p.Blocked = r.blocked()
	}
	return p, nil
}

// announce notifies live pages of progress.
func (s *FanOuts) announce(id uuid.UUID) {
	s.events.Publish(fleet.Event{Kind: fleet.EventFanOut, At: s.now(), Subject: id.String()})
}

// announceWhile announces changes a few times a second.
func (r *fanOutRun) announceWhile(ctx context.Context) {
	tick := time.NewTicker(fanOutAnnounce)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if r.changed.Swap(false) {
				r.s.announce(r.f.ID)
			}
		case <-ctx.Done():
			return
		}
	}
}
