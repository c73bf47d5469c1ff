package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
)

var _ enrolment.SerialStore = (*Store)(nil)

// SerialKeys returns every serial number on record: enrolment holds them in
// memory.
func (s *Store) SerialKeys(ctx context.Context) ([]enrolment.SerialKey, error) {
	rows, _ := s.db.Query(ctx, `
		SELECT serial, sealed_key, loaded_at, loaded_by, device_id AS device, bound_at, wrong_proofs, wrong_at,
			conflict_device, conflict_at
		FROM serial_keys`)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[enrolment.SerialKey])
	if err != nil {
		return nil, fmt.Errorf("serial numbers: %w", domainError(err))
	}
	return list, nil
}

// AddSerials adds serial numbers, all or none.
func (s *Store) AddSerials(ctx context.Context, by fleet.Principal, keys []enrolment.SerialKey) error {
	serials, sealed := make([]string, len(keys)), make([][]byte, len(keys))
	for i, k := range keys {
		serials[i], sealed[i] = k.Serial, k.SealedKey
	}
	detail := map[string]any{"count": len(keys)}
	return s.audited(ctx, by, "serials.load", "", detail, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO serial_keys (serial, sealed_key, loaded_at, loaded_by)
			SELECT serial, sealed_key, $3, $4 FROM unnest($1::text[], $2::bytea[]) AS u (serial, sealed_key)`,
			serials, sealed, keys[0].LoadedAt, cleanText(keys[0].LoadedBy))
		return err
	})
}

// BindSerial binds a serial number to the device that proved it.
func (s *Store) BindSerial(ctx context.Context, by fleet.Principal, serial string, device fleet.DeviceID,
	at time.Time) error {
	return s.audited(ctx, by, "serial.bind", serial, map[string]any{"device": device}, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			UPDATE serial_keys SET device_id = $2, bound_at = coalesce(bound_at, $3) WHERE serial = $1 AND device_id IN ('',
				$2)`,
			serial, device, at)
		if err == nil && tag.RowsAffected() == 0 {
			return fleet.ErrConflict
		}
		return err
	})
}

// SetSerialConflict stores a second device that proved the serial number.
func (s *Store) SetSerialConflict(ctx context.Context, by fleet.Principal, serial string, device fleet.DeviceID,
	at time.Time) error {
	return s.audited(ctx, by, "serial.conflict", serial, map[string]any{"device": device}, func(tx pgx.Tx) error {
		return changeOne(ctx, tx, `UPDATE serial_keys SET conflict_device = $2, conflict_at = $3 WHERE serial = $1`, serial,
			device, at)
	})
}

// ReleaseSerial ends a serial number's binding and conflict.
func (s *Store) ReleaseSerial(ctx context.Context, by fleet.Principal, serial string) error {
	return s.audited(ctx, by, "serial.release", serial, nil, func(tx pgx.Tx) error {
		return changeOne(ctx, tx, `
			UPDATE serial_keys SET device_id = '', bound_at = NULL, conflict_device = '', conflict_at = NULL WHERE serial = $1`,
			serial)
	})
}

// DeleteSerial deletes a serial number and its key.
func (s *Store) DeleteSerial(ctx context.Context, by fleet.Principal, serial string) error {
	return s.audited(ctx, by, "serial.delete", serial, nil, func(tx pgx.Tx) error {
		return changeOne(ctx, tx, `DELETE FROM serial_keys WHERE serial = $1`, serial)
	})
}

// SaveWrongProofs stores counts of wrong proofs.
func (s *Store) SaveWrongProofs(ctx context.Context, counts []enrolment.WrongProofs) error {
	serials, ns, at := make([]string, len(counts)), make([]int64, len(counts)), make([]time.Time, len(counts))
	for i, c := range counts {
		serials[i], ns[i], at[i] = c.Serial, c.Count, c.At
	}
	_, err := s.db.Exec(ctx, `
		UPDATE serial_keys k SET wrong_proofs = greatest(k.wrong_proofs, u.n), wrong_at = greatest(k.wrong_at, u.at)
		FROM unnest($1::text[], $2::bigint[], $3::timestamptz[]) AS u (serial, n, at)
		WHERE k.serial = u.serial`, serials, ns, at)
	if err != nil {
		return fmt.Errorf("wrong proofs: %w", domainError(err))
	}
	return nil
}
