package jobs

import (
	"context"
	"fmt"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"fleetd/fleet/postgres"
)

// usage is the job that counts the calls of tools.
type usage struct{}

func (usage) Kind() string { return "tool_usage" }

// A usageCounter does the job.
type usageCounter struct {
	river.WorkerDefaults[usage]
	store *postgres.Store
}

// Timeout bounds one run. What it has counted by then stays counted, and the next run continues.
func (c *usageCounter) Timeout(*river.Job[usage]) time.Duration { return 10 * time.Minute }

func (c *usageCounter) Work(ctx context.Context, _ *river.Job[usage]) error {
	if _, err := c.store.RollUpUsage(ctx, time.Now().UTC()); err != nil {
		return fmt.Errorf("usage of tools: %w", err)
	}
	return nil
}

// countUsage queues a run unless one is queued or running: the first run after an upgrade counts all
// calls on record.
func countUsage(interval time.Duration) *river.PeriodicJob {
	waiting := []rivertype.JobState{rivertype.JobStateAvailable, rivertype.JobStatePending, rivertype.JobStateRetryable,
		rivertype.JobStateRunning, rivertype.JobStateScheduled}
	return river.NewPeriodicJob(river.PeriodicInterval(interval), func() (river.JobArgs, *river.InsertOpts) {
		return usage{}, &river.InsertOpts{MaxAttempts: 1, UniqueOpts: river.UniqueOpts{ByArgs: true, ByState: waiting}}
	}, &river.PeriodicJobOpts{RunOnStart: true})
}
