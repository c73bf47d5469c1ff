// Package pgtest gives each test its own PostgreSQL database: real, migrated and
// empty.
//
// The server is the one FLEETD_TEST_DATABASE_URL names (its user needs the
// right to create databases) or, as a rule, a private one of the test binary.
// Private servers keep their clusters in memory (/dev/shm) where there is room,
// else in the temporary directory, one for each binary that runs at the same
// time, and end with the binary; the next run starts them in a tenth of a second. Databases are copies of a template,
// made again when migrations or modules change. Nothing here is durable.
//
// It knows no tables but through package migrations. A lock makes the server and
// the template once for each binary; tests then run in parallel.
package pgtest

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"fleetd/fleet/postgres/embedded"
)

// prefix marks databases that tests made, and any of them may be dropped.
const prefix = "fleetd_test_"

// timeout bounds how long a test waits for its database on a busy machine.
const timeout = 2 * time.Minute

// New returns a pool on a fresh database with all migrations applied. Pool and
// database are gone after the test.
func New(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return open(t, URL(t))
}

// URL is like [New] for tests that open their own connections.
func URL(t testing.TB) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	s, err := server()
	if err != nil {
		t.Fatalf("pgtest: no test database server: %v", err)
	}
	template, err := s.template(ctx)
	if err != nil {
		t.Fatalf("pgtest: cannot make the migrated template: %v", err)
	}
	return s.create(t, ctx, template)
}

// Empty is like [URL], without a single migration applied.
func Empty(t testing.TB) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	s, err := server()
	if err != nil {
		t.Fatalf("pgtest: no test database server: %v", err)
	}
	return s.create(t, ctx, "template0")
}

// LeakOption keeps goleak from counting the goroutine that waits for the
// server's end, which is the test binary's own.
func LeakOption() goleak.Option {
	return goleak.IgnoreAnyFunction("fleetd/fleet/postgres/embedded.runBound")
}

// A dbServer makes databases.
type dbServer struct {
	url string // of a database to connect to while making others

	// held keeps the private server's lock from the garbage collector, which
	// would close it and let another test binary take the cluster for free.
	held *embedded.Server

	mu       sync.Mutex
	migrated string // the template's name, after it was created
}

// create copies the template and drops the copy after the test.
func (s *dbServer) create(t testing.TB, ctx context.Context, template string) string {
	t.Helper()
	name := prefix + strings.ReplaceAll(uuid.NewString(), "-", "")
	// Copying files is five times as fast as writing the copy to the log.
	if err := s.exec(ctx, "CREATE DATABASE "+name+" TEMPLATE "+template+" STRATEGY FILE_COPY"); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		if err := s.exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return s.database(name)
}

// exec runs statements on a new connection. Between tests the server has no
// client of ours, which a leak check would find.
func (s *dbServer) exec(ctx context.Context, statements ...string) error {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// database returns the server's URL with another database in it.
func (s *dbServer) database(name string) string {
	u, err := url.Parse(s.url)
	if err != nil {
		panic(err) // server has parsed it
	}
	u.Path = "/" + name
	return u.String()
}

func open(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}
