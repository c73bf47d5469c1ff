package logstream

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/record"
)

const (
	lookInterval = time.Second            // between looks for changed streams
	sizeInterval = 200 * time.Millisecond // between looks at the size of the log
	saveInterval = time.Second            // between writes of a cursor while a stream sends
	readChunk    = 512                    // entries read at a time
	maxRetry     = 5 * time.Minute
	saveTimeout  = 5 * time.Second
)

// testKind is the kind of the entry that [Service.Test] sends. The log does not have it.
const testKind = "test"

func testEntry(at time.Time) record.Entry {
	line, _ := json.Marshal(map[string]any{"entry": testKind, "at": at})
	return record.Entry{Number: -1, Kind: testKind, At: at, Line: line}
}

// reasonOf returns why an attempt failed; the zero reason without an error.
func reasonOf(err error) fleet.Reason {
	if err == nil {
		return fleet.Reason{}
	}
	if f, ok := errors.AsType[*failure](err); ok {
		return f.reason
	}
	return fleet.Because("log_stream_failed", "detail", err.Error())
}

// Run sends to all enabled streams until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	s.mu.Lock()
	s.life, s.running = ctx, make(map[uuid.UUID]*sender)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, x := range s.running {
			x.stop()
		}
		s.running = nil
	}()
	for {
		if err := s.look(ctx); err != nil && ctx.Err() == nil {
			s.o.Logger.Warn("could not read the log streams", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(lookInterval):
		}
	}
}

// look reads the streams and adjusts the senders, if this process sends.
func (s *Service) look(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil {
		return nil
	}
	list, err := s.o.Store.LogStreams(ctx)
	if err != nil {
		return err
	}
	s.adjust(list)
	s.noteState(list)
	return nil
}

// changed makes a change take effect before its request is answered. After an error, it takes effect within a second.
func (s *Service) changed(ctx context.Context, err error) error {
	if err == nil {
		_ = s.look(ctx)
	}
	return err
}

// A State summarises the enabled streams.
type State struct {
	Failing []string // names of streams whose latest attempt failed
	Lag     int64    // entries that the slowest has not got yet
}

// State returns the state of a second ago.
func (s *Service) State() State {
	if state := s.state.Load(); state != nil {
		return *state
	}
	return State{}
}

func (s *Service) noteState(list []Stream) {
	var state State
	for _, st := range list {
		if st.Enabled {
			state.Lag = max(state.Lag, st.Lag(s.Size()))
			if st.Failures > 0 {
				state.Failing = append(state.Failing, st.Name)
			}
		}
	}
	s.state.Store(&state)
}

// adjust stops the senders of streams that were changed, and starts those of streams without one.
func (s *Service) adjust(list []Stream) {
	wanted := make(map[uuid.UUID]Stream, len(list))
	for _, st := range list {
		if st.Enabled {
			wanted[st.ID] = st
		}
	}
	for id, x := range s.running {
		if st, ok := wanted[id]; !ok || st.Revision != x.st.Revision {
			x.stop()
			delete(s.running, id)
		}
	}
	for id, st := range wanted {
		if s.running[id] == nil {
			s.running[id] = s.start(s.life, st)
		}
	}
}

// A sender sends to one stream.
type sender struct {
	s  *Service
	st Stream
	to receiver // nil before the first attempt and after a failure

	next      int64    // number of the entry to send next
	confirmed int64    // number of the first entry that was not confirmed
	marks     []mark   // what was sent and is not settled
	pending   Delivery // what was sent since the cursor was stored
	stored    int64    // cursor in the store
	storedAt  time.Time
	failures  int

	cancel context.CancelFunc
	done   sync.WaitGroup
}

// A mark is the time at which the entries before next were sent.
type mark struct {
	next int64
	at   time.Time
}

var errChanged = errors.New("the stream was changed")

func (s *Service) start(ctx context.Context, st Stream) *sender {
	ctx, cancel := context.WithCancel(ctx)
	x := &sender{s: s, st: st, next: st.Next, confirmed: st.Next, stored: st.Next, failures: st.Failures, cancel: cancel}
	x.done.Go(func() { x.run(ctx) })
	return x
}

func (x *sender) stop() {
	x.cancel()
	x.done.Wait()
}

func (x *sender) run(ctx context.Context) {
	defer x.closeReceiver()
	for ctx.Err() == nil {
		err := x.step(ctx)
		if err == nil {
			continue
		}
		if errors.Is(err, errChanged) {
			return
		}
		if ctx.Err() != nil {
			break
		}
		x.fail(ctx, err)
	}
	x.save(context.WithoutCancel(ctx)) // what was confirmed must not be sent again after a restart
}

func (x *sender) closeReceiver() {
	if x.to != nil {
		x.to.close()
		x.to = nil
	}
}

// step sends what the log has, or waits for it.
func (x *sender) step(ctx context.Context) error {
	if err := x.settle(); err != nil {
		return err
	}
	size := x.s.Size()
	if x.due() || x.next >= size && x.pending.Entries > 0 {
		if !x.save(ctx) {
			return errChanged
		}
	}
	if x.next >= size {
		wait(ctx, sizeInterval)
		return nil
	}
	end := min(x.next+readChunk, size)
	list, err := x.s.o.Log.Read(ctx, x.next, end)
	if err != nil {
		return err
	}
	source := x.s.o.Log.Status().Origin
	var batch []event
	for _, e := range list {
		if e.Line == nil {
			x.pending.note(e.Number)
			x.pending.Removed++
			continue
		}
		if ev := newEvent(source, e); x.st.Filter.selects(&ev) {
			batch = append(batch, ev)
		}
		if len(batch) == x.st.Batch {
			if err := x.send(ctx, batch); err != nil {
				return err
			}
			batch = batch[:0]
		}
	}
	if len(batch) > 0 {
		if err := x.send(ctx, batch); err != nil {
			return err
		}
	}
	x.sent(end)
	return nil
}

// settle moves on what counts as confirmed.
func (x *sender) settle() error {
	if x.to == nil {
		return nil
	}
	if err := x.to.check(); err != nil {
		return err
	}
	settled := time.Now().Add(-x.to.settled())
	for len(x.marks) > 0 && !x.marks[0].at.After(settled) {
		x.confirmed, x.failures = x.marks[0].next, 0
		x.marks = x.marks[1:]
	}
	return nil
}

// sent notes that the entries before next were sent, or were not selected.
func (x *sender) sent(next int64) {
	x.next = next
	x.marks = append(x.marks, mark{next, time.Now()})
	if x.to == nil || x.to.settled() == 0 {
		x.confirmed, x.marks = next, nil
	}
}

// send sends a batch, and notes it for the delivery log.
func (x *sender) send(ctx context.Context, batch []event) (err error) {
	if x.to == nil {
		if x.to, err = x.s.open(x.st); err != nil {
			return err
		}
	}
	began := time.Now()
	status, err := x.to.send(ctx, batch)
	if err != nil {
		return err
	}
	p := &x.pending
	p.note(batch[0].Number)
	p.note(batch[len(batch)-1].Number)
	p.Status = status
	p.Entries += len(batch)
	p.Requests++
	p.Took += time.Since(began)
	if x.to.settled() == 0 {
		x.failures = 0
	}
	x.sent(p.Last + 1)
	if x.due() && !x.save(ctx) {
		return errChanged
	}
	return nil
}

// note extends the delivery to an entry.
func (d *Delivery) note(number int64) {
	if d.At.IsZero() {
		d.At, d.First = time.Now().UTC(), number
	}
	d.Last = number
}

func (x *sender) due() bool { return time.Since(x.storedAt) >= saveInterval }

// save stores the cursor and the delivery. It reports false if the stream has been changed.
func (x *sender) save(ctx context.Context) bool {
	if x.pending.At.IsZero() && x.confirmed == x.stored {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	ok, err := x.s.o.Store.AdvanceLogStream(ctx, x.st.ID, x.st.Revision, x.confirmed, x.failures, x.pending)
	if err != nil {
		x.s.o.Logger.Warn("could not store the cursor of a log stream", "stream", x.st.Name, "err", err)
	} else if ok {
		x.pending, x.stored = Delivery{}, x.confirmed
	}
	x.storedAt = time.Now()
	return ok || err != nil
}

// fail stores the failure, and waits before the next attempt, which starts from the first entry that was not confirmed.
func (x *sender) fail(ctx context.Context, err error) {
	x.closeReceiver()
	why, _ := errors.AsType[*failure](err)
	if why == nil {
		why = &failure{reason: reasonOf(err)}
	}
	if !x.save(ctx) {
		x.cancel()
		return
	}
	x.failures++
	d := Delivery{At: time.Now().UTC(), First: x.next, Last: x.next, Requests: 1, Status: why.status, Reason: why.reason}
	ok, err := x.s.o.Store.AdvanceLogStream(ctx, x.st.ID, x.st.Revision, x.confirmed, x.failures, d)
	if err == nil && !ok {
		x.cancel()
		return
	}
	level := x.s.o.Logger.Debug
	if x.failures == 1 || why.gone {
		level = x.s.o.Logger.Warn
	}
	level("could not send to a log stream", "stream", x.st.Name, "entry", x.next, "attempt", x.failures, "err", why)
	if why.gone {
		if err := x.s.o.Store.StopLogStream(ctx, x.st.ID, x.st.Revision); err == nil {
			x.cancel()
			return
		}
	}
	x.next, x.marks, x.pending = x.confirmed, nil, Delivery{}
	wait(ctx, max(why.retryAfter, x.s.backOff(x.failures)))
}

// backOff returns the pause after a number of failures: twice the pause before, up to five minutes, and
// a random part less.
func (s *Service) backOff(failures int) time.Duration {
	d := min(s.retry<<min(failures-1, 20), maxRetry)
	return d - rand.N(d/4)
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// Lag returns the number of entries that a stream has not got yet.
func (st *Stream) Lag(size int64) int64 { return max(0, size-st.Next) }
