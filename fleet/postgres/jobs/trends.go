package jobs

import (
	"context"
	"fmt"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"fleetd/fleet/postgres"
)

// trends is the job that counts hours for dashboards.
type trends struct{}

func (trends) Kind() string { return "trends" }

// A trendCounter does the job.
type trendCounter struct {
	river.WorkerDefaults[trends]
	store *postgres.Store
}

// Timeout bounds one run. The hours that it has counted by then stay counted, and the next run continues.
func (c *trendCounter) Timeout(*river.Job[trends]) time.Duration { return 10 * time.Minute }

func (c *trendCounter) Work(ctx context.Context, _ *river.Job[trends]) error {
	if _, err := c.store.CountTrends(ctx, time.Now().UTC()); err != nil {
		return fmt.Errorf("trends: %w", err)
	}
	return nil
}

// countTrends queues a run unless one is queued or running. Most runs find that no hour has ended.
func countTrends(interval time.Duration) *river.PeriodicJob {
	waiting := []rivertype.JobState{rivertype.JobStateAvailable, rivertype.JobStatePending, rivertype.JobStateRetryable,
		rivertype.JobStateRunning, rivertype.JobStateScheduled}
	return river.NewPeriodicJob(river.PeriodicInterval(interval), func() (river.JobArgs, *river.InsertOpts) {
		return trends{}, &river.InsertOpts{MaxAttempts: 1, UniqueOpts: river.UniqueOpts{ByArgs: true, ByState: waiting}}
	}, &river.PeriodicJobOpts{RunOnStart: true})
}
