// Package table caches a small ordered table of the database in memory, such as the rules of
// a policy. Readers get the current state without a lock, changes go to the database first,
// and the table is reloaded after another process has changed it.
//
// It does not depend on the type of the entries. One lock orders changes and reloads;
// [Table.Run] runs on the caller's goroutine.
package table

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// refresh is how long a change by another process can go unnoticed.
const refresh = 2 * time.Second

// maxTries is the maximum number of attempts at a change if other processes keep changing the
// table first.
const maxTries = 4

// Options configures a [Table] whose state is a V. Read is required.
type Options[V any] struct {
	// Read reads the whole table. before is the state in memory, nil at the first read.
	Read func(ctx context.Context, before *V) (*V, error)
	// VersionOf returns the version of a state; each change in the database increases it. If
	// it is nil, the table has no versions.
	VersionOf func(*V) int64
	// Version reads the version in the database. If it is nil, Run reads the table each time.
	Version func(ctx context.Context) (int64, error)
	// Changed, if set, is called after each read.
	Changed func()
	// Stale returns the error for a change whose editor saw a version other than the current
	// one.
	Stale func(version int64) error

	Every time.Duration // interval between checks of the database. Default: 2 s
	What  string        // content of the table, for the log
	Log   *slog.Logger  // default: none
}

// A Table is a table in memory. The zero value is not usable; see [New].
type Table[V any] struct {
	o        Options[V]
	changing sync.Mutex // one change or read at a time
	current  atomic.Pointer[V]
}

// New returns a table. Call Load before using it.
func New[V any](o Options[V]) *Table[V] {
	if o.VersionOf == nil {
		o.VersionOf = func(*V) int64 { return 0 }
	}
	if o.Changed == nil {
		o.Changed = func() {}
	}
	if o.Every == 0 {
		o.Every = refresh
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Table[V]{o: o}
}

// State returns the current state, which must not be changed; an empty state before the first
// [Table.Load].
func (t *Table[V]) State() *V {
	if now := t.current.Load(); now != nil {
		return now
	}
	return new(V)
}

// Load reads the table.
func (t *Table[V]) Load(ctx context.Context) error {
	t.changing.Lock()
	defer t.changing.Unlock()
	return t.load(ctx)
}

func (t *Table[V]) load(ctx context.Context) error {
	now, err := t.o.Read(ctx, t.current.Load())
	if err != nil {
		return err
	}
	t.current.Store(now)
	t.o.Changed()
	return nil
}

// Run reloads the table when another process has changed it, until ctx ends.
func (t *Table[V]) Run(ctx context.Context) error {
	return Follow(ctx, t.o.Every, t.o.What, t.o.Log, func(ctx context.Context) error {
		if t.o.Version != nil {
			version, err := t.o.Version(ctx)
			if err != nil || version == t.o.VersionOf(t.State()) {
				return err
			}
		}
		return t.Load(ctx)
	})
}

// Change makes a change in the database and reloads the table. seen is the version that the
// editor saw; 0 applies the change to whatever version is current. do is called again if the
// database refuses the change because the state is outdated.
func (t *Table[V]) Change(ctx context.Context, seen int64, do func(*V) error) error {
	t.changing.Lock()
	defer t.changing.Unlock()
	for try := 1; ; try++ {
		before := t.State()
		version := t.o.VersionOf(before)
		var err error
		if seen != 0 && seen != version {
			err = t.o.Stale(version)
		} else {
			err = do(before)
		}
		if err != nil && !errors.Is(err, fleet.ErrConflict) {
			return err
		}
		failed := t.load(ctx)
		switch {
		case err == nil:
			return failed
		case failed != nil || t.o.VersionOf(t.State()) == version || try == maxTries:
			return err
		}
	}
}

// Follow calls load at the interval until ctx ends. It logs the first of several failures in
// a row; the state in memory stays in use.
func Follow(ctx context.Context, every time.Duration, what string, log *slog.Logger,
	load func(context.Context) error) error {
	failing := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
		err := load(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			log.Error("could not reload; the state in memory stays in use", "what", what, "err", err)
		}
		failing = err != nil
	}
}

// Place returns the final place of an entry among n others, of which the first ones must stay
// before it: place limited to these bounds, or the end if place is negative.
func Place(place, first, n int) int {
	if place < 0 {
		return n
	}
	return min(max(place, first), n)
}

// Move returns the order of the entries after moving id to the place that [Place] returns.
func Move[E any](entries []E, idOf func(E) uuid.UUID, id uuid.UUID, place, first int) (order []uuid.UUID, at int) {
	order = make([]uuid.UUID, 0, len(entries))
	for _, e := range entries {
		if other := idOf(e); other != id {
			order = append(order, other)
		}
	}
	at = Place(place, first, len(order))
	return slices.Insert(order, at, id), at
}
