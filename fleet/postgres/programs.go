package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
)

// SaveProgram stores a plug-in or an endpoint as a device in service, with the version that it
// reports.
func (s *Store) SaveProgram(ctx context.Context, id fleet.DeviceID, kind fleet.DeviceKind, version string,
	at time.Time) error {
	_, err := s.db.Exec(ctx, `
		INSERT INTO devices (id, kind, enrolment, enrolled_at, created_at, presence_since, version, version_key)
		VALUES ($1, $2, 'enrolled', $3, $3, $3, $4, $5)
		ON CONFLICT (id) DO UPDATE SET retired_at = NULL, replaced_by = NULL, enrolment = 'enrolled',
			version = CASE WHEN $4 = '' THEN devices.version ELSE $4 END,
			version_key = CASE WHEN $4 = '' THEN devices.version_key ELSE $5 END`,
		id, string(kind), at, cleanText(version), fleet.VersionKey(version))
	if err != nil {
		return fmt.Errorf("device %s: %w", id, domainError(err))
	}
	return nil
}

// RetireProgram retires the device of a plug-in or an endpoint that was removed. What comes back
// under its name later is another program, so its trusted tools are forgotten.
func (s *Store) RetireProgram(ctx context.Context, id fleet.DeviceID, at time.Time) error {
	err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		for _, sql := range []string{`DELETE FROM tool_quarantines WHERE device_id = $1`,
			`DELETE FROM trusted_tools WHERE device_id = $1`} {
			if _, err := tx.Exec(ctx, sql, id); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, `
			UPDATE devices SET retired_at = $2 WHERE id = $1 AND retired_at IS NULL AND kind <> 'esp32'`, id, at)
		return err
	})
	if err != nil {
		return fmt.Errorf("device %s: %w", id, domainError(err))
	}
	return nil
}

// Programs returns the ids of the devices in service of a kind, by id.
func (s *Store) Programs(ctx context.Context, kind fleet.DeviceKind) ([]fleet.DeviceID, error) {
	// The ids of programs begin with their kind, and an index finds them among many devices.
	rows, _ := s.db.Query(ctx, `SELECT id FROM devices WHERE kind = $1 AND id LIKE $2 AND in_service ORDER BY id`,
		string(kind), string(kind)+".%")
	ids, err := pgx.CollectRows(rows, pgx.RowTo[fleet.DeviceID])
	if err != nil {
		return nil, fmt.Errorf("devices of kind %s: %w", kind, domainError(err))
	}
	return ids, nil
}
