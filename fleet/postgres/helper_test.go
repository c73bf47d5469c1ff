package postgres_test

import (
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"fleetd/fleet/postgres"
	"fleetd/fleet/postgres/pgtest"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(sealerURL); url != "" {
		runSealer(url)
		return
	}
	goleak.VerifyTestMain(m, pgtest.LeakOption())
}

// testDB opens a new database as fleetd would.
func testDB(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return testDBAt(t, pgtest.URL(t))
}

func testDBAt(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	db, err := postgres.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}
