package schedule

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/redaction"
)

// ErrChanged means that a schedule was changed between a read and a write.
var ErrChanged = errors.New("the schedule has changed")

// ErrNotRunning means that the service does not start runs: it has not begun, or it ends.
var ErrNotRunning = errors.New("schedules are not run now")

// Options configures a [Service]. Store, FanOuts and Authority are required.
type Options struct {
	Store     Store
	FanOuts   func() FanOuts // called once the service runs, or serves a request
	Authority fleet.Authority
	// Redaction keeps values under its rules out of the schedules on record. Nil: none.
	Redaction *redaction.Service
	// Held reports whether no other process can serve the fleet now. A run starts only then. Default: true
	Held func() bool
	Log  *slog.Logger     // nil: silent
	Now  func() time.Time // default: time.Now
	// Random returns a duration less than its argument, for the jitter. Default: random ones.
	Random func(time.Duration) time.Duration
	Grace  time.Duration // default: [Grace]
}

// A Service keeps schedules and starts their runs.
type Service struct {
	o Options

	mu      sync.RWMutex // read-locked while runs start
	running bool
	locks   [64]sync.Mutex // by schedule: one run of it starts at a time
}

// New returns a service; [Service.Run] lets it start runs.
func New(o Options) *Service {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Held == nil {
		o.Held = func() bool { return true }
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Random == nil {
		o.Random = randomWithin
	}
	o.Grace = cmp.Or(o.Grace, Grace)
	return &Service{o: o}
}

func (s *Service) now() time.Time { return s.o.Now().UTC().Truncate(time.Microsecond) }

// A Request is the content of a schedule. A nil field keeps its value, or is the default of a new one.
type Request struct {
	Name        *string
	Cron        *string
	TimeZone    *string
	Query       *string
	Tool        *string
	Arguments   json.RawMessage
	Jitter      *time.Duration
	StartAt     **time.Time
	EndAt       **time.Time
	MaxInFlight *int
	Timeout     *time.Duration
	OfflineWait *time.Duration
	// Edits is the schedule that a request to [Service.Preview] would change; zero for a new one.
	Edits uuid.UUID
}

func (r Request) apply(s *Schedule) {
	set(&s.Name, r.Name)
	set(&s.Cron, r.Cron)
	set(&s.TimeZone, r.TimeZone)
	set(&s.Query, r.Query)
	set(&s.Tool, r.Tool)
	if r.Arguments != nil {
		s.Arguments, s.Sealed = r.Arguments, nil
	}
	set(&s.Jitter, r.Jitter)
	set(&s.StartAt, r.StartAt)
	set(&s.EndAt, r.EndAt)
	set(&s.MaxInFlight, r.MaxInFlight)
	set(&s.Timeout, r.Timeout)
	set(&s.OfflineWait, r.OfflineWait)
}

func set[T any](to *T, value *T) {
	if value != nil {
		*to = *value
	}
}

// check completes a schedule and refuses an invalid one. It returns what a run would do now.
func (s *Service) check(ctx context.Context, by fleet.Principal, sch *Schedule) (call.FanOutPreview, error) {
	none := call.FanOutPreview{}
	sch.Name = strings.TrimSpace(sch.Name)
	if sch.Name == "" || len(sch.Name) > maxName || fleet.CleanText(sch.Name, maxName) != sch.Name {
		return none, fleet.Refuse(fleet.ErrInvalid, "invalid_name.schedule", "limit", maxName).At("name")
	}
	if len(bytes.TrimSpace(sch.Arguments)) == 0 {
		sch.Arguments = json.RawMessage("{}")
	}
	if err := sch.checkTimes(s.now()); err != nil {
		return none, err
	}
	sch.Actor, sch.Within = by, by.Within(fleet.RoleOperator).Text
	sch.MaxInFlight = cmp.Or(sch.MaxInFlight, call.DefaultInFlight)
	if fleet.EffectOf(sch.Tool) == fleet.EffectLeaves {
		return none, fleet.Refuse(fleet.ErrInvalid, "not_for_schedules", "tool", sch.Tool).At("tool")
	}
	if !by.Scope.AllowsTool(sch.Tool) {
		return none, toolNotAllowed(by, sch.Tool)
	}
	request, err := s.request(sch, uuid.Nil, by)
	if err != nil {
		return none, err
	}
	p, err := s.o.FanOuts().Preview(ctx, request)
	if err != nil {
		return none, err
	}
	if p.Targets == 0 {
		for _, skipped := range p.Skipped {
			if err := neverCalled(skipped.Reason, sch.Tool, p.Matched); err != nil {
				return p, err
			}
		}
	}
	return p, nil
}

// neverCalled returns an error if the reason to leave out devices ends only with a change of the schedule.
func neverCalled(reason, tool string, matched int) error {
	switch reason {
	case "invalid_arguments":
		return fleet.Refuse(fleet.ErrInvalid, "schedule_calls_none.arguments", "tool", tool, "matched", matched).
			At("arguments")
	case "unknown_tool":
		return fleet.Refuse(fleet.ErrInvalid, "schedule_calls_none.tool", "tool", tool, "matched", matched).At("tool")
	}
	return nil
}

func toolNotAllowed(by fleet.Principal, tool string) *fleet.Error {
	return fleet.Refuse(fleet.ErrForbidden, "tool_not_allowed.act", "act", fleet.Because("act.make_schedule"),
		"actor", by.Name, "tool", tool)
}

// A Preview is what a schedule would do.
type Preview struct {
	Instants []time.Time // the next [PreviewInstants]
	Call     call.FanOutPreview
}

// Preview checks a schedule, and returns its next instants and what a run would do now. It stores nothing.
func (s *Service) Preview(ctx context.Context, by fleet.Principal, r Request) (Preview, error) {
	if err := by.MaySomewhere(fleet.RoleOperator, "make_schedule"); err != nil {
		return Preview{}, err
	}
	sch := Schedule{}
	if r.Edits != uuid.Nil {
		was, err := s.mayOn(ctx, by, r.Edits, "change_schedule")
		if err != nil {
			return Preview{}, err
		}
		if r, err = s.restored(was, r); err != nil {
			return Preview{}, err
		}
	}
	r.apply(&sch)
	sch.Name = cmp.Or(sch.Name, "-")
	p, err := s.check(ctx, by, &sch)
	if err != nil {
		return Preview{}, err
	}
	return Preview{Instants: sch.Instants(s.now(), PreviewInstants), Call: p}, nil
}

// Create adds a schedule.
func (s *Service) Create(ctx context.Context, by fleet.Principal, r Request) (Schedule, error) {
	if err := by.MaySomewhere(fleet.RoleOperator, "make_schedule"); err != nil {
		return Schedule{}, err
	}
	now := s.now()
	sch := Schedule{ID: uuid.Must(uuid.NewV7()), CreatedBy: by.Name, CreatedAt: now, UpdatedAt: now, Version: 1}
	r.apply(&sch)
	if _, err := s.check(ctx, by, &sch); err != nil {
		return Schedule{}, err
	}
	s.redact(&sch)
	sch.Next = sch.nextAfter(now, s.o.Random)
	return sch, s.o.Store.CreateSchedule(ctx, sch, MaxSchedules)
}

// Get returns one schedule, or [fleet.ErrNotFound].
func (s *Service) Get(ctx context.Context, id uuid.UUID) (Schedule, error) {
	return s.o.Store.Schedule(ctx, id)
}

// List returns a page of schedules by name.
func (s *Service) List(ctx context.Context, limit int, cursor string) (fleet.Page[Schedule], error) {
	return s.o.Store.Schedules(ctx, limit, cursor)
}

// Runs returns a page of the runs of a schedule, latest first.
func (s *Service) Runs(ctx context.Context, id uuid.UUID, f RunFilter) (fleet.Page[Run], error) {
	if _, err := s.Get(ctx, id); err != nil {
		return fleet.Page[Run]{}, err
	}
	return s.o.Store.ScheduleRuns(ctx, id, f)
}

// Editable returns a schedule that the principal may change.
func (s *Service) Editable(ctx context.Context, by fleet.Principal, id uuid.UUID) (Schedule, error) {
	return s.mayOn(ctx, by, id, "change_schedule")
}

// mayOn returns the schedule if the principal may do the act on it.
func (s *Service) mayOn(ctx context.Context, by fleet.Principal, id uuid.UUID, act string) (sch Schedule,
	err error) {
	if err := by.MaySomewhere(fleet.RoleOperator, act); err != nil {
		return sch, err
	}
	read := func(ctx context.Context) (err error) {
		sch, err = s.Get(ctx, id)
		return err
	}
	if err := read(fleet.WithScope(ctx, by)); err != nil {
		return sch, err
	}
	return sch, by.MayOnAll(ctx, read, fleet.RoleOperator, act)
}

// change makes a change to the schedule as it is now, also if others change it meanwhile.
func (s *Service) change(ctx context.Context, by fleet.Principal, id uuid.UUID, action string,
	do func(*Schedule) ([]Run, error)) (Schedule, error) {
	for range 10 {
		was, err := s.mayOn(ctx, by, id, "change_schedule")
		if err != nil {
			return was, err
		}
		sch := was
		runs, err := do(&sch)
		if err != nil {
			return was, err
		}
		sch.Version, sch.UpdatedAt = was.Version+1, s.now()
		if err = s.o.Store.SaveSchedule(ctx, by, action, was, sch, runs); !errors.Is(err, ErrChanged) {
			return sch, err
		}
	}
	return Schedule{}, fleet.Refuse(fleet.ErrConflict, "schedule_changes")
}

// Update changes a schedule. From then on its runs start in the name of the principal.
func (s *Service) Update(ctx context.Context, by fleet.Principal, id uuid.UUID, r Request) (Schedule, error) {
	return s.change(ctx, by, id, "schedule.update", func(sch *Schedule) ([]Run, error) {
		was := *sch
		r, err := s.restored(was, r)
		if err != nil {
			return nil, err
		}
		r.apply(sch)
		if _, err := s.check(ctx, by, sch); err != nil {
			return nil, err
		}
		s.redact(sch)
		sch.Blocked = fleet.Reason{}
		if !sch.Paused && (sch.Next == nil || !was.sameTimes(*sch)) {
			sch.Next = sch.nextAfter(s.now(), s.o.Random)
			return s.dropped(was, fleet.Because("schedule_changed")), nil
		}
		return nil, nil
	})
}

// sameTimes reports whether both schedules have the same instants.
func (s *Schedule) sameTimes(other Schedule) bool {
	return s.Cron == other.Cron && s.TimeZone == other.TimeZone && s.Jitter == other.Jitter &&
		sameTime(s.StartAt, other.StartAt) && sameTime(s.EndAt, other.EndAt)
}

func sameTime(a, b *time.Time) bool {
	return a == nil && b == nil || a != nil && b != nil && a.Equal(*b)
}

// dropped returns the run that was waiting for the end of its jitter and now does not start.
func (s *Service) dropped(was Schedule, why fleet.Reason) []Run {
	if was.Next == nil || was.Next.PlannedAt.After(s.now()) {
		return nil
	}
	r := newRun(was, *was.Next, Skipped)
	r.Reason = why
	return []Run{r}
}

// arguments returns the true arguments of a schedule.
func (s *Service) arguments(sch *Schedule) (json.RawMessage, error) {
	if sch.Sealed == nil {
		return sch.Arguments, nil
	}
	return s.o.Redaction.Open(sch.ID, sch.Sealed)
}

// redact replaces the values under redaction rules that a new or changed schedule has.
func (s *Service) redact(sch *Schedule) {
	if sch.Sealed != nil {
		return // it keeps its values
	}
	shown, digests := s.o.Redaction.Redact(sch.Tool, sch.Arguments)
	if len(digests) > 0 {
		sch.Arguments, sch.Sealed = shown, s.o.Redaction.Seal(sch.ID, sch.Arguments)
	}
}

// restored returns a change of a schedule with true values in the place of digests that the schedule
// shows. They stay with their tool and devices: another audience could show them to the editor.
func (s *Service) restored(was Schedule, r Request) (Request, error) {
	if was.Sealed == nil || r.Arguments != nil && !redaction.Contains(r.Arguments) {
		return r, nil
	}
	if r.Tool != nil && *r.Tool != was.Tool || r.Query != nil && *r.Query != was.Query {
		return r, call.ErrRedacted
	}
	if r.Arguments == nil {
		return r, nil
	}
	values, err := s.arguments(&was)
	if err != nil {
		return r, err
	}
	arguments, ok := s.o.Redaction.Restore(was.Tool, r.Arguments, values)
	if !ok {
		return r, call.ErrRedacted
	}
	r.Arguments = arguments
	return r, nil
}

// Pause plans no further runs until [Service.Resume]. The open fan-out of a run continues.
func (s *Service) Pause(ctx context.Context, by fleet.Principal, id uuid.UUID, note string) (Schedule, error) {
	return s.change(ctx, by, id, "schedule.pause", func(sch *Schedule) ([]Run, error) {
		if sch.Paused {
			return nil, fleet.Refuse(fleet.ErrConflict, "schedule_paused.already")
		}
		runs := s.dropped(*sch, fleet.Because("schedule_paused"))
		sch.Paused, sch.PausedBy, sch.Note, sch.Next = true, by.Name, fleet.CleanText(strings.TrimSpace(note), maxNote), nil
		return runs, nil
	})
}

// Resume plans the runs from now on. Instants during the pause are not missed. If the principal behind
// the schedule may no longer act, the one that resumes it replaces it.
func (s *Service) Resume(ctx context.Context, by fleet.Principal, id uuid.UUID) (Schedule, error) {
	return s.change(ctx, by, id, "schedule.resume", func(sch *Schedule) ([]Run, error) {
		_, err := s.o.Authority.PrincipalNow(ctx, sch.Actor)
		gone := errors.Is(err, fleet.ErrActorGone)
		switch {
		case err != nil && !gone:
			return nil, err
		case !sch.Paused && !gone:
			return nil, fleet.Refuse(fleet.ErrConflict, "schedule_not_paused")
		case gone:
			if _, err := s.check(ctx, by, sch); err != nil { // and make it the principal's
				return nil, err
			}
		default:
			if err := sch.checkTimes(s.now()); err != nil {
				return nil, err
			}
		}
		sch.Paused, sch.PausedBy, sch.Note, sch.Blocked = false, "", "", fleet.Reason{}
		if sch.Next == nil {
			sch.Next = sch.nextAfter(s.now(), s.o.Random)
		}
		return nil, nil
	})
}

// Delete removes a schedule and its runs. Their fan-outs remain.
func (s *Service) Delete(ctx context.Context, by fleet.Principal, id uuid.UUID) error {
	sch, err := s.mayOn(ctx, by, id, "change_schedule")
	if err != nil {
		return err
	}
	return s.o.Store.DeleteSchedule(ctx, by, sch)
}

// refusedTimes names the fields of a schedule in the error of a window.
func refusedTimes(err error, zone string) error {
	e, ok := errors.AsType[*fleet.Error](err)
	switch {
	case !ok:
		return err
	case e.Code == "unknown_time_zone":
		return unknownZone(zone)
	}
	return e.At("cron")
}

func unknownZone(zone string) error {
	return fleet.Refuse(fleet.ErrInvalid, "unknown_time_zone.schedule", "value", zone).At("time_zone")
}
