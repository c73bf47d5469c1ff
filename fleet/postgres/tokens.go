package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/operator"
)

// CreateToken adds an API token.
func (s *Store) CreateToken(ctx context.Context, by fleet.Principal, t operator.Token) error {
	filter, _, tools := scopeColumns(t.Scope)
	detail := map[string]any{"name": t.Name, "kind": t.Kind, "role": t.Role, "scope": filter, "tools": tools,
		"per_minute": t.PerMinute, "expires_at": t.ExpiresAt}
	return s.audited(ctx, by, "token.create", t.ID.String(), detail, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO tokens (id, name, kind, role, scope, tools, per_minute, hash, hint, created_by, created_at, last_used_at,
				expires_at, revoked_at, created_by_kind, created_by_id)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)`,
			t.ID, cleanText(t.Name), t.Kind, t.Role, filter, tools, t.PerMinute, t.Hash, t.Hint, t.CreatedBy, t.CreatedAt,
			t.LastUsedAt, t.ExpiresAt, t.RevokedAt, by.Kind, by.ID)
		return err
	})
}

// scopeColumns returns the column values of a scope.
func scopeColumns(s *fleet.Scope) (filter string, rest fleet.Role, tools []string) {
	if s == nil {
		return "", "", []string{}
	}
	return s.Filter.Text, s.Rest, append([]string{}, s.Tools...)
}

const tokenColumns = `id, name, kind, role, scope, tools, per_minute, hash, hint, created_by, created_at, last_used_at, expires_at, revoked_at`

type tokenRow struct {
	ID         uuid.UUID
	Name       string
	Kind       fleet.PrincipalKind
	Role       fleet.Role
	Scope      string
	Tools      []string
	PerMinute  int
	Hash       []byte
	Hint       string
	CreatedBy  string
	CreatedAt  time.Time
	LastUsedAt *time.Time
	ExpiresAt  *time.Time
	RevokedAt  *time.Time
}

// token fails for a scope that this version cannot read: without it the token
// would reach every device.
func (r tokenRow) token() (operator.Token, error) {
	scope, err := fleet.NewTokenScope(r.Kind, r.Scope, r.Tools)
	if err != nil {
		return operator.Token{}, fmt.Errorf("scope of token %s: %w", r.ID, err)
	}
	return operator.Token{ID: r.ID, Name: r.Name, Kind: r.Kind, Role: r.Role, Scope: scope, PerMinute: r.PerMinute,
		Hash: r.Hash,
		Hint: r.Hint, CreatedBy: r.CreatedBy, CreatedAt: r.CreatedAt, LastUsedAt: r.LastUsedAt, ExpiresAt: r.ExpiresAt,
		RevokedAt: r.RevokedAt}, nil
}

func toToken(row pgx.CollectableRow) (operator.Token, error) {
	r, err := pgx.RowToStructByName[tokenRow](row)
	if err != nil {
		return operator.Token{}, err
	}
	return r.token()
}

// Tokens lists API tokens, newest first, revoked ones included.
func (s *Store) Tokens(ctx context.Context) ([]operator.Token, error) {
	rows, _ := s.db.Query(ctx, `SELECT `+tokenColumns+` FROM tokens ORDER BY created_at DESC, id DESC LIMIT $1`, maxPeople)
	list, err := pgx.CollectRows(rows, toToken)
	if err != nil {
		return nil, fmt.Errorf("tokens: %w", domainError(err))
	}
	return list, nil
}

// TokenByHash finds a token by the SHA-256 of its secret, even if it is revoked or expired.
func (s *Store) TokenByHash(ctx context.Context, hash []byte) (operator.Token, error) {
	rows, _ := s.db.Query(ctx, `SELECT `+tokenColumns+` FROM tokens WHERE hash = $1`, hash)
	t, err := pgx.CollectExactlyOneRow(rows, toToken)
	if err != nil {
		return operator.Token{}, fmt.Errorf("token: %w", domainError(err))
	}
	return t, nil
}

// RevokeToken revokes a token. A token that is already revoked keeps its time of revocation.
func (s *Store) RevokeToken(ctx context.Context, by fleet.Principal, id uuid.UUID, at time.Time) error {
	return s.audited(ctx, by, "token.revoke", id.String(), nil, func(tx pgx.Tx) error {
		return changeOne(ctx, tx, `UPDATE tokens SET revoked_at = coalesce(revoked_at, $2) WHERE id = $1`, id, at)
	})
}

// TouchToken records when a token was last used.
func (s *Store) TouchToken(ctx context.Context, id uuid.UUID, at time.Time) error {
	if err := changeOne(ctx, s.db, `UPDATE tokens SET last_used_at = greatest(last_used_at, $2) WHERE id = $1`, id,
		at); err != nil {
		return fmt.Errorf("token %s: %w", id, domainError(err))
	}
	return nil
}
