package pgtest_test

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"fleetd/fleet/postgres/embedded"
	"fleetd/fleet/postgres/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, pgtest.LeakOption()) }

func TestDatabasesAreMigratedAndSeparate(t *testing.T) {
	a, b := pgtest.New(t), pgtest.New(t)
	if _, err := a.Exec(t.Context(), "CREATE TABLE mine ()"); err != nil {
		t.Fatal(err)
	}
	for sql, want := range map[string]bool{
		"SELECT to_regclass('goose_db_version') IS NOT NULL": true,
		"SELECT to_regclass('river_job') IS NOT NULL":        true,
		"SELECT to_regclass('mine') IS NULL":                 true,
	} {
		var got bool
		if err := b.QueryRow(t.Context(), sql).Scan(&got); err != nil || got != want {
			t.Errorf("%s = %v, %v, want %v", sql, got, err, want)
		}
	}
}

// Another test binary must find the cluster taken for as long as this one runs.
func TestClusterStaysOurs(t *testing.T) {
	if os.Getenv("FLEETD_TEST_DATABASE_URL") != "" {
		t.Skip("the server is not a private one")
	}
	cfg, err := pgx.ParseConfig(pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 { // what is unreachable loses its files to a finalizer
		runtime.GC()
		time.Sleep(20 * time.Millisecond)
	}
	if dir := filepath.Dir(cfg.Host); !embedded.Busy(dir) {
		t.Errorf("the cluster in %s is free for the taking", dir)
	}
}

func TestEmpty(t *testing.T) {
	conn, err := pgx.Connect(t.Context(), pgtest.Empty(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var n int
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").Scan(
		&n); err != nil || n != 0 {
		t.Errorf("an empty database has %d tables (%v)", n, err)
	}
}

func TestDropped(t *testing.T) {
	var gone string
	t.Run("uses a database", func(t *testing.T) {
		if err := pgtest.New(t).QueryRow(t.Context(), "SELECT current_database()").Scan(&gone); err != nil {
			t.Fatal(err)
		}
	})
	var exists bool
	err := pgtest.New(t).QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", gone).Scan(
		&exists)
	if err != nil || exists {
		t.Errorf("database %s exists after its test (%v)", gone, err)
	}
}

// Tests run as fleetd does: owner of the database, and no more than that.
func TestRights(t *testing.T) {
	if os.Getenv("FLEETD_TEST_DATABASE_URL") != "" {
		t.Skip("the server is not ours")
	}
	var super string
	if err := pgtest.New(t).QueryRow(t.Context(), "SHOW is_superuser").Scan(&super); err != nil || super != "off" {
		t.Errorf("is_superuser = %s, %v", super, err)
	}
}

func TestParallel(t *testing.T) {
	pgtest.New(t)
	for range 8 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			pool := pgtest.New(t)
			t.Logf("database after %v", time.Since(began))
			if err := pool.Ping(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func BenchmarkNew(b *testing.B) {
	pgtest.URL(b)
	for b.Loop() {
		pgtest.URL(b)
	}
}
