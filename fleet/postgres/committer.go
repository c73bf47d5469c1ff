package postgres

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/fleet"
)

// Limits of the group commit.
const (
	maxWaiting    = 8192 // queued writes; further ones wait outside the queue
	maxBatch      = 512  // writes in one transaction
	maxBatchBytes = 4 << 20

	// A transaction costs PostgreSQL as much as some twenty rows in it. Two concurrent flushers
	// are worthwhile if there is work for both, or if the first waits for a slow disk.
	flushers  = 2
	crowd     = 64                    // this many waiting writes wake the second flusher
	longFlush = 20 * time.Millisecond // so does a last batch that started this long ago
)

// A committer writes call records in groups. It has no timer: each flush writes the records that
// were queued during the previous flush, so a single write is flushed at once and many concurrent
// writes share commits.
type committer struct {
	db  *pgxpool.Pool
	log *slog.Logger
	// flushTimeout bounds a flush; after it the outcome of its writes is unknown.
	flushTimeout time.Duration

	slots chan struct{} // one for each queued write
	first chan struct{} // wakes the first flusher
	helps chan struct{} // wakes the second

	mu      sync.Mutex
	line    []*callWrite
	running bool
	taken   time.Time // when the last batch was taken

	flushed atomic.Int64
	origins knownOrigins
}

func newCommitter(db *pgxpool.Pool, log *slog.Logger, flushTimeout time.Duration) *committer {
	return &committer{db: db, log: log, flushTimeout: flushTimeout,
		slots: make(chan struct{}, maxWaiting), first: make(chan struct{}, 1), helps: make(chan struct{}, 1),
		origins: newKnownOrigins()}
}

// write returns after w is durable or has failed. If ctx ends first, the write may still happen.
func (c *committer) write(ctx context.Context, w *callWrite) error {
	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	if !c.enqueue(w) {
		defer func() { <-c.slots }()
		return c.send(ctx, c.db, []*callWrite{w})
	}
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// enqueue queues w, and returns false if no flusher runs.
func (c *committer) enqueue(w *callWrite) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.running {
		return false
	}
	c.line = append(c.line, w)
	c.wakeFlushers()
	return true
}

// wakeFlushers wakes the flushers that have work. Callers hold mu.
func (c *committer) wakeFlushers() {
	wake(c.first)
	if len(c.line) >= crowd || time.Since(c.taken) > longFlush {
		wake(c.helps)
	}
}

func wake(flusher chan<- struct{}) {
	select {
	case flusher <- struct{}{}:
	default: // it is already awake
	}
}

// gather yields to runnable callers while they add to the queue. Callers that the last flush
// released return with their next write meanwhile. If no caller is runnable, it returns at once.
func (c *committer) gather() {
	for before, n := -1, 0; n != before && n < maxBatch; {
		runtime.Gosched()
		before = n
		c.mu.Lock()
		n = len(c.line)
		c.mu.Unlock()
	}
}

// take returns the next batch, bounded in rows and bytes.
func (c *committer) take() []*callWrite {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, bytes := 0, 0
	for n < len(c.line) && n < maxBatch && (n == 0 || bytes < maxBatchBytes) {
		bytes += c.line[n].row.size()
		n++
	}
	batch := c.line[:n:n]
	c.line = c.line[n:]
	c.taken = time.Now()
	if len(c.line) > 0 {
		c.wakeFlushers()
	}
	return batch
}

// run flushes until ctx ends, then flushes the remaining queue. Each later write commits in a
// separate transaction.
func (c *committer) run(ctx context.Context) error {
	db, err := writerPool(c.db)
	if err != nil {
		return fmt.Errorf("group commit: %w", err)
	}
	defer db.Close()
	c.setRunning(true)
	var all sync.WaitGroup
	all.Go(func() { c.flushUntil(ctx, db, c.first) })
	all.Go(func() { c.flushUntil(ctx, db, c.helps) })
	all.Wait()
	c.setRunning(false)
	for batch := c.take(); len(batch) > 0; batch = c.take() {
		c.flush(db, batch)
	}
	return nil
}

func (c *committer) setRunning(running bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running = running
}

func (c *committer) flushUntil(ctx context.Context, db *pgxpool.Pool, awake <-chan struct{}) {
	for {
		select {
		case <-awake:
			c.gather()
			c.flush(db, c.take())
		case <-ctx.Done():
			return
		}
	}
}

// flush commits a batch and sends each waiter its outcome. If the database refuses a row, each
// write is committed alone, so the others do not fail.
func (c *committer) flush(db *pgxpool.Pool, batch []*callWrite) {
	if len(batch) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.flushTimeout)
	defer cancel()
	err := c.send(ctx, db, batch, c.replan()...)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: the database did not answer within %v: %w", fleet.ErrUnavailable, c.flushTimeout, err)
	}
	if len(batch) > 1 && rowIsBad(err) {
		c.log.Warn("call records refused as a batch; storing them one by one", "rows", len(batch), "err", err)
		for _, w := range batch {
			c.finish(w, c.send(ctx, db, []*callWrite{w}))
		}
		return
	}
	for _, w := range batch {
		c.finish(w, err)
	}
}

// replan returns the statements that discard the prepared plans when they are outdated: plans are
// made for the current table sizes, and a month begins with an empty table.
func (c *committer) replan() []string {
	const often = 256
	if n := c.flushed.Add(1); n&(n-1) == 0 || n%often == 0 {
		return []string{"DISCARD PLANS"}
	}
	return nil
}

func (c *committer) finish(w *callWrite, err error) {
	<-c.slots
	w.done <- err
}

// writerPool returns a pool for the flushers only. Their statements join a few keys to a large
// table. The right plan looks up each key, and planning again for every batch would cost as much
// as running it.
func writerPool(db *pgxpool.Pool) (*pgxpool.Pool, error) {
	config := db.Config().Copy()
	config.MaxConns, config.MinConns, config.MinIdleConns = flushers, 0, 0
	named := config.ConnConfig.RuntimeParams // shown in pg_stat_activity
	named["application_name"] = cmp.Or(named["application_name"], "fleetd") + ": call records"
	prepare := config.AfterConnect
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if prepare != nil {
			if err := prepare(ctx, conn); err != nil {
				return err
			}
		}
		_, err := conn.Exec(ctx, `SET jit = off; SET enable_seqscan = off; SET enable_hashjoin = off;
			SET enable_mergejoin = off; SET enable_material = off; SET plan_cache_mode = force_generic_plan`)
		return err
	}
	return pgxpool.NewWithConfig(context.Background(), config)
}
