package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
)

var _ enrolment.KeyStore = (*Store)(nil)

// LatestRotation returns the latest rotation of the signing key with the keys on record, in one
// snapshot.
func (s *Store) LatestRotation(ctx context.Context) (r enrolment.KeyRotation, keys []enrolment.SigningKey, err error) {
	err = pgx.BeginTxFunc(ctx, s.db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly},
		func(tx pgx.Tx) error {
			rows, _ := tx.Query(ctx, `
			SELECT id, from_generation, to_generation, state, started_at, started_by, ended_at, ended_by, left_behind
			FROM key_rotations ORDER BY id DESC LIMIT 1`)
			var err error
			if r, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[enrolment.KeyRotation]); err != nil {
				return err
			}
			rows, _ = tx.Query(ctx, `SELECT generation, sealed_key, created_at FROM signing_keys`)
			keys, err = pgx.CollectRows(rows, pgx.RowToStructByName[enrolment.SigningKey])
			return err
		})
	if err != nil {
		return enrolment.KeyRotation{}, nil, fmt.Errorf("key rotation: %w", domainError(err))
	}
	return r, keys, nil
}

// StartRotation stores a rotation and its new key.
func (s *Store) StartRotation(ctx context.Context, by fleet.Principal, r enrolment.KeyRotation,
	key enrolment.SigningKey) error {
	return s.audited(ctx, by, "keys.rotate", "", rotationDetail(r), func(tx pgx.Tx) error {
		return insertRotation(ctx, tx,
			r, key)
	})
}

func rotationDetail(r enrolment.KeyRotation) map[string]any {
	return map[string]any{"from": r.FromGeneration, "to": r.ToGeneration, "state": r.State, "left_behind": r.LeftBehind}
}

func insertRotation(ctx context.Context, tx pgx.Tx, r enrolment.KeyRotation, key enrolment.SigningKey) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO key_rotations (from_generation, to_generation, state, started_at, started_by, ended_at, ended_by)
		VALUES ($1, $2, $3, $4, $5, $6, $7)`,
		r.FromGeneration, r.ToGeneration, r.State, r.StartedAt, cleanText(r.StartedBy), r.EndedAt, cleanText(r.EndedBy))
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `INSERT INTO signing_keys (generation, sealed_key, created_at) VALUES ($1, $2, $3)`,
		key.Generation, key.SealedKey, key.CreatedAt)
	return err
}

// MoveRotation changes a rotation from one state to the next. Ending a rotation deletes the key
// that is refused from then on.
func (s *Store) MoveRotation(ctx context.Context, by fleet.Principal, r enrolment.KeyRotation,
	from enrolment.RotationState) error {
	action := "keys.finish"
	if r.Open() {
		action = "keys.abort"
	}
	return s.audited(ctx, by, action, "", rotationDetail(r), func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			UPDATE key_rotations SET state = $3, ended_at = $4, ended_by = $5, left_behind = $6 WHERE id = $1 AND state = $2`,
			r.ID, from, r.State, r.EndedAt, cleanText(r.EndedBy), r.LeftBehind)
		switch {
		case err != nil:
			return err
		case tag.RowsAffected() == 0:
			return fleet.Refuse(fleet.ErrConflict, "rotation_changed")
		case r.Open():
			return nil
		}
		_, err = tx.Exec(ctx, `DELETE FROM signing_keys WHERE generation = $1`, r.Refuses())
		return err
	})
}

// secretFingerprint is the setting with the fingerprint of the server's secret.
const secretFingerprint = "secret_fingerprint"

// SecretFingerprint returns the fingerprint of the secret that the database is used with; "" if
// none is on record. Without one, used reports whether the database has devices, whose credentials
// derive from a secret. It accepts a database without tables.
func (s *Store) SecretFingerprint(ctx context.Context) (fingerprint string, used bool, err error) {
	var known bool // false before the first migration
	err = s.db.QueryRow(ctx, `SELECT to_regclass('settings') IS NOT NULL AND to_regclass('devices') IS NOT NULL`).Scan(
		&known)
	if err != nil || !known {
		return "", false, domainError(err)
	}
	if err = s.Setting(ctx, secretFingerprint, &fingerprint); !errors.Is(err, fleet.ErrNotFound) {
		return fingerprint, true, err
	}
	err = s.db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM devices)`).Scan(&used)
	return "", used, domainError(err)
}

// InitSecretFingerprint records the fingerprint unless one is on record, and returns the one on
// record.
func (s *Store) InitSecretFingerprint(ctx context.Context, fingerprint string) (string, error) {
	err := s.InitSetting(ctx, secretFingerprint, &fingerprint)
	return fingerprint, err
}

// ResetKeys ends any open rotation, replaces all keys by one, and records the fingerprint of the
// server's secret.
func (s *Store) ResetKeys(ctx context.Context, by fleet.Principal, r enrolment.KeyRotation,
	key enrolment.SigningKey, fingerprint string) error {
	return s.audited(ctx, by, "keys.reset", "", rotationDetail(r), func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE key_rotations SET state = 'aborted', ended_at = $1, ended_by = $2 WHERE ended_at IS NULL`,
			r.StartedAt, cleanText(r.StartedBy))
		if err == nil {
			_, err = tx.Exec(ctx, `DELETE FROM signing_keys`)
		}
		if err == nil {
			_, err = tx.Exec(ctx, `
				INSERT INTO settings (key, value) VALUES ($1, to_jsonb($2::text))
				ON CONFLICT (key) DO UPDATE SET value = excluded.value`, secretFingerprint, fingerprint)
		}
		if err != nil {
			return err
		}
		return insertRotation(ctx, tx, r, key)
	})
}

// SaveKeyUses stores the key generation with which each device connected.
func (s *Store) SaveKeyUses(ctx context.Context, uses map[fleet.DeviceID]enrolment.KeyUse) error {
	var ids []string
	var rotations, generations []int32
	var at []time.Time
	for id, u := range uses {
		ids, rotations, generations, at = append(ids, string(id)), append(rotations, u.Rotation),
			append(generations, u.Generation), append(at, u.At)
	}
	err := again(func() error {
		_, err := s.db.Exec(ctx, `
			INSERT INTO rotation_devices (rotation, device_id, generation, at)
			SELECT rotation, device_id, generation, at
			FROM unnest($1::int[], $2::text[], $3::int[], $4::timestamptz[]) AS u (rotation, device_id, generation, at)
			ORDER BY rotation, device_id
			ON CONFLICT (rotation, device_id) DO UPDATE SET generation = excluded.generation, at = excluded.at
			WHERE rotation_devices.at <= excluded.at`, rotations, ids, generations, at)
		return err
	})
	if err != nil {
		return fmt.Errorf("keys that devices use: %w", domainError(err))
	}
	return nil
}

// KeyUses returns the generation that each device last connected with since
// the rotation began.
func (s *Store) KeyUses(ctx context.Context, rotation int32) (map[fleet.DeviceID]int32, error) {
	rows, _ := s.db.Query(ctx, `SELECT device_id, generation FROM rotation_devices WHERE rotation = $1`, rotation)
	uses := make(map[fleet.DeviceID]int32)
	var id fleet.DeviceID
	var generation int32
	_, err := pgx.ForEachRow(rows, []any{&id, &generation}, func() error {
		uses[id] = generation
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("keys that devices use: %w", domainError(err))
	}
	return uses, nil
}

// rotationGroup is the group of a device in rotation $1 to generation $2, which began at $3. A
// device that has been connected since before that time counts as seen, too.
const rotationGroup = `
	CASE WHEN u.generation = $2 THEN 'new'
		WHEN u.generation IS NOT NULL OR d.presence IN ('online', 'unresponsive', 'unknown_edge')
			OR d.last_seen >= $3 THEN 'old'
		ELSE 'not_seen' END`

const rotationFrom = `
	FROM devices d LEFT JOIN rotation_devices u ON u.rotation = $1 AND u.device_id = d.id
	WHERE d.enrolment = 'enrolled' AND d.in_service`

// RotationCounts counts the devices of a rotation by group.
func (s *Store) RotationCounts(ctx context.Context, r enrolment.KeyRotation) (enrolment.RotationCounts, error) {
	rows, _ := s.db.Query(ctx, `
		SELECT count(*) FILTER (WHERE g = 'new') AS new, count(*) FILTER (WHERE g = 'old') AS old,
			count(*) FILTER (WHERE g = 'not_seen') AS not_seen
		FROM (SELECT `+rotationGroup+` AS g`+rotationFrom+`) x`, r.ID, r.ToGeneration, r.StartedAt)
	c, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[enrolment.RotationCounts])
	if err != nil {
		return c, fmt.Errorf("key rotation: %w", domainError(err))
	}
	return c, nil
}

// RotationDevices lists devices of a rotation by id.
func (s *Store) RotationDevices(ctx context.Context, r enrolment.KeyRotation, f enrolment.RotationFilter) (
	fleet.Page[enrolment.RotationDevice], error) {
	at, err := parseCursor(f.Cursor, "rotation")
	if err != nil {
		return fleet.Page[enrolment.RotationDevice]{}, err
	}
	after := ""
	if at != nil {
		after = at.ID
	}
	limit := fleet.ClampLimit(f.Limit)
	groups := make([]string, len(f.Groups))
	for i, g := range f.Groups {
		groups[i] = string(g)
	}
	rows, _ := s.db.Query(ctx, `
		SELECT d.id AS device, d.name, `+rotationGroup+` AS "group", d.presence, d.last_seen`+rotationFrom+`
			AND d.id > $4 AND (cardinality($5::text[]) = 0 OR `+rotationGroup+` = ANY ($5))
		ORDER BY d.id LIMIT $6`, r.ID, r.ToGeneration, r.StartedAt, after, groups, limit+1)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[enrolment.RotationDevice])
	if err != nil {
		return fleet.Page[enrolment.RotationDevice]{}, fmt.Errorf("devices of a key rotation: %w", domainError(err))
	}
	return makePage(list, limit, nil, func(d enrolment.RotationDevice) cursor {
		return cursor{List: "rotation",
			ID: string(d.Device)}
	}), nil
}
