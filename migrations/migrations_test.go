package migrations_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/fleet/postgres/pgtest"
	"fleetd/migrations"
)

func open(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	db, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}

// Processes that start together wait for each other, and the second pass is cheap.
func TestUpTogether(t *testing.T) {
	url := pgtest.Empty(t)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := migrations.Up(t.Context(), open(t, url)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	db := open(t, url)
	began := time.Now()
	if err := migrations.Up(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	t.Logf("a current database took %v", time.Since(began))
	var calls, jobs int
	if err := db.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM calls), (SELECT count(*) FROM river_job)`).Scan(
		&calls, &jobs); err != nil {
		t.Error(err)
	}
}

func TestUpRefusesNewerSchema(t *testing.T) {
	db := pgtest.New(t)
	if _, err := db.Exec(t.Context(),
		`INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, true)`); err != nil {
		t.Fatal(err)
	}
	for name, check := range map[string]func(context.Context, *pgxpool.Pool) error{"Up": migrations.Up,
		"Check": migrations.Check} {
		var newer *migrations.NewerError
		if err := check(t.Context(), db); !errors.As(err, &newer) || !strings.Contains(err.Error(), "newer fleetd") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// Check accepts a database that Up accepts, and does not change it.
func TestCheck(t *testing.T) {
	empty := open(t, pgtest.Empty(t))
	for _, db := range []*pgxpool.Pool{empty, pgtest.New(t)} {
		if err := migrations.Check(t.Context(), db); err != nil {
			t.Error(err)
		}
	}
	var tables int
	if err := empty.QueryRow(t.Context(), `SELECT count(*) FROM pg_tables WHERE schemaname = 'public'`).Scan(
		&tables); err != nil || tables != 0 {
		t.Errorf("%d tables, %v", tables, err)
	}
}

func TestUpWithoutPermission(t *testing.T) {
	db := open(t, pgtest.Empty(t))
	if _, err := db.Exec(t.Context(), `REVOKE CREATE ON SCHEMA public FROM pg_database_owner, PUBLIC`); err != nil {
		t.Fatal(err)
	}
	var super bool
	if err := db.QueryRow(t.Context(), `SELECT rolsuper FROM pg_roles WHERE rolname = current_user`).Scan(
		&super); err != nil || super {
		t.Skip("the test server's user is a superuser, who may do anything")
	}
	err := migrations.Up(t.Context(), db)
	if err == nil || !strings.Contains(err.Error(), "may not create tables") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v", err)
	}
}
