package postgres_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"fleetd/fleet/postgres"
	"fleetd/fleet/postgres/pgtest"
)

// A leader is a process that would run the engine.
type leader struct {
	began, lost chan struct{}
	stop        context.CancelFunc
	done        chan error
}

// startLeader reports who runs at the same time as another in running.
func startLeader(t *testing.T, url string, running *atomic.Int32) *leader {
	t.Helper()
	db, err := postgres.Open(t.Context(), url)
	check(t, err)
	ctx, stop := context.WithCancel(context.Background())
	l := &leader{began: make(chan struct{}, 10), lost: make(chan struct{}, 10), stop: stop, done: make(chan error, 1)}
	go func() {
		l.done <- postgres.New(db, postgres.Options{}).Lead(ctx, func(ctx context.Context) error {
			if running.Add(1) > 1 {
				t.Error("two run at once")
			}
			l.began <- struct{}{}
			<-ctx.Done()
			running.Add(-1)
			l.lost <- struct{}{}
			return nil
		})
		db.Close()
	}()
	return l
}

func (l *leader) end(t *testing.T) {
	t.Helper()
	l.stop()
	check(t, <-l.done)
}

func wantSoon(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(time.Minute):
		t.Fatal(what + ": not within a minute")
	}
}

func TestLead(t *testing.T) {
	url := pgtest.URL(t)
	var running atomic.Int32
	first := startLeader(t, url, &running)
	wantSoon(t, "the first leads", first.began)
	second := startLeader(t, url, &running)
	defer second.end(t)
	select {
	case <-second.began:
		t.Fatal("the second leads while the first still does")
	case <-time.After(1500 * time.Millisecond):
	}
	first.end(t)
	wantSoon(t, "the second takes over", second.began)

	// Its session ends: it stops, and whoever is first leads.
	db, err := postgres.Open(t.Context(), url)
	check(t, err)
	defer db.Close()
	var ended int
	check(t, db.QueryRow(t.Context(), `SELECT count(pg_terminate_backend(pid)) FROM pg_locks
		WHERE locktype = 'advisory' AND granted AND database = (SELECT oid FROM pg_database
			WHERE datname = current_database())`).Scan(&ended))
	if ended != 1 {
		t.Fatalf("%d sessions hold the lock", ended)
	}
	wantSoon(t, "it notices", second.lost)
	wantSoon(t, "it leads again", second.began)
}

// What run says is what Lead says, and the lock is free again.
func TestLeadReturns(t *testing.T) {
	s := newStore(t)
	want := errors.New("no more")
	for range 2 {
		if err := s.Lead(t.Context(), func(context.Context) error { return want }); !errors.Is(err, want) {
			t.Errorf("error %v", err)
		}
	}
}
