package postgres

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
)

// UpdateDevice changes name, notes, tags or time zone.
func (s *Store) UpdateDevice(ctx context.Context, by fleet.Principal, id fleet.DeviceID, p fleet.DevicePatch) error {
	set := where{args: []any{id}}
	detail := map[string]any{}
	if p.Name != nil {
		set.and("name = ?", cleanText(*p.Name))
		set.and("name_key = ?", strings.ToLower(cleanText(*p.Name)))
		detail["name"] = *p.Name
	}
	if p.Notes != nil {
		set.and("notes = ?", cleanText(*p.Notes))
		detail["notes"] = *p.Notes
	}
	if p.Tags != nil {
		tags := cleanTexts(*p.Tags)
		set.and("tags = ?", tags)
		set.and("tags_key = ?", tagsKey(tags))
		detail["tags"] = tags
	}
	if p.TimeZone != nil {
		set.and("time_zone = ?", cleanText(*p.TimeZone))
		detail["time_zone"] = *p.TimeZone
	}
	if p.Transport != nil {
		set.and("transport_choice = ?", string(*p.Transport))
		detail["transport"] = *p.Transport
	}
	if len(set.conds) == 0 {
		_, err := s.Device(ctx, id)
		return err
	}
	return s.audited(ctx, by, "device.update", string(id), detail, func(tx pgx.Tx) error {
		return changeOne(ctx, tx, `UPDATE devices SET `+strings.Join(set.conds, ", ")+` WHERE id = $1`, set.args...)
	})
}

func cleanTexts(list []string) []string {
	clean := make([]string, len(list))
	for i, s := range list {
		clean[i] = cleanText(s)
	}
	return clean
}

// SetHold puts a hold on a device, or releases it if h is nil.
func (s *Store) SetHold(ctx context.Context, by fleet.Principal, id fleet.DeviceID, h *fleet.Hold) error {
	if h == nil {
		return s.audited(ctx, by, "device.release", string(id), nil, func(tx pgx.Tx) error {
			return changeOne(ctx, tx, `UPDATE devices SET hold_reason = NULL, hold_kind = NULL, hold_id = NULL, hold_name = NULL,
				hold_role = NULL, hold_since = NULL, hold_until = NULL WHERE id = $1`, id)
		})
	}
	detail := map[string]any{"reason": h.Reason, "until": h.Until}
	return s.audited(ctx, by, "device.hold", string(id), detail, func(tx pgx.Tx) error {
		return changeOne(ctx, tx, `UPDATE devices SET hold_reason = $2, hold_kind = $3, hold_id = $4, hold_name = $5,
			hold_role = $6, hold_since = $7, hold_until = $8 WHERE id = $1`,
			id, cleanText(h.Reason), h.By.Kind, h.By.ID, cleanText(h.By.Name), h.By.Role, h.Since, h.Until)
	})
}

// RetireDevice takes a device out of service.
func (s *Store) RetireDevice(ctx context.Context, by fleet.Principal, id fleet.DeviceID, at time.Time) error {
	return s.audited(ctx, by, "device.retire", string(id), nil, func(tx pgx.Tx) error {
		return retire(ctx, tx, id, "", at)
	})
}

func retire(ctx context.Context, tx pgx.Tx, id, successor fleet.DeviceID, at time.Time) error {
	err := changeOne(ctx, tx, `
		UPDATE devices SET retired_at = $2, replaced_by = nullif($3, ''), claim_code = ''
		WHERE id = $1 AND retired_at IS NULL`, id, at, successor)
	if isNotFound(err) {
		return whyNot(ctx, tx, id)
	}
	return err
}

// whyNot returns the error for a device that cannot be changed: it is unknown, retired or
// replaced.
func whyNot(ctx context.Context, tx pgx.Tx, id fleet.DeviceID) error {
	var successor string
	if err := tx.QueryRow(ctx, `SELECT coalesce(replaced_by, '') FROM devices WHERE id = $1`, id).Scan(
		&successor); err != nil {
		return err
	}
	if successor != "" {
		return fleet.ErrReplaced(id, fleet.DeviceID(successor))
	}
	return fleet.Refuse(fleet.ErrConflict, "device_retired", "device", id)
}

// ReplaceDevice retires old and copies its name, tags, notes, time zone, transport and hold to
// its successor, which must be in service.
func (s *Store) ReplaceDevice(ctx context.Context, by fleet.Principal, old, successor fleet.DeviceID,
	at time.Time) error {
	if old == successor {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_successor.itself")
	}
	detail := map[string]any{"successor": successor}
	both := []string{string(old), string(successor)}
	return s.audited(ctx, by, "device.replace", string(old), detail, func(tx pgx.Tx) error {
		// Concurrent replacements must not share a successor or form a cycle.
		if _, err := tx.Exec(ctx, `SELECT FROM devices WHERE id = ANY ($1) ORDER BY id FOR UPDATE`, both); err != nil {
			return err
		}
		var before string
		err := tx.QueryRow(ctx, `SELECT coalesce((SELECT id FROM devices WHERE replaced_by = $1 LIMIT 1), '')`,
			successor).Scan(&before)
		if err == nil && before != "" {
			err = fleet.ErrSuccessorTaken(successor, fleet.DeviceID(before))
		}
		if err != nil {
			return err
		}
		err = changeOne(ctx, tx, `
			UPDATE devices new
			SET name = o.name, name_key = o.name_key, tags = o.tags, tags_key = o.tags_key, notes = o.notes,
				time_zone = o.time_zone, transport_choice = o.transport_choice,
				hold_reason = o.hold_reason, hold_kind = o.hold_kind, hold_id = o.hold_id, hold_name = o.hold_name,
				hold_role = o.hold_role, hold_since = o.hold_since, hold_until = o.hold_until
			FROM devices o
			WHERE o.id = $1 AND new.id = $2 AND new.id <> o.id AND new.retired_at IS NULL`, old, successor)
		if isNotFound(err) {
			if err := exists(ctx, tx, old); err != nil {
				return err
			}
			return whyNot(ctx, tx, successor)
		}
		if err != nil {
			return err
		}
		return retire(ctx, tx, old, successor, at)
	})
}

func exists(ctx context.Context, tx pgx.Tx, id fleet.DeviceID) error {
	var one int
	return tx.QueryRow(ctx, `SELECT 1 FROM devices WHERE id = $1`, id).Scan(&one)
}
