package table_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/internal/table"
)

// A state is a table of names.
type state struct {
	version int64
	names   []string
}

// A database is a table shared by several processes.
type database struct {
	mu    sync.Mutex
	state state
	away  error
	reads int
}

func (d *database) read(context.Context, *state) (*state, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reads++
	if d.away != nil {
		return nil, d.away
	}
	return &state{d.state.version, slices.Clone(d.state.names)}, nil
}

func (d *database) version(context.Context) (int64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state.version, d.away
}

// add refuses a change of an outdated state, like a store.
func (d *database) add(seen int64, name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state.version != seen {
		return fleet.Refuse(fleet.ErrConflict, "policy_changed")
	}
	d.state.version++
	d.state.names = append(d.state.names, name)
	return nil
}

var errStale = fleet.Refuse(fleet.ErrConflict, "stale")

func open(t *testing.T, d *database) *table.Table[state] {
	t.Helper()
	tb := table.New(table.Options[state]{Read: d.read, Version: d.version,
		VersionOf: func(s *state) int64 { return s.version }, Stale: func(int64) error { return errStale }})
	if err := tb.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return tb
}

func TestChange(t *testing.T) {
	d := new(database)
	a, b := open(t, d), open(t, d)
	adds := func(name string) func(*state) error {
		return func(s *state) error { return d.add(s.version, name) }
	}
	if err := a.Change(t.Context(), 0, adds("first")); err != nil {
		t.Fatal(err)
	}
	if err := b.Change(t.Context(), 0, adds("second")); err != nil {
		t.Errorf("a change of whatever version is current: %v", err)
	}
	if got := b.State().names; !slices.Equal(got, []string{"first", "second"}) {
		t.Errorf("the table has %q", got)
	}
	if err := a.Change(t.Context(), 1, adds("third")); !errors.Is(err, fleet.ErrConflict) {
		t.Errorf("a change of a version that is over: %v", err)
	}
	if got := a.State().version; got != 2 {
		t.Errorf("after a conflict the table has version %d, want the present one", got)
	}
	if err := a.Change(t.Context(), 1, adds("third")); !errors.Is(err, errStale) {
		t.Errorf("a change of a version that is over: %v", err)
	}
	broken := errors.New("broken")
	before := d.reads
	if err := a.Change(t.Context(), 0, func(*state) error { return broken }); !errors.Is(err, broken) ||
		d.reads != before {
		t.Errorf("a change that fails: %v, after %d readings", err, d.reads-before)
	}
}

func TestRunReadsChangesOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := new(database)
		tb := open(t, d)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- tb.Run(ctx) }()
		time.Sleep(5 * time.Second)
		if d.reads != 1 {
			t.Errorf("an unchanged table was read %d times, want once", d.reads)
		}
		if err := d.add(0, "elsewhere"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := tb.State().names; len(got) != 1 {
			t.Errorf("after another process changed the table it has %q", got)
		}
		d.mu.Lock()
		d.away = errors.New("database away")
		d.mu.Unlock()
		time.Sleep(10 * time.Second)
		if got := tb.State().names; len(got) != 1 {
			t.Errorf("while the database is away the table has %q", got)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestMove(t *testing.T) {
	ids := []uuid.UUID{{1}, {2}, {3}, {4}}
	for _, tt := range []struct {
		name         string
		place, first int
		want         []uuid.UUID
		at           int
	}{
		{"to the front", 0, 0, []uuid.UUID{{3}, {1}, {2}, {4}}, 0},
		{"behind the fixed ones", 0, 2, []uuid.UUID{{1}, {2}, {3}, {4}}, 2},
		{"to the end", -1, 0, []uuid.UUID{{1}, {2}, {4}, {3}}, 3},
		{"beyond the end", 9, 0, []uuid.UUID{{1}, {2}, {4}, {3}}, 3},
	} {
		order, at := table.Move(ids, func(id uuid.UUID) uuid.UUID { return id }, uuid.UUID{3}, tt.place, tt.first)
		if at != tt.at || !slices.Equal(order, tt.want) {
			t.Errorf("%s: %v at %d, want %v at %d", tt.name, order, at, tt.want, tt.at)
		}
	}
}
