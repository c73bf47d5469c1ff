package pgtest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"fleetd/migrations"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// templateLock makes test binaries on one server take turns at the template.
const templateLock = 0x7067746573740001

// template returns the name of the migrated database, made if it is not there.
func (s *dbServer) template(ctx context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.migrated != "" {
		return s.migrated, nil
	}
	sum, err := schemaSum()
	if err != nil {
		return "", err
	}
	name := templateName(sum)
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

// migrate makes the template under another name first: a half migrated one is
// never found.
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

func templateName(sum string) string { return prefix + "template_" + sum }

// keep is the one database of an earlier run that is still of use.
func keep() string {
	sum, err := schemaSum()
	if err != nil {
		return ""
	}
	return templateName(sum)
}

// schemaSum changes with everything that shapes the schema: our migrations,
// and through go.mod the job queue's. It reads the source files, as tests run in
// the source tree and package migrations does not export what it embeds.
var schemaSum = sync.OnceValues(func() (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	files, err := filepath.Glob(filepath.Join(root, "migrations", "*"))
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, f := range append(files, filepath.Join(root, "go.mod")) {
		b, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n%s", filepath.Base(f), len(b), b)
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8]), nil
})

// moduleRoot is found upwards from the package's directory, where go test runs.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("go.mod not found above the test's directory")
		}
		dir = filepath.Dir(dir)
	}
}
