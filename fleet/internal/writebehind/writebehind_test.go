package writebehind

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

var errAway = errors.New("the store is away")

// benchStore is a store of ints that can be unavailable and refuses some keys.
type benchStore struct {
	mu     sync.Mutex
	away   error
	poison map[int]bool
	hangs  bool   // the next write hangs
	during func() // called in each write
	rows   map[int]int
	writes int
}

func (s *benchStore) write(ctx context.Context, batch map[int]int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes++
	if s.hangs {
		s.hangs = false
		<-ctx.Done()
		return ctx.Err()
	}
	if s.during != nil {
		s.during()
	}
	if s.away != nil {
		return s.away
	}
	for k := range batch {
		if s.poison[k] {
			return errors.New("value out of range")
		}
	}
	maps.Copy(s.rows, batch)
	return nil
}

func (s *benchStore) setAway(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = err
}

func (s *benchStore) snapshot() map[int]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.rows)
}

func startWriteBehind(t *testing.T, s *benchStore, limit int) (w *Buffer[int, int], stop func()) {
	s.rows = make(map[int]int)
	w = New(&Buffer[int, int]{What: "rows", Write: s.write, Every: 200 * time.Millisecond,
		Batch: 10, Limit: limit, Log: slog.New(slog.DiscardHandler), Away: errAway})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	return w, func() { cancel(); <-done }
}

func TestWriteBehindKeepsTheNewestOfEachKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s benchStore
		w, stop := startWriteBehind(t, &s, 100)
		for v := range 5 {
			w.Put(1, v)
			w.Put(2, -v)
		}
		time.Sleep(time.Second)
		if diff := cmp.Diff(map[int]int{1: 4, 2: -4}, s.snapshot()); diff != "" || s.writes != 1 {
			t.Errorf("after %d writes, want 1: %s", s.writes, diff)
		}
		w.Put(3, 9)
		stop()
		if got := s.snapshot()[3]; got != 9 {
			t.Errorf("at shutdown %d was stored, want 9", got)
		}
	})
}

func TestWriteBehindSurvivesAnOutage(t *testing.T) {
	for _, away := range []error{errAway, errors.New("connection reset by peer")} {
		t.Run(away.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := benchStore{away: away}
				w, stop := startWriteBehind(t, &s, 40)
				defer stop()
				for k := range 50 {
					w.Put(k, 1)
				}
				time.Sleep(time.Minute)
				w.Put(7, 2) // newer than the buffered value
				time.Sleep(time.Minute)
				if n := w.Pending(); n != 40 {
					t.Fatalf("%d kept during the outage, want the limit of 40", n)
				}
				s.setAway(nil)
				time.Sleep(10 * time.Second)
				rows := s.snapshot()
				if len(rows) != 40 || rows[7] != 2 || w.Pending() != 0 {
					t.Errorf("%d rows stored, row 7 is %d, %d pending; want 40, 2, 0", len(rows), rows[7], w.Pending())
				}
			})
		})
	}
}

func TestWriteBehindDropsOnlyWhatTheStoreCannotTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := benchStore{poison: map[int]bool{3: true, 11: true}}
		w, stop := startWriteBehind(t, &s, 100)
		defer stop()
		for k := range 20 {
			w.Put(k, k)
		}
		time.Sleep(time.Minute)
		rows := s.snapshot()
		if len(rows) != 18 || w.Pending() != 0 {
			t.Errorf("%d rows stored, %d pending; want 18, 0", len(rows), w.Pending())
		}
	})
}

func TestWriteBehindHoldsTheLockDuringAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s benchStore
		w, stop := startWriteBehind(t, &s, 100)
		defer stop()
		if err := w.Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.Put(1, 1)
		time.Sleep(time.Second)
		if len(s.snapshot()) != 0 {
			t.Error("a batch was written under another's lock")
		}
		if err := w.FlushKey(t.Context(), 1); err != nil || s.snapshot()[1] != 1 {
			t.Errorf("flushKey: %v, rows %v", err, s.snapshot())
		}
		w.Unlock()
	})
}

func TestWriteBehindGivesUpOnAWriteThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := benchStore{hangs: true}
		w, stop := startWriteBehind(t, &s, 100)
		defer stop()
		w.Put(1, 1)
		w.Put(2, 2)
		time.Sleep(time.Minute)
		if len(s.snapshot()) != 2 {
			t.Errorf("rows %v", s.snapshot())
		}
	})
}

// A write interrupted by the end of ctx is repeated and not logged as a failure.
func TestWriteBehindWritesAgainWhatItsEndInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := benchStore{hangs: true}
		w, stop := startWriteBehind(t, &s, 100)
		var log bytes.Buffer
		w.Log = slog.New(slog.NewTextHandler(&log, nil))
		w.Put(1, 1)
		time.Sleep(300 * time.Millisecond) // the write is in progress
		stop()
		if len(s.snapshot()) != 1 || log.Len() != 0 {
			t.Errorf("rows %v, log %q", s.snapshot(), &log)
		}
	})
}

// A value put during a failing write is newer than the failed value.
func TestWriteBehindPutsBackOnlyWhatIsNotNewer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := benchStore{away: errAway}
		w, stop := startWriteBehind(t, &s, 100)
		defer stop()
		s.during = sync.OnceFunc(func() { w.Put(1, 2) })
		w.Put(1, 1)
		time.Sleep(time.Second)
		s.setAway(nil)
		time.Sleep(time.Minute)
		if got := s.snapshot()[1]; got != 2 {
			t.Errorf("row 1 is %d, want the newer 2", got)
		}
	})
}

// Settle waits for values put before it, but not for an equal number of later ones.
func TestWriteBehindSettlesWhatWasPutBefore(t *testing.T) {
	for range 20 { // the order of a map is random
		synctest.Test(t, func(t *testing.T) {
			var s benchStore
			w, stop := startWriteBehind(t, &s, 1000)
			defer stop()
			check := func() {
				if err := w.Settle(t.Context()); err != nil || s.snapshot()[1] != 1 {
					t.Errorf("settled with %v, %d rows stored, and not the one before", err, len(s.snapshot()))
				}
			}
			if err := w.Lock(t.Context()); err != nil { // a write is in progress
				t.Fatal(err)
			}
			w.Put(1, 1)
			var wg sync.WaitGroup
			wg.Go(check)
			synctest.Wait()
			for k := range 100 {
				w.Put(2+k, 1)
			}
			w.Unlock()
			wg.Wait()
		})
	}
}
