package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/operator"
)

// maxLogins bounds the list of one operator's logins.
const maxLogins = 200

const loginColumns = `id, operator_id, created_at, seen_at, expires_at, address, agent, confirmed_at,
	coalesce(browser_id, '00000000-0000-0000-0000-000000000000')`

func toLogin(row pgx.CollectableRow) (l operator.Login, err error) {
	err = row.Scan(&l.ID, &l.Operator, &l.CreatedAt, &l.SeenAt, &l.ExpiresAt, &l.Address, &l.Agent,
		&l.ConfirmedAt, &l.Browser)
	return l, err
}

// AddLogin stores a login and its browser, and makes it the operator's latest login.
func (s *Store) AddLogin(ctx context.Context, l operator.Login, b operator.KnownBrowser) error {
	err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		if err := changeOne(ctx, tx, `UPDATE operators SET signed_in_at = $2, signed_in_from = $3 WHERE id = $1`,
			l.Operator, l.CreatedAt, cleanText(l.Address)); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `
			INSERT INTO known_browsers (id, operator_id, hash, expires_at) VALUES ($1, $2, $3, $4)
			ON CONFLICT (id) DO UPDATE SET hash = excluded.hash, expires_at = excluded.expires_at`,
			b.ID, b.Operator, b.Hash, b.ExpiresAt)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			INSERT INTO logins (id, operator_id, created_at, seen_at, expires_at, address, agent, confirmed_at, browser_id)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
			l.ID, l.Operator, l.CreatedAt, l.SeenAt, l.ExpiresAt, cleanText(l.Address), cleanText(l.Agent), l.ConfirmedAt,
			l.Browser)
		return err
	})
	if err != nil {
		return fmt.Errorf("login of operator %s: %w", l.Operator, domainError(err))
	}
	return nil
}

// Login returns a login that has not ended, or [fleet.ErrNotFound].
func (s *Store) Login(ctx context.Context, id uuid.UUID, now time.Time) (operator.Login, error) {
	rows, _ := s.db.Query(ctx, `SELECT `+loginColumns+` FROM logins WHERE id = $1 AND expires_at > $2`, id, now)
	l, err := pgx.CollectExactlyOneRow(rows, toLogin)
	if err != nil {
		return l, fmt.Errorf("login %s: %w", id, domainError(err))
	}
	return l, nil
}

// Logins lists an operator's current logins, the most recently used first.
func (s *Store) Logins(ctx context.Context, operator uuid.UUID, now time.Time) ([]operator.Login, error) {
	rows, _ := s.db.Query(ctx, `SELECT `+loginColumns+` FROM logins WHERE operator_id = $1 AND expires_at > $2
		ORDER BY seen_at DESC, id DESC LIMIT $3`, operator, now, maxLogins)
	list, err := pgx.CollectRows(rows, toLogin)
	if err != nil {
		return nil, fmt.Errorf("logins of operator %s: %w", operator, domainError(err))
	}
	return list, nil
}

// KnownBrowser finds a browser by its hash, or fails with [fleet.ErrNotFound].
func (s *Store) KnownBrowser(ctx context.Context, hash []byte, now time.Time) (operator.KnownBrowser, error) {
	rows, _ := s.db.Query(ctx, `
		SELECT id, operator_id AS operator, hash, expires_at FROM known_browsers
		WHERE hash = $1 AND expires_at > $2`, hash, now)
	b, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[operator.KnownBrowser])
	if err != nil {
		return b, fmt.Errorf("known browser: %w", domainError(err))
	}
	return b, nil
}

// ConfirmLogin records that the password was entered in a login.
func (s *Store) ConfirmLogin(ctx context.Context, id uuid.UUID, at time.Time) error {
	if err := changeOne(ctx, s.db, `UPDATE logins SET confirmed_at = $2 WHERE id = $1`, id, at); err != nil {
		return fmt.Errorf("login %s: %w", id, domainError(err))
	}
	return nil
}

// forgetBrowsers deletes all known browsers of an operator but one.
func forgetBrowsers(ctx context.Context, tx pgx.Tx, operator, except uuid.UUID) error {
	_, err := tx.Exec(ctx, `DELETE FROM known_browsers WHERE operator_id = $1 AND id <> $2`, operator, except)
	return err
}

// TouchLogin records the latest request of a login.
func (s *Store) TouchLogin(ctx context.Context, id uuid.UUID, at time.Time, address string) error {
	_, err := s.db.Exec(ctx, `UPDATE logins SET seen_at = $2, address = $3 WHERE id = $1`, id, at, cleanText(address))
	if err != nil {
		return fmt.Errorf("login %s: %w", id, domainError(err))
	}
	return nil
}

// DeleteLogin deletes a login whose operator signed out. It does not act on the fleet, so it has
// no audit entry.
func (s *Store) DeleteLogin(ctx context.Context, id uuid.UUID) error {
	if _, err := s.db.Exec(ctx, `DELETE FROM logins WHERE id = $1`, id); err != nil {
		return fmt.Errorf("login %s: %w", id, domainError(err))
	}
	return nil
}

// EndLogin deletes one login of an operator, or fails with [fleet.ErrNotFound].
func (s *Store) EndLogin(ctx context.Context, by fleet.Principal, operator, id uuid.UUID) error {
	detail := map[string]any{"sessions": 1}
	return s.audited(ctx, by, "operator.end_session", operator.String(), detail, func(tx pgx.Tx) error {
		var address string
		var browser *uuid.UUID
		err := tx.QueryRow(ctx, `DELETE FROM logins WHERE id = $1 AND operator_id = $2 RETURNING address, browser_id`, id,
			operator).Scan(&address, &browser)
		detail["address"] = address
		if err != nil || browser == nil {
			return err
		}
		_, err = tx.Exec(ctx, `DELETE FROM known_browsers WHERE id = $1`, browser)
		return err
	})
}

// EndLogins deletes all logins of an operator but one. If there are none, it writes no audit
// entry.
func (s *Store) EndLogins(ctx context.Context, by fleet.Principal, operator, except uuid.UUID) (n int, err error) {
	err = pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		var here uuid.UUID // the browser of the remaining login
		err := tx.QueryRow(ctx, `SELECT browser_id FROM logins WHERE id = $1 AND browser_id IS NOT NULL`, except).Scan(&here)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		if err := forgetBrowsers(ctx, tx, operator, here); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `DELETE FROM logins WHERE operator_id = $1 AND id <> $2`, operator, except)
		if n = int(tag.RowsAffected()); err != nil || n == 0 {
			return err
		}
		return writeAudit(ctx, tx, by, "operator.end_session", operator.String(), map[string]any{"sessions": n})
	})
	if err != nil {
		return 0, fmt.Errorf("logins of operator %s: %w", operator, domainError(err))
	}
	return n, nil
}
