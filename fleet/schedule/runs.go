package schedule

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// Reasons of runs whose fan-out ended without its calls. The store derives them from the fan-out.
var (
	FanOutRefused  = fleet.Because("fanout_refused")
	FanOutCanceled = fleet.Because("fanout_canceled")
)

func newRun(s Schedule, at Instant, state RunState) Run {
	r := Run{ID: uuid.Must(uuid.NewV7()), Schedule: s.ID, PlannedAt: at.PlannedAt, DueAt: at.DueAt, State: state,
		Actor: s.Actor}
	if state == Starting {
		r.FanOut = uuid.Must(uuid.NewV7())
	}
	return r
}

// Run lets runs start until ctx ends. First it starts or ends those that a crash left behind, and records
// the missed ones.
func (s *Service) Run(ctx context.Context) error {
	s.mu.Lock()
	s.running = true
	s.mu.Unlock()
	if err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
		s.o.Log.Error("schedules not checked at the start; the queue does it within a minute", "err", err)
	}
	<-ctx.Done()
	s.mu.Lock() // waits for runs that start
	s.running = false
	s.mu.Unlock()
	return nil
}

// Sweep does [Service.Due] for every schedule that needs it. The queue calls it now and then, so that no
// schedule depends on a job of the queue that was lost.
func (s *Service) Sweep(ctx context.Context) error {
	ids, err := s.o.Store.DueSchedules(ctx, s.now())
	for _, id := range ids {
		err = errors.Join(err, s.Due(ctx, id))
	}
	return err
}

// Due starts the run of a schedule if it is due, and records runs that were missed. After an error it has
// to be called again.
func (s *Service) Due(ctx context.Context, id uuid.UUID) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if !s.running || !s.o.Held() {
		return ErrNotRunning
	}
	lock := &s.locks[int(id[15])%len(s.locks)]
	lock.Lock()
	defer lock.Unlock()
	sch, err := s.o.Store.Schedule(ctx, id)
	if errors.Is(err, fleet.ErrNotFound) {
		return nil // deleted
	}
	if err != nil {
		return err
	}
	if err := s.finishStarting(ctx, sch); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if sch, err = s.o.Store.Schedule(ctx, id); err != nil {
			return err
		}
		now := s.now()
		if sch.Paused || sch.Next == nil || now.Before(sch.Next.DueAt) {
			return nil
		}
		planned, next := s.passed(sch, now)
		runs, claimed, err := s.o.Store.ClaimRuns(ctx, sch, planned, next)
		if err != nil {
			return err
		}
		if !claimed {
			continue
		}
		for _, r := range runs {
			if r.State == Missed {
				s.o.Log.Warn("scheduled run missed", "schedule", sch.ID, "planned", r.PlannedAt, "before", r.Omitted)
			}
			if r.State != Starting {
				continue
			}
			if _, err := s.start(ctx, sch, r); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// passed returns the runs of the instants that have passed, and the instant that follows: one run to
// start, or the missed ones.
func (s *Service) passed(sch Schedule, now time.Time) ([]Run, *Instant) {
	if !now.After(sch.Next.DueAt.Add(s.o.Grace)) {
		return []Run{newRun(sch, *sch.Next, Starting)}, sch.nextAfter(sch.Next.PlannedAt, s.o.Random)
	}
	missed, at := []Instant{*sch.Next}, int64(1) // the latest ones as a ring, and how many there are
	last := sch.Next.PlannedAt
	for instant := range sch.instants(last) {
		if !now.After(instant.Add(s.o.Grace)) {
			break
		}
		if last = instant; len(missed) < maxMissed {
			missed = append(missed, Instant{instant, instant})
		} else {
			missed[at%maxMissed] = Instant{instant, instant}
		}
		at++
	}
	runs := make([]Run, 0, len(missed))
	first := max(0, at-maxMissed)
	for i := first; i < at; i++ {
		r := newRun(sch, missed[i%maxMissed], Missed)
		r.Reason = fleet.Because("run_missed", "grace_ms", s.o.Grace)
		runs = append(runs, r)
	}
	runs[0].Omitted = first
	return runs, sch.nextAfter(last, s.o.Random)
}

// finishStarting ends the starts that an error or a crash interrupted. A fan-out that exists was made once;
// one that does not exist is made if it is not too late.
func (s *Service) finishStarting(ctx context.Context, sch Schedule) error {
	runs, err := s.o.Store.StartingRuns(ctx, sch.ID)
	if err != nil {
		return err
	}
	for _, r := range runs {
		f, err := s.o.FanOuts().Get(fleet.WithoutScope(ctx), r.FanOut)
		switch {
		case err == nil:
			r.State, r.StartedAt = Running, &f.CreatedAt
			err = s.o.Store.SettleRun(ctx, r, fleet.Reason{})
		case !errors.Is(err, fleet.ErrNotFound):
		case s.now().After(r.DueAt.Add(s.o.Grace)):
			r.State, r.FanOut, r.Reason = Missed, uuid.Nil, fleet.Because("run_missed", "grace_ms", s.o.Grace)
			err = s.o.Store.SettleRun(ctx, r, sch.Blocked)
		default:
			_, err = s.start(ctx, sch, r)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// start makes the fan-out of a run that is starting, and records the outcome. An error means
// that the database did not record it; the run remains in the state starting.
func (s *Service) start(ctx context.Context, sch Schedule, r Run) (Run, error) {
	at := s.now()
	err := s.makeFanOut(ctx, sch, r)
	refusal, refused := errors.AsType[*fleet.Error](err)
	blocked := fleet.Reason{}
	switch {
	case err == nil:
		r.State, r.StartedAt = Running, &at
	case refused && final(err):
		r.State, r.FanOut, r.Reason = Refused, uuid.Nil, refusal.Reason()
		if errors.Is(err, fleet.ErrForbidden) {
			blocked = r.Reason
		}
		s.o.Log.Warn("scheduled run refused", "schedule", sch.ID, "planned", r.PlannedAt, "err", err)
	default:
		return r, err
	}
	if r.Manual {
		blocked = sch.Blocked
	}
	return r, s.o.Store.SettleRun(ctx, r, blocked)
}

// final reports whether an error stays the same if the start is tried again.
func final(err error) bool {
	return errors.Is(err, fleet.ErrInvalid) || errors.Is(err, fleet.ErrForbidden) || errors.Is(err, fleet.ErrConflict) ||
		errors.Is(err, fleet.ErrNotFound)
}

// makeFanOut reads the rights of the run's principal, and makes the fan-out with them.
func (s *Service) makeFanOut(ctx context.Context, sch Schedule, r Run) error {
	by, err := s.o.Authority.PrincipalNow(ctx, r.Actor)
	if err != nil {
		return err
	}
	if err := by.MaySomewhere(fleet.RoleOperator, "make_fanout"); err != nil {
		return err
	}
	if by.Kind.IsModel() {
		return by.MayDecide("make_schedule")
	}
	if !by.Scope.AllowsTool(sch.Tool) {
		return toolNotAllowed(by, sch.Tool)
	}
	request, err := s.request(&sch, r.FanOut, by)
	if err != nil {
		return err
	}
	_, err = s.o.FanOuts().Create(ctx, request)
	return err
}

// RunNow starts a run by hand, in the name of the principal that requests it.
func (s *Service) RunNow(ctx context.Context, by fleet.Principal, id uuid.UUID) (Run, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	lock := &s.locks[int(id[15])%len(s.locks)]
	lock.Lock()
	defer lock.Unlock()
	sch, err := s.mayOn(ctx, by, id, "run_schedule")
	if err != nil {
		return Run{}, err
	}
	if !by.Scope.AllowsTool(sch.Tool) {
		return Run{}, toolNotAllowed(by, sch.Tool)
	}
	now := s.now()
	r := newRun(sch, Instant{now, now}, Starting)
	r.Actor, r.Manual = by, true
	if err := s.o.Store.ClaimManual(ctx, by, sch, r); err != nil {
		return Run{}, err
	}
	if r, err = s.start(ctx, sch, r); err != nil {
		return r, err
	}
	return s.o.Store.ScheduleRun(ctx, r.ID)
}
