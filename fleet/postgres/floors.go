package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

var _ firmware.FloorStore = (*Store)(nil)

// Floors lists the minimum versions of boards, by board.
func (s *Store) Floors(ctx context.Context) ([]firmware.Floor, error) {
	rows, _ := s.db.Query(ctx, `SELECT board, version, set_by, set_at FROM board_floors ORDER BY board`)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByName[firmware.Floor])
	if err != nil {
		return nil, fmt.Errorf("least versions of boards: %w", domainError(err))
	}
	return all, nil
}

// PutFloor sets the minimum version of a board, replacing its previous one.
func (s *Store) PutFloor(ctx context.Context, by fleet.Principal, f firmware.Floor) error {
	detail := map[string]any{"version": f.Version}
	return s.audited(ctx, by, "floor.set", f.Board, detail, func(tx pgx.Tx) error {
		var before *string
		err := tx.QueryRow(ctx, `
			WITH old AS (SELECT version FROM board_floors WHERE board = $1 FOR UPDATE), new AS (
				INSERT INTO board_floors (board, version, set_by, set_at) VALUES ($1, $2, $3, $4)
				ON CONFLICT (board) DO UPDATE SET version = excluded.version, set_by = excluded.set_by, set_at = excluded.set_at)
			SELECT (SELECT version FROM old)`, cleanText(f.Board), cleanText(f.Version), storableJSON(f.SetBy),
			f.SetAt).Scan(&before)
		if before != nil {
			detail["before"] = *before
		}
		return err
	})
}

// DeleteFloor removes the minimum version of a board, or returns [fleet.ErrNotFound] if it has
// none.
func (s *Store) DeleteFloor(ctx context.Context, by fleet.Principal, board string) error {
	detail := map[string]any{}
	return s.audited(ctx, by, "floor.clear", board, detail, func(tx pgx.Tx) error {
		var before string
		err := tx.QueryRow(ctx, `DELETE FROM board_floors WHERE board = $1 RETURNING version`, cleanText(board)).Scan(&before)
		detail["before"] = before
		return err
	})
}
