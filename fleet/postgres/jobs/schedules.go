package jobs

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"fleetd/fleet/schedule"
)

// scheduleQueue is separate from the others, which must not delay the start of a run.
const scheduleQueue = "schedules"

const (
	// sweepInterval is the time between two checks of all schedules. They find a run whose job was lost.
	sweepInterval = time.Minute
	// startRetry is the time between two tries to start a run.
	startRetry = 5 * time.Second
	// startAttempts last longer than the time in which a run may start; after it the run is missed.
	startAttempts = 100
	// startTimeout allows for the audience of the largest fan-out.
	startTimeout = 2 * time.Minute
)

// Schedules starts the runs of schedules.
type Schedules interface {
	// Due starts the run of a schedule if it is due. After an error it is called again.
	Due(ctx context.Context, id uuid.UUID) error
	// Sweep does that for all schedules.
	Sweep(ctx context.Context) error
}

// scheduledRun is the job of one instant. Its arguments are the same only for the same instant of the same
// version of the schedule.
type scheduledRun struct {
	Schedule  uuid.UUID `json:"schedule"`
	Version   int64     `json:"version"`
	PlannedAt time.Time `json:"planned_at"`
}

func (scheduledRun) Kind() string { return "scheduled_run" }

type runStarter struct {
	river.WorkerDefaults[scheduledRun]
	schedules Schedules
}

func (w *runStarter) Timeout(*river.Job[scheduledRun]) time.Duration { return startTimeout }

// NextRetry is soon: the run is missed after some minutes.
func (w *runStarter) NextRetry(*river.Job[scheduledRun]) time.Time { return time.Now().Add(startRetry) }

func (w *runStarter) Work(ctx context.Context, j *river.Job[scheduledRun]) error {
	err := w.schedules.Due(ctx, j.Args.Schedule)
	if errors.Is(err, schedule.ErrNotRunning) {
		return river.JobSnooze(time.Second)
	}
	return err
}

// scheduleSweep is the job that checks all schedules.
type scheduleSweep struct{}

func (scheduleSweep) Kind() string { return "schedule_sweep" }

type sweeper struct {
	river.WorkerDefaults[scheduleSweep]
	schedules Schedules
}

func (w *sweeper) Timeout(*river.Job[scheduleSweep]) time.Duration { return startTimeout }

func (w *sweeper) Work(ctx context.Context, _ *river.Job[scheduleSweep]) error {
	if err := w.schedules.Sweep(ctx); !errors.Is(err, schedule.ErrNotRunning) {
		return err
	}
	return nil // the start of the service does it
}

// sweeping returns the periodic job.
func sweeping() *river.PeriodicJob {
	return river.NewPeriodicJob(river.PeriodicInterval(sweepInterval),
		func() (river.JobArgs, *river.InsertOpts) {
			return scheduleSweep{}, &river.InsertOpts{Queue: scheduleQueue, MaxAttempts: 1}
		}, nil)
}

// queueRun adds the job of an instant in the transaction that stores the instant.
func (j *Jobs) queueRun(ctx context.Context, tx pgx.Tx, id uuid.UUID, version int64, at schedule.Instant) error {
	_, err := j.client.InsertTx(ctx, tx, scheduledRun{id, version, at.PlannedAt}, &river.InsertOpts{Queue: scheduleQueue,
		ScheduledAt: at.DueAt, MaxAttempts: startAttempts, UniqueOpts: river.UniqueOpts{ByArgs: true}})
	return err
}
