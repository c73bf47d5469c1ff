package jobs_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"fleetd/fleet/fleettest"
	"fleetd/fleet/postgres"
	"fleetd/fleet/postgres/jobs"
	"fleetd/fleet/postgres/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, pgtest.LeakOption()) }

// At its start it tidies: an expired session goes, a missing partition comes.
func TestUpkeepAtStart(t *testing.T) {
	db := pgtest.New(t)
	store := postgres.New(db, postgres.Options{})
	if err := store.Sessions().CommitCtx(t.Context(), "old", nil, time.Now().Add(-time.Minute)); err == nil {
		t.Fatal("a session without data was stored")
	}
	if err := store.Sessions().CommitCtx(t.Context(), "old", []byte("x"), time.Now().Add(-time.Minute)); err != nil {
		t.Fatal(err)
	}
	month := time.Now().UTC().Format("2006_01")
	if _, err := db.Exec(t.Context(), "DROP TABLE calls_"+month); err != nil {
		t.Fatal(err)
	}
	j, err := jobs.New(db, store, jobs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- j.Run(ctx) }()

	fleettest.Eventually(t, "the jobs ran", func() (tidy bool) {
		err := db.QueryRow(t.Context(), `SELECT to_regclass('calls_`+month+
			`') IS NOT NULL AND NOT EXISTS (SELECT FROM sessions)`).Scan(&tidy)
		if err != nil {
			t.Fatal(err)
		}
		return tidy
	})
	stop()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the jobs do not stop")
	}
}
