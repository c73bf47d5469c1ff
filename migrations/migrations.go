// Package migrations defines the schema of the database: numbered SQL files, run forward only,
// and the tables of the job queue, which has its own migrations.
//
// It knows nothing of the program that reads the tables. Of several processes that start at once
// one migrates, under a lock in the database; the others wait.
package migrations

import (
	"context"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

//go:embed *.sql
var files embed.FS

// queueLock prevents two starting processes from migrating the job queue at once.
const queueLock int64 = 0x666c65657464 // "fleetd"

// Up migrates the database to this program's version. On a current database it costs three small
// reads. Processes that start together wait for each other.
func Up(ctx context.Context, db *pgxpool.Pool) error {
	if err := upSchema(ctx, db); err != nil {
		return explain(db, err)
	}
	if err := upQueue(ctx, db); err != nil {
		return explain(db, err)
	}
	return nil
}

func upSchema(ctx context.Context, db *pgxpool.Pool) error {
	sqlDB := stdlib.OpenDBFromPool(db)
	defer sqlDB.Close()
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 300))
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(goose.DialectPostgres, sqlDB, files, goose.WithSessionLocker(locker))
	if err != nil {
		return err
	}
	sources := p.ListSources()
	newest := sources[len(sources)-1].Version
	switch have, err := schemaVersion(ctx, db); {
	case err != nil:
		return err
	case have > newest:
		return newer(db, have, newest)
	case have == newest:
		return nil
	}
	_, err = p.Up(ctx)
	return err
}

func newer(db *pgxpool.Pool, have, newest int64) error {
	return &NewerError{fmt.Sprintf("database %q was last used by a newer fleetd (schema %d, this one knows %d); start that version, or restore a backup from before it",
		databaseName(db), have, newest)}
}

// A NewerError means that a newer program migrated the database.
type NewerError struct{ text string }

func (e *NewerError) Error() string { return e.text }

// Check returns a [NewerError] if Up would return it. It changes nothing.
func Check(ctx context.Context, db *pgxpool.Pool) error {
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		return err
	}
	newest, err := goose.NumericComponent(slices.Max(names))
	if err != nil {
		return err
	}
	have, err := schemaVersion(ctx, db)
	if err == nil && have > newest {
		return newer(db, have, newest)
	}
	return err
}

// Fingerprint identifies the schema that Up creates: it is equal for programs whose databases
// have the same schema.
func Fingerprint() string {
	h := sha256.New()
	names, _ := fs.Glob(files, "*.sql") // the pattern is valid
	for _, name := range names {
		b, _ := files.ReadFile(name) // embedded: cannot fail
		fmt.Fprintf(h, "%s %d\n%s", name, len(b), b)
	}
	queue, err := rivermigrate.New(riverpgxv5.New(nil), nil)
	if err != nil {
		panic(err) // of this program's own configuration
	}
	for _, m := range queue.AllVersions() {
		fmt.Fprintf(h, "%d %d\n%s", m.Version, len(m.SQLUp), m.SQLUp)
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8])
}

// schemaVersion returns the schema's version, or 0 for a database without tables. It reads before
// goose does, because goose creates its table without a lock.
func schemaVersion(ctx context.Context, db *pgxpool.Pool) (int64, error) {
	var used bool
	var v int64
	err := db.QueryRow(ctx, `SELECT to_regclass('goose_db_version') IS NOT NULL`).Scan(&used)
	if err == nil && used {
		err = db.QueryRow(ctx, `SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied`).Scan(&v)
	}
	return v, err
}

func upQueue(ctx context.Context, db *pgxpool.Pool) error {
	m, err := rivermigrate.New(riverpgxv5.New(db), nil)
	if err != nil {
		return err
	}
	known := m.AllVersions()
	if have, err := m.ExistingVersions(ctx); err != nil || len(have) >= len(known) {
		return err
	}
	conn, err := db.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock($1)`, queueLock); err != nil {
		return err
	}
	defer conn.Exec(context.WithoutCancel(ctx), `SELECT pg_advisory_unlock($1)`, queueLock)
	_, err = m.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return err
}

// explain converts an error of PostgreSQL to an instruction for the person who starts fleetd.
func explain(db *pgxpool.Pool, err error) error {
	user, name := db.Config().ConnConfig.User, databaseName(db)
	switch {
	case hasCode(err, "42501"): // insufficient_privilege
		return fmt.Errorf(`database user %q may not create tables in database %q; as its owner run: GRANT CREATE, USAGE ON SCHEMA public TO %q (%w)`, user, name, user, err)
	case hasCode(err, "3F000"): // invalid_schema_name
		return fmt.Errorf(`database %q has no schema that user %q may create tables in; as its owner run: CREATE SCHEMA public AUTHORIZATION %q (%w)`, name, user, user, err)
	case hasCode(err, "25006"): // read_only_sql_transaction
		return fmt.Errorf("database %q is read-only, a standby perhaps; give fleetd the address of the primary (%w)", name,
			err)
	}
	return fmt.Errorf("migrate database %q: %w", name, err)
}

func databaseName(db *pgxpool.Pool) string {
	c := db.Config().ConnConfig
	if c.Database == "" {
		return c.User
	}
	return c.Database
}

func hasCode(err error, code string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == code
}
