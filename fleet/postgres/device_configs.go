package postgres

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/telemetry"
)

var _ telemetry.ConfigStore = (*Store)(nil)

// SaveDeviceConfigs stores the configurations that devices report.
func (s *Store) SaveDeviceConfigs(ctx context.Context, latest map[fleet.DeviceID]telemetry.Config) error {
	type config = telemetry.Config
	ids := slices.Sorted(maps.Keys(latest))
	list := collect(ids, func(id fleet.DeviceID) config { return latest[id] })
	_, err := s.db.Exec(ctx, `
		WITH u AS (SELECT * FROM unnest($1::text[], $2::bigint[], $3::bool[], $4::bigint[], $5::text[], $6::timestamptz[])
			AS u (id, version, on_trial, reverted, settings, at)),
		configured AS (INSERT INTO report_changes (device_id, at, code, params)
			SELECT u.id, u.at, 'configured', jsonb_build_object('version', u.version, 'on_trial', u.on_trial::int,
				'reverted', u.reverted)
			FROM u JOIN devices d ON d.id = u.id LEFT JOIN device_configs c ON c.device_id = u.id
			WHERE c.at IS NULL OR c.at <= u.at AND (c.version, c.on_trial, c.reverted) <> (u.version, u.on_trial, u.reverted)
			ON CONFLICT DO NOTHING)
		INSERT INTO device_configs AS c (device_id, version, on_trial, reverted, settings, at)
		SELECT id, version, on_trial, reverted, settings::json, at FROM u
		ON CONFLICT (device_id) DO UPDATE SET version = excluded.version, on_trial = excluded.on_trial,
			reverted = excluded.reverted,
			settings = excluded.settings, at = excluded.at
		WHERE c.at <= excluded.at`, ids,
		collect(list, func(c config) int64 { return c.Version }),
		collect(list, func(c config) bool { return c.OnTrial }),
		collect(list, func(c config) int64 { return c.Reverted }),
		collect(list, func(c config) *string { return storableJSON(c.Values) }),
		collect(list, func(c config) time.Time { return c.At }))
	if err != nil {
		return fmt.Errorf("save configurations of %d devices: %w", len(ids), domainError(err))
	}
	return nil
}

// DeviceConfig returns the device's latest configuration, or [fleet.ErrNotFound].
func (s *Store) DeviceConfig(ctx context.Context, id fleet.DeviceID) (telemetry.Config, error) {
	scoped, args := scopedBy([]any{cleanText(string(id))}, func(w *where) {
		w.reportScope(ctx, fleet.ToolConfigGet, "device_configs.device_id")
	})
	rows, _ := s.db.Query(ctx, `
		SELECT version, on_trial, reverted, settings::text::bytea AS values, at FROM device_configs
		WHERE device_id = $1`+scoped, args...)
	c, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[telemetry.Config])
	if err != nil {
		return c, fmt.Errorf("configuration of device %s: %w", id, domainError(err))
	}
	return c, nil
}
