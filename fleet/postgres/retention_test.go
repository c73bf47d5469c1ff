package postgres_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/fleet"
	"fleetd/fleet/audit"
	"fleetd/fleet/call"
	"fleetd/fleet/postgres"
)

// callAt records a call of another time, with an id of that time.
func callAt(t *testing.T, s *postgres.Store, at time.Time) *fleet.Call {
	t.Helper()
	c := newCall("d", fleet.CallSucceeded)
	c.CreatedAt = at
	ms := uint64(at.UnixMilli())
	for i := range 6 {
		c.ID[i] = byte(ms >> (40 - 8*i))
	}
	check(t, s.InsertCall(t.Context(), c))
	return c
}

func partitionOf(t *testing.T, db *pgxpool.Pool, id uuid.UUID) string {
	t.Helper()
	var name string
	check(t, db.QueryRow(t.Context(), `SELECT tableoid::regclass::text FROM calls WHERE id = $1`, id).Scan(&name))
	return name
}

// If a month has no partition, nothing is lost, and its calls move when the partition is made.
func TestPartitions(t *testing.T) {
	ctx, db := t.Context(), testDB(t)
	s := postgres.New(db, postgres.Options{})
	future := time.Date(2031, 5, 20, 12, 0, 0, 0, time.UTC)
	c := callAt(t, s, future)
	if got := partitionOf(t, db, c.ID); got != "calls_default" {
		t.Errorf("a call without a month lies in %s", got)
	}
	for _, want := range []int{6 + 5, 0} { // months and days
		if made, err := s.EnsurePartitions(ctx, future); err != nil || made != want {
			t.Errorf("made %d partitions, %v; want %d", made, err, want)
		}
	}
	if got := partitionOf(t, db, c.ID); got != "calls_2031_05" {
		t.Errorf("the call lies in %s", got)
	}
	got, err := s.Call(ctx, c.ID)
	check(t, err)
	same(t, got, *c)
	callAt(t, s, future.AddDate(0, 2, 0))
}

func TestRetain(t *testing.T) {
	ctx, db := t.Context(), testDB(t)
	s := postgres.New(db, postgres.Options{})
	at := time.Date(2031, 5, 20, 12, 0, 0, 0, time.UTC)
	if _, err := s.EnsurePartitions(ctx, at.AddDate(0, -2, 0)); err != nil {
		t.Fatal(err)
	}
	ancient := callAt(t, s, at.AddDate(-5, 0, 0)) // in the default partition
	month := callAt(t, s, at.AddDate(0, -2, 0))
	edge := callAt(t, s, at.AddDate(0, 0, -31))
	kept := callAt(t, s, at.AddDate(0, 0, -29))
	addDevices(t, s, unit)
	check(t, s.UpdateDevice(ctx, admin, unit, fleet.DevicePatch{Name: ptr("n")}))

	if removed, err := s.Retain(ctx, postgres.Retention{}, at); removed != 0 || err != nil {
		t.Fatalf("keeping for ever removed %d, %v", removed, err)
	}
	if removed, err := s.Retain(ctx, postgres.Retention{Calls: 30 * 24 * time.Hour}, at); removed != 6 || err != nil {
		t.Errorf("removed %d, %v; want March, the three months of the migration, and two rows", removed, err)
	}
	for _, c := range []*fleet.Call{ancient, month, edge} {
		_, err := s.Call(ctx, c.ID)
		wantKind(t, err, fleet.ErrNotFound)
	}
	_, err := s.Call(ctx, kept.ID)
	check(t, err)
	if page, _ := s.AuditEntries(ctx, audit.Filter{}); len(page.Items) != 1 {
		t.Errorf("%d audit entries; those are kept for ever", len(page.Items))
	}
}

// An outcome must remain an update in place: an index over a changed column would double the cost
// of a call.
func TestOutcomeIsUpdateInPlace(t *testing.T) {
	ctx, db := t.Context(), testDB(t)
	s := postgres.New(db, postgres.Options{})
	for range 50 {
		c := newCall("d", fleet.CallSent)
		check(t, s.InsertCall(ctx, c))
		check(t, s.FinishCall(ctx, finish(c, fleet.CallSucceeded, `{"content":[{"type":"text","text":"true"}]}`)))
	}
	var updates, inPlace int
	for range 300 { // statistics come a little later, of an idle session after ten seconds
		check(t, db.QueryRow(ctx, `SELECT sum(n_tup_upd), sum(n_tup_hot_upd) FROM pg_stat_user_tables WHERE relname ~ '^calls_'`).Scan(&updates, &inPlace))
		if updates == 50 {
			break
		}
		time.Sleep(100 * time.Millisecond)
		if _, err := db.Exec(ctx, `SELECT pg_stat_force_next_flush()`); err != nil {
			t.Fatal(err)
		}
	}
	if updates != 50 || inPlace < 40 {
		t.Errorf("%d of %d updates in place", inPlace, updates)
	}
}

// The targets of a fan-out have no foreign key, because it would cost more than the rows
// themselves.
func TestRetainFanOutTargets(t *testing.T) {
	ctx, db := t.Context(), testDB(t)
	s := postgres.New(db, postgres.Options{})
	old := call.FanOut{ID: uuid.Must(uuid.NewV7()), Actor: admin, Tool: "t", Arguments: []byte(`{}`), MaxInFlight: 2,
		State: call.FanOutRunning, Targets: 1, CreatedAt: now()}
	young := old
	young.ID = uuid.Must(uuid.NewV7())
	for _, f := range []*call.FanOut{&old, &young} {
		check(t, s.CreateFanOut(ctx, f, []call.FanOutTarget{{Device: "d0"}}))
	}
	check(t, s.FinishFanOut(ctx, admin, old.ID, call.FanOutCompleted, now().AddDate(0, -2, 0)))
	if removed, err := s.Retain(ctx, postgres.Retention{Calls: 30 * 24 * time.Hour}, now()); removed < 1 || err != nil {
		t.Fatalf("removed %d, %v", removed, err)
	}
	var left []uuid.UUID
	check(t, db.QueryRow(ctx, `SELECT array_agg(fanout_id) FROM fanout_targets`).Scan(&left))
	if !slices.Equal(left, []uuid.UUID{young.ID}) {
		t.Errorf("targets are left of the fan-outs %v; want %v", left, young.ID)
	}
}

// Old alerts that have ended are deleted with their events; open alerts stay. Restarts that no
// alert counts any more are deleted, too.
func TestOldAlerts(t *testing.T) {
	ctx, db := t.Context(), testDB(t)
	s := postgres.New(db, postgres.Options{})
	at := time.Date(2031, 5, 20, 12, 0, 0, 0, time.UTC)
	for _, a := range []struct {
		state string
		began int // days ago
		ended any
	}{{"ended", 200, at.AddDate(0, 0, -91)}, {"ended", 200, at.AddDate(0, 0, -89)}, {"open", 200, nil}} {
		_, err := db.Exec(ctx, `WITH a AS (INSERT INTO alerts (id, kind, subject, state, severity, began_at, ended_at)
				VALUES (gen_random_uuid(), 'disk_low', gen_random_uuid()::text, $1, 'bad', $2, $3) RETURNING id, began_at)
			INSERT INTO alert_events (alert_id, at, event, severity, devices) SELECT id, began_at, 'opened', 'bad', 0 FROM a`,
			a.state, at.AddDate(0, 0, -a.began), a.ended)
		check(t, err)
	}
	count := func(table string) (n int) {
		check(t, db.QueryRow(ctx, `SELECT count(*) FROM `+table).Scan(&n))
		return n
	}
	if removed, err := s.Retain(ctx, postgres.Retention{}, at); removed != 0 || err != nil {
		t.Fatalf("keeping for ever removed %d, %v", removed, err)
	}
	removed, err := s.Retain(ctx, postgres.Retention{Alerts: 90 * 24 * time.Hour}, at)
	if removed != 1 || err != nil || count("alerts") != 2 || count("alert_events") != 2 {
		t.Errorf("removed %d (%v), %d alerts and %d events are left; want 1, 2, 2", removed, err, count("alerts"),
			count("alert_events"))
	}
	_, err = db.Exec(ctx, `INSERT INTO report_changes VALUES ('a', $1, 'restarted', '{}'), ('a', $2, 'restarted', '{}')`,
		at.Add(-26*time.Hour), at.Add(-23*time.Hour))
	check(t, err)
	_, err = s.Retain(ctx, postgres.Retention{Calls: time.Hour}, at)
	check(t, err)
	if n := count("report_changes"); n != 1 {
		t.Errorf("%d restarts are left, want that of the last day: alerts count it", n)
	}
}
