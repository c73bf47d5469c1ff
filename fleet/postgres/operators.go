package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/operator"
)

var _ operator.Store = (*Store)(nil)

// maxPeople bounds the lists that are not paged: operators and tokens.
const maxPeople = 10_000

// CreateOperator adds an operator. Names are unique regardless of case.
func (s *Store) CreateOperator(ctx context.Context, by fleet.Principal, o operator.Operator) error {
	filter, rest, _ := scopeColumns(o.Scope)
	detail := map[string]any{"name": o.Name, "role": o.Role, "scope": filter, "rest": rest}
	return s.audited(ctx, by, "operator.create", o.ID.String(), detail, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO operators (id, name, name_key, role, scope, rest, password_hash, locale, created_at, disabled_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
			o.ID, o.Name, strings.ToLower(o.Name), o.Role, filter, rest, o.PasswordHash, o.Locale, o.CreatedAt, o.DisabledAt)
		if hasCode(err, "23505") {
			return fleet.Refuse(fleet.ErrConflict, "name_taken", "name", o.Name)
		}
		return err
	})
}

const operatorColumns = `id, name, role, scope, rest, password_hash, locale, created_at, disabled_at,
	signed_in_at, signed_in_from`

type operatorRow struct {
	ID           uuid.UUID
	Name         string
	Role         fleet.Role
	Scope        string
	Rest         fleet.Role
	PasswordHash string
	Locale       string
	CreatedAt    time.Time
	DisabledAt   *time.Time
	SignedInAt   *time.Time
	SignedInFrom string
}

// toOperator fails for a scope that this version cannot read: without it the
// operator would reach every device.
func toOperator(row pgx.CollectableRow) (operator.Operator, error) {
	r, err := pgx.RowToStructByName[operatorRow](row)
	if err != nil {
		return operator.Operator{}, err
	}
	scope, err := fleet.NewScope(r.Scope, r.Rest, nil)
	if err != nil {
		return operator.Operator{}, fmt.Errorf("scope of operator %s: %w", r.ID, err)
	}
	return operator.Operator{ID: r.ID, Name: r.Name, Role: r.Role, Scope: scope, PasswordHash: r.PasswordHash,
		Locale:    r.Locale,
		CreatedAt: r.CreatedAt, DisabledAt: r.DisabledAt, SignedInAt: r.SignedInAt, SignedInFrom: r.SignedInFrom}, nil
}

// Operators lists all operators by name.
func (s *Store) Operators(ctx context.Context) ([]operator.Operator, error) {
	rows, _ := s.db.Query(ctx, `SELECT `+operatorColumns+` FROM operators ORDER BY name_key LIMIT $1`, maxPeople)
	list, err := pgx.CollectRows(rows, toOperator)
	if err != nil {
		return nil, fmt.Errorf("operators: %w", domainError(err))
	}
	return list, nil
}

// Operator returns one operator, or [fleet.ErrNotFound].
func (s *Store) Operator(ctx context.Context, id uuid.UUID) (operator.Operator, error) {
	rows, _ := s.db.Query(ctx, `SELECT `+operatorColumns+` FROM operators WHERE id = $1`, id)
	return oneOperator(rows, id)
}

// OperatorByName finds an operator by name in any case.
func (s *Store) OperatorByName(ctx context.Context, name string) (operator.Operator, error) {
	rows, _ := s.db.Query(ctx, `SELECT `+operatorColumns+` FROM operators WHERE name_key = $1`,
		strings.ToLower(cleanText(name)))
	return oneOperator(rows, name)
}

func oneOperator(rows pgx.Rows, who any) (operator.Operator, error) {
	o, err := pgx.CollectExactlyOneRow(rows, toOperator)
	if err != nil {
		return operator.Operator{}, fmt.Errorf("operator %v: %w", who, domainError(err))
	}
	return o, nil
}

// SetOperatorPassword stores a new hash and ends the operator's logins.
func (s *Store) SetOperatorPassword(ctx context.Context, by fleet.Principal, id uuid.UUID, hash string) error {
	return s.audited(ctx, by, "operator.password", id.String(), nil, func(tx pgx.Tx) error {
		if err := changeOne(ctx, tx, `UPDATE operators SET password_hash = $2 WHERE id = $1`, id, hash); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `DELETE FROM logins WHERE operator_id = $1`, id); err != nil {
			return err
		}
		return forgetBrowsers(ctx, tx, id, uuid.Nil)
	})
}

// SetOperatorDisabled disables an operator, or enables them again if at is nil.
func (s *Store) SetOperatorDisabled(ctx context.Context, by fleet.Principal, id uuid.UUID, at *time.Time) error {
	action := "operator.disable"
	if at == nil {
		action = "operator.enable"
	}
	return s.audited(ctx, by, action, id.String(), nil, func(tx pgx.Tx) error {
		return withAdmin(ctx, tx, id, func() error {
			err := changeOne(ctx, tx, `UPDATE operators SET disabled_at = $2 WHERE id = $1`, id, at)
			if err != nil || at == nil {
				return err
			}
			if _, err := tx.Exec(ctx, `DELETE FROM logins WHERE operator_id = $1`, id); err != nil {
				return err
			}
			return forgetBrowsers(ctx, tx, id, uuid.Nil)
		})
	})
}

// SetOperatorAccess changes an operator's role and scope.
func (s *Store) SetOperatorAccess(ctx context.Context, by fleet.Principal, id uuid.UUID, role fleet.Role,
	scope *fleet.Scope) error {
	filter, rest, _ := scopeColumns(scope)
	detail := map[string]any{"role": role, "scope": filter, "rest": rest}
	return s.audited(ctx, by, "operator.access", id.String(), detail, func(tx pgx.Tx) error {
		return withAdmin(ctx, tx, id, func() error {
			var was struct{ role, scope, rest string }
			err := tx.QueryRow(ctx, `SELECT role, scope, rest FROM operators WHERE id = $1`, id).Scan(&was.role, &was.scope,
				&was.rest)
			if err != nil {
				return err
			}
			detail["was"] = map[string]any{"role": was.role, "scope": was.scope, "rest": was.rest}
			return changeOne(ctx, tx, `UPDATE operators SET role = $2, scope = $3, rest = $4 WHERE id = $1`, id, role, filter,
				rest)
		})
	})
}

// withAdmin refuses a change that removes the last admin of the whole fleet. Such changes wait
// for each other: two concurrent changes must not each rely on the operator that the other
// demotes.
func withAdmin(ctx context.Context, tx pgx.Tx, id uuid.UUID, change func() error) error {
	if _, err := tx.Exec(ctx, `LOCK TABLE operators IN SHARE ROW EXCLUSIVE MODE`); err != nil {
		return err
	}
	const admins = `SELECT count(*) FROM operators
		WHERE role = 'admin' AND (scope = '' OR rest = 'admin') AND disabled_at IS NULL`
	var before, after int
	if err := tx.QueryRow(ctx, admins).Scan(&before); err != nil {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	var name string
	err := tx.QueryRow(ctx, `SELECT name, (`+admins+`) FROM operators WHERE id = $1`, id).Scan(&name, &after)
	if err == nil && before > 0 && after == 0 {
		err = operator.ErrLastAdmin(name)
	}
	return err
}

// SetOperatorLocale stores the language of an operator's pages. A preference does not act on the
// fleet, so it has no audit entry.
func (s *Store) SetOperatorLocale(ctx context.Context, id uuid.UUID, locale string) error {
	if err := changeOne(ctx, s.db, `UPDATE operators SET locale = $2 WHERE id = $1`, id, cleanText(locale)); err != nil {
		return fmt.Errorf("locale of operator %s: %w", id, domainError(err))
	}
	return nil
}
