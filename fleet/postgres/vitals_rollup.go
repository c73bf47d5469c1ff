package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet/telemetry"
)

// hoursOfVitals moves points into the table of hours. It merges late points with an hour that is
// already there.
const hoursOfVitals = `
	INSERT INTO vitals_hours AS p (` + vitalsPointColumns + `)
	SELECT at, beats, heap_free, heap_min, heap_largest, uptime, reconnects, boots, temperature, rssi, restarted, device_id
	FROM (
		SELECT date_trunc('hour', at, 'UTC') AS at, device_id, ` + sumOfVitals + `
		FROM %s AS points
		GROUP BY device_id, date_trunc('hour', at, 'UTC')
		ORDER BY device_id, date_trunc('hour', at, 'UTC')
	) hours` + mergeVitalsPoints

// RollUpVitals converts the steps that are older than [telemetry.VitalsStepsKept] to hours, whole
// days at a time, and reports how many days. Moved steps are deleted, so an interrupted run
// resumes where it stopped.
func (s *Store) RollUpVitals(ctx context.Context, now time.Time) (days int, err error) {
	cutoff := now.Add(-telemetry.VitalsStepsKept).UTC().Truncate(24 * time.Hour)
	for ; err == nil; days++ {
		err = pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error { return rollUpDay(ctx, tx, cutoff) })
	}
	days--
	if !errors.Is(err, pgx.ErrNoRows) {
		return days, fmt.Errorf("make hours of old vitals: %w", domainError(err))
	}
	_, err = s.db.Exec(ctx, `WITH late AS (DELETE FROM vitals_points_default WHERE at < $1 RETURNING *)`+
		fmt.Sprintf(hoursOfVitals, "late"), cutoff)
	if err != nil {
		return days, fmt.Errorf("make hours of late vitals: %w", domainError(err))
	}
	return days, nil
}

// rollUpDay replaces the oldest day of steps before the cutoff by its hours, or returns
// [pgx.ErrNoRows]. Readers wait only for its end, and for at most 2 s; otherwise the day is left
// to the next run.
func rollUpDay(ctx context.Context, tx pgx.Tx, cutoff time.Time) error {
	var part string
	var day time.Time
	if err := tx.QueryRow(ctx, `SELECT part, day FROM vitals_days_before('vitals_points', $1) LIMIT 1`, cutoff).Scan(&part,
		&day); err != nil {
		return err
	}
	part = pgx.Identifier{part}.Sanitize()
	for _, statement := range []string{
		`SET LOCAL lock_timeout = '2s'`,
		`LOCK TABLE ` + part + ` IN SHARE ROW EXCLUSIVE MODE`,
		`SELECT ensure_vitals_day('vitals_hours', '` + day.Format(time.DateOnly) + `', 100)`,
		fmt.Sprintf(hoursOfVitals, part),
		`DROP TABLE ` + part,
	} {
		if _, err := tx.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}
