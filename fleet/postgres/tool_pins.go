package postgres

import (
	"context"
	"encoding/hex"
	"fmt"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/policy"
)

var _ policy.ToolPinStore = (*Store)(nil)

// ToolPins lists the pins by tool.
func (s *Store) ToolPins(ctx context.Context) ([]policy.ToolPin, error) {
	rows, _ := s.db.Query(ctx, `SELECT tool, digest, pinned_by, pinned_at FROM tool_pins ORDER BY tool`)
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p policy.ToolPin, err error) {
		var digest []byte
		err = row.Scan(&p.Tool, &digest, &p.PinnedBy, &p.PinnedAt)
		copy(p.Digest[:], digest)
		return p, err
	})
	if err != nil {
		return nil, fmt.Errorf("tool pins: %w", domainError(err))
	}
	return list, nil
}

// SaveToolPin stores a pin, replacing the tool's previous one. It ends the quarantines of the tool
// with the pinned digest, and releases its definition.
func (s *Store) SaveToolPin(ctx context.Context, by fleet.Principal, p policy.ToolPin, device fleet.DeviceID) error {
	detail := map[string]any{"digest": hex.EncodeToString(p.Digest[:]), "device": device}
	return s.audited(ctx, by, "tool_pin.save", p.Tool, detail, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO tool_pins (tool, digest, pinned_by, pinned_at) VALUES ($1, $2, $3, $4)
			ON CONFLICT (tool) DO UPDATE SET digest = excluded.digest, pinned_by = excluded.pinned_by,
				pinned_at = excluded.pinned_at`, p.Tool, p.Digest[:], cleanText(p.PinnedBy), p.PinnedAt)
		if err != nil {
			return err
		}
		if err := trustReleased(ctx, tx, p.Tool, p.Digest); err != nil {
			return err
		}
		_, err = releaseDefinitions(ctx, tx, by, []string{p.Tool}, [][]byte{p.Digest[:]})
		return err
	})
}

// DeleteToolPin removes a pin, or fails with [fleet.ErrNotFound].
func (s *Store) DeleteToolPin(ctx context.Context, by fleet.Principal, tool string) error {
	return s.audited(ctx, by, "tool_pin.delete", cleanText(tool), nil, func(tx pgx.Tx) error {
		return changeOne(ctx, tx, `DELETE FROM tool_pins WHERE tool = $1`, cleanText(tool))
	})
}
