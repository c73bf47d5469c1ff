package postgres

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/telemetry"
)

// UnsteadyVitals returns the vitals of those of the devices that are in safe mode, or have
// crashed since they last stayed up. It reads a row per device: the column has no index, since
// every heartbeat would have to update it.
func (s *Store) UnsteadyVitals(ctx context.Context, ids []fleet.DeviceID) (map[fleet.DeviceID]telemetry.Vitals, error) {
	return s.vitalsOf(ctx, ids, `((vitals->>'safe_mode')::boolean OR (vitals->>'crashes')::bigint > 0)`)
}

// VitalsOf returns the latest vitals of those of the devices that have reported any.
func (s *Store) VitalsOf(ctx context.Context, ids []fleet.DeviceID) (map[fleet.DeviceID]telemetry.Vitals, error) {
	return s.vitalsOf(ctx, ids, "true")
}

func (s *Store) vitalsOf(ctx context.Context, ids []fleet.DeviceID, cond string) (
	map[fleet.DeviceID]telemetry.Vitals, error) {
	scoped, args := scopedTo(ctx, "device_id",
		collect(ids, func(id fleet.DeviceID) string { return cleanText(string(id)) }))
	rows, _ := s.db.Query(ctx, `SELECT device_id, vitals FROM device_vitals WHERE device_id = ANY($1) AND `+cond+scoped,
		args...)
	found := make(map[fleet.DeviceID]telemetry.Vitals)
	var id fleet.DeviceID
	var document []byte
	_, err := pgx.ForEachRow(rows, []any{&id, &document}, func() error {
		var v telemetry.Vitals
		if err := json.Unmarshal(document, &v); err != nil {
			return fmt.Errorf("vitals of device %s: %w", id, err)
		}
		found[id] = v
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("vitals of %d devices: %w", len(ids), domainError(err))
	}
	return found, nil
}
