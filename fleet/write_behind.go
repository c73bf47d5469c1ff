package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"
)

// A writeBehind keeps the newest value per key in memory and writes them in
// batches, so that what devices report never waits for the database. Values
// outlive an outage of the store, up to a limit.
type writeBehind[K comparable, V any] struct {
	what  string // for the log: "boot polls"
	write func(ctx context.Context, batch map[K]V) error
	merge func(older, newer V) V // nil: the newer one replaces the older
	every time.Duration
	batch int // values per write
	limit int // values kept; more of other keys are dropped while the store is away
	log   *slog.Logger

	// writing is held during a write. Whoever changes the same rows by another
	// way takes it too, or a batch could undo the change.
	writing chan struct{}

	mu      sync.Mutex
	dirty   map[K]V
	dropped int
}

const (
	drainTimeout = 5 * time.Second  // bounds the last writes at shutdown
	writeTimeout = 10 * time.Second // bounds each write: a database that hangs is one that is away
)

func newWriteBehind[K comparable, V any](w *writeBehind[K, V]) *writeBehind[K, V] {
	w.writing = make(chan struct{}, 1)
	w.dirty = make(map[K]V)
	return w
}

// put notes v to be written. It reports false if there was no room.
func (w *writeBehind[K, V]) put(k K, v V) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	old, ok := w.dirty[k]
	switch {
	case ok && w.merge != nil:
		v = w.merge(old, v)
	case !ok && len(w.dirty) >= w.limit:
		w.dropped++
		return false
	}
	w.dirty[k] = v
	return true
}

// lock takes the right to write, or gives up with ctx.
func (w *writeBehind[K, V]) lock(ctx context.Context) error {
	select {
	case w.writing <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *writeBehind[K, V]) unlock() { <-w.writing }

// run writes until ctx ends, then once more. It has no error of its own: a
// store that fails is logged and tried again.
func (w *writeBehind[K, V]) run(ctx context.Context) {
	wait, failing := w.every, false
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		if ctx.Err() != nil {
			break
		}
		err := w.flush(ctx)
		w.report(err, &failing)
		if wait = w.every; err != nil {
			wait = min(10*w.every, 5*time.Second)
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	if err := w.flush(last); err != nil {
		w.log.Error("not stored at shutdown", "what", w.what, "count", w.pending(), "err", err)
	}
}

// report logs the start and the end of an outage, not every failure in it.
func (w *writeBehind[K, V]) report(err error, failing *bool) {
	switch {
	case err != nil && !*failing:
		w.log.Error("store unavailable; keeping in memory", "what", w.what, "count", w.pending(), "err", err)
	case err == nil && *failing:
		w.mu.Lock()
		dropped := w.dropped
		w.dropped = 0
		w.mu.Unlock()
		w.log.Info("store available again", "what", w.what, "dropped", dropped)
	}
	*failing = err != nil
}

func (w *writeBehind[K, V]) pending() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.dirty)
}

// flush writes all that is dirty now, batch by batch.
func (w *writeBehind[K, V]) flush(ctx context.Context) error {
	for n := w.pending(); n > 0; n -= w.batch {
		if err := w.lock(ctx); err != nil {
			return err
		}
		err := w.writeOut(ctx, w.take(min(w.batch, n)))
		w.unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// settle returns when what is dirty now is written, also by others. ctx bounds
// the waiting; a write that began goes on.
func (w *writeBehind[K, V]) settle(ctx context.Context) error {
	for n := w.pending(); ; n -= w.batch {
		if err := w.lock(ctx); err != nil { // a batch may be on its way
			return err
		}
		var err error
		if n > 0 {
			err = w.writeOut(context.WithoutCancel(ctx), w.take(min(w.batch, n)))
		}
		w.unlock()
		if err != nil || n <= w.batch {
			return err
		}
	}
}

// settleKey is settle for one value.
func (w *writeBehind[K, V]) settleKey(ctx context.Context, k K) error {
	if err := w.lock(ctx); err != nil {
		return err
	}
	defer w.unlock()
	return w.flushKey(context.WithoutCancel(ctx), k)
}

// flushKey writes one value if it is dirty. The caller holds the lock.
func (w *writeBehind[K, V]) flushKey(ctx context.Context, k K) error {
	w.mu.Lock()
	v, ok := w.dirty[k]
	delete(w.dirty, k)
	w.mu.Unlock()
	if !ok {
		return nil
	}
	return w.writeOut(ctx, map[K]V{k: v})
}

func (w *writeBehind[K, V]) take(n int) map[K]V {
	batch := make(map[K]V, n)
	w.mu.Lock()
	defer w.mu.Unlock()
	for k, v := range w.dirty {
		if len(batch) == n {
			break
		}
		batch[k] = v
		delete(w.dirty, k)
	}
	return batch
}

// putBack returns what could not be written, unless something newer came.
func (w *writeBehind[K, V]) putBack(batch map[K]V) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for k, v := range batch {
		newer, ok := w.dirty[k]
		switch {
		case !ok:
			w.dirty[k] = v
		case w.merge != nil:
			w.dirty[k] = w.merge(v, newer)
		}
	}
}

// try makes one attempt to write.
func (w *writeBehind[K, V]) try(ctx context.Context, batch map[K]V) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	err := w.write(ctx, batch)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

// writeOut writes the batch. If only some values of it are at fault they are
// dropped: one value that the store cannot take must not hold up the others.
func (w *writeBehind[K, V]) writeOut(ctx context.Context, batch map[K]V) error {
	err := w.try(ctx, batch)
	if err == nil {
		return nil
	}
	if len(batch) == 1 || errors.Is(err, ErrUnavailable) {
		w.putBack(batch)
		return err
	}
	bad := make(map[K]V)
	wrote, stopped := w.bisect(ctx, batch, bad)
	if !wrote || stopped != nil {
		w.putBack(bad)
		return err
	}
	for k := range bad {
		w.log.Error("dropped: the store cannot take it", "what", w.what, "key", k, "err", err)
	}
	return nil
}

// bisect writes what can be written of the batch and collects the rest in bad.
// It stops trying once so much has failed that the store itself must be at
// fault.
func (w *writeBehind[K, V]) bisect(ctx context.Context, batch, bad map[K]V) (wrote bool, stopped error) {
	failures := 0
	var walk func(map[K]V)
	walk = func(part map[K]V) {
		if stopped == nil && !wrote && failures > 24 {
			stopped = ErrUnavailable
		}
		if stopped != nil {
			maps.Copy(bad, part)
			return
		}
		err := w.try(ctx, part)
		switch {
		case err == nil:
			wrote = true
		case errors.Is(err, ErrUnavailable):
			stopped = err
			maps.Copy(bad, part)
		case len(part) == 1:
			failures++
			maps.Copy(bad, part)
		default:
			failures++
			a, b := halves(part)
			walk(a)
			walk(b)
		}
	}
	a, b := halves(batch)
	walk(a)
	walk(b)
	return wrote, stopped
}

func halves[K comparable, V any](m map[K]V) (a, b map[K]V) {
	a, b = make(map[K]V), make(map[K]V)
	for k, v := range m {
		if len(a) <= len(b) {
			a[k] = v
		} else {
			b[k] = v
		}
	}
	return a, b
}
