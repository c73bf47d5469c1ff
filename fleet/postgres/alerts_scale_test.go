package postgres_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/postgres"
	"fleetd/fleet/postgres/pgtest"
)

// TestConditionsOfALargeFleet runs the queries that alerts run twice a minute, for 50,000 devices
// that have all just been updated; for 5,000 if times are not judged.
func TestConditionsOfALargeFleet(t *testing.T) {
	db := pgtest.New(t)
	s := postgres.New(db, postgres.Options{})
	devices, times, offline := 50_000, 5, 0
	if !fleettest.Bounded() {
		devices, times = 5000, 1
	}
	for i := range devices + 1 {
		if i%3 == 0 && i%48 >= 24 {
			offline++
		}
	}
	for _, sql := range []string{
		`INSERT INTO devices (id, created_at, presence_since, presence, last_seen, enrolment)
		SELECT 'a' || lpad(i::text, 11, '0'), now(), now(), CASE WHEN i % 3 = 0 THEN 'offline' ELSE 'online' END,
			now() - make_interval(hours => i % 48), 'enrolled' FROM generate_series(1, ` + fmt.Sprint(devices) + `) i`,
		`INSERT INTO inventories (id, tools, tool_names, created_at) VALUES ('x', '[]', '{}', now())`,
		`INSERT INTO device_inventories (device_id, inventory_id, version, elf_sha256, server_name, server_version,
			tools_count, partial, first_seen, last_seen, current, unexplained)
		SELECT id, 'x', '1', '', '', '', 0, false, now(), now(), true, false FROM devices`,
		`UPDATE device_inventories SET unexplained = true WHERE device_id = 'a00000000007'`,
		`INSERT INTO device_vitals (device_id, at, safe_mode, core_dump, vitals)
		SELECT id, now(), id = 'a00000000009', false, '{}' FROM devices`,
		`INSERT INTO report_changes (device_id, at, code, params)
		SELECT id, now() - make_interval(mins => i), 'restarted', '{}' FROM devices, generate_series(1, 3) i`,
		`INSERT INTO report_changes (device_id, at, code, params)
		SELECT id, now() - make_interval(secs => i), 'restarted', '{}'
		FROM (VALUES ('a00000000001', 2), ('stranger', 5)) v (id, n), generate_series(1, n) i`,
		`INSERT INTO presence_samples (at, online, unresponsive, offline, pending)
		SELECT now() - make_interval(mins => i), 40000, 0, 10000, 0 FROM generate_series(0, ` + fmt.Sprint(2*devices) + `) i`,
		`ANALYZE`,
	} {
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	q, err := fleet.ParseQuery("presence:offline seen>1d")
	if err != nil {
		t.Fatal(err)
	}
	questions := []struct {
		name string
		ask  func() (int, error)
		want int
	}{
		{"presence", func() (int, error) {
			l, err := s.PresenceSince(t.Context(), now.Add(-15*time.Minute), time.Time{}, 15*time.Minute)
			return len(l), err
		}, 15},
		{"presence after a start", func() (int, error) {
			l, err := s.PresenceSince(t.Context(), now.Add(-15*time.Minute), now.Add(-10*time.Minute), 15*time.Minute)
			return len(l), err
		}, 26},
		{"offline", func() (int, error) { n, _, err := s.Share(t.Context(), fleet.Query{}, q); return n, err }, offline},
		{"crashing", func() (int, error) {
			l, err := s.Crashing(t.Context(), 5, now.Add(-time.Hour))
			return len(l), err
		}, 2},
		{"tools", func() (int, error) {
			l, err := s.ToolsChanged(t.Context(), now.Add(-24*time.Hour))
			return len(l), err
		}, 1},
		{"rollbacks", func() (int, error) {
			l, err := s.RolledBack(t.Context(), now.Add(-24*time.Hour))
			return len(l), err
		}, 0},
		{"stopped", func() (int, error) {
			l, err := s.CampaignsStopped(t.Context(), now.Add(-24*time.Hour))
			return len(l), err
		}, 0},
		{"stuck", func() (int, error) {
			l, err := s.CampaignsStuck(t.Context(), now.Add(-time.Hour))
			return len(l), err
		}, 0},
	}
	for _, question := range questions {
		best := time.Hour
		for range times {
			began := time.Now()
			n, err := question.ask()
			if err != nil || n < question.want-1 || n > question.want+1 {
				t.Errorf("%s: %d, %v; want %d", question.name, n, err, question.want)
			}
			best = min(best, time.Since(began))
		}
		fleettest.Within(t, question.name, best, time.Second) // some milliseconds on a machine with nothing else to do
	}

	// The queries that grow with updates use an index that holds only the unusual rows.
	rows, err := db.Query(t.Context(), `EXPLAIN SELECT DISTINCT device_id FROM device_inventories
		WHERE unexplained AND first_seen > now() - interval '1 day' LIMIT 10000`)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || !strings.Contains(strings.Join(plan, "\n"), "device_inventories_unexplained") {
		t.Errorf("the plan does not use the index: %v\n%s", err, strings.Join(plan, "\n"))
	}
}
