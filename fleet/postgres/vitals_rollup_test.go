package postgres_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"fleetd/fleet"
	"fleetd/fleet/postgres"
	"fleetd/fleet/telemetry"
)

// Steps that were merged into hours give the same answers as before.
func TestVitalsRollUpKeepsHistory(t *testing.T) {
	ctx, db := t.Context(), testDB(t)
	s := postgres.New(db, postgres.Options{})
	// in the default partition: the statement is the same, and no table is made or dropped
	day := time.Date(2031, 5, 20, 0, 0, 0, 0, time.UTC)
	history := func(r *rapid.T, id fleet.DeviceID, step time.Duration) []telemetry.VitalsPoint {
		list, err := s.VitalsHistory(ctx, id, day, day.AddDate(0, 0, 1), step)
		if err != nil {
			r.Fatal(err)
		}
		return list
	}
	rapid.Check(t, func(r *rapid.T) {
		if _, err := db.Exec(ctx, `WITH gone AS (DELETE FROM vitals_points) DELETE FROM vitals_hours`); err != nil {
			r.Fatal(err)
		}
		points := make(map[fleet.DeviceID][]telemetry.VitalsPoint)
		for _, id := range []fleet.DeviceID{unit, "other"} {
			for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(0, 40), 1, 10, rapid.ID).Draw(r, "steps") {
				points[id] = append(points[id], genPoint(r, day.Add(time.Duration(i)*telemetry.VitalsStep)))
			}
		}
		if err := s.AddVitalsPoints(ctx, points); err != nil {
			r.Fatal(err)
		}
		for _, step := range []time.Duration{time.Hour, 3 * time.Hour} {
			before := map[fleet.DeviceID][]telemetry.VitalsPoint{unit: history(r, unit, step), "other": history(r, "other",
				step)}
			if _, err := s.RollUpVitals(ctx, day.AddDate(0, 0, 4)); err != nil {
				r.Fatal(err)
			}
			after := map[fleet.DeviceID][]telemetry.VitalsPoint{unit: history(r, unit, step), "other": history(r, "other", step)}
			if diff := cmp.Diff(before, after); diff != "" {
				r.Errorf("in steps of %v, before (-) and after the roll-up (+):\n%s", step, diff)
			}
		}
	})
}

// Whole days are removed once they are old enough; a second run finds nothing; late points are
// added to their hour.
func TestVitalsRollUp(t *testing.T) {
	ctx, db := t.Context(), testDB(t)
	s := postgres.New(db, postgres.Options{})
	day := time.Date(2031, 5, 20, 0, 0, 0, 0, time.UTC)
	_, err := s.EnsurePartitions(ctx, day)
	check(t, err)
	_, err = s.Retain(ctx, postgres.Retention{Vitals: telemetry.VitalsKept}, day) // the days of the migration
	check(t, err)
	at := func(days, minutes int) time.Time {
		return day.AddDate(0, 0, days).Add(time.Duration(minutes) * time.Minute)
	}
	add := func(points ...telemetry.VitalsPoint) {
		t.Helper()
		check(t, s.AddVitalsPoints(ctx, map[fleet.DeviceID][]telemetry.VitalsPoint{unit: points}))
	}
	add(telemetry.VitalsPoint{At: at(-1, 60), Beats: 1, HeapFree: 9}, telemetry.VitalsPoint{At: at(-1, 65), Beats: 2,
		HeapFree: 7},
		telemetry.VitalsPoint{At: at(0, 0), Beats: 1}, telemetry.VitalsPoint{At: at(0, 5), Beats: 1})

	for _, want := range []int{1, 0} { // the 19th, and not the 20th
		days, err := s.RollUpVitals(ctx, at(4, -1))
		check(t, err)
		if days != want {
			t.Errorf("%d days, want %d", days, want)
		}
	}
	read := func(step time.Duration) []telemetry.VitalsPoint {
		t.Helper()
		list, err := s.VitalsHistory(ctx, unit, at(-2, 0), at(2, 0), step)
		check(t, err)
		return list
	}
	same(t, read(telemetry.VitalsStep), []telemetry.VitalsPoint{{At: at(-1, 60), Beats: 3, HeapFree: 7},
		{At: at(0, 0), Beats: 1}, {At: at(0, 5), Beats: 1}})

	// no day takes them
	add(telemetry.VitalsPoint{At: at(-1, 110), Beats: 1, HeapFree: 3}, telemetry.VitalsPoint{At: at(-40, 5), Beats: 4})
	want := []telemetry.VitalsPoint{{At: at(-1, 60), Beats: 4, HeapFree: 3}, {At: at(0, 0), Beats: 2}}
	same(t, read(time.Hour), want)
	for range 2 {
		_, err = s.RollUpVitals(ctx, at(4, -1))
		check(t, err)
		same(t, read(time.Hour), want)
	}
	old, err := s.VitalsHistory(ctx, unit, at(-41, 0), at(-39, 0), time.Hour)
	check(t, err)
	same(t, old, []telemetry.VitalsPoint{{At: at(-40, 0), Beats: 4}})

	var tables []string
	check(t, db.QueryRow(ctx, `SELECT array_agg(DISTINCT t) FROM (SELECT tableoid::regclass::text AS t FROM vitals_points UNION ALL SELECT tableoid::regclass::text FROM vitals_hours) x`).Scan(&tables))
	slices.Sort(tables)
	same(t, tables, []string{"vitals_hours_2031_05_19", "vitals_hours_default", "vitals_points_2031_05_20"})

	removed, err := s.Retain(ctx, postgres.Retention{Vitals: 30 * 24 * time.Hour}, at(30, 0))
	check(t, err)
	if removed != 2 { // the hour of long ago, and the hours of the 19th
		t.Errorf("removed %d", removed)
	}
	same(t, read(time.Hour), want[1:])
}

// A day that cannot be dropped stays as it was.
func TestVitalsRollUpGivesWay(t *testing.T) {
	ctx, db := t.Context(), testDB(t)
	s := postgres.New(db, postgres.Options{})
	at := time.Now().UTC().AddDate(0, 0, -1).Truncate(time.Hour)
	check(t, s.AddVitalsPoints(ctx, map[fleet.DeviceID][]telemetry.VitalsPoint{unit: {{At: at, Beats: 5}}}))
	reader, err := db.Begin(ctx)
	check(t, err)
	_, err = reader.Exec(ctx, `SELECT FROM vitals_points`)
	check(t, err)
	later := time.Now().AddDate(0, 0, 4)
	if _, err := s.RollUpVitals(ctx, later); err == nil {
		t.Error("a partition was dropped that is being read")
	}
	check(t, reader.Rollback(ctx))
	for range 2 {
		list, err := s.VitalsHistory(ctx, unit, at, at.Add(time.Hour), time.Hour)
		check(t, err)
		same(t, list, []telemetry.VitalsPoint{{At: at, Beats: 5}})
		_, err = s.RollUpVitals(ctx, later)
		check(t, err)
	}
}
