package postgres_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"fleetd/fleet"
	"fleetd/fleet/postgres"
	"fleetd/fleet/telemetry"
)

func TestVitals(t *testing.T) {
	ctx, db := t.Context(), testDB(t)
	s := postgres.New(db, postgres.Options{})
	_, err := s.Vitals(ctx, unit)
	wantKind(t, err, fleet.ErrNotFound)

	at := now()
	v := telemetry.Vitals{At: at, Uptime: 90 * time.Second, Version: "1.2\x00", SSID: "büro", RSSI: ptr(-61),
		Temperature: ptr(41.5),
		HeapFree:    100_000, SafeMode: true, SlotLabel: "ota_0", SlotState: "valid"}
	check(t, s.SaveVitals(ctx, map[fleet.DeviceID]telemetry.Vitals{unit: v, "other": {At: at}}))
	got, err := s.Vitals(ctx, unit)
	check(t, err)
	v.Version = "1.2" // PostgreSQL takes no NUL
	same(t, got, v)

	kept := v
	kept.At, kept.HeapFree = at.Add(-time.Minute), 1 // a heartbeat from before, sent late
	check(t, s.SaveVitals(ctx, map[fleet.DeviceID]telemetry.Vitals{unit: kept}))
	got, err = s.Vitals(ctx, unit)
	check(t, err)
	same(t, got, v)
}

// A heartbeat must remain an update in place, whatever parts of it are indexed.
func TestHeartbeatIsUpdateInPlace(t *testing.T) {
	ctx, db := t.Context(), testDB(t)
	s := postgres.New(db, postgres.Options{})
	for i := range 50 {
		v := telemetry.Vitals{At: now().Add(time.Duration(i) * time.Minute), CoreDump: true, SSID: "workshop",
			HeapFree: int64(i)}
		check(t, s.SaveVitals(ctx, map[fleet.DeviceID]telemetry.Vitals{unit: v}))
		p := telemetry.VitalsPoint{At: v.At.Truncate(time.Hour), Beats: 1}
		check(t, s.AddVitalsPoints(ctx, map[fleet.DeviceID][]telemetry.VitalsPoint{unit: {p}}))
	}
	var updates, inPlace int
	for range 300 { // statistics come a little later, of an idle session after ten seconds
		check(t, db.QueryRow(ctx, `SELECT sum(n_tup_upd), sum(n_tup_hot_upd) FROM pg_stat_user_tables WHERE relname ~ '^(device_vitals|vitals_points)'`).Scan(&updates, &inPlace))
		if updates >= 97 {
			break
		}
		time.Sleep(100 * time.Millisecond)
		_, err := db.Exec(ctx, `SELECT pg_stat_force_next_flush()`)
		check(t, err)
	}
	if updates < 97 || inPlace < 90 {
		t.Errorf("%d of %d updates in place", inPlace, updates)
	}
}

func genPoint(t *rapid.T, at time.Time) telemetry.VitalsPoint {
	number := func(name string, most int64) int64 { return rapid.Int64Range(0, most).Draw(t, name) }
	p := telemetry.VitalsPoint{At: at, Beats: int(number("beats", 3) + 1), HeapFree: number("free", 3),
		HeapMin:     number("min", 3),
		HeapLargest: number("largest", 3), Reconnects: number("reconnects", 3), Boots: number("boots", 2),
		Uptime: time.Duration(number("uptime", 3)) * time.Second, Restarted: rapid.Bool().Draw(t, "restarted")}
	if rapid.Bool().Draw(t, "radio") {
		p.RSSI = ptr(int(-number("rssi", 3)))
	}
	if rapid.Bool().Draw(t, "sensor") {
		p.Temperature = ptr(float64(number("temperature", 3)) - 1.5)
	}
	return p
}

// The sum of two parts of a step is defined twice, in Go and in SQL.
func TestVitalsPointsMergeAlike(t *testing.T) {
	ctx, db := t.Context(), testDB(t)
	s := postgres.New(db, postgres.Options{})
	at := now().UTC().Truncate(telemetry.VitalsStep)
	rapid.Check(t, func(r *rapid.T) {
		if _, err := db.Exec(ctx, `DELETE FROM vitals_points`); err != nil {
			r.Fatal(err)
		}
		var want telemetry.VitalsPoint
		for i := range rapid.IntRange(1, 3).Draw(r, "statements") {
			part := genPoint(r, at)
			points := []telemetry.VitalsPoint{part}
			for range rapid.IntRange(0, 2).Draw(r, "more") {
				p := genPoint(r, at)
				points, part = append(points, p), part.Merge(p)
			}
			if want = want.Merge(part); i == 0 {
				want = part
			}
			if err := s.AddVitalsPoints(ctx, map[fleet.DeviceID][]telemetry.VitalsPoint{unit: points}); err != nil {
				r.Fatal(err)
			}
		}
		got, err := s.VitalsHistory(ctx, unit, at, at.Add(time.Minute), telemetry.VitalsStep)
		if err != nil || len(got) != 1 {
			r.Fatalf("%d points, %v", len(got), err)
		}
		if diff := cmp.Diff(want, got[0]); diff != "" {
			r.Errorf("in Go (-), in SQL (+):\n%s", diff)
		}
	})
}

func TestVitalsHistory(t *testing.T) {
	ctx, db := t.Context(), testDB(t)
	s := postgres.New(db, postgres.Options{})
	start := now().UTC().Truncate(time.Hour).Add(-4 * time.Hour)
	point := func(step int, free int64, uptime time.Duration, boots int64) telemetry.VitalsPoint {
		return telemetry.VitalsPoint{At: start.Add(time.Duration(step) * telemetry.VitalsStep), Beats: 5, HeapFree: free,
			Uptime: uptime, Boots: boots}
	}
	points := []telemetry.VitalsPoint{
		point(0, 900, 2*time.Hour, 7), point(1, 800, 2*time.Hour+5*time.Minute, 7), point(11, 0, 3*time.Hour, 7),
		point(12, 700, 10*time.Minute, 8), point(13, 650, 15*time.Minute, 8), // a restart between two steps
		point(24, 600, 70*time.Minute, 0), point(36, 500, time.Minute, 0), // counts no starts, and its uptime fell
	}
	points[1].RSSI, points[2].RSSI = ptr(-70), ptr(-50)
	check(t, s.AddVitalsPoints(ctx, map[fleet.DeviceID][]telemetry.VitalsPoint{unit: points,
		"other": {point(0, 1, time.Hour, 1)}}))

	fine, err := s.VitalsHistory(ctx, unit, start, start.Add(5*time.Hour), telemetry.VitalsStep)
	check(t, err)
	want := append([]telemetry.VitalsPoint(nil), points...)
	want[3].Restarted, want[6].Restarted = true, true
	same(t, fine, want)

	hours, err := s.VitalsHistory(ctx, unit, start.Add(10*time.Minute), start.Add(5*time.Hour), time.Hour)
	check(t, err)
	same(t, hours, []telemetry.VitalsPoint{
		{At: start, Beats: 15, HeapFree: 800, RSSI: ptr(-70), Uptime: 3 * time.Hour, Boots: 7},
		{At: start.Add(time.Hour), Beats: 10, HeapFree: 650, Uptime: 15 * time.Minute, Boots: 8, Restarted: true},
		{At: start.Add(2 * time.Hour), Beats: 5, HeapFree: 600, Uptime: 70 * time.Minute},
		{At: start.Add(3 * time.Hour), Beats: 5, HeapFree: 500, Uptime: time.Minute, Restarted: true},
	})

	part, err := s.VitalsHistory(ctx, unit, start.Add(30*time.Minute), start.Add(time.Hour), telemetry.VitalsStep)
	check(t, err)
	same(t, part, points[2:3])
}

// If a day has no partition, nothing is lost, and its points move to a new one; days are removed
// whole.
func TestVitalsPartitions(t *testing.T) {
	ctx, db := t.Context(), testDB(t)
	s := postgres.New(db, postgres.Options{})
	future := time.Date(2031, 5, 20, 23, 50, 0, 0, time.UTC)
	p := []telemetry.VitalsPoint{{At: future, Beats: 1}, {At: future.Add(10 * time.Minute), Beats: 2},
		{At: future.AddDate(0, 0, -100), Beats: 3}}
	check(t, s.AddVitalsPoints(ctx, map[fleet.DeviceID][]telemetry.VitalsPoint{unit: p}))
	_, err := s.EnsurePartitions(ctx, future)
	check(t, err)
	var in string
	check(t, db.QueryRow(ctx, `SELECT string_agg(tableoid::regclass::text, ' ' ORDER BY at) FROM vitals_points`).Scan(&in))
	if want := "vitals_points_default vitals_points_2031_05_20 vitals_points_2031_05_21"; in != want {
		t.Errorf("the points lie in %s, want %s", in, want)
	}
	got, err := s.VitalsHistory(ctx, unit, future.AddDate(0, 0, -1), future.AddDate(0, 0, 1), telemetry.VitalsStep)
	check(t, err)
	same(t, got, p[:2])

	removed, err := s.Retain(ctx, postgres.Retention{Vitals: telemetry.VitalsKept}, future)
	check(t, err)
	if removed != 1+5 { // one row of the default partition, and the five days of the migration
		t.Errorf("removed %d", removed)
	}
	if removed, err = s.Retain(ctx, postgres.Retention{Vitals: 24 * time.Hour}, future.AddDate(0, 0, 2).Add(
		-5*time.Minute)); removed != 2 || err != nil {
		t.Errorf("removed %d, %v; want the 19th and the 20th", removed, err)
	}
	got, err = s.VitalsHistory(ctx, unit, future.AddDate(0, 0, -1), future.AddDate(0, 0, 1), telemetry.VitalsStep)
	check(t, err)
	same(t, got, p[1:2])
}
