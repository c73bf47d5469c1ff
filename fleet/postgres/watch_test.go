package postgres_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet/fleettest"
	"fleetd/fleet/postgres"
	"fleetd/fleet/postgres/pgtest"
)

// A watch notices a connection that hangs, a database that refuses connections, and its return.
func TestWatch(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	config := db.Config().ConnConfig.Copy()
	name := config.Database
	config.Database = "postgres"
	control, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = control.Close(context.Background()) })
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := control.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	w := postgres.NewWatch(db, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = w.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })

	await := func(away bool, what string) {
		t.Helper()
		fleettest.Eventually(t, what, func() bool { return w.Away().IsZero() != away })
	}
	watching := func() (n int) {
		if err := control.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = $1 AND application_name = 'fleetd watch'`, name).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	fleettest.Eventually(t, "the watch has its session", func() bool { return watching() > 0 })
	await(false, "the database counts as available")
	began := time.Now().Add(-2 * time.Second)
	exec(`ALTER DATABASE ` + name + ` ALLOW_CONNECTIONS false`)
	exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1 AND application_name = 'fleetd watch'`, name)
	await(true, "the database counts as away")
	if since := w.Away(); since.Before(began) || since.After(time.Now()) {
		t.Errorf("away since %s, refused since %s", since, began)
	}
	exec(`ALTER DATABASE ` + name + ` ALLOW_CONNECTIONS true`)
	await(false, "the database is back, and counts as away")
}
