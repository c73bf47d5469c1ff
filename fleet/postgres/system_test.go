package postgres_test

import (
	"testing"
	"time"

	"fleetd/fleet/postgres"
)

// Each table of the report exists, and partitions count with their table.
func TestDatabaseReport(t *testing.T) {
	ctx, db := t.Context(), testDB(t)
	s := postgres.New(db, postgres.Options{})
	for _, name := range postgres.GrownTables {
		var is bool
		if err := db.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, name).Scan(&is); err != nil || !is {
			t.Errorf("there is no table %s (%v)", name, err)
		}
	}
	before, err := s.DatabaseReport(ctx)
	check(t, err)
	if before.Server == "" || before.Bytes == 0 || before.Migration < 36 || len(before.Tables) != 10 ||
		before.Most == 0 {
		t.Errorf("the report is %+v", before)
	}
	_, err = db.Exec(ctx, `INSERT INTO audit_entries (id, created_at, actor_kind, actor_id, actor_name, actor_role, action,
			subject, detail)
		SELECT gen_random_uuid(), $1, 'system', '', '', 'admin', 'test', repeat('x', 100), '{}'
		FROM generate_series(1, 20000)`, time.Now())
	check(t, err)
	after, err := s.DatabaseReport(ctx)
	check(t, err)
	if top := after.Tables[0]; top.Name != "audit_entries" || top.Bytes < 2_000_000 {
		t.Errorf("the largest table is %+v, want the one with 20,000 rows in a partition", top)
	}
}
