package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"fleetd/fleet"
)

// domainError converts errors of pgx and PostgreSQL to the error kinds of package fleet. Only
// this file knows SQLSTATE.
func domainError(err error) error {
	var known *fleet.Error
	var pg *pgconn.PgError
	var network net.Error
	switch {
	case err == nil, errors.As(err, &known), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, pgx.ErrNoRows):
		return fleet.ErrNotFound
	case errors.As(err, &pg):
		if kind := sqlKind(pg.Code); kind != nil {
			return fmt.Errorf("%w: %w", kind, err)
		}
	case pgconn.SafeToRetry(err), errors.As(err, &network), errors.Is(err, net.ErrClosed),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: %w", fleet.ErrUnavailable, err)
	}
	return err
}

// sqlKind returns the error kind for the class of a SQLSTATE, its first two characters.
func sqlKind(code string) error {
	switch code {
	case "23505": // unique_violation
		return fleet.ErrConflict
	case "23503": // foreign_key_violation
		return fleet.ErrNotFound
	}
	switch code[:min(2, len(code))] {
	case "22", "23", "54": // data exception, constraint, a limit of PostgreSQL
		return fleet.ErrInvalid
	case "08", "25", "40", "53", "55", "57", "58": // connection, read-only, rollback, resources, not now, operator, system
		return fleet.ErrUnavailable
	}
	return nil
}

// certainlyUndone reports whether a failed transaction certainly had no effect: it was never
// sent, or the server reported a rollback. If the server ends the session or the connection
// breaks, the outcome is unknown.
func certainlyUndone(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.SeverityUnlocalized == "ERROR"
	}
	var unconnected *pgconn.ConnectError
	return pgconn.SafeToRetry(err) || errors.As(err, &unconnected)
}

// rowIsBad reports whether the database refused the data while it was available: other rows of
// the same batch may be valid.
func rowIsBad(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && !errors.Is(domainError(err), fleet.ErrUnavailable)
}

func isNotFound(err error) bool { return errors.Is(err, fleet.ErrNotFound) }

func hasClass22(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code[:2] == "22"
}
