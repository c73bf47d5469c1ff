// Package table keeps a small ordered table of the database in memory, such as the rules
// of a policy: readers take the present state without a lock, changes go to the database
// first, and what another process changed is read again.
//
// It knows nothing about the entries. One lock orders changes and readings; [Table.Run]
// runs on the caller's goroutine.
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

// refresh is how long a change by another process goes unnoticed.
const refresh = 2 * time.Second

// maxTries bounds how often a change is repeated because another process changed the
// table first.
const maxTries = 4

// Options configures a [Table] whose state is a V. Read is required.
type Options[V any] struct {
	// Read reads the whole table. before is the state in memory; nil at the first reading.
	Read func(ctx context.Context, before *V) (*V, error)
	// VersionOf returns the version of a state, which each change in the database raises.
	// nil: the table has no versions.
	VersionOf func(*V) int64
	// Version reads the version in the database. nil: Run reads the table each time.
	Version func(ctx context.Context) (int64, error)
	// Changed is called after each reading; may be nil.
	Changed func()
	// Stale makes the error of a change whose editor saw another version than the one given.
	Stale func(version int64) error

	Every time.Duration // between two looks at the database. Default: 2 s
	What  string        // what the table holds, in the log
	Log   *slog.Logger  // default: none
}

// A Table is the state in memory. The zero value is not usable; see [New].
type Table[V any] struct {
	o        Options[V]
	changing sync.Mutex // one change, or one reading, at a time
	current  atomic.Pointer[V]
}

// New makes a table. Load it before it is used.
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

// State returns the present state, which must not be changed; an empty one before the first
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

// Run reads the table again when another process changed it, until ctx ends.
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

// Change makes a change in the database and reads the table. seen is the version that
// the editor saw; 0 applies the change to whatever version is current. do is called
// again if the database refuses its state as outdated.
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

// Follow calls load at the interval until ctx ends. It logs the first of several
// failures: what is in memory stays in use.
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
			log.Error("not read again; what is in memory stays in use", "what", what, "err", err)
		}
		failing = err != nil
	}
}

// Place returns the place of an entry among n others, the first of which stay in front
// of it: place itself within these bounds, or the end if it is negative.
func Place(place, first, n int) int {
	if place < 0 {
		return n
	}
	return min(max(place, first), n)
}

// Move returns the order of the entries in which id has the place that [Place] gives it.
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
