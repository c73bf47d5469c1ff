package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet/catalogue"
)

// Times of the rollup, from the end of an hour. Calls wait at most 24 hours for a device or a person.
const (
	usageSettles = time.Hour      // its calls are final, unless some are still open
	usageDone    = 26 * time.Hour // none of its calls changes any more
	usageKept    = 400 * 24 * time.Hour
	bootsKept    = 35 * 24 * time.Hour // of firmware versions that devices no longer run
)

// openStates are the states of calls that a usage does not count yet.
const openStates = `('pending_approval', 'pending_device', 'pending', 'sent')`

// sumOfUsage aggregates rows (tool, version, state, bucket) into usages. The bucket of a call that its
// device did not answer is null.
const sumOfUsage = `
	SELECT tool, version, sum(n) FILTER (WHERE state = 'succeeded') AS succeeded,
		sum(n) FILTER (WHERE state = 'tool_error') AS tool_errors, sum(n) FILTER (WHERE state = 'timed_out') AS timed_out,
		sum(n) FILTER (WHERE state = 'unknown') AS unknown,
		sum(n) FILTER (WHERE state NOT IN ('succeeded', 'tool_error', 'timed_out', 'unknown')) AS not_sent`

// callsOfUsage selects the final calls of a time for a usage: with the version of their devices at the
// request, and the bucket of the time from sending to the answer. conds restricts the calls c.
func callsOfUsage(conds string) string {
	return fmt.Sprintf(`
	SELECT c.tool, c.created_at, coalesce(
			(SELECT v.version FROM device_versions v WHERE v.device_id = c.device_id AND v.at <= c.created_at
				ORDER BY v.at DESC LIMIT 1),
			(SELECT v.version FROM device_versions v WHERE v.device_id = c.device_id ORDER BY v.at LIMIT 1), '') AS version,
		c.state, CASE WHEN c.state IN ('succeeded', 'tool_error') AND c.sent_at IS NOT NULL THEN
			CASE WHEN c.finished_at < c.sent_at + interval '1 millisecond' THEN 0
			ELSE least(%d, floor(ln(extract(epoch FROM c.finished_at - c.sent_at)::float8 * 1000) / ln(2::float8) * 8))::int
			END END AS bucket
	FROM calls c WHERE c.state NOT IN `+openStates+` AND `+conds, catalogue.Buckets-1)
}

// usageOf groups the calls of a statement by tool and version.
func usageOf(calls string) string {
	return `
	WITH counted AS (SELECT tool, version, state, bucket, count(*) AS n FROM (` + calls + `) calls GROUP BY 1, 2, 3, 4),
	sums AS (` + sumOfUsage + ` FROM counted GROUP BY 1, 2),
	shape AS (SELECT tool, version, array_agg(bucket::smallint ORDER BY bucket) AS buckets,
			array_agg(n ORDER BY bucket) AS counts
		FROM (SELECT tool, version, bucket, sum(n)::bigint AS n FROM counted WHERE bucket IS NOT NULL GROUP BY 1, 2, 3) b
		GROUP BY 1, 2)
	SELECT s.tool, s.version, coalesce(succeeded, 0)::bigint AS succeeded, coalesce(tool_errors, 0)::bigint AS tool_errors,
		coalesce(timed_out, 0)::bigint AS timed_out, coalesce(unknown, 0)::bigint AS unknown,
		coalesce(not_sent, 0)::bigint AS not_sent, coalesce(buckets, '{}') AS buckets, coalesce(counts, '{}') AS counts
	FROM sums s LEFT JOIN shape USING (tool, version)`
}

// RollUpUsage counts the calls of hours whose counts may have changed, oldest first, and reports how
// many hours it counted. The hours of a day, and the day, are counted in one transaction, as a whole:
// interrupted or repeated, they have each call once. Of several processes one counts at a time.
//
// It waits until all inventories are in the catalogue: only calls of tools that are in it count, and an
// hour of long ago is counted once.
func (s *Store) RollUpUsage(ctx context.Context, now time.Time) (hours int, err error) {
	var waits bool
	if err := s.db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM inventories WHERE NOT catalogued)`).Scan(&waits); err != nil || waits {
		return 0, domainError(err)
	}
	if err := s.addUsageHours(ctx, now); err != nil {
		return 0, fmt.Errorf("hours of usage: %w", domainError(err))
	}
	rows, _ := s.db.Query(ctx, `SELECT DISTINCT date_trunc('day', hour, 'UTC') FROM tool_usage_hours WHERE `+dueHours+` ORDER BY 1`,
		now, now.Add(-usageDone-time.Hour))
	days, err := pgx.CollectRows(rows, pgx.RowTo[time.Time])
	if err != nil {
		return 0, fmt.Errorf("hours of usage: %w", domainError(err))
	}
	for _, day := range days {
		err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
			counted, err := countDay(ctx, tx, day.UTC(), now)
			hours += counted
			return err
		})
		if err != nil {
			return hours, fmt.Errorf("usage of tools of %s: %w", day.UTC().Format(time.DateOnly), domainError(err))
		}
	}
	for _, sql := range []string{`DELETE FROM tool_usage_days WHERE day < $1`,
		`DELETE FROM tool_usage_hours WHERE hour < $1 AND state = 'done'`} {
		if _, err := s.db.Exec(ctx, sql, now.Add(-usageKept)); err != nil {
			return hours, fmt.Errorf("old usage of tools: %w", domainError(err))
		}
	}
	return hours, s.deleteOldVersions(ctx, now)
}

// dueHours selects the hours to be counted, by the present time and the end of the last day.
const dueHours = `hour <= $1 AND (state = 'due' OR state = 'settled' AND hour <= $2)`

// usageLock is the key of the lock of the rollup: the tool_usage in ASCII, cut to 8 bytes.
const usageLock = 0x746f6f6c5f757361

// countDay counts the hours of a day that are due, and adds up the day.
func countDay(ctx context.Context, tx pgx.Tx, day, now time.Time) (hours int, err error) {
	var free bool
	if err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock($1)`, int64(usageLock)).Scan(&free); err != nil || !free {
		return 0, err
	}
	rows, _ := tx.Query(ctx, `SELECT hour, calls FROM tool_usage_hours WHERE `+dueHours+` AND hour >= $3 AND hour < $4 ORDER BY hour`,
		now, now.Add(-usageDone-time.Hour), day, day.Add(24*time.Hour))
	type due struct {
		Hour  time.Time
		Calls int64
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[due])
	if err != nil {
		return 0, err
	}
	for _, d := range list {
		if err := countHour(ctx, tx, d.Hour.UTC(), now, d.Calls); err != nil {
			return 0, err
		}
	}
	for _, sql := range []string{
		`DELETE FROM tool_usage_days WHERE day = $1`,
		`WITH hours AS (SELECT * FROM tool_usage WHERE hour >= $1 AND hour < $1::timestamptz + interval '24 hours'),
		shape AS (SELECT tool, version, array_agg(bucket ORDER BY bucket) AS buckets, array_agg(n ORDER BY bucket) AS counts
			FROM (SELECT tool, version, b.bucket, sum(b.n)::bigint AS n FROM hours, unnest(buckets, counts) AS b (bucket, n)
				GROUP BY 1, 2, 3) b GROUP BY 1, 2)
		INSERT INTO tool_usage_days (day, tool, version, succeeded, tool_errors, timed_out, unknown, not_sent, buckets,
			counts)
		SELECT $1, h.tool, h.version, sum(succeeded), sum(tool_errors), sum(timed_out), sum(unknown), sum(not_sent),
			coalesce(min(shape.buckets), '{}'), coalesce(min(shape.counts), '{}')
		FROM hours h LEFT JOIN shape USING (tool, version) GROUP BY h.tool, h.version`,
		// The hours of a day that does not change any more have served their purpose.
		`DELETE FROM tool_usage WHERE hour >= $1 AND hour < $1::timestamptz + interval '24 hours' AND $1::timestamptz + interval '24 hours' <= $2
			AND NOT EXISTS (SELECT FROM tool_usage_hours h WHERE h.state <> 'done' AND h.hour >= $1
				AND h.hour < $1::timestamptz + interval '24 hours')`,
	} {
		args := []any{day}
		if strings.Contains(sql, "$2") {
			args = append(args, now)
		}
		if _, err := tx.Exec(ctx, sql, args...); err != nil {
			return 0, err
		}
	}
	return len(list), nil
}

// addUsageHours adds the hours since the newest known one, at first since the oldest call.
func (s *Store) addUsageHours(ctx context.Context, now time.Time) error {
	_, err := s.db.Exec(ctx, `
		INSERT INTO tool_usage_hours (hour)
		SELECT h FROM generate_series(coalesce((SELECT max(hour) FROM tool_usage_hours),
			(SELECT date_trunc('hour', greatest(created_at, $1::timestamptz - $2::interval), 'UTC') FROM calls
				ORDER BY id LIMIT 1),
			date_trunc('hour', $1::timestamptz, 'UTC')), $1::timestamptz, interval '1 hour') h
		ON CONFLICT DO NOTHING`, now, usageKept)
	return err
}

// countHour replaces the counts of an hour, in which calls were counted before. If there are fewer now,
// retention has removed some, and the counts stay.
func countHour(ctx context.Context, tx pgx.Tx, hour, now time.Time, before int64) error {
	end := hour.Add(time.Hour)
	args := []any{hour, end, idFloor(hour.Add(-idSlack)), idFloor(end.Add(idSlack))}
	const ofHour = `c.id >= $3 AND c.id < $4 AND c.created_at >= $1 AND c.created_at < $2`
	var open, final int64
	if err := tx.QueryRow(ctx, `SELECT count(*) FILTER (WHERE c.state IN `+openStates+`),
		count(*) FILTER (WHERE c.state NOT IN `+openStates+`) FROM calls c WHERE `+ofHour, args...).Scan(&open, &final); err != nil {
		return err
	}
	state := "due"
	switch {
	case now.Sub(end) >= usageDone:
		state = "done"
	case now.Sub(end) >= usageSettles && open == 0:
		state = "settled"
	}
	if final >= before {
		if _, err := tx.Exec(ctx, `DELETE FROM tool_usage WHERE hour = $1`, hour); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `
			INSERT INTO tool_usage (hour, tool, version, succeeded, tool_errors, timed_out, unknown, not_sent, buckets, counts)
			SELECT $1, u.* FROM (`+usageOf(callsOfUsage(ofHour+` AND EXISTS (SELECT FROM tool_definitions d WHERE d.tool = c.tool)`))+
			`) u`, args...); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, `UPDATE tool_usage_hours SET state = $2, calls = greatest(calls, $3) WHERE hour = $1`, hour, state, final)
	return err
}

// deleteOldVersions deletes which firmware devices ran before, except the latest that they ran when the
// time that counts began.
func (s *Store) deleteOldVersions(ctx context.Context, now time.Time) error {
	_, err := s.db.Exec(ctx, `
		DELETE FROM device_versions v WHERE at < $1 AND EXISTS (SELECT FROM device_versions later
			WHERE later.device_id = v.device_id AND later.at > v.at AND later.at < $1)`, now.Add(-bootsKept))
	if err != nil {
		return fmt.Errorf("delete old versions of devices: %w", domainError(err))
	}
	return nil
}
