package postgres_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"golang.org/x/sync/errgroup"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/postgres"
)

// scaleCalls is the number of calls to load, in millions; without it TestScale does not run.
// Loading takes a minute per million.
const scaleCalls = "FLEETD_SCALE_MILLION_CALLS"

// TestScale times the pages of a large fleet. It judges medians: a page may take 100 ms of the
// server's time, the calls of a device 50 ms.
func TestScale(t *testing.T) {
	millions, _ := strconv.Atoi(os.Getenv(scaleCalls))
	if millions < 1 {
		t.Skipf("set %s=1 (or 10) to time the pages of 100,000 devices and so many million calls", scaleCalls)
	}
	db := testDB(t)
	s := postgres.New(db, postgres.Options{})
	load(t, db, 100_000, millions*1_000_000)
	ctx := t.Context()

	for _, text := range []string{"", "board:board-3", "version<2.4", "presence:online -hold", "tag:lab", "tool:self.t2",
		"kitchen", "77", "nothing-like-this",
		"seen<1d -tag:lab version>=1.2 board:board-1*"} {
		q := query(t, text)
		for _, sort := range []fleet.DeviceSort{fleet.SortName, fleet.SortBoard, fleet.SortVersion, fleet.SortPresence,
			fleet.SortLastSeen, fleet.SortCreated} {
			f := fleet.DeviceFilter{Query: q, Sort: sort, Desc: true}
			if p, err := s.Devices(ctx, f); err == nil {
				f.Cursor = p.Next
			}
			atMost(t, 100*time.Millisecond, fmt.Sprintf("devices %q by %s, a page and the count", text, sort), func() error {
				g, ctx := errgroup.WithContext(ctx) // both at once, as the console asks
				g.Go(func() error { _, err := s.Devices(ctx, f); return err })
				g.Go(func() error { _, err := s.CountDevices(ctx, q); return err })
				return g.Wait()
			})
		}
	}
	atMost(t, 100*time.Millisecond, "versions of the fleet", func() error {
		_, err := s.CountBy(ctx, query(t, ""), "version")
		return err
	})
	page, err := s.Calls(ctx, call.Filter{})
	check(t, err)
	for name, f := range map[string]call.Filter{
		"newest":         {},
		"second page":    {Cursor: page.Next},
		"device":         {Device: "d00077"},
		"device, tool":   {Device: "d00077", Tool: "self.t3"},
		"no such device": {Device: "nobody"},
		"tool":           {Tool: "self.t3"},
		"no such tool":   {Tool: "none"},
		"actor":          {Actor: "op5"},
		"failure":        {States: []fleet.CallState{fleet.CallTimedOut}},
		"no such state":  {States: []fleet.CallState{fleet.CallInvalid}},
		"failures":       {States: []fleet.CallState{fleet.CallTimedOut, fleet.CallInvalid}},
		"open":           {States: []fleet.CallState{fleet.CallPending, fleet.CallSent}},
		"since, until":   {Since: time.Now().AddDate(0, 0, -40), Until: time.Now().AddDate(0, 0, -39)},
		"device, until":  {Device: "d00077", Until: time.Now().AddDate(0, 0, -39)},
	} {
		atMost(t, 50*time.Millisecond, "calls: "+name, func() error {
			_, err := s.Calls(ctx, f)
			return err
		})
	}
	atMost(t, 50*time.Millisecond, "one call", func() error {
		_, err := s.Call(ctx, page.Items[7].ID)
		return err
	})
	atMost(t, 50*time.Millisecond, "recent failures", func() error {
		_, err := s.RecentFailures(ctx, time.Now().AddDate(0, 0, -1), 10)
		return err
	})
	atMost(t, 100*time.Millisecond, "calls of a day by the hour", func() error {
		_, err := s.CallBuckets(ctx, time.Now().AddDate(0, 0, -1), time.Hour)
		return err
	})
}

// atMost runs f once, then five times more, and judges the median of those.
func atMost(t *testing.T, limit time.Duration, what string, f func() error) {
	t.Helper()
	var took []time.Duration
	for range 6 {
		began := time.Now()
		check(t, f())
		took = append(took, time.Since(began))
	}
	took = took[1:]
	slices.Sort(took)
	t.Logf("%8.2f ms  %s", float64(took[2].Microseconds())/1000, what)
	if took[2] > limit {
		t.Errorf("%s takes %v, more than %v", what, took[2], limit)
	}
}

// load makes a fleet, with calls spread over the last three months.
func load(t *testing.T, db *pgxpool.Pool, devices, calls int) {
	t.Helper()
	began := time.Now()
	for _, sql := range []string{
		`SELECT ensure_partitions(now() - interval '3 months')`,
		`INSERT INTO inventories SELECT 'inv' || i, '[]', array_agg('self.t' || j), now() FROM generate_series(0, 9) i, generate_series(0, 9) j WHERE (i + j) % 3 = 0 GROUP BY i`,
		fmt.Sprintf(`INSERT INTO devices (id, name, name_key, tags, tags_key, board, board_key, chip, version, version_key, elf_sha256, slot, presence, presence_since,
				last_seen, enrolment, inventory_id, hold_reason, hold_kind, hold_id, hold_name, hold_role, hold_since,
					created_at, notes, presence_evidence_code, client_id)
			SELECT 'd' || lpad(i::text, 5, '0'), n, n, tags, E'\x01' || array_to_string(tags, E'\x01') || E'\x01',
				'board-' || i %% 20, 'board-' || i %% 20, 'esp32s3',
				'2.' || i %% 7 || '.' || i %% 3, ARRAY[2, i %% 7, i %% 3], md5(i::text) || md5(i::text), 'ota_' || i %% 2,
				(ARRAY['online', 'offline', 'unresponsive', 'pending'])[1 + i %% 4], now(),
					now() - make_interval(mins => (i * 7919) %% 20000), 'enrolled', 'inv' || i %% 10,
				CASE WHEN h THEN 'r' END, CASE WHEN h THEN 'operator' END, CASE WHEN h THEN '1' END, CASE WHEN h
					THEN 'ada' END, CASE WHEN h THEN 'admin' END,
				CASE WHEN h THEN now() END, now() - make_interval(mins => (i * 31) %% 500000), 'in the rack', 'connected',
					md5(i::text)
			FROM generate_series(0, %d - 1) i, LATERAL (SELECT CASE WHEN i %% 2 = 0
				THEN 'unit ' || (i * 7919) %% 100000 ELSE '' END || CASE WHEN i %% 1000 = 0 THEN ' kitchen' ELSE '' END AS n,
				CASE WHEN i %% 5 = 0 THEN ARRAY['lab', 'floor-' || i %% 9] ELSE ARRAY['floor-' || i %% 9] END AS tags,
					i %% 50 = 0 AS h) x`, devices),
		fmt.Sprintf(`INSERT INTO calls (id, created_at, device_id, tool, arguments, actor_kind, actor_id, actor_name, actor_role, state, failure, result, rpc_id, timeout_ms, sent_at, finished_at)
			SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || substr(md5(i::text), 1,
				3) || '8' || substr(md5(i::text), 4, 15))::uuid, at,
				'd' || lpad(((i::bigint * 7919) %% %d)::text, 5, '0'), 'self.t' || i %% 10, '{"volume":50}', 'operator', '1',
					'op' || i %% 20, 'operator',
				CASE WHEN i %% 100 = 0 THEN 'timed_out' ELSE 'succeeded' END, CASE WHEN i %% 100 = 0 THEN 'timed_out' END,
				'{"content":[{"type":"text","text":"true"}],"isError":false}', i %% 1000, 10000, at, at
			FROM generate_series(1, %d) i,
				LATERAL (SELECT now() - make_interval(secs => 90 * 86400.0 * (%[2]d - i) / %[2]d) AS at) x`, devices, calls),
		`ANALYZE devices`, `ANALYZE calls`,
	} {
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%.60s: %v", sql, err)
		}
	}
	t.Logf("loaded %d devices and %d calls in %v", devices, calls, time.Since(began).Round(time.Second))
}
