// Package jobs does the work that goes through the database's queue: deliveries to
// webhooks, the starts of scheduled runs, and periodic work. Once an hour, and at every
// start, it creates the partitions of the coming months and deletes records that
// are past their retention; once an hour it stores the presence of all
// devices, and deletes files that no record names. Each minute it counts the calls of tools, and the hours that have
// ended for dashboards. The queue is in the database, so that only
// one of several processes runs
// a job, and an interrupted job is resumed.
//
// It knows tables by what package postgres offers, and no subject of the fleet. Its
// goroutines are the job queue's (river); it has no lock.
package jobs

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"fleetd/fleet/postgres"
)

// stopGrace is how long a running job may go on when fleetd stops.
const stopGrace = 3 * time.Second

// Options configures [Jobs].
type Options struct {
	// Retention defines how long records are kept. Default: for ever.
	Retention postgres.Retention
	// Usage is the time between two counts of the calls of tools. Default: a minute.
	Usage time.Duration
	// Trends is the time between two looks for hours to count for dashboards. Default: a minute.
	Trends time.Duration
	// Sweep deletes files that no record names. If it is nil, none are deleted.
	Sweep func(context.Context) error
	// Webhooks delivers events. If it is nil, none is queued.
	Webhooks Deliverer
	// Schedules starts the runs of schedules. If it is nil, none is queued.
	Schedules Schedules
	// Interval is the time between two runs of the periodic work. Default: an hour.
	Interval time.Duration
	// Logger receives the results of the jobs. Default: none.
	Logger *slog.Logger
}

// Jobs works the queue.
type Jobs struct {
	client *river.Client[pgx.Tx]
}

// New returns the jobs over a migrated database.
func New(db *pgxpool.Pool, store *postgres.Store, o Options) (*Jobs, error) {
	if o.Interval == 0 {
		o.Interval = time.Hour
	}
	if o.Usage == 0 {
		o.Usage = time.Minute
	}
	if o.Trends == 0 {
		o.Trends = time.Minute
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &upkeeper{store: store, retention: o.Retention, begun: time.Now(), log: o.Logger})
	river.AddWorker(workers, &usageCounter{store: store})
	river.AddWorker(workers, &trendCounter{store: store})
	queues := map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 3}}
	periodic := []*river.PeriodicJob{every(o.Interval), countUsage(o.Usage), countTrends(o.Trends)}
	if o.Sweep != nil {
		river.AddWorker(workers, &fileSweeper{sweep: o.Sweep, log: o.Logger})
		queues[fileQueue] = river.QueueConfig{MaxWorkers: 1}
		periodic = append(periodic, sweepingFiles(o.Interval))
	}
	if o.Webhooks != nil {
		river.AddWorker(workers, &deliveryWorker{to: o.Webhooks})
		queues[webhookQueue] = river.QueueConfig{MaxWorkers: 4}
	}
	if o.Schedules != nil {
		river.AddWorker(workers, &runStarter{schedules: o.Schedules})
		river.AddWorker(workers, &sweeper{schedules: o.Schedules})
		queues[scheduleQueue] = river.QueueConfig{MaxWorkers: 4}
		periodic = append(periodic, sweeping())
	}
	client, err := river.NewClient(riverpgxv5.New(db), &river.Config{
		Logger:          quiet(o.Logger),
		PeriodicJobs:    periodic,
		Queues:          queues,
		SoftStopTimeout: stopGrace,
		Workers:         workers,
	})
	if err != nil {
		return nil, fmt.Errorf("job queue: %w", err)
	}
	j := &Jobs{client: client}
	if o.Webhooks != nil {
		store.SetOutbox(j.enqueue)
	}
	if o.Schedules != nil {
		store.SetTimer(j.queueRun)
	}
	return j, nil
}

// quiet keeps the queue's own notes on starting and stopping out of the log.
func quiet(log *slog.Logger) *slog.Logger {
	return slog.New(&warnings{log.Handler()})
}

type warnings struct{ slog.Handler }

func (w *warnings) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelWarn && w.Handler.Enabled(ctx, l)
}

// Handle drops river's records about work interrupted by a stop, which resumes at the next start.
func (w *warnings) Handle(ctx context.Context, r slog.Record) error {
	canceled := false
	r.Attrs(func(a slog.Attr) bool {
		canceled = strings.HasSuffix(a.Value.String(), context.Canceled.Error()) // river gives the text
		return !canceled
	})
	if canceled {
		return nil
	}
	return w.Handler.Handle(ctx, r)
}

func (w *warnings) WithAttrs(a []slog.Attr) slog.Handler { return &warnings{w.Handler.WithAttrs(a)} }
func (w *warnings) WithGroup(g string) slog.Handler      { return &warnings{w.Handler.WithGroup(g)} }

func every(interval time.Duration) *river.PeriodicJob {
	return river.NewPeriodicJob(river.PeriodicInterval(interval),
		func() (river.JobArgs, *river.InsertOpts) { return upkeep{}, &river.InsertOpts{MaxAttempts: 3} },
		&river.PeriodicJobOpts{RunOnStart: true})
}

// Run works jobs until ctx ends, then gives running ones a moment to finish.
func (j *Jobs) Run(ctx context.Context) error {
	if err := j.client.Start(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("job queue: %w", err)
	}
	<-j.client.Stopped()
	return nil
}
