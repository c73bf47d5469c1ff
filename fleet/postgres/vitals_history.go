package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/telemetry"
)

// selectVitalsHistory reads both tables: points from before the roll-up, $6, are hours. Steps are
// listed one by one, since their table is ordered by time and then by device. The device's
// counters show a start between two steps.
const selectVitalsHistory = `
	WITH points AS (
		SELECT p.at, p.beats, p.heap_free, p.heap_min, p.heap_largest, p.uptime, p.reconnects, p.boots, p.temperature,
			p.rssi, p.restarted
		FROM generate_series(date_bin($5, greatest($2, $6::timestamptz), 'epoch'), $3::timestamptz, $5) AS t (at)
		JOIN vitals_points p ON p.at = t.at AND p.device_id = $1
		WHERE t.at >= $2 AND t.at < $3
		UNION ALL
		SELECT h.at, h.beats, h.heap_free, h.heap_min, h.heap_largest, h.uptime, h.reconnects, h.boots, h.temperature,
			h.rssi, h.restarted
		FROM vitals_hours h WHERE h.device_id = $1 AND h.at >= $2 AND h.at < $3
	)
	SELECT bin AS at, beats, heap_free, heap_min, heap_largest, rssi, temperature, reconnects, uptime, boots,
		restarted OR (before > 0 AND boots > before) IS TRUE OR (uptime < lag(uptime) OVER (ORDER BY bin)) IS TRUE
			AS restarted
	FROM (
		SELECT date_bin($4, at, $2) AS bin, ` + sumOfVitals + `,
			lag(max(boots)) OVER (ORDER BY date_bin($4, at, $2)) AS before
		FROM points
		GROUP BY bin
	) steps
	WHERE true`

// sumOfVitals aggregates the points of one device over a longer step.
const sumOfVitals = `sum(beats)::int AS beats,
	coalesce(min(nullif(heap_free, 0)), 0) AS heap_free, coalesce(min(nullif(heap_min, 0)), 0) AS heap_min,
		coalesce(min(nullif(heap_largest, 0)), 0) AS heap_largest,
	(array_agg(uptime ORDER BY at DESC))[1] AS uptime, max(reconnects) AS reconnects, max(boots) AS boots,
	max(temperature) AS temperature, min(rssi) AS rssi,
	bool_or(restarted) OR (min(nullif(boots, 0)) < max(boots)) IS TRUE AS restarted`

// vitalsStepsSeen is how far back steps of five minutes are searched: a few days longer than they
// are kept, in case the roll-up is late.
const vitalsStepsSeen = telemetry.VitalsStepsKept + 4*24*time.Hour

// VitalsHistory returns points at intervals of at least step, oldest first. For times before
// [telemetry.VitalsStepsKept] there are only hours.
func (s *Store) VitalsHistory(ctx context.Context, id fleet.DeviceID, since, until time.Time, step time.Duration) (
	[]telemetry.VitalsPoint, error) {
	since = since.UTC().Truncate(step) // steps begin at the same times for every query
	scoped, args := scopedTo(ctx, "$1", cleanText(string(id)), since, until.UTC(), step, telemetry.VitalsStep,
		time.Now().Add(-vitalsStepsSeen))
	rows, _ := s.db.Query(ctx, selectVitalsHistory+scoped+` ORDER BY bin`, args...)
	list, err := pgx.CollectRows(rows, scanVitalsPoint)
	if err != nil {
		return nil, fmt.Errorf("history of device %s: %w", id, domainError(err))
	}
	return list, nil
}

func scanVitalsPoint(row pgx.CollectableRow) (telemetry.VitalsPoint, error) {
	var p telemetry.VitalsPoint
	var uptime int64
	err := row.Scan(&p.At, &p.Beats, &p.HeapFree, &p.HeapMin, &p.HeapLargest, &p.RSSI, &p.Temperature, &p.Reconnects,
		&uptime, &p.Boots, &p.Restarted)
	p.At, p.Uptime = p.At.UTC(), time.Duration(uptime)*time.Second
	return p, err
}

// ensureVitalsPartitions creates the partitions of the coming days.
func (s *Store) ensureVitalsPartitions(ctx context.Context, now time.Time) (made int, err error) {
	if err := s.db.QueryRow(ctx, `SELECT ensure_vitals_partitions($1)`, now).Scan(&made); err != nil {
		return 0, fmt.Errorf("make partitions of vitals: %w", domainError(err))
	}
	return made, nil
}

// dropVitals removes the history before the cutoff: whole days, and the rows in the default
// partition.
func (s *Store) dropVitals(ctx context.Context, cutoff time.Time) (removed int64, err error) {
	if err := s.db.QueryRow(ctx, `SELECT drop_vitals_before($1)`, cutoff).Scan(&removed); err != nil {
		return 0, fmt.Errorf("drop old partitions of vitals: %w", domainError(err))
	}
	for _, table := range []string{"vitals_points_default", "vitals_hours_default"} {
		deleted, err := s.deleteBefore(ctx, table, "at", cutoff)
		if err != nil {
			return removed, err
		}
		removed += deleted
	}
	return removed, nil
}
