package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/redaction"
)

var _ redaction.Store = (*Store)(nil)

type redactionRow struct {
	ID        uuid.UUID
	Tool      string
	Path      string
	Note      string
	Revision  int64
	CreatedBy string
	CreatedAt time.Time
	UpdatedBy string
	UpdatedAt time.Time
}

func (r redactionRow) rule() redaction.Rule { return redaction.Rule(r) }

// Redactions returns the rules, by tool and path, and the version of the table, in one snapshot.
func (s *Store) Redactions(ctx context.Context) (rules []redaction.Rule, version int64, err error) {
	err = pgx.BeginTxFunc(ctx, s.db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly},
		func(tx pgx.Tx) error {
			if err := tx.QueryRow(ctx, `SELECT version FROM redaction_version`).Scan(&version); err != nil {
				return err
			}
			rows, _ := tx.Query(ctx, `
				SELECT id, tool, path, note, revision, created_by, created_at, updated_by, updated_at
				FROM redactions ORDER BY tool, path`)
			list, err := pgx.CollectRows(rows, pgx.RowToStructByName[redactionRow])
			rules = collect(list, redactionRow.rule)
			return err
		})
	if err != nil {
		return nil, 0, fmt.Errorf("redaction rules: %w", domainError(err))
	}
	return rules, version, nil
}

// RedactionVersion returns the version of the table.
func (s *Store) RedactionVersion(ctx context.Context) (version int64, err error) {
	if err := s.db.QueryRow(ctx, `SELECT version FROM redaction_version`).Scan(&version); err != nil {
		return 0, fmt.Errorf("version of the redaction rules: %w", domainError(err))
	}
	return version, nil
}

// changeRedactions changes the table and increments its version, if the current version is the one that
// the change is based on.
func (s *Store) changeRedactions(ctx context.Context, by fleet.Principal, version int64, action string, id uuid.UUID,
	before, after *redaction.Rule, change func(pgx.Tx) error) error {
	detail := map[string]any{}
	if before != nil {
		detail["before"] = before.Detail()
	}
	if after != nil {
		detail["after"] = after.Detail()
	}
	return s.audited(ctx, by, action, id.String(), detail, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `UPDATE redaction_version SET version = version + 1 WHERE version = $1`, version)
		switch {
		case err != nil:
			return err
		case tag.RowsAffected() == 0:
			return fleet.Refuse(fleet.ErrConflict, "redaction_changed", "revision", 0)
		}
		return change(tx)
	})
}

// CreateRedaction adds a rule.
func (s *Store) CreateRedaction(ctx context.Context, by fleet.Principal, version int64, r redaction.Rule) error {
	return s.changeRedactions(ctx, by, version, "redaction.create", r.ID, nil, &r, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO redactions (id, tool, path, note, revision, created_by, created_at, updated_by, updated_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
			r.ID, cleanText(r.Tool), cleanText(r.Path), cleanText(r.Note), r.Revision, cleanText(r.CreatedBy), r.CreatedAt,
			cleanText(r.UpdatedBy), r.UpdatedAt)
		return err
	})
}

// UpdateRedaction stores a changed rule.
func (s *Store) UpdateRedaction(ctx context.Context, by fleet.Principal, version int64, before,
	r redaction.Rule) error {
	return s.changeRedactions(ctx, by, version, "redaction.update", r.ID, &before, &r, func(tx pgx.Tx) error {
		return changeOne(ctx, tx, `
			UPDATE redactions SET tool = $2, path = $3, note = $4, revision = $5, updated_by = $6, updated_at = $7
			WHERE id = $1`,
			r.ID, cleanText(r.Tool), cleanText(r.Path), cleanText(r.Note), r.Revision, cleanText(r.UpdatedBy), r.UpdatedAt)
	})
}

// DeleteRedaction removes a rule.
func (s *Store) DeleteRedaction(ctx context.Context, by fleet.Principal, version int64, r redaction.Rule) error {
	return s.changeRedactions(ctx, by, version, "redaction.delete", r.ID, &r, nil, func(tx pgx.Tx) error {
		return changeOne(ctx, tx, `DELETE FROM redactions WHERE id = $1`, r.ID)
	})
}
