package postgres_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"fleetd/bench/large"
	"fleetd/fleet"
	"fleetd/fleet/postgres"
	"fleetd/fleet/trend"
)

// TestTrendsScale measures the counting of an hour in which every device reported, connected and was called, and the
// answers over a year of figures. FLEETD_TREND_DEVICES=100000 measures a large fleet.
func TestTrendsScale(t *testing.T) {
	devices, _ := strconv.Atoi(os.Getenv("FLEETD_TREND_DEVICES"))
	limit := 100 * time.Millisecond
	if devices == 0 {
		devices, limit = 300, time.Minute
	}
	ctx, db := t.Context(), testDB(t)
	s := postgres.New(db, postgres.Options{})
	load(t, db, devices, 1)
	check(t, large.States(ctx, db, 2))
	filters := fleet.NewFilters(s)
	for i := range 20 {
		_, err := filters.Create(ctx, admin, fleet.Filter{Name: fmt.Sprintf("f%d", i),
			Query: fmt.Sprintf("board:board-%d presence:online,offline -hold", i)})
		check(t, err)
	}
	check(t, s.FrameFleet(ctx, time.Now().UTC().Add(-3*time.Hour)))
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := db.Exec(ctx, sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	hour := time.Now().UTC().Truncate(time.Hour).Add(-time.Hour)
	exec(`INSERT INTO vitals_points SELECT h, 1, 0, 0, 0, 0, 0, 0, 0, -50 - (number % 40), false, device_id
		FROM generate_series($1::timestamptz, $1::timestamptz + interval '55 minutes', '5 minutes') h, device_names
		WHERE ended_at = 'infinity'`, hour)
	exec(`INSERT INTO presence_changes (device_id, at, presence, evidence_code, transport)
		SELECT device_id, $1::timestamptz + number * interval '30 milliseconds', 'online', 'connected', 'mqtt'
		FROM device_names WHERE ended_at = 'infinity' ON CONFLICT DO NOTHING`, hour)
	exec(`INSERT INTO calls (id, created_at, device_id, tool, actor_kind, actor_id, actor_name, actor_role, state,
			finished_at)
		SELECT (lpad(to_hex((extract(epoch FROM $1::timestamptz) * 1000)::bigint), 12, '0') || '7000a000'
				|| lpad(to_hex(number), 12, '0'))::uuid,
			$1, device_id, 'self.get_device_status', 'operator', '1', 'ada', 'admin', 'succeeded', $1 FROM device_names
		WHERE ended_at = 'infinity'`, hour)
	exec(`INSERT INTO presence_samples (at, online, unresponsive, unknown_edge, offline, pending) VALUES ($1, 0, 0, 0, 0, 0)`,
		hour.Add(time.Hour))
	exec(`ANALYZE`)
	exec(`INSERT INTO trend_marks (hour) VALUES ($1)`, hour)
	_, err := s.CountTrends(ctx, hour.Add(time.Minute)) // the filters are wanted from this hour on
	check(t, err)
	begun := time.Now()
	n, err := s.CountTrends(ctx, hour.Add(time.Hour+10*time.Minute))
	check(t, err)
	took := time.Since(begun)
	var rows int
	check(t, db.QueryRow(ctx, `SELECT count(*) FROM trend_hours`).Scan(&rows))
	t.Logf("%d devices: %d hour counted in %v, %d rows", devices, n, took.Round(time.Millisecond), rows)

	exec(`INSERT INTO trend_marks (hour, state) SELECT h, 'done' FROM generate_series($1::timestamptz - interval '400 days', $1,
		'1 hour') h ON CONFLICT (hour) DO UPDATE SET state = 'done'`, hour)
	exec(`UPDATE trend_groups SET since = $1::timestamptz - interval '400 days'`, hour)
	for table, span := range map[string]string{"trend_hours": "90 days", "trend_days": "400 days"} {
		step, hours, value := "1 hour", "", ""
		if table == "trend_days" {
			step, hours, value = "1 day", ", hours", ", 24"
		}
		exec(`CREATE TEMP TABLE latest AS SELECT g.id, h.metric, h.keys, h.counts FROM trend_groups g JOIN trend_hours h
			ON h.group_id = g.id AND h.at = '` + hour.Format(time.RFC3339) + `'`)
		// Versions, boards and tools have 20 more parts than in the hour that was counted.
		exec(`INSERT INTO `+table+` (group_id, metric, at, keys, counts`+hours+`)
			SELECT id, metric, h,
				CASE WHEN more THEN keys || array(SELECT 'more-' || n FROM generate_series(1, 20) n) ELSE keys END,
				CASE WHEN more THEN counts || array(SELECT n FROM generate_series(1, 20) n) ELSE counts END`+value+`
			FROM (SELECT *, metric IN ('versions', 'boards', 'tools') AS more FROM latest) latest,
				generate_series(date_trunc('day', $1::timestamptz, 'UTC') - $2::interval,
				date_trunc('day', $1::timestamptz, 'UTC') - interval '1 day', $3::interval) h
			ON CONFLICT DO NOTHING`, hour, span, step)
		exec(`DROP TABLE latest`)
	}
	exec(`ANALYZE trend_hours, trend_days, trend_marks`)
	var size int
	check(t, db.QueryRow(ctx, `SELECT pg_total_relation_size('trend_hours') + pg_total_relation_size('trend_days')`).Scan(&size))
	var groups int
	check(t, db.QueryRow(ctx, `SELECT count(*) FROM trend_groups`).Scan(&groups))
	t.Logf("%d groups take %d MB", groups, size>>20)
	service := trend.New(s, filters, time.Now)
	for _, of := range []string{"", "filter:f3"} {
		for _, r := range trend.Ranges {
			var all []time.Duration
			for range 21 {
				begun := time.Now()
				f, err := service.Figures(ctx, trend.Question{Of: of, Range: r.Name})
				check(t, err)
				all = append(all, time.Since(begun))
				if r.Name != "24h" && len(f.Series[trend.Versions]) < 20 {
					t.Fatalf("%s of %q has %d versions", r.Name, of, len(f.Series[trend.Versions]))
				}
			}
			slices.Sort(all)
			t.Logf("%s of %q: median %v, worst %v", r.Name, of, all[10].Round(10*time.Microsecond), all[20].Round(10*time.Microsecond))
			if all[10] > limit {
				t.Errorf("%s of %q takes %v, want at most %v", r.Name, of, all[10], limit)
			}
		}
	}
	begun = time.Now()
	_, err = service.Choices(ctx)
	check(t, err)
	t.Logf("choices: %v", time.Since(begun).Round(10*time.Microsecond))
}
