package schedule_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/postgres"
	"fleetd/fleet/postgres/pgtest"
	"fleetd/fleet/schedule"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, pgtest.LeakOption()) }

var (
	ana    = fleet.Principal{Kind: fleet.KindOperator, ID: uuid.NewString(), Name: "ana", Role: fleet.RoleOperator}
	errOff = fmt.Errorf("the database is away: %w", fleet.ErrUnavailable)
)

// A world is a service on a real database, with a clock that the test sets. Its fan-outs are rows that call
// no device.
type world struct {
	*schedule.Service
	t     *testing.T
	db    *pgxpool.Pool
	store *postgres.Store
	fans  *fanOuts

	mu     sync.Mutex
	clock  time.Time
	gone   bool            // the principals may no longer act
	rights fleet.Principal // what they may now; the zero value: as before
}

func newWorld(t *testing.T, clock string) *world {
	w := &world{t: t, db: pgtest.New(t)}
	w.set(clock)
	w.store = postgres.New(w.db, postgres.Options{})
	w.fans = &fanOuts{w: w, Store: w.store}
	w.open()
	return w
}

// open makes another service, as after a crash. [world.due] lets it start runs.
func (w *world) open() {
	w.Service = schedule.New(schedule.Options{Store: w.store, FanOuts: func() schedule.FanOuts { return w.fans },
		Authority: w, Now: w.now, Random: func(most time.Duration) time.Duration { return most / 2 }})
}

func (w *world) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.clock
}

func (w *world) set(clock string) {
	w.t.Helper()
	at, err := time.Parse(time.RFC3339, clock)
	if err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clock = at
}

func (w *world) PrincipalNow(_ context.Context, p fleet.Principal) (fleet.Principal, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.gone:
		return fleet.Principal{}, fleet.ActorGone(p)
	case w.rights.Name != "":
		return w.rights, nil
	}
	return p, nil
}

// due runs the service until it has done what is due, as at a start.
func (w *world) due() {
	w.t.Helper()
	ctx, stop := context.WithCancel(w.t.Context())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	for w.Sweep(w.t.Context()) != nil { // until it runs
		if w.fans.fails() {
			break
		}
		time.Sleep(time.Millisecond)
	}
	stop()
	if err := <-done; err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) make(change func(*schedule.Request)) schedule.Schedule {
	w.t.Helper()
	r := request()
	if change != nil {
		change(&r)
	}
	s, err := w.Create(w.t.Context(), ana, r)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func request() schedule.Request {
	return schedule.Request{Name: new("nightly"), Cron: new("0 2 * * *"), TimeZone: new("UTC"), Query: new("tag:lab"),
		Tool: new("self.get_device_status")}
}

// runs returns the runs as "planned state code", the latest first.
func (w *world) runs(s schedule.Schedule) (list []string) {
	w.t.Helper()
	page, err := w.Runs(w.t.Context(), s.ID, schedule.RunFilter{Limit: 500})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, r := range page.Items {
		text := r.PlannedAt.Format("01-02 15:04") + " " + string(r.State)
		if r.Reason.Code != "" {
			text += " " + r.Reason.Code
		}
		list = append(list, text)
	}
	return list
}

func (w *world) want(s schedule.Schedule, state schedule.State, want ...string) {
	w.t.Helper()
	if got := w.runs(s); !slices.Equal(got, want) {
		w.t.Errorf("runs %q, want %q", got, want)
	}
	got, err := w.Get(w.t.Context(), s.ID)
	if err != nil || got.State() != state {
		w.t.Errorf("the schedule is %s, %v, want %s", got.State(), err, state)
	}
	if n := w.fans.count(); n != w.countRuns(s) {
		w.t.Errorf("%d fan-outs for %d runs that have one", n, w.countRuns(s))
	}
}

func (w *world) countRuns(s schedule.Schedule) (n int) {
	page, err := w.Runs(w.t.Context(), s.ID, schedule.RunFilter{Limit: 500})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, r := range page.Items {
		if r.FanOut != uuid.Nil {
			n++
		}
	}
	return n
}

// fanOuts stores fan-outs in the database, and runs none.
type fanOuts struct {
	*postgres.Store
	w *world

	mu      sync.Mutex
	fail    error
	crash   bool // the fan-out is stored, but its maker gets an error
	skipped []fleet.SkippedDevices
	made    []call.FanOutRequest
}

func (f *fanOuts) fails() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fail != nil || f.crash
}

func (f *fanOuts) Preview(_ context.Context, r call.FanOutRequest) (call.FanOutPreview, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return call.FanOutPreview{Matched: 3, Skipped: f.skipped}, nil
}

func (f *fanOuts) Create(ctx context.Context, r call.FanOutRequest) (call.FanOut, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return call.FanOut{}, f.fail
	}
	out := call.FanOut{ID: r.ID, Actor: r.Actor, Query: r.Query, Tool: r.Tool, Arguments: r.Arguments,
		MaxInFlight: r.MaxInFlight, State: call.FanOutRunning, Targets: 3, CreatedAt: f.w.now()}
	if err := f.CreateFanOut(ctx, &out, nil); err != nil {
		return call.FanOut{}, err
	}
	f.made = append(f.made, r)
	if f.crash {
		return call.FanOut{}, errOff
	}
	return out, nil
}

func (f *fanOuts) Get(ctx context.Context, id uuid.UUID) (call.FanOut, error) {
	return f.FanOut(ctx, id)
}

func (f *fanOuts) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.made)
}

// end ends all open fan-outs.
func (w *world) end(state call.FanOutState) {
	w.t.Helper()
	open, err := w.store.RunningFanOuts(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range open {
		if err := w.store.FinishFanOut(w.t.Context(), ana, f.ID, state, w.now()); err != nil {
			w.t.Fatal(err)
		}
	}
}

func TestRunsAtTheirInstants(t *testing.T) {
	w := newWorld(t, "2026-06-01T00:00:00Z")
	s := w.make(func(r *schedule.Request) { r.Jitter = new(20 * time.Minute) })
	w.due()
	w.want(s, schedule.Active)

	w.set("2026-06-01T02:09:59Z") // within the jitter
	w.due()
	w.want(s, schedule.Active)
	w.set("2026-06-01T02:10:00Z")
	w.due()
	w.due()
	w.want(s, schedule.Active, "06-01 02:00 running")
	if r := w.fans.made[0]; r.Query != "tag:lab" || r.Tool != "self.get_device_status" || !r.Actor.Same(ana) ||
		string(r.Arguments) != "{}" {
		t.Errorf("fan-out %+v", r)
	}
	w.end(call.FanOutCompleted)
	w.want(s, schedule.Active, "06-01 02:00 done")

	w.set("2026-06-02T02:10:00Z")
	w.due()
	w.set("2026-06-03T02:10:00Z") // the run before is still open
	w.due()
	w.want(s, schedule.Active, "06-03 02:00 skipped previous_running", "06-02 02:00 running", "06-01 02:00 done")
	w.end(call.FanOutCanceled)
	w.set("2026-06-04T02:15:00Z") // late, but not too late
	w.due()
	w.want(s, schedule.Active, "06-04 02:00 running", "06-03 02:00 skipped previous_running",
		"06-02 02:00 done fanout_canceled", "06-01 02:00 done")
}

// What was not started in time is recorded, and not made up.
func TestMissed(t *testing.T) {
	w := newWorld(t, "2026-06-01T00:00:00Z")
	s := w.make(nil)
	w.set("2026-06-03T02:05:01Z") // fleetd was stopped
	w.open()
	w.due()
	w.want(s, schedule.Active, "06-03 02:00 missed run_missed", "06-02 02:00 missed run_missed",
		"06-01 02:00 missed run_missed")
	w.set("2026-06-05T02:04:59Z") // the last one still counts
	w.due()
	w.want(s, schedule.Active, "06-05 02:00 running", "06-04 02:00 missed run_missed", "06-03 02:00 missed run_missed",
		"06-02 02:00 missed run_missed", "06-01 02:00 missed run_missed")
}

// However many runs were missed, they are a hundred rows and a number.
func TestManyMissed(t *testing.T) {
	w := newWorld(t, "2026-01-01T00:00:30Z")
	s := w.make(func(r *schedule.Request) { r.Cron = new("* * * * *") })
	w.set("2026-05-20T00:00:30Z")
	w.due()
	page, err := w.Runs(t.Context(), s.ID, schedule.RunFilter{Limit: 500})
	if err != nil {
		t.Fatal(err)
	}
	minutes := int64(w.now().Sub(s.CreatedAt) / time.Minute)
	running, missed := 0, 0
	omitted := int64(0)
	for _, r := range page.Items {
		switch r.State {
		case schedule.Missed:
			missed++
			omitted += r.Omitted
		case schedule.Running:
			running++
		case schedule.Skipped:
		default:
			t.Errorf("run %+v", r)
		}
	}
	if missed != 100 || running != 1 || omitted+int64(len(page.Items)) != minutes || omitted < 190_000 {
		t.Errorf("%d missed, %d running, %d omitted of %d minutes", missed, running, omitted, minutes)
	}
	if w.fans.count() != 1 {
		t.Errorf("%d fan-outs", w.fans.count())
	}
}

// Whatever the moment of a crash, an instant has one run and one fan-out at most.
func TestCrashes(t *testing.T) {
	t.Run("before the fan-out", func(t *testing.T) {
		w := newWorld(t, "2026-06-01T00:00:00Z")
		s := w.make(nil)
		w.set("2026-06-01T02:00:00Z")
		w.fans.fail = errOff
		w.due()
		w.want2(s, "06-01 02:00 starting")
		w.fans.fail = nil
		w.open()
		w.due()
		w.want(s, schedule.Active, "06-01 02:00 running")
	})
	t.Run("before the fan-out, for too long", func(t *testing.T) {
		w := newWorld(t, "2026-06-01T00:00:00Z")
		s := w.make(nil)
		w.set("2026-06-01T02:00:00Z")
		w.fans.fail = errOff
		w.due()
		w.fans.fail = nil
		w.set("2026-06-01T02:06:00Z")
		w.open()
		w.due()
		w.want(s, schedule.Active, "06-01 02:00 missed run_missed")
	})
	t.Run("after the fan-out", func(t *testing.T) {
		w := newWorld(t, "2026-06-01T00:00:00Z")
		s := w.make(nil)
		w.set("2026-06-01T02:00:00Z")
		w.fans.crash = true
		w.due()
		w.fans.crash = false
		w.set("2026-06-01T03:00:00Z")
		w.open()
		w.due()
		w.want(s, schedule.Active, "06-01 02:00 running")
	})
}

// want2 compares only the runs: a run in the state starting has an id without a fan-out.
func (w *world) want2(s schedule.Schedule, want ...string) {
	w.t.Helper()
	if got := w.runs(s); !slices.Equal(got, want) {
		w.t.Errorf("runs %q, want %q", got, want)
	}
}

// Several processes on one database make one run of an instant.
func TestOneRunOfAnInstant(t *testing.T) {
	w := newWorld(t, "2026-06-01T00:00:00Z")
	s := w.make(func(r *schedule.Request) { r.Cron = new("* * * * *") })
	w.set("2026-06-01T00:01:00Z")
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		w.open()
		other := w.Service
		wg.Go(func() { _ = other.Run(ctx) })
		for range 4 {
			wg.Go(func() {
				for range 10 {
					if err := other.Due(ctx, s.ID); err != nil && !errors.Is(err, schedule.ErrNotRunning) &&
						!errors.Is(err, fleet.ErrConflict) && ctx.Err() == nil {
						t.Error(err)
					}
				}
			})
		}
	}
	time.AfterFunc(time.Second, stop)
	wg.Wait()
	w.want(s, schedule.Active, "06-01 00:01 running")
}

// A run acts with the rights that its principal has then.
func TestRightsAreThoseOfTheRun(t *testing.T) {
	lab, err := fleet.NewScope("tag:lab", "", []string{"self.other"})
	if err != nil {
		t.Fatal(err)
	}
	viewer, otherTools, model := ana, ana, ana
	viewer.Role, otherTools.Scope, model.Kind = fleet.RoleViewer, lab, fleet.KindModel
	tests := []struct {
		name   string
		gone   bool
		rights fleet.Principal
		code   string
	}{
		{"disabled, revoked or expired", true, fleet.Principal{}, "actor_gone"},
		{"only a viewer", false, viewer, "forbidden"},
		{"not for this tool", false, otherTools, "tool_not_allowed"},
		{"a model", false, model, "person_needed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, "2026-06-01T00:00:00Z")
			s := w.make(nil)
			w.gone, w.rights = tt.gone, tt.rights
			w.set("2026-06-01T02:00:00Z")
			w.due()
			w.want(s, schedule.Blocked, "06-01 02:00 refused "+tt.code)
			w.gone, w.rights = false, fleet.Principal{}
			w.set("2026-06-02T02:00:00Z") // the rights are back
			w.due()
			w.want(s, schedule.Active, "06-02 02:00 running", "06-01 02:00 refused "+tt.code)
		})
	}
}

// A refusal for another reason is on record, and does not block the schedule.
func TestRefused(t *testing.T) {
	w := newWorld(t, "2026-06-01T00:00:00Z")
	s := w.make(nil)
	w.fans.fail = fleet.Refuse(fleet.ErrInvalid, "empty_audience.call", "matched", 0)
	w.set("2026-06-01T02:00:00Z")
	w.due()
	w.want(s, schedule.Active, "06-01 02:00 refused empty_audience")
}

// The audience stays within the filter that its maker had, and has now.
func TestAudienceStaysWithinTheFilter(t *testing.T) {
	w := newWorld(t, "2026-06-01T00:00:00Z")
	scoped := ana
	scoped.Scope, _ = fleet.NewScope("tag:lab", "", nil)
	r := request()
	r.Query = new(`-name:"x tag:lab y"`)
	s, err := w.Create(t.Context(), scoped, r)
	if err != nil || s.Within != "tag:lab" {
		t.Fatalf("%+v, %v", s, err)
	}
	w.set("2026-06-01T02:00:00Z")
	w.due()
	if q := w.fans.made[0].Query; q != `-name:"x tag:lab y" tag:lab` {
		t.Errorf("the run calls %q", q)
	}
}

func TestPauseAndResume(t *testing.T) {
	ctx, w := t.Context(), newWorld(t, "2026-06-01T00:00:00Z")
	s := w.make(func(r *schedule.Request) { r.Jitter = new(20 * time.Minute) })
	w.set("2026-06-01T02:05:00Z") // the run of today waits for its random moment
	if _, err := w.Pause(ctx, ana, s.ID, " works in the hall "); err != nil {
		t.Fatal(err)
	}
	w.set("2026-06-03T12:00:00Z")
	w.due()
	w.want(s, schedule.Paused, "06-01 02:00 skipped schedule_paused")
	got, err := w.Get(ctx, s.ID)
	if err != nil || got.Note != "works in the hall" || got.PausedBy != "ana" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := w.Pause(ctx, ana, s.ID, ""); !errors.Is(err, fleet.ErrConflict) {
		t.Errorf("paused again: %v", err)
	}
	if s, err = w.Resume(ctx, ana, s.ID); err != nil || s.Next.PlannedAt.Format(time.DateOnly) != "2026-06-04" {
		t.Fatalf("%+v, %v", s.Next, err)
	}
	if _, err := w.Resume(ctx, ana, s.ID); !errors.Is(err, fleet.ErrConflict) {
		t.Errorf("resumed again: %v", err)
	}
	w.set("2026-06-04T02:10:00Z")
	w.due()
	w.want(s, schedule.Active, "06-04 02:00 running", "06-01 02:00 skipped schedule_paused")
	if w.audit("schedule.pause") != 1 || w.audit("schedule.resume") != 1 || w.audit("schedule.create") != 1 {
		t.Error("the audit has not each change once")
	}
}

func (w *world) audit(action string) (n int) {
	w.t.Helper()
	if err := w.db.QueryRow(w.t.Context(), `SELECT count(*) FROM audit_entries WHERE action = $1`, action).Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// A principal that resumes the schedule of a deleted one becomes its actor.
func TestResumeReplacesOnlyAPrincipalThatIsGone(t *testing.T) {
	ctx, w := t.Context(), newWorld(t, "2026-06-01T00:00:00Z")
	s := w.make(nil)
	bob := ana
	bob.ID, bob.Name = uuid.NewString(), "bob"
	if _, err := w.Pause(ctx, bob, s.ID, ""); err != nil {
		t.Fatal(err)
	}
	if s, err := w.Resume(ctx, bob, s.ID); err != nil || !s.Actor.Same(ana) {
		t.Errorf("the actor is %+v, %v", s.Actor, err)
	}
	w.gone = true
	if s, err := w.Resume(ctx, bob, s.ID); err != nil || !s.Actor.Same(bob) {
		t.Errorf("the actor is %+v, %v", s.Actor, err)
	}
	w.gone = false
	if s, err := w.Update(ctx, ana, s.ID, schedule.Request{Name: new("other")}); err != nil || !s.Actor.Same(ana) {
		t.Errorf("the actor is %+v, %v", s.Actor, err)
	}
}

// A change of other fields keeps a run that waits for its random moment; a change of the times drops it, on
// record.
func TestChange(t *testing.T) {
	ctx, w := t.Context(), newWorld(t, "2026-06-01T00:00:00Z")
	s := w.make(func(r *schedule.Request) { r.Jitter = new(20 * time.Minute) })
	w.set("2026-06-01T02:05:00Z")
	s, err := w.Update(ctx, ana, s.ID, schedule.Request{Arguments: json.RawMessage(`{"volume": 3}`)})
	if err != nil || s.Next.DueAt.Format("15:04") != "02:10" || s.Version != 2 {
		t.Fatalf("%+v, %v", s, err)
	}
	s, err = w.Update(ctx, ana, s.ID, schedule.Request{Cron: new("0  3 * * *")})
	if err != nil || s.Next.PlannedAt.Format("15:04") != "03:00" || s.Cron != "0 3 * * *" {
		t.Fatalf("%+v, %v", s, err)
	}
	w.set("2026-06-01T03:10:00Z")
	w.due()
	w.want(s, schedule.Active, "06-01 03:00 running", "06-01 02:00 skipped schedule_changed")
	if got := string(w.fans.made[0].Arguments); got != `{"volume": 3}` {
		t.Errorf("arguments %s", got)
	}
	if err := w.Delete(ctx, ana, s.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Runs(ctx, s.ID, schedule.RunFilter{}); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("runs of a deleted schedule: %v", err)
	}
	w.set("2026-06-02T03:10:00Z")
	w.due()
	if w.audit("schedule.update") != 2 || w.audit("schedule.delete") != 1 {
		t.Error("the audit has not each change once")
	}
}

func TestEnd(t *testing.T) {
	w := newWorld(t, "2026-06-01T00:00:00Z")
	end := w.now().Add(48 * time.Hour)
	s := w.make(func(r *schedule.Request) { r.EndAt = new(&end) })
	for _, now := range []string{"2026-06-01T02:00:00Z", "2026-06-02T02:00:00Z", "2026-06-03T02:00:00Z"} {
		w.set(now)
		w.due()
		w.end(call.FanOutCompleted)
	}
	w.want(s, schedule.Ended, "06-02 02:00 done", "06-01 02:00 done")
	if _, err := w.Update(t.Context(), ana, s.ID, schedule.Request{Name: new("x")}); !errors.Is(err, fleet.ErrInvalid) {
		t.Errorf("changed without a new end: %v", err)
	}
}

// A run by hand is in the name of the person, and is refused while another run is open.
func TestRunNow(t *testing.T) {
	ctx, w := t.Context(), newWorld(t, "2026-06-01T00:00:00Z")
	s := w.make(nil)
	bob := ana
	bob.ID, bob.Name = uuid.NewString(), "bob"
	r, err := w.RunNow(ctx, bob, s.ID)
	if err != nil || r.State != schedule.Running || !r.Manual || !w.fans.made[0].Actor.Same(bob) || r.Targets != 3 {
		t.Fatalf("%+v, %v", r, err)
	}
	if _, err := w.RunNow(ctx, bob, s.ID); !errors.Is(err, fleet.ErrConflict) {
		t.Errorf("a second run: %v", err)
	}
	w.set("2026-06-01T02:00:00Z")
	w.due()
	w.want(s, schedule.Active, "06-01 02:00 skipped previous_running", "06-01 00:00 running")
	w.end(call.FanOutRefused)
	w.want(s, schedule.Active, "06-01 02:00 skipped previous_running", "06-01 00:00 refused fanout_refused")
	if w.audit("schedule.run") != 1 {
		t.Error("the audit does not have the run by hand")
	}
}

// Only people and programs that may act on the devices change a schedule.
func TestWrongPerson(t *testing.T) {
	ctx, w := t.Context(), newWorld(t, "2026-06-01T00:00:00Z")
	s := w.make(nil)
	as := func(change func(p *fleet.Principal)) fleet.Principal {
		p := ana
		p.ID, p.Name = uuid.NewString(), "other"
		change(&p)
		return p
	}
	scoped := func(filter string, rest fleet.Role) func(p *fleet.Principal) {
		return func(p *fleet.Principal) { p.Scope, _ = fleet.NewScope(filter, rest, nil) }
	}
	tests := []struct {
		name string
		p    fleet.Principal
		want error
	}{
		{"viewer", as(func(p *fleet.Principal) { p.Role = fleet.RoleViewer }), fleet.ErrForbidden},
		{"model", as(func(p *fleet.Principal) { p.Kind, p.Role = fleet.KindModel, fleet.RoleAdmin }), fleet.ErrForbidden},
		{"voice", as(func(p *fleet.Principal) { p.Kind = fleet.KindVoice }), fleet.ErrForbidden},
		{"for other devices", as(scoped("tag:hall", "")), fleet.ErrNotFound},
		{"for other devices, and reading the rest", as(scoped("tag:hall", fleet.RoleViewer)), fleet.ErrForbidden},
		{"for these devices", as(scoped("tag:lab", "")), nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before, err := w.Get(ctx, s.ID)
			if err != nil {
				t.Fatal(err)
			}
			_, update := w.Update(ctx, tt.p, s.ID, schedule.Request{Name: new(tt.name)})
			_, pause := w.Pause(ctx, tt.p, s.ID, "")
			_, resume := w.Resume(ctx, tt.p, s.ID)
			for what, err := range map[string]error{"update": update, "pause": pause, "resume": resume} {
				if !errors.Is(err, tt.want) {
					t.Errorf("%s: %v, want %v", what, err, tt.want)
				}
			}
			if tt.want == nil {
				return
			}
			_, run := w.RunNow(ctx, tt.p, s.ID)
			if err := w.Delete(ctx, tt.p, s.ID); !errors.Is(err, tt.want) || !errors.Is(run, tt.want) {
				t.Errorf("run %v, delete %v, want %v", run, err, tt.want)
			}
			if tt.p.Scope == nil {
				if _, err := w.Create(ctx, tt.p, request()); !errors.Is(err, fleet.ErrForbidden) {
					t.Errorf("create: %v", err)
				}
				if _, err := w.Service.Preview(ctx, tt.p, request()); !errors.Is(err, fleet.ErrForbidden) {
					t.Errorf("preview: %v", err)
				}
			}
			after, err := w.Get(ctx, s.ID)
			if err != nil || after.Version != before.Version || w.fans.count() != 0 {
				t.Errorf("changed to version %d, with %d fan-outs, %v", after.Version, w.fans.count(), err)
			}
		})
	}
	hall := fleet.WithScope(ctx, as(scoped("tag:hall", "")))
	if page, err := w.List(hall, 10, ""); err != nil || len(page.Items) != 0 {
		t.Errorf("the list for other devices has %d, %v", len(page.Items), err)
	}
	if _, err := w.Runs(hall, s.ID, schedule.RunFilter{}); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("runs for other devices: %v", err)
	}
}

func TestRefusedRequests(t *testing.T) {
	ctx, w := t.Context(), newWorld(t, "2026-06-01T00:00:00Z")
	tests := []struct {
		name   string
		change func(*schedule.Request)
		skip   string
		code   string
	}{
		{"no name", func(r *schedule.Request) { r.Name = new("  ") }, "", "invalid_name"},
		{"a long name", func(r *schedule.Request) { r.Name = new(string(make([]byte, 121))) }, "", "invalid_name"},
		{"a query that does not parse", func(r *schedule.Request) { r.Query = new("planet:mars") }, "", "unknown_field"},
		{"a tool that sends devices away", func(r *schedule.Request) { r.Tool = new("self.system.reconfigure_wifi") }, "",
			"not_for_schedules"},
		{"arguments that no device accepts", func(*schedule.Request) {}, "invalid_arguments", "schedule_calls_none"},
		{"a tool that no device has", func(*schedule.Request) {}, "unknown_tool", "schedule_calls_none"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := request()
			tt.change(&r)
			w.fans.skipped = nil
			if tt.skip != "" {
				w.fans.skipped = []fleet.SkippedDevices{{Reason: tt.skip, Count: 3}}
			}
			_, err := w.Create(ctx, ana, r)
			if e, ok := errors.AsType[*fleet.Error](err); !ok || e.Code != tt.code {
				t.Errorf("refused with %v, want %s", err, tt.code)
			}
		})
	}
	w.fans.skipped = nil
	if page, err := w.List(ctx, 10, ""); err != nil || len(page.Items) != 0 || w.audit("schedule.create") != 0 {
		t.Errorf("%d schedules, %v", len(page.Items), err)
	}
}

// Pages follow one another without a gap, for schedules of one name too.
func TestPages(t *testing.T) {
	ctx, w := t.Context(), newWorld(t, "2026-06-01T00:00:00Z")
	for i := range 7 {
		w.make(func(r *schedule.Request) { r.Name = new(fmt.Sprint("s", i/3)) })
	}
	seen, cursor := map[uuid.UUID]bool{}, ""
	for range 10 {
		page, err := w.List(ctx, 2, cursor)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range page.Items {
			if seen[s.ID] {
				t.Errorf("%s comes twice", s.Name)
			}
			seen[s.ID] = true
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	if len(seen) != 7 {
		t.Errorf("%d schedules on the pages, want 7", len(seen))
	}
	if _, err := w.List(ctx, 2, "x"); !errors.Is(err, fleet.ErrInvalid) {
		t.Errorf("a bad cursor: %v", err)
	}
}

func TestNoMoreThanTheLimit(t *testing.T) {
	ctx, w := t.Context(), newWorld(t, "2026-06-01T00:00:00Z")
	s := w.make(nil)
	s.ID = uuid.Must(uuid.NewV7())
	if err := w.store.CreateSchedule(ctx, s, 1); !errors.Is(err, fleet.ErrConflict) {
		t.Errorf("a second schedule where one may be: %v", err)
	}
}
