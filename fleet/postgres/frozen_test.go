package postgres_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/postgres"
)

// A frozen is a call service over a database whose sessions can be stopped, as on a machine that
// hangs.
type frozen struct {
	t       *testing.T
	store   *postgres.Store
	link    *fleettest.Link
	calls   *call.Service
	sent    atomic.Int32
	writers []int // processes of the server that write call records
	control *pgx.Conn
	ahead   atomic.Int64 // of the calls' clock, in nanoseconds

	inserting, settling func() // called before the store is; may be nil. Set them before use.
}

// frozenStore lets a test act when a record is about to be written.
type frozenStore struct {
	*postgres.Store
	f *frozen
}

func (s frozenStore) InsertCall(ctx context.Context, c *fleet.Call) error {
	if s.f.inserting != nil {
		s.f.inserting()
	}
	return s.Store.InsertCall(ctx, c)
}

func (s frozenStore) SettleCalls(ctx context.Context, calls []*fleet.Call) error {
	if s.f.settling != nil {
		s.f.settling()
	}
	return s.Store.SettleCalls(ctx, calls)
}

// shortFlush limits a flush in tests that wait for its end.
const shortFlush = 2 * time.Second

var freezeTool = fleet.Tool{Name: "self.get_device_status", Audience: fleet.AudienceModel,
	InputSchema: json.RawMessage(`{"type":"object","properties":{}}`)}

func newFrozen(t *testing.T, flushTimeout time.Duration) *frozen {
	t.Helper()
	db := testDB(t)
	f := &frozen{t: t, store: postgres.New(db, postgres.Options{FlushTimeout: flushTimeout}), link: &fleettest.Link{}}
	var err error
	if f.control, err = pgx.Connect(t.Context(), db.Config().ConnString()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.control.Close(context.Background()) })
	// The clock of the calls stands still, so that none is late because the machine is busy.
	begun := now()
	f.calls = newCalls(t, frozenStore{f.store, f}, f.link, func() time.Time {
		return begun.Add(time.Duration(f.ahead.Load()))
	})
	run(t, f.store)
	f.link.Sending = func(fleet.Invocation) { f.sent.Add(1) }
	f.link.Connect(unit, func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
		return fleettest.Text("true"), nil
	})
	f.openSessions(db.Config().ConnString())
	t.Cleanup(f.thaw) // before the store stops
	return f
}

// openSessions makes both writers of the store open a session: the second writer runs while the
// batch of the first takes long.
func (f *frozen) openSessions(url string) {
	f.t.Helper()
	locker, err := pgx.Connect(f.t.Context(), url)
	check(f.t, err)
	defer locker.Close(context.Background())
	fleettest.Eventually(f.t, "both of the store's writers have a session", func() bool {
		lock, err := locker.Begin(f.t.Context())
		check(f.t, err)
		_, err = lock.Exec(f.t.Context(), `LOCK TABLE calls IN SHARE MODE`)
		check(f.t, err)
		var all sync.WaitGroup
		for range 20 { // shorter than a flush may take, after which its session is closed
			all.Go(func() { _ = f.store.InsertCall(f.t.Context(), newCall("warm", fleet.CallSucceeded)) })
			time.Sleep(50 * time.Millisecond)
			if len(f.sessions()) == 2 {
				break
			}
		}
		check(f.t, lock.Rollback(f.t.Context()))
		all.Wait()
		f.writers = f.sessions()
		return len(f.writers) == 2
	})
}

func newCalls(t *testing.T, store call.Store, link fleet.Link, clock func() time.Time) *call.Service {
	devices := &fleettest.Devices{}
	devices.PutInventory(fleet.Inventory{ID: "inv", Tools: []fleet.Tool{freezeTool}})
	devices.Put(fleet.Device{ID: unit, Enrolment: fleet.EnrolmentEnrolled, InventoryID: "inv"})
	targets := fleet.NewTargets(devices, devices)
	calls := call.New(call.Options{Store: store, Targets: targets, Link: link, Events: &fleet.Events{},
		Now: clock})
	t.Cleanup(calls.Shutdown)
	return calls
}

// sessions are the database sessions of the writers of call records.
func (f *frozen) sessions() []int {
	f.t.Helper()
	rows, _ := f.control.Query(f.t.Context(), `SELECT pid FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'fleetd: call records'`)
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		f.t.Fatal(err)
	}
	return pids
}

func (f *frozen) freeze() {
	f.t.Helper()
	if len(f.writers) == 0 {
		f.t.Fatal("no session writes call records")
	}
	for _, pid := range f.writers {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			f.t.Skip("the server's processes cannot be stopped: ", err)
		}
	}
}

func (f *frozen) thaw() {
	for _, pid := range f.writers {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
}

// thawAtLast resumes the stopped sessions, and gives them time to continue.
func (f *frozen) thawAtLast() {
	f.thaw()
	time.Sleep(300 * time.Millisecond)
}

func (f *frozen) request() call.Request {
	return call.Request{Actor: admin, Device: unit, Tool: freezeTool.Name}
}

// recorded waits until every call of the device has an outcome.
func (f *frozen) recorded(n int) []fleet.Call {
	f.t.Helper()
	var calls []fleet.Call
	fleettest.Eventually(f.t, fmt.Sprintf("%d calls with an outcome", n), func() bool {
		// A session of the pool may hang while it is idle.
		ctx, cancel := context.WithTimeout(f.t.Context(), time.Second)
		defer cancel()
		page, err := f.store.Calls(ctx, call.Filter{Device: unit, Limit: 500})
		calls = page.Items
		open := func(c fleet.Call) bool { return !c.State.Final() }
		return err == nil && len(calls) == n && !slices.ContainsFunc(calls, open)
	})
	return calls
}

// A database that hangs during inserts carries them out when it resumes, long after the callers
// were refused. The record must not say that such calls may have run.
func TestFrozenInserts(t *testing.T) {
	for _, tt := range []struct {
		name     string
		thawThen bool // before the outcome can be settled; else after
	}{{"the insert comes first", true}, {"the outcome comes first", false}} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFrozen(t, shortFlush)
			f.freeze()
			if tt.thawThen {
				f.settling = f.thawAtLast
			}
			// As many calls as may wait for the device; some share a batch. Calls that come after
			// the thaw may be made, and so may calls whose batch begins when an earlier one was
			// given up, since its session is new. Calls that found no session left no record.
			var hung, made atomic.Int32
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					c, err := f.calls.Make(t.Context(), f.request())
					var refusal *fleet.Error
					switch {
					case err == nil && c.State == fleet.CallSucceeded:
						made.Add(1)
					case errors.As(err, &refusal) && refusal.Code == fleet.CodeNotRecorded && errors.Is(err, fleet.ErrUnavailable):
						hung.Add(1)
					case !errors.Is(err, fleet.ErrNotStored):
						t.Errorf("answered %v, %v", c.State, err)
					}
				})
			}
			all.Wait()
			if hung.Load() == 0 {
				t.Fatal("no insert hung")
			}
			n := int(hung.Load() + made.Load())
			if !tt.thawThen {
				f.recorded(n)
				f.thawAtLast() // the hung inserts fail now
			}
			canceled := 0
			for _, c := range f.recorded(n) {
				if c.State == fleet.CallSucceeded {
					continue
				}
				canceled++
				if c.State != fleet.CallCanceled || c.SentAt != nil || c.Error == nil || c.Error.Code != fleet.CodeNotRecorded {
					t.Errorf("the record says %s, sent %v, %+v", c.State, c.SentAt, c.Error)
				}
			}
			if canceled != int(hung.Load()) || f.sent.Load() != made.Load() {
				t.Errorf("%d calls hung, %d are canceled; %d were made, %d sent", hung.Load(), canceled, made.Load(), f.sent.Load())
			}
			fleettest.Eventually(t, "a call succeeds", func() bool {
				c, err := f.calls.Make(t.Context(), f.request())
				return err == nil && c.State == fleet.CallSucceeded
			})
		})
	}
}

// A call that waited for its turn is recorded as sent before it is sent; the same holds for that
// write.
func TestFrozenMarkSent(t *testing.T) {
	f := newFrozen(t, shortFlush)
	turn, err := f.link.Queue(unit, fleet.KindOperator)
	check(t, err)
	c, err := f.calls.Start(t.Context(), f.request())
	check(t, err)
	if c.State != fleet.CallPending {
		t.Fatalf("the call is %s; want it to wait", c.State)
	}
	f.settling = f.thawAtLast
	f.freeze()
	turn.Done()
	got := f.recorded(1)[0]
	time.Sleep(300 * time.Millisecond)
	got = f.recorded(1)[0]
	if got.State != fleet.CallCanceled || got.Error.Code != fleet.CodeNotRecorded || got.SentAt != nil ||
		f.sent.Load() != 0 {
		t.Errorf("the record says %s, %+v; sent %d times", got.State, got.Error, f.sent.Load())
	}
}

// If the database hangs while it stores an outcome, the outcome is stored once it resumes, and
// only then is the caller answered.
func TestFrozenOutcome(t *testing.T) {
	f := newFrozen(t, shortFlush)
	f.link.Connect(unit, func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
		f.freeze()
		time.AfterFunc(shortFlush+time.Second, f.thaw)
		return fleettest.Text("true"), nil
	})
	c, err := f.calls.Make(t.Context(), f.request())
	if err != nil || c.State != fleet.CallSucceeded {
		t.Errorf("answered %v, %v", c.State, err)
	}
	if got := f.recorded(1)[0]; got.State != fleet.CallSucceeded || len(got.Result) == 0 {
		t.Errorf("the record says %s, %s", got.State, got.Result)
	}
}

// Shorter than a flush may take, and longer than a call may wait for its record.
func TestFrozenForAMoment(t *testing.T) {
	f := newFrozen(t, 30*time.Second)
	f.freeze()
	f.inserting = func() {
		f.ahead.Add(int64(5500 * time.Millisecond))
		time.AfterFunc(500*time.Millisecond, f.thaw)
	}
	c, err := f.calls.Make(t.Context(), f.request())
	if err != nil || c.State != fleet.CallCanceled || c.Error.Code != fleet.CodeRecordLate || f.sent.Load() != 0 {
		t.Errorf("answered %v, %+v, %v", c.State, c.Error, err)
	}
	if got := f.recorded(1)[0]; got.State != fleet.CallCanceled {
		t.Errorf("the record says %s", got.State)
	}
}

func TestSettleCalls(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	done := newCall("done", fleet.CallSucceeded)
	sent, pending := newCall("sent", fleet.CallSent), newCall("pending", fleet.CallPending)
	absent := newCall("absent", fleet.CallSent)
	for _, c := range []*fleet.Call{done, sent, pending} {
		check(t, s.InsertCall(ctx, c))
	}
	var all []*fleet.Call
	for _, c := range []*fleet.Call{absent, sent, pending, done} {
		c.State, c.SentAt, c.FinishedAt, c.Result = fleet.CallCanceled, nil, ptr(now()), nil
		c.Error = &fleet.CallError{Code: fleet.CodeNotRecorded, Message: "m"}
		all = append(all, c)
	}
	for range 2 {
		check(t, s.SettleCalls(ctx, all))
	}
	for _, c := range all[:3] {
		got, err := s.Call(ctx, c.ID)
		check(t, err)
		same(t, got, *c)
	}
	if got, err := s.Call(ctx, done.ID); err != nil || got.State != fleet.CallSucceeded {
		t.Errorf("a call that had an outcome is %s now, %v", got.State, err)
	}
	wantKind(t, s.InsertCall(ctx, absent), fleet.ErrConflict) // what hung comes too late
	wantKind(t, s.SettleCalls(ctx, []*fleet.Call{newCall("open", fleet.CallSent)}), fleet.ErrInvalid)
}
