// Package writebehind buffers device reports in memory and writes them in batches, so that no
// report waits for the database.
//
// It does not depend on the kind of report. A [Buffer] has one goroutine, [Buffer.Run]; its
// other methods are safe for concurrent use. Values survive an outage of the store, up to a
// limit.
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

// A Buffer has the newest value per key in memory and writes the values in batches. Values
// survive an outage of the store, up to a limit.
type Buffer[K comparable, V any] struct {
	What  string // for the log: "boot polls"
	Write func(ctx context.Context, batch map[K]V) error
	Merge func(older, newer V) V // nil replaces the older value with the newer one
	Every time.Duration
	Batch int // values per write
	Limit int // maximum values; new keys beyond it are dropped while the store is unavailable
	Log   *slog.Logger
	// Away is the error that errors of Write wrap if the store is unavailable, as opposed to
	// refusing a value. A write that times out counts as unavailable.
	Away error

	// writing is locked during a write. Code that changes the same rows in another way must
	// lock it too, or a batch could undo the change.
	writing chan struct{}

	mu      sync.Mutex
	dirty   map[K]V
	dropped int
}

const (
	drainTimeout = 5 * time.Second  // bounds the last writes at shutdown
	writeTimeout = 10 * time.Second // bounds each write: a hanging database counts as unavailable
)

// New returns a buffer with the fields of w; all but Merge are required.
func New[K comparable, V any](w *Buffer[K, V]) *Buffer[K, V] {
	w.writing = make(chan struct{}, 1)
	w.dirty = make(map[K]V)
	return w
}

// Put buffers v to be written. It returns false if the buffer is full.
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

// Lock acquires the right to write, or gives up when ctx ends.
func (w *Buffer[K, V]) Lock(ctx context.Context) error {
	select {
	case w.writing <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Unlock releases the right to write.
func (w *Buffer[K, V]) Unlock() { <-w.writing }

// Run writes until ctx ends, then once more. It logs a failure of the store and retries.
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
			break // the end of ctx interrupted the write; it is repeated below
		}
		w.report(err, &failing)
		if wait = w.Every; err != nil {
			wait = min(10*w.Every, 5*time.Second)
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	if err := w.flush(last); err != nil {
		w.Log.Error("could not store at shutdown", "what", w.What, "count", w.Pending(), "err", err)
	}
}

// report logs the start and the end of an outage, but not each failure during it.
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

// Pending returns the number of values that wait to be written.
func (w *Buffer[K, V]) Pending() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.dirty)
}

// flush writes as many values as are dirty now, batch by batch. The end of ctx interrupts a
// write too.
func (w *Buffer[K, V]) flush(ctx context.Context) error {
	for n := w.Pending(); ; n -= w.Batch {
		if err := w.Lock(ctx); err != nil { // another write may be in progress
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

// Settle calls Sync for every value that was put before.
func (w *Buffer[K, V]) Settle(ctx context.Context) error {
	w.mu.Lock()
	keys := slices.Collect(maps.Keys(w.dirty))
	w.mu.Unlock()
	return w.Sync(ctx, keys...)
}

// Sync returns when the values put under the keys before are written, or dropped because the
// store refuses them. Concurrent callers share writes: each write includes values of the
// others. ctx limits the waiting; a write that has begun continues.
func (w *Buffer[K, V]) Sync(ctx context.Context, keys ...K) error {
	for {
		if err := w.Lock(ctx); err != nil { // a write may be in progress
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

// takeWith returns a batch with the dirty values of the keys, empty if there are none, and
// the keys that did not fit.
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

// FlushKey writes one value if it is dirty. The caller holds the write lock.
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

// putBack marks unwritten values as dirty again, unless a newer value has replaced them.
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

// try writes the batch once.
func (w *Buffer[K, V]) try(ctx context.Context, batch map[K]V) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	err := w.Write(ctx, batch)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", w.Away, err)
	}
	return err
}

// writeOut writes the batch. If the store refuses only some of its values, it drops those, so
// that they do not block the others.
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
		w.Log.Error("dropped a value that the store refused", "what", w.What, "key", k, "err", err)
	}
	return nil
}

// bisect writes the valid part of the batch and collects the rest in bad. It stops after so
// many failures that the store itself must be the cause.
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
