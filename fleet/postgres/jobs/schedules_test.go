package jobs_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/postgres"
	"fleetd/fleet/postgres/jobs"
	"fleetd/fleet/postgres/pgtest"
	"fleetd/fleet/schedule"
)

// starts counts the starts of each schedule. The first ones fail.
type starts struct {
	of     uuid.UUID
	asked  atomic.Int64 // starts
	fail   []error
	sweeps atomic.Int64
}

func (s *starts) Due(_ context.Context, id uuid.UUID) error {
	if id != s.of {
		return errors.New("another schedule")
	}
	if n := int(s.asked.Add(1)); n <= len(s.fail) {
		return s.fail[n-1]
	}
	return nil
}

func (s *starts) Sweep(context.Context) error {
	s.sweeps.Add(1)
	return nil
}

// A new instant queues the start of its run, which is tried again until it succeeds. The same instant is not
// queued twice.
func TestInstantsAreQueued(t *testing.T) {
	db := pgtest.New(t)
	store := postgres.New(db, postgres.Options{})
	id := uuid.Must(uuid.NewV7())
	runs := &starts{of: id, fail: []error{schedule.ErrNotRunning, errors.New("the database is away")}}
	j, err := jobs.New(db, store, jobs.Options{Schedules: runs})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().UTC().Truncate(time.Second)
	s := schedule.Schedule{ID: id, Name: "nightly", Cron: "* * * * *", TimeZone: "UTC", Tool: "t",
		Arguments: []byte(`{}`), MaxInFlight: 1, CreatedAt: now, UpdatedAt: now, Version: 1,
		Actor: fleet.Principal{Kind: fleet.KindOperator, ID: "1", Name: "ana", Role: fleet.RoleOperator},
		Next:  &schedule.Instant{PlannedAt: now.Add(-time.Second), DueAt: now}}
	if err := store.CreateSchedule(t.Context(), s, 10); err != nil {
		t.Fatal(err)
	}
	was := s
	s.Next = &schedule.Instant{PlannedAt: was.Next.PlannedAt, DueAt: was.Next.DueAt}
	for range 3 { // a retried transaction
		if err := store.SaveSchedule(t.Context(), s.Actor, "schedule.update", was, s, nil); err != nil {
			t.Fatal(err)
		}
	}
	var queued int
	if err := db.QueryRow(t.Context(), `SELECT count(*) FROM river_job WHERE kind = 'scheduled_run'`).Scan(
		&queued); err != nil || queued != 1 {
		t.Errorf("%d jobs are queued, %v, want 1", queued, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- j.Run(ctx) }()
	fleettest.EventuallyWithin(t, time.Minute, "the run was started at the third try", func() bool {
		return runs.asked.Load() == 3
	})
	fleettest.Eventually(t, "the job is done", func() (done bool) {
		if err := db.QueryRow(t.Context(), `SELECT state = 'completed' FROM river_job WHERE kind = 'scheduled_run'`).Scan(
			&done); err != nil {
			t.Fatal(err)
		}
		return done
	})
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := runs.asked.Load(); n != 3 {
		t.Errorf("%d starts, want 3", n)
	}
}
