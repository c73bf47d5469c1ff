package jobs

import (
	"context"
	"log/slog"
	"time"

	"github.com/riverqueue/river"
)

// fileQueue has a single worker: a sweep of a bucket takes minutes, and must not delay other jobs.
const fileQueue = "files"

// sweepFiles is the hourly sweep of the files. It has no arguments.
type sweepFiles struct{}

func (sweepFiles) Kind() string { return "sweep_files" }

type fileSweeper struct {
	river.WorkerDefaults[sweepFiles]
	sweep func(context.Context) error
	log   *slog.Logger
}

func (f *fileSweeper) Timeout(*river.Job[sweepFiles]) time.Duration { return 50 * time.Minute }

// Work reports a failure and does not try again: the next sweep does.
func (f *fileSweeper) Work(ctx context.Context, _ *river.Job[sweepFiles]) error {
	if err := f.sweep(ctx); err != nil && ctx.Err() == nil {
		f.log.Warn("files that no record names not deleted", "err", err)
	}
	return nil
}

func sweepingFiles(interval time.Duration) *river.PeriodicJob {
	return river.NewPeriodicJob(river.PeriodicInterval(interval),
		func() (river.JobArgs, *river.InsertOpts) {
			return sweepFiles{}, &river.InsertOpts{MaxAttempts: 1, Queue: fileQueue}
		},
		&river.PeriodicJobOpts{RunOnStart: true})
}
