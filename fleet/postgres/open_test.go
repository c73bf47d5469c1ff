package postgres_test

import (
	"context"
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet/postgres"
	"fleetd/fleet/postgres/pgtest"
)

// with changes the URL of a test database.
func with(t *testing.T, base string, change func(*url.URL)) string {
	t.Helper()
	u, err := url.Parse(base)
	check(t, err)
	change(u)
	return u.String()
}

func TestOpenExplains(t *testing.T) {
	base := pgtest.URL(t)
	ctx := t.Context()
	admin, err := pgx.Connect(ctx, base)
	check(t, err)
	defer admin.Close(ctx)
	var database string
	check(t, admin.QueryRow(ctx, "SELECT current_database()").Scan(&database))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	dead := ln.Addr().String()
	check(t, ln.Close())
	latin := "fleetd_test_latin_" + strings.ReplaceAll(database, "-", "")[len(database)-8:]
	_, err = admin.Exec(ctx, "CREATE DATABASE "+latin+" ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
	check(t, err)
	defer admin.Exec(context.WithoutCancel(ctx), "DROP DATABASE "+latin)

	tests := map[string]struct{ url, want string }{
		"unreadable":  {"postgres://%zz", "cannot be read"},
		"unreachable": {"postgres://u:secret@" + dead + "/x", "no PostgreSQL server answers at " + dead},
		"no database": {with(t, base, func(u *url.URL) { u.Path = "/nonesuch" }), `has no database "nonesuch"`},
		"no role": {with(t, base, func(u *url.URL) {
			q := u.Query()
			q.Del("user")
			u.RawQuery, u.User = q.Encode(), url.UserPassword("nobody_here", "secret")
		}), "does not let user \"nobody_here\" in"},
		"encoding": {with(t, base, func(u *url.URL) { u.Path = "/" + latin }), "needs UTF8"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			db, err := postgres.Open(ctx, tt.url)
			if err == nil {
				db.Close()
				t.Fatal("it opened")
			}
			if !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "secret") ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("%v; want one line with %q and without the password", err, tt.want)
			}
		})
	}
}
