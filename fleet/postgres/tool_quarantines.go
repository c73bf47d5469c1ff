package postgres

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/policy"
)

var _ policy.ToolQuarantineStore = (*Store)(nil)

// ToolQuarantines lists the quarantines by device and tool.
func (s *Store) ToolQuarantines(ctx context.Context) ([]policy.ToolQuarantine, error) {
	rows, _ := s.db.Query(ctx, `SELECT device_id, tool, trusted, digest, since FROM tool_quarantines ORDER BY device_id, tool`)
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (q policy.ToolQuarantine, err error) {
		var trusted, digest []byte
		err = row.Scan(&q.Device, &q.Tool, &trusted, &digest, &q.Since)
		copy(q.Trusted[:], trusted)
		copy(q.Digest[:], digest)
		q.Since = q.Since.UTC()
		return q, err
	})
	if err != nil {
		return nil, fmt.Errorf("quarantines of tools: %w", domainError(err))
	}
	return list, nil
}

// TrustedTools returns the trusted tools of a program, or [fleet.ErrNotFound].
func (s *Store) TrustedTools(ctx context.Context, id fleet.DeviceID) (t policy.TrustedTools, err error) {
	var tools []byte
	err = s.db.QueryRow(ctx, `
		SELECT server_name, server_version, build, definition, tools FROM trusted_tools WHERE device_id = $1`, id).Scan(
		&t.ServerName, &t.ServerVersion, &t.Build, &t.Definition, &tools)
	if err != nil {
		return t, fmt.Errorf("trusted tools of device %s: %w", id, domainError(err))
	}
	var texts map[string]string
	if err := json.Unmarshal(tools, &texts); err != nil {
		return t, fmt.Errorf("trusted tools of device %s: %w", id, err)
	}
	t.Tools = make(map[string]fleet.ToolDigest, len(texts))
	for name, text := range texts {
		if t.Tools[name], err = fleet.ParseToolDigest(text); err != nil {
			return t, fmt.Errorf("trusted tools of device %s: %w", id, err)
		}
	}
	return t, nil
}

// SaveTrustedTools stores the trusted tools of a program, and its quarantines in place of its earlier
// ones.
func (s *Store) SaveTrustedTools(ctx context.Context, id fleet.DeviceID, t policy.TrustedTools,
	list []policy.ToolQuarantine) error {
	texts := make(map[string]string, len(t.Tools))
	for name, digest := range t.Tools {
		texts[name] = hex.EncodeToString(digest[:])
	}
	tools, err := json.Marshal(texts)
	if err != nil {
		return fmt.Errorf("trusted tools of device %s: %w", id, err)
	}
	err = pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `
			INSERT INTO trusted_tools (device_id, server_name, server_version, build, definition, tools)
			VALUES ($1, $2, $3, $4, $5, $6)
			ON CONFLICT (device_id) DO UPDATE SET server_name = excluded.server_name,
				server_version = excluded.server_version, build = excluded.build, definition = excluded.definition,
				tools = excluded.tools`,
			id, cleanText(t.ServerName), cleanText(t.ServerVersion), cleanText(t.Build), t.Definition,
			withoutNUL(string(tools))); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `DELETE FROM tool_quarantines WHERE device_id = $1`, id); err != nil {
			return err
		}
		_, err := tx.CopyFrom(ctx, pgx.Identifier{"tool_quarantines"}, []string{"device_id", "tool", "trusted", "digest", "since"},
			pgx.CopyFromSlice(len(list), func(i int) ([]any, error) {
				q := list[i]
				var trusted []byte
				if !q.IsNew() {
					trusted = q.Trusted[:]
				}
				return []any{string(id), cleanText(q.Tool), trusted, q.Digest[:], q.Since}, nil
			}))
		return err
	})
	if err != nil {
		return fmt.Errorf("trusted tools of device %s: %w", id, domainError(err))
	}
	return nil
}

// ReleaseTool ends a quarantine, trusts its digest and releases its definition, or fails with [fleet.ErrNotFound].
func (s *Store) ReleaseTool(ctx context.Context, by fleet.Principal, q policy.ToolQuarantine) error {
	digest := hex.EncodeToString(q.Digest[:])
	detail := map[string]any{"tool": cleanText(q.Tool), "digest": digest}
	return s.audited(ctx, by, "tool_quarantine.clear", cleanText(string(q.Device)), detail, func(tx pgx.Tx) error {
		if err := changeOne(ctx, tx, `DELETE FROM tool_quarantines WHERE device_id = $1 AND tool = $2 AND digest = $3`,
			cleanText(string(q.Device)), cleanText(q.Tool), q.Digest[:]); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `
			UPDATE trusted_tools SET tools = tools || jsonb_build_object($2::text, $3::text) WHERE device_id = $1`,
			cleanText(string(q.Device)), cleanText(q.Tool), digest)
		if err != nil {
			return err
		}
		_, err = releaseDefinitions(ctx, tx, by, []string{cleanText(q.Tool)}, [][]byte{q.Digest[:]})
		return err
	})
}
