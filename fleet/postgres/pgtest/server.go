package pgtest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet/postgres/embedded"
	"fleetd/fleet/postgres/pgtest/scratch"
)

// serverVariable names a server to use instead of a private one.
const serverVariable = "FLEETD_TEST_DATABASE_URL"

// maxSlots limits how many test binaries of one user run at the same time.
const maxSlots = 64

// fast trades all durability for speed: a broken cluster is simply replaced.
var fast = map[string]string{
	"fsync":              "off",
	"synchronous_commit": "off",
	"full_page_writes":   "off",
	"wal_level":          "minimal",
	"max_wal_senders":    "0",
	"max_wal_size":       "1GB",
	"max_connections":    "300",
	"autovacuum":         "off",
	"log_checkpoints":    "off",
}

// server is the server of this test binary. It is never stopped: it ends with
// the process.
var server = sync.OnceValues(func() (*dbServer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if given := os.Getenv(serverVariable); given != "" {
		if u, err := url.Parse(given); err != nil || u.Scheme == "" {
			return nil, fmt.Errorf("%s is not a URL like postgres://user@host/database", serverVariable)
		}
		return &dbServer{url: given}, nil
	}
	return private(ctx)
})

// private starts the first cluster that no other test binary uses.
func private(ctx context.Context) (*dbServer, error) {
	base := filepath.Join(scratch.Dir(), fmt.Sprintf("fleetd-pgtest-%d", os.Getuid()))
	if err := os.MkdirAll(base, 0o700); err != nil {
		return nil, err
	}
	for slot := range maxSlots {
		dir := filepath.Join(base, fmt.Sprintf("%02d", slot))
		if embedded.Busy(dir) {
			continue
		}
		pg, err := embedded.Start(ctx, embedded.Options{DataDir: dir, Settings: fast})
		if err == nil {
			s := &dbServer{url: pg.URL(), held: pg}
			return s, s.prepare(ctx)
		}
		if !embedded.Busy(dir) { // else another binary has taken it
			return nil, fmt.Errorf("%w (to start over: rm -r %s)", err, dir)
		}
	}
	return nil, fmt.Errorf("all %d test servers in %s are in use", maxSlots, base)
}

// TempDir is t.TempDir for a test that runs a PostgreSQL cluster: in memory,
// where there is room. Nothing in it survives a restart of the machine.
func TempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(scratch.Dir(), "fleetd-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// prepare lets fleetd's own role create databases, so that tests run with the
// rights that fleetd has, and drops what killed tests have left.
func (s *dbServer) prepare(ctx context.Context) error {
	cfg, err := pgx.ParseConfig(s.url)
	if err != nil {
		return err
	}
	cfg.User = "postgres"
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "ALTER ROLE fleetd CREATEDB"); err != nil {
		return err
	}
	rows, _ := conn.Query(ctx, "SELECT datname FROM pg_database WHERE starts_with(datname, $1)", prefix)
	left, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, name := range left {
		if name == templateName() {
			continue
		}
		if _, err := conn.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			return err
		}
	}
	return nil
}
