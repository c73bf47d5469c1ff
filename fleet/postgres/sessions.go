package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alexedwards/scs/v2"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
)

// Sessions stores sign-ins for the session manager. Expired sign-ins are not found;
// [Store.DeleteExpired] deletes them.
type Sessions struct{ s *Store }

var (
	_ scs.CtxStore         = Sessions{}
	_ scs.IterableCtxStore = Sessions{}
)

// Sessions returns the store of sign-ins.
func (s *Store) Sessions() Sessions { return Sessions{s} }

func (x Sessions) FindCtx(ctx context.Context, token string) ([]byte, bool, error) {
	var data []byte
	err := x.s.db.QueryRow(ctx, `SELECT data FROM sessions WHERE token = $1 AND expiry > $2`, cleanText(token),
		time.Now()).Scan(&data)
	switch err = domainError(err); {
	case errors.Is(err, fleet.ErrNotFound):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("session: %w", err)
	}
	return data, true, nil
}

func (x Sessions) CommitCtx(ctx context.Context, token string, data []byte, expiry time.Time) error {
	_, err := x.s.db.Exec(ctx, `
		INSERT INTO sessions (token, data, expiry) VALUES ($1, $2, $3)
		ON CONFLICT (token) DO UPDATE SET data = excluded.data, expiry = excluded.expiry`, token, data, expiry)
	if err != nil {
		return fmt.Errorf("session: %w", domainError(err))
	}
	return nil
}

func (x Sessions) DeleteCtx(ctx context.Context, token string) error {
	if _, err := x.s.db.Exec(ctx, `DELETE FROM sessions WHERE token = $1`, cleanText(token)); err != nil {
		return fmt.Errorf("session: %w", domainError(err))
	}
	return nil
}

// AllCtx returns the current sessions. The manager uses it to sign an operator out everywhere.
func (x Sessions) AllCtx(ctx context.Context) (map[string][]byte, error) {
	rows, _ := x.s.db.Query(ctx, `SELECT token, data FROM sessions WHERE expiry > $1`, time.Now())
	all := make(map[string][]byte)
	var token string
	var data []byte
	_, err := pgx.ForEachRow(rows, []any{&token, &data}, func() error {
		all[token] = append([]byte(nil), data...)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("sessions: %w", domainError(err))
	}
	return all, nil
}

// The methods without a context belong to the older interface.

func (x Sessions) Find(token string) ([]byte, bool, error) {
	return x.FindCtx(context.Background(), token)
}

func (x Sessions) Commit(token string, data []byte, expiry time.Time) error {
	return x.CommitCtx(context.Background(), token, data, expiry)
}

func (x Sessions) Delete(token string) error { return x.DeleteCtx(context.Background(), token) }
