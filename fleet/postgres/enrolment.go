package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/record"
)

var _ enrolment.Store = (*Store)(nil)

// Admissions returns the admission of every device that connects with credentials, including
// retired ones: enrolment holds them in memory.
func (s *Store) Admissions(ctx context.Context) ([]enrolment.Admission, error) {
	rows, _ := s.db.Query(ctx, `
		SELECT id AS device, kind = 'mqtt5' AS mqtt5, enrolment, client_id, new_client_id, refused_client_id AS refused,
			credentials_revoked AS revoked,
			device_key AS key, serial, claim_code, challenge,
			CASE WHEN claim_code <> '' THEN remote_addr ELSE '' END AS remote_addr, retired_at IS NOT NULL AS retired,
			transport_choice AS transport, transport_given AS given,
			elf_sha256, version, inventory_elf, coalesce(inventory_at, '0001-01-01 00:00:00Z') AS inventory_at,
			CASE WHEN chip = '' AND partition_labels IS NULL THEN EXISTS (SELECT FROM device_facts f
				WHERE f.device_id = devices.id AND NOT f.broken AND f.body IS NOT NULL) ELSE false END AS software
		FROM devices
		WHERE kind IN ('esp32', 'mqtt5')`)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[enrolment.Admission])
	if err != nil {
		return nil, fmt.Errorf("admissions: %w", domainError(err))
	}
	return list, nil
}

// SaveAdmission stores an operator's decision about a device.
func (s *Store) SaveAdmission(ctx context.Context, by fleet.Principal, action string, a enrolment.Admission,
	at time.Time) error {
	detail := map[string]any{"enrolment": a.Enrolment, "client": fleet.ClientTag(a.ClientID)}
	return s.audited(ctx, by, action, string(a.Device), detail, func(tx pgx.Tx) error {
		return saveAdmission(ctx, tx, a, at)
	})
}

// CreateDevice stores a device that an operator created.
func (s *Store) CreateDevice(ctx context.Context, by fleet.Principal, a enrolment.Admission, name string,
	at time.Time) error {
	return s.audited(ctx, by, "device.create", string(a.Device), map[string]any{"kind": fleet.DeviceMQTT5},
		func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `
				INSERT INTO devices (id, kind, name, name_key, enrolment, enrolled_at, serial, presence_since, created_at)
				VALUES ($1, 'mqtt5', $2, lower($2), $3, $4, $5, $4, $4)`,
				a.Device, cleanText(name), string(a.Enrolment), at, a.Serial)
			return err
		})
}

func saveAdmission(ctx context.Context, tx pgx.Tx, a enrolment.Admission, at time.Time) error {
	return changeOne(ctx, tx, `
		UPDATE devices SET enrolment = $2, client_id = $3, new_client_id = $4, serial = $5, claim_code = $6,
			challenge = $7, device_key = $9, refused_client_id = $10, credentials_revoked = $11,
			enrolled_at = CASE WHEN $2 = 'enrolled' THEN coalesce(enrolled_at, $8) ELSE enrolled_at END
		WHERE id = $1`,
		a.Device, string(a.Enrolment), cleanText(a.ClientID), cleanText(a.NewClientID), a.Serial, a.ClaimCode,
		cleanText(a.Challenge), at, a.Key, cleanText(a.Refused), a.Revoked)
}

// ForgetWaiting deletes waiting devices that were never enrolled and have not polled since the
// given time: anybody can create such rows by polling.
func (s *Store) ForgetWaiting(ctx context.Context, before time.Time) ([]fleet.DeviceID, error) {
	var gone []fleet.DeviceID
	err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, `
			SELECT id FROM devices
			WHERE enrolment = 'waiting' AND enrolled_at IS NULL AND retired_at IS NULL
				AND coalesce(greatest(last_poll, last_seen), created_at) < $1
			ORDER BY id FOR UPDATE`, before)
		var err error
		if gone, err = pgx.CollectRows(rows, pgx.RowTo[fleet.DeviceID]); err != nil || len(gone) == 0 {
			return err
		}
		return deleteDevices(ctx, tx, gone)
	})
	if err != nil {
		return nil, fmt.Errorf("forget waiting devices: %w", domainError(err))
	}
	return gone, nil
}

// DropWaiting deletes those of the devices that are waiting and were never enrolled.
func (s *Store) DropWaiting(ctx context.Context, ids []fleet.DeviceID) error {
	err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, `
			SELECT id FROM devices
			WHERE id = ANY ($1) AND enrolment = 'waiting' AND enrolled_at IS NULL AND retired_at IS NULL
			ORDER BY id FOR UPDATE`, ids)
		gone, err := pgx.CollectRows(rows, pgx.RowTo[fleet.DeviceID])
		if err != nil || len(gone) == 0 {
			return err
		}
		return deleteDevices(ctx, tx, gone)
	})
	if err != nil {
		return fmt.Errorf("drop %d waiting devices: %w", len(ids), domainError(err))
	}
	return nil
}

// deleteDevices deletes devices that were never enrolled; few tables refer to them.
func deleteDevices(ctx context.Context, tx pgx.Tx, ids []fleet.DeviceID) error {
	for _, table := range []string{"device_facts", "device_firmware", "device_inventories", "connections", "presence_changes",
		"report_changes", "device_versions"} {
		if _, err := tx.Exec(ctx, `DELETE FROM `+table+` WHERE device_id = ANY ($1)`, ids); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(ctx, `DELETE FROM devices WHERE id = ANY ($1)`, ids); err != nil {
		return err
	}
	now := time.Now()
	return queueRemoval(ctx, tx, collect(ids, func(id fleet.DeviceID) record.Leaf {
		return record.Rowless(record.Forgotten, string(id), now)
	})...)
}
