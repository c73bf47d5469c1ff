package postgres_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/fleet"
	"fleetd/fleet/history"
	"fleetd/fleet/postgres"
)

// A moments test takes the time of the database between changes, which gives the states their times.
type moments struct {
	*testing.T
	db *pgxpool.Pool
	s  *postgres.Store
	h  *history.Service
}

func newMoments(t *testing.T) *moments {
	db := testDB(t)
	s := postgres.New(db, postgres.Options{})
	return &moments{t, db, s, history.New(s, time.Now)}
}

// mark returns a moment after all that happened and before all that comes.
func (m *moments) mark() (at time.Time) {
	m.Helper()
	time.Sleep(2 * time.Millisecond)
	check(m, m.db.QueryRow(m.Context(), `SELECT clock_timestamp()`).Scan(&at))
	time.Sleep(2 * time.Millisecond)
	return at
}

// list returns the devices of a moment in one line each.
func (m *moments) list(at time.Time, text string) (lines []string) {
	m.Helper()
	page, err := m.h.Devices(m.Context(), history.Filter{At: at, Query: query(m, text)})
	check(m, err)
	for _, d := range page.Items {
		line := fmt.Sprintf("%s %s %s %s", d.ID, d.Version, strings.Join(d.Tags, ","), d.Presence)
		if d.HoldSince != nil {
			line += " held"
		}
		lines = append(lines, line)
	}
	n, err := m.h.Count(m.Context(), at, query(m, text))
	check(m, err)
	if n != len(page.Items) {
		m.Errorf("%d devices counted as of %s with %q, %d listed", n, at, text, len(page.Items))
	}
	return lines
}

func TestHistoryScale(t *testing.T) {
	devices, _ := strconv.Atoi(os.Getenv("FLEETD_HISTORY_DEVICES"))
	limit := 100 * time.Millisecond
	if devices == 0 {
		devices, limit = 500, time.Minute
	}
	m := newMoments(t)
	load(t, m.db, devices, 1)
	for _, sql := range []string{
		`UPDATE history_start SET at = now() - interval '90 days', versions_at = now() - interval '90 days'`,
		`DELETE FROM presence_frames`,
		`UPDATE devices SET presence_since = now() - interval '1 hour' * (abs(hashtext(id)) % 200),
			state_since = now() - interval '90 days' + interval '1 day' * (60 + abs(hashtext(id)) % 30)`,
		`INSERT INTO device_states (since, until, hold_since, tools_count, in_service, device_id, title_key, name_key,
			board_key, tags_key, version, version_key, inventory_id, chip, kind, enrolment, name, board, tags, hold_reason)
		SELECT since, until, hold_since, tools_count, in_service, id, title_key, name_key, board_key, tags_key,
			'1.' || n || '.' || serial % 3, ARRAY[1, n, serial % 3], inventory_id, chip, kind, enrolment, name, board, tags,
			hold_reason
		FROM (SELECT d.*, n, now() - interval '90 days' + (state_since - (now() - interval '90 days')) * n / 5 AS since,
				now() - interval '90 days' + (state_since - (now() - interval '90 days')) * (n + 1) / 5 AS until
			FROM devices d, generate_series(0, 4) n) p ORDER BY until`,
		`INSERT INTO presence_changes (device_id, at, presence, evidence_code, transport)
		SELECT id, now() - interval '1 day' * (n + (abs(hashtext(id)) % 1000) / 1000.0), CASE n % 2 WHEN 0 THEN 'online'
			ELSE 'offline' END, '', 'mqtt' FROM devices, generate_series(0, 29) n ORDER BY n DESC`,
		`INSERT INTO presence_frames SELECT now() - interval '6 hours' * n, presence, array_agg(id ORDER BY id)
			FROM devices, generate_series(1, 360) n WHERE n <= 20 OR n = 180 OR n = 360 GROUP BY 1, 2`,
		`ANALYZE device_states`, `ANALYZE devices`, `ANALYZE presence_changes`, `ANALYZE presence_frames`,
	} {
		if _, err := m.db.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%.60s: %v", sql, err)
		}
	}
	var states, changes int
	check(t, m.db.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM device_states), (SELECT count(*) FROM presence_changes)`).
		Scan(&states, &changes))
	t.Logf("%d devices, %d earlier states, %d changes of presence", devices, states, changes)
	ctx := t.Context()
	for _, days := range []int{0, 1, 45, 89} {
		at := time.Now().AddDate(0, 0, -days).Add(-2 * time.Hour)
		if days == 45 {
			at = time.Now().AddDate(0, 0, -45).Add(time.Minute)
		}
		for _, text := range []string{"", "board:board-3", "version<1.3", "presence:online -hold", "tag:lab", "kitchen"} {
			f := history.Filter{At: at, Query: query(t, text)}
			p, err := m.h.Devices(ctx, f)
			check(t, err)
			f.Cursor = p.Next
			atMost(t, limit, fmt.Sprintf("devices %d days ago %q", days, text), func() error {
				_, err := m.h.Devices(ctx, f)
				return err
			})
		}
		atMost(t, limit, fmt.Sprintf("counts %d days ago", days), func() error {
			_, err := m.h.Counts(ctx, at, fleet.Query{})
			return err
		})
		atMost(t, limit, fmt.Sprintf("changes since %d days ago", days), func() error {
			_, err := m.h.Diff(ctx, history.DiffFilter{From: at, To: time.Now().Add(-time.Minute)})
			return err
		})
		if days > 0 {
			atMost(t, limit, fmt.Sprintf("adoption of %d days", days), func() error {
				_, err := m.h.Adoption(ctx, history.AdoptionFilter{From: at, To: time.Now()})
				return err
			})
		}
	}
	atMost(t, limit/2, "states of a device", func() error {
		_, err := m.h.States(ctx, "d00077", 100)
		return err
	})
	_ = slices.Sorted[string]
}
