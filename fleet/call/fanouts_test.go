package call_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/fleettest"
)

// fanOutStore stores one fan-out in memory, by the rules of [FanOutStore].
type fanOutStore struct {
	call.FanOutStore // unused methods panic
	calls            *fleettest.CallStore
	fail             func(op string) error
	alive            time.Time

	mu      sync.Mutex
	f       call.FanOut
	targets []fleet.DeviceID
	skipped map[fleet.DeviceID]string
}

func (s *fanOutStore) SkipTarget(_ context.Context, _ uuid.UUID, t call.FanOutTarget) error {
	if err := s.failing("skip"); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.skipped == nil {
		s.skipped = map[fleet.DeviceID]string{}
	}
	s.skipped[t.Device] = t.Reason
	return nil
}

func (s *fanOutStore) reason(id fleet.DeviceID) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.skipped[id]
}

func (s *fanOutStore) failing(op string) error {
	if s.fail == nil {
		return nil
	}
	return s.fail(op)
}

func (s *fanOutStore) CreateFanOut(_ context.Context, f *call.FanOut, targets []call.FanOutTarget) error {
	if err := s.failing("create"); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.f.ID == f.ID {
		return fleet.ErrConflict
	}
	s.f = *f
	for _, t := range targets {
		s.targets = append(s.targets, t.Device)
	}
	return nil
}

func (s *fanOutStore) FanOut(context.Context, uuid.UUID) (call.FanOut, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.f, s.failing("read")
}

func (s *fanOutStore) RunningFanOuts(ctx context.Context) ([]call.FanOut, error) {
	f, err := s.FanOut(ctx, uuid.Nil)
	if err != nil || f.State != call.FanOutRunning {
		return nil, err
	}
	return []call.FanOut{f}, nil
}

func (s *fanOutStore) counted() map[fleet.DeviceID]fleet.CallState {
	waits := s.f.State == call.FanOutRunning && s.f.OfflineWait > 0 && time.Now().Before(*s.f.WaitsUntil())
	counted := make(map[fleet.DeviceID]fleet.CallState)
	for _, c := range s.calls.All() {
		again := c.State == fleet.CallCanceled && c.Error.Code != fleet.CodeQueueTimeout ||
			c.State == fleet.CallOffline && waits
		if !again {
			counted[c.Device] = c.State
		}
	}
	return counted
}

func (s *fanOutStore) PendingTargets(_ context.Context, _ uuid.UUID, after fleet.DeviceID, limit int) (
	page []fleet.DeviceID, err error,
) {
	if err := s.failing("targets"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	counted := s.counted()
	for _, id := range s.targets {
		if _, done := counted[id]; !done && id > after && len(page) < limit {
			page = append(page, id)
		}
	}
	return page, nil
}

func (s *fanOutStore) FinishFanOut(
	_ context.Context, _ fleet.Principal, _ uuid.UUID, state call.FanOutState, at time.Time,
) error {
	if err := s.failing("finish"); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.f.State != call.FanOutRunning {
		return fleet.ErrConflict
	}
	s.f.State, s.f.FinishedAt = state, &at
	return nil
}

func (s *fanOutStore) LastAlive(context.Context, time.Time) (time.Time, error) {
	return s.alive, s.failing("alive")
}

func (s *fanOutStore) Progress(context.Context, uuid.UUID) (call.FanOutProgress, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := call.FanOutProgress{ByState: map[fleet.CallState]int{}}
	for _, state := range s.counted() {
		p.ByState[state]++
	}
	p.Waiting = len(s.targets) - len(s.counted())
	return p, nil
}

// presence reports which devices are connected, and publishes the matching events.
type presence struct {
	events *fleet.Events
	link   *fleettest.Link
	mu     sync.Mutex
	on     map[fleet.DeviceID]bool
}

func (p *presence) IsConnected(id fleet.DeviceID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.on[id]
}

func (p *presence) set(id fleet.DeviceID, on bool) {
	to := fleet.PresenceOffline
	if on {
		to = fleet.PresenceOnline
		p.link.Connect(id, answer("true"))
	} else {
		p.link.Disconnect(id)
	}
	p.mu.Lock()
	p.on[id] = on
	p.mu.Unlock()
	p.events.Publish(fleet.Event{Kind: fleet.EventPresence, Device: id, Presence: to})
}

// A fanOutBench is the fan-out service over scripted devices, d00 and so on.
type fanOutBench struct {
	*bench
	*presence
	t       *testing.T
	fanOuts *call.FanOuts
	records *fanOutStore
	stop    func()
	sent    map[fleet.DeviceID]int
	began   time.Time
}

func nth(i int) fleet.DeviceID { return fleet.DeviceID(fmt.Sprintf("d%04d", i)) }

func newFanOutBench(t *testing.T) *fanOutBench {
	b := &fanOutBench{bench: newBench(t), t: t, sent: map[fleet.DeviceID]int{}, began: time.Now()}
	b.presence = &presence{events: &fleet.Events{}, link: b.bench.link, on: map[fleet.DeviceID]bool{}}
	b.records = &fanOutStore{calls: b.store}
	return b
}

func (b *fanOutBench) service() *call.FanOuts {
	return call.NewFanOuts(call.FanOutsOptions{Store: b.records, Devices: b.devices, Calls: b.Service,
		Presence: b.presence, Events: b.events})
}

// start runs the service as a new process does.
func (b *fanOutBench) start() {
	ctx, cancel := context.WithCancel(context.Background())
	b.fanOuts = b.service()
	done := make(chan error, 1)
	go func() { done <- b.fanOuts.Run(ctx) }()
	b.stop = func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Error(err)
		}
		b.stop = func() {}
	}
	synctest.Wait()
}

// fanOut records devices and creates a fan-out to them.
func (b *fanOutBench) fanOut(n int, r call.FanOutRequest, with ...func(*fleet.Device)) call.FanOut {
	b.t.Helper()
	for i := range n {
		d := fleet.Device{ID: nth(i), Enrolment: fleet.EnrolmentEnrolled, InventoryID: "inv", Presence: fleet.PresencePending}
		for _, change := range with {
			change(&d)
		}
		b.devices.Put(d)
		r.Devices = append(r.Devices, d.ID)
	}
	r.Actor, r.Tool = ann, "self.get_device_status"
	f, err := b.fanOuts.Create(b.t.Context(), r)
	if err != nil {
		b.t.Fatal(err)
	}
	synctest.Wait()
	return f
}

// states returns the state of each device's newest call; "" without a call.
func (b *fanOutBench) states(n int) []fleet.CallState {
	states := make([]fleet.CallState, n)
	newest := make(map[fleet.DeviceID]fleet.CallState)
	for _, c := range b.store.All() {
		newest[c.Device] = c.State
	}
	for i := range n {
		states[i] = newest[nth(i)]
	}
	return states
}

func (b *fanOutBench) want(at string, state call.FanOutState, states ...fleet.CallState) {
	b.t.Helper()
	synctest.Wait()
	f, _ := b.records.FanOut(context.Background(), uuid.Nil)
	if got := b.states(len(states)); !slices.Equal(got, states) || f.State != state {
		b.t.Errorf("%s, after %v: the fan-out is %s, calls %q; want %s, %q",
			at, time.Since(b.began), f.State, got, state, states)
	}
}

const (
	running, completed, canceled = call.FanOutRunning, call.FanOutCompleted, call.FanOutCanceled
	good, offline                = fleet.CallSucceeded, fleet.CallOffline
)

func TestFanOutAndOfflineDevices(t *testing.T) {
	wait := call.FanOutRequest{OfflineWait: 15 * time.Minute, MaxInFlight: 1}
	tests := []struct {
		name string
		play func(b *fanOutBench)
	}{
		{"skip: offline at once", func(b *fanOutBench) {
			b.start()
			b.set(nth(0), true)
			b.fanOut(2, call.FanOutRequest{})
			b.want("at once", completed, good, offline)
		}},
		{"wait: called when it comes, and takes no place until then", func(b *fanOutBench) {
			b.start()
			b.set(nth(1), true)
			f := b.fanOut(3, wait)
			b.want("at once", running, "", good, "")
			if p, _ := b.fanOuts.Progress(b.t.Context(), f.ID); p.AwaitOnline != 2 || p.Waiting != 2 || p.Blocked != nil {
				b.t.Errorf("progress %+v; want two that are awaited", p)
			}
			time.Sleep(10 * time.Minute)
			b.set(nth(0), true)
			b.want("when it came", running, good, good, "")
			time.Sleep(5*time.Minute - time.Second)
			b.want("before the end", running, good, good, "")
			time.Sleep(time.Second)
			b.want("at the end", completed, good, good, offline)
		}},
		{"wait: cancel ends it", func(b *fanOutBench) {
			b.start()
			f := b.fanOut(1, wait)
			if err := b.fanOuts.Cancel(b.t.Context(), ann, f.ID); err != nil {
				b.t.Error(err)
			}
			b.set(nth(0), true)
			time.Sleep(time.Hour)
			b.want("an hour later", canceled, "")
		}},
		{"wait: a restart keeps the deadline", func(b *fanOutBench) {
			b.start()
			b.fanOut(2, wait)
			time.Sleep(10 * time.Minute)
			b.stop()
			time.Sleep(time.Minute)
			b.start()
			b.set(nth(1), true)
			b.want("after the restart", running, "", good)
			time.Sleep(4*time.Minute - time.Second)
			b.want("before the end", running, "", good)
			time.Sleep(time.Second)
			b.want("at the end", completed, offline, good)
		}},
		{"wait: the deadline passes while fleetd is stopped", func(b *fanOutBench) {
			b.start()
			b.fanOut(1, wait)
			b.stop()
			time.Sleep(time.Hour)
			b.start()
			b.want("after the restart", completed, offline)
		}},
		{"wait: seen online, and gone when called", func(b *fanOutBench) {
			b.start()
			b.fanOut(1, wait)
			b.set(nth(0), true)
			b.bench.link.Disconnect(nth(0)) // before the call: presence still shows it as connected
			synctest.Wait()
			time.Sleep(10 * time.Second)
			b.set(nth(0), false)
			time.Sleep(time.Minute)
			b.set(nth(0), true)
			b.want("when it is back", completed, good)
		}},
		{"wait: more come at once than events are kept", func(b *fanOutBench) {
			const n = 6000
			b.start()
			b.fanOut(n, call.FanOutRequest{OfflineWait: time.Hour, MaxInFlight: 200})
			for i := range n {
				b.set(nth(i), true)
			}
			time.Sleep(time.Minute)
			b.want("a minute later", completed, slices.Repeat([]fleet.CallState{good}, n)...)
		}},
		{"grace: those that were connected may come back", func(b *fanOutBench) {
			b.records.alive = b.began.Add(-time.Minute)
			since := []time.Time{b.began, b.began, b.began.Add(-time.Hour)}
			b.start()
			b.stop()
			b.set(nth(3), true)
			i := 0
			b.start()
			b.fanOut(4, call.FanOutRequest{}, func(d *fleet.Device) {
				if i < len(since) {
					d.Presence, d.PresenceSince = fleet.PresenceOffline, since[i]
				}
				i++
			})
			b.want("at once", running, "", "", offline, good)
			time.Sleep(14 * time.Second)
			b.set(nth(0), true)
			b.want("when one is back", running, good, "", offline, good)
			time.Sleep(46 * time.Second)
			b.want("after the grace", completed, good, offline, offline, good)
		}},
		{"grace: over when the fan-out is made", func(b *fanOutBench) {
			b.start()
			time.Sleep(time.Minute)
			b.fanOut(1, call.FanOutRequest{}, func(d *fleet.Device) {
				d.Presence, d.PresenceSince = fleet.PresenceOffline, b.began
			})
			b.want("at once", completed, offline)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newFanOutBench(t)
				defer func() { b.stop() }()
				tt.play(b)
				seen := map[fleet.DeviceID]bool{}
				for _, c := range b.store.All() {
					if seen[c.Device] {
						t.Errorf("%s has two calls on record", c.Device)
					}
					seen[c.Device] = true
				}
			})
		})
	}
}

// While the database is unavailable, a fan-out stops at whatever step needs it, and reports
// that. No device is called twice.
func TestFanOutWaitsForTheDatabase(t *testing.T) {
	for _, op := range []string{"targets", "insert", "hung insert", "sent", "finish", "end", "read"} {
		t.Run(op, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newFanOutBench(t)
				const n = 40
				sent := 0
				var mu sync.Mutex
				b.bench.link.Sending = func(fleet.Invocation) { mu.Lock(); sent++; mu.Unlock() }
				back := time.Now().Add(30 * time.Second)
				away := func(is ...string) func(string) error {
					return func(op string) error {
						if !slices.Contains(is, op) || !time.Now().Before(back) {
							return nil
						}
						if is[0] == "insert" && op == "insert" && len(is) == 1 {
							return errors.Join(fleet.ErrNotStored, fleet.ErrUnavailable)
						}
						return fleet.ErrUnavailable
					}
				}
				switch op {
				case "insert":
					b.store.Fail = away("insert")
				case "hung insert":
					b.store.Fail = away("insert", "settle")
				case "sent", "finish":
					b.store.Fail = away(op, "settle")
				case "end":
					b.records.fail = away("finish")
				}
				for i := range n {
					b.set(nth(i), true)
				}
				if op == "sent" { // they wait for their turn first
					for i := range n {
						turn, err := b.bench.link.Queue(nth(i), fleet.KindOperator)
						if err != nil {
							t.Fatal(err)
						}
						time.AfterFunc(time.Second, turn.Done)
					}
				}
				b.start()
				f := b.fanOut(n, call.FanOutRequest{MaxInFlight: 8})
				if op == "read" || op == "targets" { // after a restart
					b.stop()
					b.records.f.State = running
					b.records.fail = away(op)
					b.start()
				}
				time.Sleep(10 * time.Second)
				if op != "read" {
					block := b.fanOuts.Blocked(f.ID)
					if block == nil || block.Code != call.BlockDatabase ||
						time.Since(block.Since).Round(2*time.Second) != 10*time.Second {
						t.Errorf("while the database is away: %+v", block)
					}
				}
				time.Sleep(time.Minute)
				b.want("a minute later", completed, slices.Repeat([]fleet.CallState{good}, n)...)
				if b.fanOuts.Blocked(f.ID) != nil || sent != n {
					t.Errorf("%d calls were sent to %d devices; blocked by %+v", sent, n, b.fanOuts.Blocked(f.ID))
				}
				b.stop()
			})
		})
	}
}

// A device whose call is refused with any kind of error ends with a record or a reason;
// otherwise the fan-out does not complete.
func TestFanOutStatesWhyADeviceWasNotCalled(t *testing.T) {
	tests := []struct {
		name    string
		refuse  error // of the first writes of the second device's call, or of all
		writes  int
		skip    error // of the reason
		state   call.FanOutState
		reason  string
		outcome fleet.CallState
	}{
		{"invalid", fleet.ErrInvalid, 1, nil, completed, "record_refused", ""},
		{"invalid, with a code", fleet.Refuse(fleet.ErrInvalid, "odd_time"), 1, nil, completed, "odd_time", ""},
		{"not found", errors.Join(fleet.ErrNotStored, fleet.ErrNotFound), 9, nil, completed, "device_unknown", ""},
		{"a conflict once", fleet.ErrConflict, 1, nil, completed, "", good},
		{"conflicts", fleet.ErrConflict, 9, nil, completed, "not_recorded", fleet.CallCanceled},
		{"not found once", fleet.ErrNotFound, 1, nil, completed, "", good},
		{"neither record nor reason", fleet.ErrInvalid, 1, fleet.ErrInvalid, running, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newFanOutBench(t)
				b.start()
				defer func() { b.stop() }()
				for i := range 3 {
					b.set(nth(i), true)
				}
				inserts := 0
				b.store.Fail = func(op string) error { // one worker: the second insert belongs to the second device
					if op != "insert" {
						return nil
					}
					if inserts++; inserts > 1 && inserts <= 1+tt.writes && b.records.reason(nth(1)) == "" {
						return tt.refuse
					}
					return nil
				}
				b.records.fail = func(op string) error {
					if op == "skip" {
						return tt.skip
					}
					return nil
				}
				b.fanOut(3, call.FanOutRequest{MaxInFlight: 1})
				time.Sleep(time.Minute)
				b.want("a minute later", tt.state, good, tt.outcome, good)
				if got := b.records.reason(nth(1)); got != tt.reason {
					t.Errorf("the reason is %q, want %q", got, tt.reason)
				}
			})
		})
	}
}

// A call that waits behind a long call does not delay the stop: its record is closed as not
// sent, and the next start makes the call.
func TestFanOutStopsWhileACallWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFanOutBench(t)
		b.set(nth(0), true)
		turn, err := b.bench.link.Queue(nth(0), fleet.KindOperator) // as an upgrade does, for minutes
		if err != nil {
			t.Fatal(err)
		}
		b.start()
		b.fanOut(1, call.FanOutRequest{})
		b.want("while it waits", running, fleet.CallPending)
		began := time.Now()
		b.stop()
		if took := time.Since(began); took > time.Second {
			t.Errorf("the fan-outs took %v to stop", took)
		}
		b.Service.Shutdown()
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("the calls took %v to stop", took)
		}
		b.want("after the stop", running, fleet.CallCanceled)
		if c := b.store.All()[0]; c.Error == nil || c.Error.Code != fleet.CodeStopped || c.SentAt != nil {
			t.Errorf("the record of the call that waited: %+v", c)
		}
		turn.Done()
	})
}

// A fan-out whose creation failed does not run later.
func TestFanOutWithoutConfirmation(t *testing.T) {
	for _, stored := range []bool{false, true} {
		t.Run(fmt.Sprintf("stored=%v", stored), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newFanOutBench(t)
				b.start()
				defer func() { b.stop() }()
				b.set(nth(0), true)
				b.devices.Put(fleet.Device{ID: nth(0), Enrolment: fleet.EnrolmentEnrolled, InventoryID: "inv"})
				first := true
				b.records.fail = func(op string) error {
					if op == "create" && first {
						first = false
						return fleet.ErrUnavailable
					}
					return nil
				}
				r := call.FanOutRequest{Actor: ann, Tool: "self.get_device_status", Devices: []fleet.DeviceID{nth(0)}}
				if _, err := b.fanOuts.Create(t.Context(), r); !errors.Is(err, fleet.ErrUnavailable) {
					t.Fatalf("err = %v", err)
				}
				synctest.Wait()
				b.want("after the outage", canceled, "")
				if stored { // the next start finds nothing to run
					b.stop()
					b.start()
					b.want("after a restart", canceled, "")
				}
			})
		})
	}
}

// A cancellation that the database stored without confirming it remains in force.
func TestFanOutCanceledWithoutConfirmation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFanOutBench(t)
		b.start()
		defer func() { b.stop() }()
		f := b.fanOut(1, call.FanOutRequest{OfflineWait: time.Hour})
		b.records.fail = func(op string) error {
			if op == "finish" {
				b.records.mu.Lock()
				defer b.records.mu.Unlock()
				b.records.f.State = canceled
				return fleet.ErrUnavailable
			}
			return nil
		}
		if err := b.fanOuts.Cancel(t.Context(), ann, f.ID); !errors.Is(err, fleet.ErrUnavailable) {
			t.Fatalf("err = %v", err)
		}
		synctest.Wait()
		b.set(nth(0), true)
		b.want("later", canceled, "")
	})
}

func TestFanOutRefusesAnOddWait(t *testing.T) {
	b := newFanOutBench(t)
	b.fanOuts = b.service()
	for _, wait := range []time.Duration{-time.Millisecond, call.MaxOfflineWait + time.Millisecond} {
		_, err := b.fanOuts.Preview(t.Context(), call.FanOutRequest{Actor: ann, Tool: "self.get_device_status",
			Devices: []fleet.DeviceID{unit}, OfflineWait: wait})
		var refusal *fleet.Error
		if !errors.As(err, &refusal) || refusal.Code != "invalid_offline_wait" {
			t.Errorf("a wait of %v: %v", wait, err)
		}
	}
}
