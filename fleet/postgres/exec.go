package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgconn"

	"fleetd/fleet"
)

// An execer is a pool or a transaction.
type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// changeOne runs a statement that must change a row; otherwise it returns [fleet.ErrNotFound].
func changeOne(ctx context.Context, db execer, sql string, args ...any) error {
	tag, err := db.Exec(ctx, sql, args...)
	if err == nil && tag.RowsAffected() == 0 {
		return fleet.ErrNotFound
	}
	return err
}

func hasCode(err error, code string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == code
}

// again repeats a statement over many rows after a deadlock with another statement.
func again(statement func() error) (err error) {
	for range 5 {
		if err = statement(); !hasCode(err, "40P01") { // deadlock_detected
			break
		}
	}
	return err
}
