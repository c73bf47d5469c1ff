package postgres

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
)

var _ fleet.BulkStore = (*Store)(nil)

// ChangeDevices changes many devices in one transaction. It locks them in the order of their ids;
// otherwise two concurrent changes could deadlock.
func (s *Store) ChangeDevices(ctx context.Context, by fleet.Principal, ids []fleet.DeviceID, plan fleet.BulkPlan,
	last func() error) error {
	err := again(func() error {
		return pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
			first := true
			for page := range slices.Chunk(ids, fleet.BulkPage) {
				devices, err := lockDevices(ctx, tx, page)
				if err != nil {
					return err
				}
				c, err := plan(first, page, devices)
				if err != nil {
					return err
				}
				if err := changeDevices(ctx, tx, by, c); err != nil {
					return err
				}
				first = false
			}
			return last()
		})
	})
	if err != nil {
		return fmt.Errorf("change %d devices: %w", len(ids), domainError(err))
	}
	return nil
}

func lockDevices(ctx context.Context, tx pgx.Tx, ids []fleet.DeviceID) ([]fleet.Device, error) {
	var w where
	w.and("id = ANY (?)", ids)
	w.scope(ctx)
	rows, _ := tx.Query(ctx, `SELECT `+w.deviceColumns(ctx)+` FROM devices`+w.String()+` ORDER BY id FOR UPDATE`,
		w.args...)
	return pgx.CollectRows(rows, scanPlainDevice)
}

// changeDevices writes one page of changes and their audit entries.
func changeDevices(ctx context.Context, tx pgx.Tx, by fleet.Principal, c fleet.DeviceChanges) error {
	if len(c.Changes) == 0 {
		return nil
	}
	ids := collect(c.Changes, func(d fleet.DeviceChange) string { return string(d.ID) })
	detail := map[string]any{"bulk": c.Bulk}
	action, err := "device."+string(c.Act), error(nil)
	switch c.Act {
	case fleet.BulkHold:
		detail["reason"], detail["until"] = c.Hold.Reason, c.Hold.Until
		_, err = tx.Exec(ctx, `UPDATE devices SET hold_reason = $2, hold_kind = $3, hold_id = $4, hold_name = $5,
			hold_role = $6, hold_since = $7, hold_until = $8 WHERE id = ANY ($1)`, ids, cleanText(c.Hold.Reason),
			c.Hold.By.Kind, c.Hold.By.ID, cleanText(c.Hold.By.Name), c.Hold.By.Role, c.Hold.Since, c.Hold.Until)
	case fleet.BulkRelease:
		_, err = tx.Exec(ctx, `UPDATE devices SET hold_reason = NULL, hold_kind = NULL, hold_id = NULL, hold_name = NULL,
			hold_role = NULL, hold_since = NULL, hold_until = NULL WHERE id = ANY ($1)`, ids)
	case fleet.BulkRetire:
		_, err = tx.Exec(ctx, `UPDATE devices SET retired_at = $2, replaced_by = NULL, claim_code = ''
			WHERE id = ANY ($1) AND retired_at IS NULL`, ids, c.At)
	default:
		action = "device.update"
		err = patchDevices(ctx, tx, ids, c.Changes)
	}
	if err != nil {
		return err
	}
	return auditMany(ctx, tx, by, action, c.Changes, detail)
}

// patchDevices changes names, notes and tags. A NULL value changes nothing.
func patchDevices(ctx context.Context, tx pgx.Tx, ids []string, changes []fleet.DeviceChange) error {
	var names, nameKeys, notes, tags, tagKeys []*string
	for _, c := range changes {
		var name, nameKey, note, tag, key *string
		if c.Patch.Name != nil {
			name = new(cleanText(*c.Patch.Name))
			nameKey = new(strings.ToLower(*name))
		}
		if c.Patch.Notes != nil {
			note = new(cleanText(*c.Patch.Notes))
		}
		if c.Patch.Tags != nil {
			clean := cleanTexts(*c.Patch.Tags)
			tag, key = new(strings.Join(clean, tagMark)), new(tagsKey(clean))
		}
		names, nameKeys, notes = append(names, name), append(nameKeys, nameKey), append(notes, note)
		tags, tagKeys = append(tags, tag), append(tagKeys, key)
	}
	_, err := tx.Exec(ctx, `
		UPDATE devices d
		SET name = coalesce(n.name, d.name), name_key = coalesce(n.name_key, d.name_key), notes = coalesce(n.notes, d.notes),
			tags = coalesce(string_to_array(n.tags, $7), d.tags), tags_key = coalesce(n.tags_key, d.tags_key)
		FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[])
			AS n (id, name, name_key, notes, tags, tags_key)
		WHERE d.id = n.id`, ids, names, nameKeys, notes, tags, tagKeys, tagMark)
	return err
}

// auditMany writes an entry for each change, with the shared detail and the device's new values.
func auditMany(ctx context.Context, tx pgx.Tx, by fleet.Principal, action string, changes []fleet.DeviceChange,
	shared map[string]any) error {
	rows := make([]auditNote, len(changes))
	for i, c := range changes {
		detail := maps.Clone(shared)
		if detail == nil {
			detail = map[string]any{}
		}
		if c.Patch.Name != nil {
			detail["name"] = *c.Patch.Name
		}
		if c.Patch.Notes != nil {
			detail["notes"] = *c.Patch.Notes
		}
		if c.Patch.Tags != nil {
			detail["tags"] = *c.Patch.Tags
		}
		rows[i] = auditNote{string(c.ID), detail}
	}
	return writeAudits(ctx, tx, by, action, rows)
}
