package postgres_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/fleet/postgres"
	"fleetd/migrations"
)

var n atomic.Int64

func testDB(t testing.TB) *pgxpool.Pool {
	base := os.Getenv("FLEETD_TEST_DATABASE_URL")
	if base == "" {
		t.Skip("no db")
	}
	ctx := context.Background()
	c, err := pgx.Connect(ctx, base)
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("t_%d_%d", os.Getpid(), n.Add(1))
	if _, err := c.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	c.Close(ctx)
	db, err := postgres.Open(ctx, strings.Replace(base, "/postgres?", "/"+name+"?", 1))
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.Up(ctx, db); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		db.Close()
		c, _ := pgx.Connect(ctx, base)
		c.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
		c.Close(ctx)
	})
	return db
}
