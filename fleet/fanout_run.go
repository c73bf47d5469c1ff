package fleet

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

const (
	fanOutPause      = 50 * time.Millisecond // the first while the database is away
	fanOutPauseMax   = 5 * time.Second
	fanOutDBTimeout  = 10 * time.Second // of one read or write: a database that hangs is one that is away
	flappingPause    = time.Second      // before a device is tried again that is connected, and was not for the call
	presenceBuffer   = 4096
	fanOutCallsLimit = 50 // calls of one device in one fan-out that are looked at
)

// A fanOutRun carries one fan-out out: workers make the calls, as many at a
// time as may be in flight, and one coordinator hands them the devices. Devices
// that are not connected and are waited for take up no worker; they are called
// when their presence changes, or when the wait for them ends.
//
// No error of the database ends it. It waits, asks the record which devices
// have had their call, and goes on.
type fanOutRun struct {
	s      *FanOuts
	f      FanOut
	grant  *grant // nil: no approval was needed
	ctx    context.Context
	cancel context.CancelFunc

	orders  chan fanOutOrder
	results chan fanOutResult // with room for all that is in flight
	acting  sync.RWMutex      // held for reading by workers but while they wait for a call
	over    bool              // under acting: workers touch the record no more

	// The coordinator's own.
	ready    []DeviceID
	parked   map[DeviceID]time.Time // not connected: when they are looked at again at the latest
	talks    map[DeviceID]talkWait  // conversations whose ends are or were waited for
	inTalk   map[DeviceID]bool      // parked for that
	gone     map[DeviceID]bool      // not connected before the start of fleetd either: no grace for them
	wake     time.Time              // no later than the first of parked; zero: none
	inFlight int                    // orders without a result
	targets  []DeviceID             // of a new fan-out, until they are ready: none has had its call
	after    DeviceID               // the last target read
	allRead  bool
	failed   error         // of a device about which nothing is on record: the fan-out must not complete
	presence *Subscription // nil if no device can be waited for

	changed     atomic.Bool // since the last announcement
	awaitOnline atomic.Int64
	awaitTalk   atomic.Int64
	mu          sync.Mutex
	stuck       int       // workers and reads that wait for the database
	stuckSince  time.Time // of the first of them
}

// A fanOutOrder asks a worker for a call.
type fanOutOrder struct {
	device        DeviceID
	unlessOffline bool
	outwaited     uuid.UUID // conversation whose end is waited for no longer; or zero
}

// A fanOutResult says whether the device was found offline, or in a conversation,
// so that it may be tried again, or whether nothing about it is on record.
type fanOutResult struct {
	device  DeviceID
	offline bool
	talking bool
	err     error // the device has neither a call nor a reason on record
}

// launch starts carrying a fan-out out, unless fleetd is not up yet (Run will
// find it on record) or is stopping. Targets of nil are read from the record.
func (s *FanOuts) launch(f FanOut, targets []DeviceID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life == nil || s.life.Err() != nil || s.runs[f.ID] != nil {
		return
	}
	workers := min(f.MaxInFlight, f.Targets)
	r := &fanOutRun{s: s, f: f, targets: targets, parked: make(map[DeviceID]time.Time), gone: make(map[DeviceID]bool),
		talks: make(map[DeviceID]talkWait), inTalk: make(map[DeviceID]bool),
		orders: make(chan fanOutOrder, workers), results: make(chan fanOutResult, 2*workers)}
	if f.Approval != uuid.Nil {
		r.grant = &grant{f.PolicyVersion}
	}
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

// halt ends carrying a fan-out out: what is not sent is not sent any more.
func (s *FanOuts) halt(id uuid.UUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.runs[id]; r != nil {
		r.cancel()
	}
}

// background runs do unless fleetd is not up, or stopping.
func (s *FanOuts) background(do func(ctx context.Context)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life == nil || s.life.Err() != nil {
		return
	}
	life := s.life
	s.running.Go(func() { do(life) })
}

// haltIfEnded halts a fan-out whose end was not confirmed by the database, once
// that answers, if it is on record.
func (s *FanOuts) haltIfEnded(id uuid.UUID) {
	s.background(func(ctx context.Context) {
		var f FanOut
		err := s.untilStored(ctx, func(ctx context.Context) (err error) {
			f, err = s.Get(ctx, id)
			return err
		}, func(error) {})
		if err == nil && f.State != FanOutRunning {
			s.halt(id)
		}
	})
}

// withdraw cancels a fan-out whose creation the database did not confirm: its
// maker was refused, and the next start would carry it out. Either this puts it
// on record as canceled, and a creation that hangs comes too late, or that one
// is on record, and ends.
func (s *FanOuts) withdraw(f FanOut) {
	now := s.now()
	f.State, f.FinishedAt = FanOutCanceled, &now
	s.background(func(ctx context.Context) {
		err := s.untilStored(ctx, func(ctx context.Context) error {
			err := s.store.CreateFanOut(ctx, &f, nil)
			if errors.Is(err, ErrConflict) {
				err = s.store.FinishFanOut(ctx, systemActor, f.ID, FanOutCanceled, now)
			}
			return err
		}, func(error) {})
		if err != nil && !errors.Is(err, ErrConflict) && ctx.Err() == nil {
			s.log.Error("a fan-out whose creation failed may be on record", "fanout", f.ID, "err", err)
		}
	})
}

var systemActor = Principal{Kind: KindSystem, Name: "fleetd"}

// Progress counts the fan-out's calls, and says what it waits for.
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

// Blocked says what keeps the fan-out from going on, nil if nothing does. It
// needs no database.
func (s *FanOuts) Blocked(id uuid.UUID) *FanOutBlock {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.runs[id]; r != nil {
		return r.blocked()
	}
	return nil
}

// announce hints at the progress to live views.
func (s *FanOuts) announce(id uuid.UUID) {
	s.events.Publish(Event{Kind: EventFanOut, At: s.now(), Subject: id.String()})
}

// untilStored calls do until the database accepts it, with growing pauses. It
// returns errors that are not the database's, and the end of ctx.
func (s *FanOuts) untilStored(ctx context.Context, do func(context.Context) error, failed func(error)) error {
	return s.untilDone(ctx, func() error {
		bounded, cancel := context.WithTimeout(ctx, fanOutDBTimeout)
		defer cancel()
		return do(bounded)
	}, failed)
}

// untilDone is untilStored for what bounds its use of the database itself.
func (s *FanOuts) untilDone(ctx context.Context, do func() error, failed func(error)) error {
	for pause := fanOutPause; ; pause = min(2*pause, fanOutPauseMax) {
		err := do()
		if err == nil || ctx.Err() != nil || rowRefused(err) || errors.Is(err, ErrOffline) ||
			errors.Is(err, ErrTalking) {
			return err
		}
		failed(err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// persist is untilStored, shown to who follows the fan-out.
func (r *fanOutRun) persist(do func(context.Context) error) error {
	return r.showStuck(func(stalled func(error)) error { return r.s.untilStored(r.ctx, do, stalled) })
}

// showStuck shows that do waits for the database, from its first call of stalled
// to its end.
func (r *fanOutRun) showStuck(do func(stalled func(error)) error) error {
	stuck := false
	defer func() {
		if stuck {
			r.unstuck()
		}
	}()
	return do(func(err error) {
		if !stuck && r.ctx.Err() == nil {
			stuck = true
			r.noteStuck(err)
		}
	})
}

func (r *fanOutRun) noteStuck(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stuck++; r.stuck == 1 {
		r.stuckSince = r.s.now()
		r.s.log.Error("a fan-out waits for the database", "fanout", r.f.ID, "err", err)
	}
	r.changed.Store(true)
}

func (r *fanOutRun) unstuck() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stuck--; r.stuck == 0 && r.ctx.Err() == nil {
		r.s.log.Info("the fan-out goes on", "fanout", r.f.ID)
	}
	r.changed.Store(true)
}

func (r *fanOutRun) blocked() *FanOutBlock {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stuck == 0 {
		return nil
	}
	return &FanOutBlock{Code: BlockDatabase, Since: r.stuckSince}
}

// carryOut calls every waiting target and closes the fan-out. When the run is
// canceled it stops sending and leaves the record as it is.
func (r *fanOutRun) carryOut(workers int) {
	live, stopLive := context.WithCancel(r.ctx)
	defer stopLive()
	go r.announceWhile(live)
	for range workers {
		go r.work()
	}
	err := r.callAll()
	stopping := r.ctx.Err() != nil
	if err != nil {
		r.cancel()
	}
	r.release()
	if err != nil {
		if !stopping {
			r.s.log.Error("fan-out stopped; it goes on at the next start", "fanout", r.f.ID, "err", err)
		}
		return
	}
	err = r.persist(func(ctx context.Context) error {
		// All is done: that goes on record even while fleetd stops.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fanOutDBTimeout)
		defer cancel()
		return r.s.store.FinishFanOut(ctx, systemActor, r.f.ID, FanOutCompleted, r.s.now())
	})
	if err != nil && !errors.Is(err, ErrConflict) && r.ctx.Err() == nil { // a conflict: it ended already
		r.s.log.Error("end of fan-out not stored", "fanout", r.f.ID, "err", err)
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

// release ends the workers. It does not wait for those that wait for a call:
// they will find that the run is over.
func (r *fanOutRun) release() {
	close(r.orders)
	r.acting.Lock()
	r.over = true
	r.acting.Unlock()
}

// callAll returns when every target has had its call or a reason for having
// none, or the run is canceled.
func (r *fanOutRun) callAll() error {
	if r.f.OfflineWait > 0 || r.s.now().Before(r.graceEnd()) || r.waitsForTalks() {
		r.follow()
		defer func() { r.presence.Close() }()
	}
	alarm := time.NewTimer(time.Hour)
	defer alarm.Stop()
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
			return r.failed
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
		case <-alarm.C:
			r.wakeUp()
		case <-r.ctx.Done():
			return r.ctx.Err()
		}
	}
}

// order says how the device is to be called now.
func (r *fanOutRun) order(id DeviceID) fanOutOrder {
	return fanOutOrder{device: id, unlessOffline: r.s.now().Before(r.waitFor(id)), outwaited: r.outwaited(id)}
}

// A talkWait is the wait for the end of a conversation.
type talkWait struct {
	id    uuid.UUID
	began time.Time
}

// waitsForTalks reports whether devices in conversation are called after it.
func (r *fanOutRun) waitsForTalks() bool {
	return r.s.calls.o.Interruptions != nil && Interrupts(r.f.Tool) && !r.f.Interrupt
}

// outwaited is the device's conversation if that was waited for long enough.
func (r *fanOutRun) outwaited(id DeviceID) uuid.UUID {
	w, waited := r.talks[id]
	if !waited || r.s.now().Before(w.began.Add(r.s.calls.o.Interruptions.bound())) {
		return uuid.Nil
	}
	return w.id
}

// waitFor is until when the device is waited for if it is not connected. It
// lies in the past, or is zero, if it is not waited for.
func (r *fanOutRun) waitFor(id DeviceID) time.Time {
	var until time.Time
	if at := r.f.WaitsUntil(); at != nil {
		until = *at
	}
	if grace := r.graceEnd(); !r.gone[id] && grace.After(until) {
		until = grace
	}
	return until
}

// graceEnd is when the fleet has had time to come back after the start.
func (r *fanOutRun) graceEnd() time.Time { return r.s.started.Add(r.s.grace) }

// fill adds targets while the workers could soon be without.
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
		// All at once: otherwise each call reads its device. After an error it does.
		_, _ = r.s.calls.o.Targets.load(r.ctx, r.ready, r.s.now())
	}
	return nil
}

// nextTargets returns some targets that have not had their call, none at the end.
func (r *fanOutRun) nextTargets() (page []DeviceID, err error) {
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

// sortOut parks the devices that are waited for; the others are ready.
func (r *fanOutRun) sortOut(page []DeviceID) error {
	var away []DeviceID
	for _, id := range page {
		if r.s.presence.IsConnected(id) {
			r.ready = append(r.ready, id)
		} else {
			away = append(away, id)
		}
	}
	if len(away) > 0 && r.s.now().Before(r.graceEnd()) {
		if err := r.findGone(away); err != nil {
			return err
		}
	}
	for _, id := range away {
		r.parkOrCall(id)
	}
	return nil
}

// findGone notes which devices were not connected before the start of fleetd.
func (r *fanOutRun) findGone(ids []DeviceID) error {
	return r.persist(func(ctx context.Context) error {
		alive, err := r.s.store.LastAlive(ctx, r.s.started)
		if err != nil {
			return err
		}
		devices, err := r.s.devices.DevicesByID(ctx, ids)
		for _, d := range devices {
			r.gone[d.ID] = !wasConnected(d, alive)
		}
		return err
	})
}

// wasConnected reports whether the record says that the device was connected
// when fleetd was last alive. What follows a stop or a start is recorded as the
// end of its connection then.
func wasConnected(d Device, alive time.Time) bool {
	switch d.Presence {
	case PresenceOnline, PresenceUnresponsive:
		return true
	case PresenceOffline:
		return !d.PresenceSince.Before(alive)
	}
	return false
}

// parkOrCall parks a device that was found offline, if it is waited for.
func (r *fanOutRun) parkOrCall(id DeviceID) {
	now := r.s.now()
	until := r.waitFor(id)
	if !now.Before(until) {
		r.ready = append(r.ready, id)
		return
	}
	if r.s.presence.IsConnected(id) { // meanwhile, or it comes and goes
		if soon := now.Add(flappingPause); soon.Before(until) {
			until = soon
		}
	}
	r.parked[id] = until
	if r.wake.IsZero() || until.Before(r.wake) {
		r.wake = until
	}
	r.changed.Store(true)
}

// parkTalking parks a device that was found in a conversation, until its end or
// the bound of the wait.
func (r *fanOutRun) parkTalking(id DeviceID) {
	now, talks := r.s.now(), r.s.calls.o.Interruptions
	if c, talking := talks.Open.Of(id); talking && r.talks[id].id != c.ID {
		r.talks[id] = talkWait{c.ID, now}
	}
	w, waits := talks.Wait(id, r.talks[id].began, now)
	if !waits { // it ended meanwhile
		r.ready = append(r.ready, id)
		return
	}
	r.parked[id], r.inTalk[id] = w.Until, true
	if r.wake.IsZero() || w.Until.Before(r.wake) {
		r.wake = w.Until
	}
	r.changed.Store(true)
}

func (r *fanOutRun) unpark(id DeviceID) {
	delete(r.parked, id)
	delete(r.inTalk, id)
	r.ready = append(r.ready, id)
	r.changed.Store(true)
}

// handle looks at what came of a call. A device is tried again only if it was not
// connected and is still waited for.
func (r *fanOutRun) handle(result fanOutResult) {
	r.changed.Store(true)
	r.inFlight--
	switch {
	case result.offline:
		r.parkOrCall(result.device)
	case result.talking:
		r.parkTalking(result.device)
	}
	if r.failed == nil {
		r.failed = result.err
	}
}

// follow subscribes to the presence of devices, and to their conversations where
// these are waited for.
func (r *fanOutRun) follow() {
	kinds := []EventKind{EventPresence}
	if r.waitsForTalks() {
		kinds = append(kinds, EventConversation)
	}
	r.presence = r.s.events.Subscribe(presenceBuffer, func(e *Event) bool {
		return e.Kind == EventConversation || e.Presence == PresenceOnline || e.Presence == PresenceUnresponsive
	}, kinds...)
}

// seen is nil, which never delivers, if no device can be waited for.
func (r *fanOutRun) seen() <-chan Event {
	if r.presence == nil {
		return nil
	}
	return r.presence.C
}

// online calls a device that came online, or whose conversation ended. A subscription that fell behind is
// made again, and what it missed is looked up.
func (r *fanOutRun) online(e Event, ok bool) {
	if ok {
		_, waited := r.parked[e.Device]
		if waited && e.Kind == EventConversation {
			_, talks := r.s.calls.o.Interruptions.Open.Of(e.Device)
			waited = r.inTalk[e.Device] && !talks
		}
		if waited {
			r.unpark(e.Device)
		}
		return
	}
	select {
	case <-r.ctx.Done(): // fleetd stops, and with it all events
		return
	case <-time.After(fanOutPause):
	}
	r.follow()
	for id := range r.parked {
		if r.s.presence.IsConnected(id) {
			r.unpark(id)
		}
	}
}

// wakeUp makes the devices ready whose time has come.
func (r *fanOutRun) wakeUp() {
	now := r.s.now()
	r.wake = time.Time{}
	for id, at := range r.parked {
		if !now.Before(at) {
			r.unpark(id)
		} else if r.wake.IsZero() || at.Before(r.wake) {
			r.wake = at
		}
	}
}

// call makes one call, and waits as long as the database is away. After an
// error the record decides whether the device has had its call: first that has
// to be settled. A device whose call is refused, as against not recorded yet,
// leaves the fan-out with the reason.
func (r *fanOutRun) call(o fanOutOrder) fanOutResult {
	result := fanOutResult{device: o.device}
	again, conflicts := false, 0
	var open *unsettledError
	try := func(stalled func(error)) error {
		if err := r.awaitSettled(&open); err != nil {
			return err
		}
		if again {
			ctx, cancel := context.WithTimeout(r.ctx, fanOutDBTimeout)
			defer cancel()
			if due, err := r.due(ctx, o.device); err != nil || !due {
				return err
			}
		}
		again = true
		c, err := r.makeCall(o, stalled)
		switch {
		case errors.As(err, &open): // shown as waiting first
			if conflicts++; conflicts == 1 { // whatever the record was in conflict with: the settled one decides
				err = Refuse(ErrUnavailable, "not_recorded.conflict", "detail", err)
			}
		case err == nil && withoutRecord(c):
			err = &Error{Kind: ErrUnavailable, Code: c.Error.Code, Params: c.Error.Params}
		case err == nil:
			result.offline = r.retriesOffline(c)
		}
		return err
	}
	err := r.showStuck(func(stalled func(error)) error {
		return r.s.untilDone(r.ctx, func() error { return try(stalled) }, stalled)
	})
	switch {
	case err == nil, r.ctx.Err() != nil:
	case errors.Is(err, ErrOffline):
		result.offline = true
	case errors.Is(err, ErrTalking):
		result.talking = true
	default:
		result.err = r.skip(o.device, err, open)
	}
	return result
}

// makeCall makes a call and waits for its outcome. If the run ends meanwhile the
// call goes on, and its outcome no longer matters here: a call that waits for its
// turn, or for an answer, does not hold up a stop.
func (r *fanOutRun) makeCall(o fanOutOrder, stalled func(error)) (Call, error) {
	if r.ctx.Err() != nil {
		return Call{}, r.ctx.Err()
	}
	r.acting.RUnlock()
	c, err := r.s.calls.Make(context.Background(), CallRequest{Actor: r.f.Actor, Device: o.device, Tool: r.f.Tool,
		Arguments: r.f.Arguments, Timeout: r.f.Timeout, FanOut: r.f.ID, UnlessOffline: o.unlessOffline,
		Interrupt: r.f.Interrupt, UnlessTalking: true, Outwaited: o.outwaited,
		stalled: stalled, grant: r.grant, approval: r.f.Approval})
	r.acting.RLock()
	if r.over {
		return Call{}, r.ctx.Err()
	}
	return c, err
}

// awaitSettled returns when the record of an earlier call is true.
func (r *fanOutRun) awaitSettled(open **unsettledError) error {
	if *open == nil {
		return nil
	}
	select {
	case <-(*open).settled:
		*open = nil
		return nil
	case <-r.ctx.Done():
		return r.ctx.Err()
	}
}

// skip removes a device from the fan-out that cannot be called, unless the
// record says that it has had its call.
func (r *fanOutRun) skip(id DeviceID, why error, open *unsettledError) error {
	target := FanOutTarget{Device: id, Reason: skipReason(why)}
	r.s.log.Error("a device of a fan-out cannot be called", "fanout", r.f.ID, "device", id, "reason", target.Reason, "err",
		why)
	if err := r.awaitSettled(&open); err != nil {
		return err
	}
	return r.persist(func(ctx context.Context) error {
		if due, err := r.due(ctx, id); err != nil || !due {
			return err
		}
		return r.s.store.SkipTarget(ctx, r.f.ID, target)
	})
}

// Reasons of a [FanOutTarget] that could not be called.
const (
	reasonDeviceUnknown = "device_unknown"
	reasonRecordRefused = "record_refused" // the database does not take the record of its call
)

// skipReason is the code of an error, or one for its kind.
func skipReason(err error) string {
	var known *Error
	switch {
	case errors.As(err, &known) && known.Code != "":
		return known.Code
	case errors.Is(err, ErrNotFound):
		return reasonDeviceUnknown
	}
	return reasonRecordRefused
}

// due reports whether the record says that the device has yet to be called.
func (r *fanOutRun) due(ctx context.Context, id DeviceID) (bool, error) {
	made, err := r.s.calls.List(ctx, CallFilter{FanOut: r.f.ID, Device: id, Since: r.f.CreatedAt.Add(-24 * time.Hour),
		Limit: fanOutCallsLimit})
	counts := func(c Call) bool {
		stopped := c.State == CallCanceled && c.Error != nil && c.Error.Code == CodeStopped
		return !stopped && !withoutRecord(c) && !r.retriesOffline(c)
	}
	return !slices.ContainsFunc(made.Items, counts), err
}

// withoutRecord reports whether the call was not sent for want of its record.
func withoutRecord(c Call) bool {
	return c.State == CallCanceled && c.Error != nil && (c.Error.Code == CodeNotRecorded || c.Error.Code == CodeRecordLate)
}

// retriesOffline reports whether the call does not count because its device was
// offline, and is waited for.
func (r *fanOutRun) retriesOffline(c Call) bool {
	until := r.f.WaitsUntil()
	return until != nil && r.s.now().Before(*until) &&
		(c.State == CallOffline || c.State == CallCanceled) && c.Error != nil && c.Error.Code == CodeOffline
}

// announceWhile announces what changed a few times a second.
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
