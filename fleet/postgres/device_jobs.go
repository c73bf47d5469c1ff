package postgres

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/telemetry"
)

var _ telemetry.JobStore = (*Store)(nil)

// A final outcome does not change unless the device restarted a job of the same name (see
// [telemetry.Job.Restarts]); j is the stored row. A device may name any deployment: only a
// deployment of that device is stored.
const upsertDeviceJobs = `
	INSERT INTO device_jobs AS j (device_id, id, kind, state, percent, code, reason, deployment_id, started_at,
		accepted_at, updated_at, finished_at)
	SELECT u.device, u.id, u.kind, u.state, u.percent, u.code, u.reason, d.id, u.started_at, u.accepted_at,
		u.updated_at, u.finished_at
	FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::smallint[], $6::text[], $7::text[], $8::uuid[],
		$9::timestamptz[], $10::timestamptz[], $11::timestamptz[], $12::timestamptz[])
		AS u (device, id, kind, state, percent, code, reason, deployment, started_at, accepted_at, updated_at, finished_at)
	LEFT JOIN deployments d ON d.id = u.deployment AND d.device_id = u.device
	ON CONFLICT (device_id, id) DO UPDATE SET
		kind = coalesce(nullif(excluded.kind, ''), j.kind), state = excluded.state, code = excluded.code,
			reason = excluded.reason,
		percent = CASE WHEN excluded.state = 'failed' THEN greatest(j.percent, excluded.percent) ELSE excluded.percent END,
		started_at = CASE WHEN j.finished_at IS NULL THEN j.started_at ELSE excluded.started_at END,
			accepted_at = excluded.accepted_at,
		updated_at = excluded.updated_at, finished_at = excluded.finished_at
	WHERE CASE WHEN j.finished_at IS NULL THEN NOT (j.state = 'progress' AND excluded.state = 'accepted')
		ELSE coalesce(excluded.accepted_at > j.updated_at, false) END
	RETURNING device_id, xmax = 0 AS added`

// pruneDeviceJobs deletes all but the newest jobs of each device.
const pruneDeviceJobs = `
	DELETE FROM device_jobs j USING (
		SELECT device_id, id, row_number() OVER (PARTITION BY device_id ORDER BY started_at DESC, id DESC) AS place
		FROM device_jobs WHERE device_id = ANY ($1)) ranked
	WHERE j.device_id = ranked.device_id AND j.id = ranked.id AND ranked.place > $2`

// SaveDeviceJobs creates or updates jobs, and deletes the oldest jobs of devices that have too
// many.
func (s *Store) SaveDeviceJobs(ctx context.Context, jobs []telemetry.Job) error {
	jobs = slices.Clone(jobs)
	slices.SortFunc(jobs, func(a, b telemetry.Job) int {
		return strings.Compare(string(a.Device)+" "+a.ID, string(b.Device)+" "+b.ID)
	})
	err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, upsertDeviceJobs, deviceJobArgs(jobs)...)
		grown, err := grownDevices(rows)
		if err == nil && len(grown) > 0 {
			_, err = tx.Exec(ctx, pruneDeviceJobs, grown, telemetry.MaxDeviceJobs)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("save %d jobs of devices: %w", len(jobs), domainError(err))
	}
	return nil
}

// grownDevices returns the devices that have more jobs than before.
func grownDevices(rows pgx.Rows) (ids []fleet.DeviceID, err error) {
	var id fleet.DeviceID
	var added bool
	_, err = pgx.ForEachRow(rows, []any{&id, &added}, func() error {
		if added {
			ids = append(ids, id)
		}
		return nil
	})
	return ids, err
}

func deviceJobArgs(jobs []telemetry.Job) []any {
	type job = telemetry.Job
	text := func(of func(job) string) []string {
		return collect(jobs, func(j job) string { return cleanText(of(j)) })
	}
	return []any{
		text(func(j job) string { return string(j.Device) }),
		text(func(j job) string { return j.ID }),
		text(func(j job) string { return j.Kind }),
		text(func(j job) string { return string(j.State) }),
		collect(jobs, func(j job) int { return j.Percent }),
		text(func(j job) string { return j.Code }),
		text(func(j job) string { return j.Reason }),
		collect(jobs, func(j job) *uuid.UUID {
			if j.Deployment == (uuid.UUID{}) {
				return nil
			}
			return &j.Deployment
		}),
		collect(jobs, func(j job) time.Time { return cmp.Or(j.StartedAt, j.UpdatedAt) }),
		collect(jobs, func(j job) *time.Time {
			if j.Deployment != (uuid.UUID{}) {
				return nil
			}
			return orNull(j.StartedAt)
		}),
		collect(jobs, func(j job) time.Time { return j.UpdatedAt }),
		collect(jobs, func(j job) *time.Time { return j.FinishedAt }),
	}
}

// DeviceJobs returns the device's jobs, newest first.
func (s *Store) DeviceJobs(ctx context.Context, id fleet.DeviceID, limit int) ([]telemetry.Job, error) {
	scoped, args := scopedBy([]any{cleanText(string(id)), limit}, func(w *where) { w.jobScope(ctx) })
	rows, _ := s.db.Query(ctx, `
		SELECT device_id AS device, id, kind, state, percent, code, reason, coalesce(deployment_id,
			'00000000-0000-0000-0000-000000000000') AS deployment,
			started_at, updated_at, finished_at
		FROM device_jobs WHERE device_id = $1`+scoped+` ORDER BY started_at DESC, id DESC LIMIT $2`, args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[telemetry.Job])
	if err != nil {
		return nil, fmt.Errorf("jobs of device %s: %w", id, domainError(err))
	}
	return list, nil
}
