package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
)

// CreateToken adds an API token.
func (s *Store) CreateToken(ctx context.Context, by fleet.Actor, t fleet.Token) error {
	detail := map[string]any{"name": t.Name, "role": t.Role, "expires_at": t.ExpiresAt}
	return s.audited(ctx, by, "token.create", t.ID.String(), detail, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO tokens (id, name, role, hash, hint, created_by, created_at, last_used_at, expires_at, revoked_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
			t.ID, cleanText(t.Name), t.Role, t.Hash, t.Hint, t.CreatedBy, t.CreatedAt, t.LastUsedAt, t.ExpiresAt, t.RevokedAt)
		return err
	})
}

const tokenColumns = `id, name, role, hash, hint, created_by, created_at, last_used_at, expires_at, revoked_at`

// Tokens lists API tokens, newest first, revoked ones included.
func (s *Store) Tokens(ctx context.Context) ([]fleet.Token, error) {
	rows, _ := s.db.Query(ctx, `SELECT `+tokenColumns+` FROM tokens ORDER BY created_at DESC, id DESC LIMIT $1`, maxPeople)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[fleet.Token])
	if err != nil {
		return nil, fmt.Errorf("tokens: %w", domainError(err))
	}
	return list, nil
}

// TokenByHash finds a token by the SHA-256 of its secret, also a revoked or
// expired one.
func (s *Store) TokenByHash(ctx context.Context, hash []byte) (fleet.Token, error) {
	rows, _ := s.db.Query(ctx, `SELECT `+tokenColumns+` FROM tokens WHERE hash = $1`, hash)
	t, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[fleet.Token])
	if err != nil {
		return fleet.Token{}, fmt.Errorf("token: %w", domainError(err))
	}
	return t, nil
}

// RevokeToken ends a token. One that is revoked already keeps its time.
func (s *Store) RevokeToken(ctx context.Context, by fleet.Actor, id uuid.UUID, at time.Time) error {
	return s.audited(ctx, by, "token.revoke", id.String(), nil, func(tx pgx.Tx) error {
		return changeOne(ctx, tx, `UPDATE tokens SET revoked_at = coalesce(revoked_at, $2) WHERE id = $1`, id, at)
	})
}

// TouchToken notes when a token was last used.
func (s *Store) TouchToken(ctx context.Context, id uuid.UUID, at time.Time) error {
	if err := changeOne(ctx, s.db, `UPDATE tokens SET last_used_at = greatest(last_used_at, $2) WHERE id = $1`, id,
		at); err != nil {
		return fmt.Errorf("token %s: %w", id, domainError(err))
	}
	return nil
}
