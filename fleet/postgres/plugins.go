package postgres

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/plugin"
)

var _ plugin.Store = (*Store)(nil)

// Plugins returns the plug-ins of the database, by name.
func (s *Store) Plugins(ctx context.Context) ([]plugin.Stored, error) {
	rows, _ := s.db.Query(ctx, `SELECT name, manifest, env, version, updated_by, updated_at FROM plugins ORDER BY name`)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[plugin.Stored])
	if err != nil {
		return nil, fmt.Errorf("plug-ins: %w", domainError(err))
	}
	return list, nil
}

// pluginDetail is what the audit keeps of a plug-in: no values of variables.
func pluginDetail(p plugin.Stored) map[string]any {
	return map[string]any{"command": p.Manifest.Command, "args": p.Manifest.Args, "url": p.Manifest.URL,
		"tools": p.Manifest.Tools, "audience": p.Manifest.Audience, "offer_to_voice": p.Manifest.OfferToVoice,
		"disabled": p.Manifest.Disabled, "version": p.Version}
}

// CreatePlugin stores a plug-in, or fails with [fleet.ErrConflict] if its name is taken.
func (s *Store) CreatePlugin(ctx context.Context, by fleet.Principal, p plugin.Stored) error {
	return s.writePlugin(ctx, by, "plugin.create", p, `
		INSERT INTO plugins (name, manifest, env, version, updated_by, updated_at) VALUES ($1, $2, $3, $4, $5, $6)`)
}

// UpdatePlugin replaces a plug-in whose version is one less.
func (s *Store) UpdatePlugin(ctx context.Context, by fleet.Principal, p plugin.Stored) error {
	return s.writePlugin(ctx, by, "plugin.update", p, `
		UPDATE plugins SET manifest = $2, env = $3, version = $4, updated_by = $5, updated_at = $6
		WHERE name = $1 AND version = $4 - 1`)
}

func (s *Store) writePlugin(ctx context.Context, by fleet.Principal, action string, p plugin.Stored, sql string) error {
	manifest, err := json.Marshal(p.Manifest)
	if err != nil {
		return err
	}
	clean := cleanJSON(manifest)
	if clean == nil {
		return fleet.Refuse(fleet.ErrInvalid, "plugin_field.text", "field", "command", "limit", 4<<10)
	}
	return s.audited(ctx, by, action, p.Name, pluginDetail(p), func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, sql, p.Name, *clean, p.Env, p.Version, cleanText(p.UpdatedBy), p.UpdatedAt)
		if err == nil && tag.RowsAffected() == 0 {
			return fleet.Refuse(fleet.ErrConflict, "plugin_changed", "plugin", p.Name, "version", p.Version)
		}
		return err
	})
}

// DeletePlugin removes a plug-in, or fails with [fleet.ErrNotFound].
func (s *Store) DeletePlugin(ctx context.Context, by fleet.Principal, name string) error {
	return s.audited(ctx, by, "plugin.delete", cleanText(name), nil, func(tx pgx.Tx) error {
		return changeOne(ctx, tx, `DELETE FROM plugins WHERE name = $1`, cleanText(name))
	})
}

// RestartPlugin audits that a plug-in was started again.
func (s *Store) RestartPlugin(ctx context.Context, by fleet.Principal, name string) error {
	return s.audited(ctx, by, "plugin.restart", cleanText(name), nil, func(pgx.Tx) error { return nil })
}
