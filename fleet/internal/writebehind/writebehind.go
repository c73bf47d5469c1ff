// Package writebehind keeps what devices report in memory and writes it in
// batches, so that no report waits for the database.
//
// It knows nothing of devices. A [Buffer] has one goroutine, [Buffer.Run]; its
// other methods may be called from any. Values outlive an outage of the store,
// up to a limit.
package writebehind

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"
)

// A Buffer keeps the newest value per key in memory and writes them in
// batches, so that what devices report never waits for the database. Values
// outlive an outage of the store, up to a limit.
type Buffer[K comparable, V any] struct {
	What  string // for the log: "boot polls"
	Write func(ctx context.Context, batch map[K]V) error
	Merge func(older, newer V) V // nil: the newer one replaces the older
	Every time.Duration
	Batch int // values per write
	Limit int // values kept; more of other keys are dropped while the store is away
	Log   *slog.Logger
	// Away is what the errors of Write wrap while the store cannot be reached,
	// rather than that it cannot take a value. A write that runs out of time
	// counts as one.
	Away error

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

// New returns a buffer with its fields as they are in w; all but Merge are
// required.
func New[K comparable, V any](w *Buffer[K, V]) *Buffer[K, V] {
	w.writing = make(chan struct{}, 1)
	w.dirty = make(map[K]V)
	return w
}

// Put notes v to be written. It reports false if there was no room.
func (w *Buffer[K, V]) Put(k K, v V) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	old, ok := w.dirty[k]
	switch {
	case ok && w.Merge != nil:
		v = w.Merge(old, v)
	case !ok && len(w.dirty) >= w.Limit:
		w.dropped++
		return false
	}
	w.dirty[k] = v
	return true
}

// Lock takes the right to write, or gives up with ctx.
func (w *Buffer[K, V]) Lock(ctx context.Context) error {
	select {
	case w.writing <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Unlock gives it back.
func (w *Buffer[K, V]) Unlock() { <-w.writing }

// Run writes until ctx ends, then once more. It returns no error: it logs a
// failure of the store and tries again.
func (w *Buffer[K, V]) Run(ctx context.Context) {
	wait, failing := w.Every, false
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		if ctx.Err() != nil {
			break
		}
		err := w.flush(ctx)
		if ctx.Err() != nil {
			break // the end interrupted the write; it is made again below
		}
		w.report(err, &failing)
		if wait = w.Every; err != nil {
			wait = min(10*w.Every, 5*time.Second)
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	if err := w.flush(last); err != nil {
		w.Log.Error("not stored at shutdown", "what", w.What, "count", w.Pending(), "err", err)
	}
}

// report logs the start and the end of an outage, not every failure in it.
func (w *Buffer[K, V]) report(err error, failing *bool) {
	switch {
	case err != nil && !*failing:
		w.Log.Error("store unavailable; keeping in memory", "what", w.What, "count", w.Pending(), "err", err)
	case err == nil && *failing:
		w.mu.Lock()
		dropped := w.dropped
		w.dropped = 0
		w.mu.Unlock()
		w.Log.Info("store available again", "what", w.What, "dropped", dropped)
	}
	*failing = err != nil
}

// Pending is how many values wait to be written.
func (w *Buffer[K, V]) Pending() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.dirty)
}

// flush writes as many values as are dirty now, batch by batch. ctx ends a write, too.
func (w *Buffer[K, V]) flush(ctx context.Context) error {
	for n := w.Pending(); ; n -= w.Batch {
		if err := w.Lock(ctx); err != nil { // the last write of all may be under way
			return err
		}
		var err error
		if n > 0 {
			err = w.writeOut(ctx, w.take(min(w.Batch, n)))
		}
		w.Unlock()
		if err != nil || n <= w.Batch {
			return err
		}
	}
}

// Settle is Sync for all that was put before.
func (w *Buffer[K, V]) Settle(ctx context.Context) error {
	w.mu.Lock()
	keys := slices.Collect(maps.Keys(w.dirty))
	w.mu.Unlock()
	return w.Sync(ctx, keys...)
}

// Sync returns when what was put under the keys before is written, or was dropped
// because the store cannot take it. Callers that wait at the same time share
// writes: each takes along what the others put. ctx bounds the waiting; a write
// that began goes on.
func (w *Buffer[K, V]) Sync(ctx context.Context, keys ...K) error {
	for {
		if err := w.Lock(ctx); err != nil { // a write may be under way
			return err
		}
		var batch map[K]V
		if batch, keys = w.takeWith(keys); len(batch) == 0 {
			w.Unlock()
			return nil
		}
		written := make(chan error, 1)
		go func() {
			defer w.Unlock()
			written <- w.writeOut(context.WithoutCancel(ctx), batch)
		}()
		select {
		case err := <-written:
			if err != nil || len(keys) == 0 {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// takeWith returns a batch that has the dirty ones of the keys, empty if none is, and
// the keys that it had no room for.
func (w *Buffer[K, V]) takeWith(keys []K) (batch map[K]V, rest []K) {
	w.mu.Lock()
	defer w.mu.Unlock()
	batch = make(map[K]V)
	for len(keys) > 0 && len(batch) < w.Batch {
		if v, ok := w.dirty[keys[0]]; ok {
			batch[keys[0]] = v
			delete(w.dirty, keys[0])
		}
		keys = keys[1:]
	}
	if len(batch) > 0 {
		w.fill(batch, w.Batch)
	}
	return batch, keys
}

// FlushKey writes one value if it is dirty. The caller holds the lock.
func (w *Buffer[K, V]) FlushKey(ctx context.Context, k K) error {
	w.mu.Lock()
	v, ok := w.dirty[k]
	delete(w.dirty, k)
	w.mu.Unlock()
	if !ok {
		return nil
	}
	return w.writeOut(ctx, map[K]V{k: v})
}

func (w *Buffer[K, V]) take(n int) map[K]V {
	batch := make(map[K]V, n)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fill(batch, n)
	return batch
}

// fill moves dirty values to the batch until it has n. The caller holds mu.
func (w *Buffer[K, V]) fill(batch map[K]V, n int) {
	for k, v := range w.dirty {
		if len(batch) >= n {
			return
		}
		batch[k] = v
		delete(w.dirty, k)
	}
}

// putBack returns what could not be written, unless something newer came.
func (w *Buffer[K, V]) putBack(batch map[K]V) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for k, v := range batch {
		newer, ok := w.dirty[k]
		switch {
		case !ok:
			w.dirty[k] = v
		case w.Merge != nil:
			w.dirty[k] = w.Merge(v, newer)
		}
	}
}

// try makes one attempt to write.
func (w *Buffer[K, V]) try(ctx context.Context, batch map[K]V) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	err := w.Write(ctx, batch)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", w.Away, err)
	}
	return err
}

// writeOut writes the batch. If only some values of it are at fault they are
// dropped: one value that the store cannot take must not hold up the others.
func (w *Buffer[K, V]) writeOut(ctx context.Context, batch map[K]V) error {
	err := w.try(ctx, batch)
	if err == nil {
		return nil
	}
	if len(batch) == 1 || errors.Is(err, w.Away) {
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
		w.Log.Error("dropped: the store cannot take it", "what", w.What, "key", k, "err", err)
	}
	return nil
}

// bisect writes what can be written of the batch and collects the rest in bad.
// It stops trying once so much has failed that the store itself must be at
// fault.
func (w *Buffer[K, V]) bisect(ctx context.Context, batch, bad map[K]V) (wrote bool, stopped error) {
	failures := 0
	var walk func(map[K]V)
	walk = func(part map[K]V) {
		if stopped == nil && !wrote && failures > 24 {
			stopped = w.Away
		}
		if stopped != nil {
			maps.Copy(bad, part)
			return
		}
		err := w.try(ctx, part)
		switch {
		case err == nil:
			wrote = true
		case errors.Is(err, w.Away):
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
