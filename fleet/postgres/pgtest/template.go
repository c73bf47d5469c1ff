package pgtest

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/migrations"
)

// templateLock serialises the use of the template by the test binaries of one server.
const templateLock = 0x7067746573740001

// template returns the name of the migrated database, made if it is not there.
func (s *dbServer) template(ctx context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.migrated != "" {
		return s.migrated, nil
	}
	name := templateName()
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return "", err
	}
	defer conn.Close(context.WithoutCancel(ctx)) // and with it the lock
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", templateLock); err != nil {
		return "", err
	}
	var exists bool
	err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&exists)
	if err != nil {
		return "", err
	}
	if !exists {
		if err := s.migrate(ctx, name); err != nil {
			return "", err
		}
	}
	s.migrated = name
	return name, nil
}

// migrate creates the template under a temporary name first, so a partly migrated one is never
// found.
func (s *dbServer) migrate(ctx context.Context, name string) error {
	unborn := name + "_new"
	if err := s.exec(ctx, "DROP DATABASE IF EXISTS "+unborn+" WITH (FORCE)", "CREATE DATABASE "+unborn+
		" TEMPLATE template0"); err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, s.database(unborn))
	if err != nil {
		return err
	}
	err = migrations.Up(ctx, pool)
	pool.Close()
	if err != nil {
		return err
	}
	return s.exec(ctx, "ALTER DATABASE "+unborn+" RENAME TO "+name)
}

// templateName changes with everything that shapes the schema: our migrations,
// and the job queue's. It is of what the binary embeds, not of the source tree: a
// binary that is older than the tree must not name its template as the tree's.
// It is also the one database of an earlier run that is still of use.
func templateName() string { return prefix + "template_" + migrations.Fingerprint() }
