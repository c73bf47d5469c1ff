package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

var _ campaign.QuarantineStore = (*Store)(nil)

var quarantineColumns = `device_id AS device, ` + reasonColumn("", "reason") + `, since, until`

// inEffect is the condition of a quarantine that is in effect at the time $1.
const inEffect = `cleared_at IS NULL AND until > $1`

// Quarantine excludes a device from all campaigns for a time.
func (s *Store) Quarantine(ctx context.Context, q campaign.Quarantine) error {
	_, err := s.db.Exec(ctx, `
		INSERT INTO quarantines (device_id, reason_code, reason_params, since, until) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (device_id) DO UPDATE SET reason_code = excluded.reason_code,
			reason_params = excluded.reason_params, since = excluded.since, until = excluded.until,
			cleared_at = NULL`,
		cleanText(string(q.Device)), cleanText(q.Reason.Code), reasonParams(q.Reason), q.Since, q.Until)
	if err != nil {
		return fmt.Errorf("quarantine device %s: %w", q.Device, domainError(err))
	}
	return nil
}

// Quarantines lists the current quarantines, latest first.
func (s *Store) Quarantines(ctx context.Context, now time.Time) ([]campaign.Quarantine, error) {
	return s.collectQuarantines(ctx, inEffect, ` ORDER BY since DESC, device_id LIMIT 10000`, now)
}

// QuarantineOf returns a device's current quarantine, or nil if it has none.
func (s *Store) QuarantineOf(ctx context.Context, device fleet.DeviceID, now time.Time) (*campaign.Quarantine, error) {
	list, err := s.collectQuarantines(ctx, inEffect+` AND device_id = $2`, ``, now, cleanText(string(device)))
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return &list[0], nil
}

// QuarantinesOf returns the current quarantines of the devices.
func (s *Store) QuarantinesOf(ctx context.Context, devices []fleet.DeviceID, now time.Time) (
	map[fleet.DeviceID]campaign.Quarantine, error) {
	list, err := s.collectQuarantines(ctx, inEffect+` AND device_id = ANY ($2)`, ``, now, texts(devices))
	of := make(map[fleet.DeviceID]campaign.Quarantine, len(list))
	for _, q := range list {
		of[q.Device] = q
	}
	return of, err
}

func (s *Store) collectQuarantines(ctx context.Context, only, order string, args ...any) ([]campaign.Quarantine,
	error) {
	scoped, args := scopedTo(ctx, "device_id", args...)
	rows, _ := s.db.Query(ctx, `SELECT `+quarantineColumns+` FROM quarantines WHERE `+only+scoped+order, args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[campaign.Quarantine])
	if err != nil {
		return nil, fmt.Errorf("quarantines: %w", domainError(err))
	}
	return list, nil
}

// ClearQuarantine ends a device's quarantine. Its earlier failures no longer count: see
// [Store.FailedAttempts].
func (s *Store) ClearQuarantine(ctx context.Context, by fleet.Principal, device fleet.DeviceID) error {
	return s.audited(ctx, by, "quarantine.clear", string(device), nil, func(tx pgx.Tx) error {
		return changeOne(ctx, tx, `UPDATE quarantines SET cleared_at = $1 WHERE device_id = $2 AND `+inEffect, time.Now(),
			cleanText(string(device)))
	})
}

// FailedAttempts counts a device's failed attempts since the given time, in all campaigns: those
// that ended as a failure, and those to be repeated. It does not count calls that were not sent,
// attempts that fleetd or an operator withdrew, attempts before the device's quarantine was
// cleared, and attempts that were given up and then succeeded late. Events are read deployment by
// deployment (OFFSET 0), because there are millions of them.
func (s *Store) FailedAttempts(ctx context.Context, device fleet.DeviceID, since time.Time) (n int, err error) {
	err = s.db.QueryRow(ctx, `
		SELECT count(DISTINCT (d.id, e.attempt))
		FROM deployments d, LATERAL (
			SELECT attempt FROM deployment_events
			WHERE deployment_id = d.id AND at >= $2 AND attempt > 0 AND NOT (d.late AND attempt = d.attempt)
				AND from_state = ANY ($3)
				AND at > coalesce((SELECT cleared_at FROM quarantines WHERE device_id = $1), '-infinity')
				AND (to_state = ANY ($4) OR to_state = 'queued' AND kind = 'retry') OFFSET 0) e
		WHERE d.device_id = $1 AND d.updated_at >= $2`,
		cleanText(string(device)), since, activeStates, failedStates).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("failed attempts of device %s: %w", device, domainError(err))
	}
	return n, nil
}
