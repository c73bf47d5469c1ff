package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
)

// The steps are named one by one, since the table is in the order of time and
// then of devices. A start between two steps shows by what the device counts.
const selectVitalsHistory = `
	SELECT bin AS at, beats, heap_free, heap_min, heap_largest, rssi, temperature, reconnects, uptime, boots,
		restarted OR (before > 0 AND boots > before) IS TRUE OR (uptime < lag(uptime) OVER (ORDER BY bin)) IS TRUE AS restarted
	FROM (
		SELECT date_bin($4, p.at, $2) AS bin, sum(p.beats)::int AS beats,
			coalesce(min(nullif(p.heap_free, 0)), 0) AS heap_free, coalesce(min(nullif(p.heap_min, 0)), 0) AS heap_min,
			coalesce(min(nullif(p.heap_largest, 0)), 0) AS heap_largest,
			min(p.rssi)::int AS rssi, max(p.temperature)::float8 AS temperature, max(p.reconnects)::bigint AS reconnects,
			(array_agg(p.uptime ORDER BY p.at DESC))[1]::bigint AS uptime, max(p.boots)::bigint AS boots,
			bool_or(p.restarted) OR (min(nullif(p.boots, 0)) < max(p.boots)) IS TRUE AS restarted,
			lag(max(p.boots)) OVER (ORDER BY date_bin($4, p.at, $2)) AS before
		FROM generate_series(date_bin($5, $2, 'epoch'), $3::timestamptz, $5) AS t (at)
		JOIN vitals_points p ON p.at = t.at AND p.device_id = $1
		WHERE t.at >= $2 AND t.at < $3
		GROUP BY bin
	) steps
	ORDER BY bin`

// VitalsHistory returns points in steps of at least step, oldest first.
func (s *Store) VitalsHistory(ctx context.Context, id fleet.DeviceID, since, until time.Time, step time.Duration) ([]fleet.VitalsPoint, error) {
	since = since.UTC().Truncate(step) // so that steps begin at the same times, whenever it is asked
	rows, _ := s.db.Query(ctx, selectVitalsHistory, cleanText(string(id)), since, until.UTC(), step, fleet.VitalsStep)
	list, err := pgx.CollectRows(rows, scanVitalsPoint)
	if err != nil {
		return nil, fmt.Errorf("history of device %s: %w", id, domainError(err))
	}
	return list, nil
}

func scanVitalsPoint(row pgx.CollectableRow) (fleet.VitalsPoint, error) {
	var p fleet.VitalsPoint
	var uptime int64
	err := row.Scan(&p.At, &p.Beats, &p.HeapFree, &p.HeapMin, &p.HeapLargest, &p.RSSI, &p.Temperature, &p.Reconnects, &uptime, &p.Boots, &p.Restarted)
	p.At, p.Uptime = p.At.UTC(), time.Duration(uptime)*time.Second
	return p, err
}

// ensureVitalsPartitions makes the partitions of the days to come.
func (s *Store) ensureVitalsPartitions(ctx context.Context, now time.Time) (made int, err error) {
	if err := s.db.QueryRow(ctx, `SELECT ensure_vitals_partitions($1)`, now).Scan(&made); err != nil {
		return 0, fmt.Errorf("make partitions of vitals: %w", domainError(err))
	}
	return made, nil
}

// dropVitals removes the history from before the cutoff: whole days, and what
// lies in the default partition.
func (s *Store) dropVitals(ctx context.Context, cutoff time.Time) (removed int64, err error) {
	if err := s.db.QueryRow(ctx, `SELECT drop_vitals_before($1)`, cutoff).Scan(&removed); err != nil {
		return 0, fmt.Errorf("drop old partitions of vitals: %w", domainError(err))
	}
	deleted, err := s.deleteBefore(ctx, "vitals_points_default", "at", cutoff)
	return removed + deleted, err
}
