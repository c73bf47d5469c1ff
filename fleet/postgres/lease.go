package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/fleet"
	"fleetd/fleet/lease"
)

var _ lease.Store = (*Leases)(nil)

// Leases manages the lease of a database. It uses a separate connection, which it opens again
// after a failure, because the lease must not wait for calls and pages.
//
// If a renewal gets no answer in time, the database counts as silent.
type Leases struct {
	config *pgxpool.Config // of the holder's pool
	conn   *pgx.Conn       // nil if none is open
	own    *pgx.ConnConfig // of conn
	pools  *dialer
}

// NewLeases returns a Leases for the database.
func NewLeases(url string) (*Leases, error) {
	config, err := Config(url)
	if err != nil {
		return nil, err
	}
	l := &Leases{config: config, own: config.ConnConfig.Copy(),
		pools: &dialer{dial: config.ConnConfig.DialFunc, open: make(map[*dialed]struct{})}}
	config.ConnConfig.DialFunc = l.pools.connect
	return l, nil
}

// with calls f with the connection, and closes the connection if f fails.
func (l *Leases) with(ctx context.Context, f func(*pgx.Conn) error) (err error) {
	if l.conn == nil || l.conn.IsClosed() {
		if l.conn, err = pgx.ConnectConfig(ctx, l.own); err != nil {
			return explain(l.own, err)
		}
	}
	if err = f(l.conn); err != nil {
		l.Close()
	}
	return domainError(err)
}

const leaseColumns = `term, incarnation, node, host, pid, process, version, since, renewed_at,
	until - clock_timestamp() AS "left", released`

// Current returns the lease, or the zero value if the database has none.
func (l *Leases) Current(ctx context.Context) (current lease.Lease, err error) {
	err = l.with(ctx, func(conn *pgx.Conn) error {
		var known bool // false before the first migration
		if err := conn.QueryRow(ctx, `SELECT to_regclass('lease') IS NOT NULL`).Scan(&known); err != nil || !known {
			return err
		}
		rows, _ := conn.Query(ctx, `SELECT `+leaseColumns+` FROM lease`)
		current, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[lease.Lease])
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	return current, err
}

// Ready reports whether the database has the tables that Replace writes.
func (l *Leases) Ready(ctx context.Context) (ready bool, err error) {
	err = l.with(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT to_regclass('lease_terms') IS NOT NULL`).Scan(&ready)
	})
	return ready, err
}

// Replace gives the lease to a process if the lease still equals over, and records the term. A term
// is never used again, even if the row of the lease was deleted.
func (l *Leases) Replace(ctx context.Context, over lease.Lease, why lease.Reason, by uuid.UUID, h lease.Holder) (
	got lease.Lease, ok bool, err error) {
	err = l.with(ctx, func(conn *pgx.Conn) error {
		rows, _ := conn.Query(ctx, `
			WITH held AS (
				INSERT INTO lease AS l (term, incarnation, node, host, pid, process, version, since, renewed_at, until)
				VALUES (1 + coalesce((SELECT max(term) FROM lease_terms), 0), $1, $2, $3, $4, $5, $6, clock_timestamp(),
					clock_timestamp(), clock_timestamp() + $7::interval)
				ON CONFLICT (one) DO UPDATE SET term = greatest(l.term + 1, excluded.term),
					incarnation = excluded.incarnation, node = excluded.node, host = excluded.host, pid = excluded.pid,
					process = excluded.process, version = excluded.version, since = excluded.since,
					renewed_at = excluded.renewed_at, until = excluded.until, released = false
				WHERE l.incarnation = $8 AND l.renewed_at = $9
				RETURNING *
			), ended AS (
				UPDATE lease_terms SET ended = held.since FROM held WHERE ended IS NULL
			), recorded AS (
				INSERT INTO lease_terms (term, incarnation, node, host, version, since, reason)
				SELECT term, incarnation, node, host, version, since, $10 FROM held
			), dropped AS (
				DELETE FROM lease_terms AS t USING held WHERE t.term <= held.term - $11
			)
			SELECT `+leaseColumns+` FROM held`,
			by, cleanText(h.Node), cleanText(h.Host), h.PID, h.Process, cleanText(h.Version), lease.Length,
			over.Incarnation, over.RenewedAt, why, lease.KeptTerms)
		got, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[lease.Lease])
		ok = err == nil
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	return got, ok, err
}

// Renew extends the lease of the process that holds it.
func (l *Leases) Renew(ctx context.Context, incarnation uuid.UUID) (ok bool, err error) {
	err = l.with(ctx, func(conn *pgx.Conn) error {
		tag, err := conn.Exec(ctx, `
			UPDATE lease SET renewed_at = clock_timestamp(), until = clock_timestamp() + $2::interval
			WHERE incarnation = $1`, incarnation, lease.Length)
		ok = tag.RowsAffected() > 0
		return err
	})
	if err == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		l.pools.setSilent(err != nil)
	}
	return ok, err
}

// Release ends the lease of the process, and its term on record, if it holds the lease.
func (l *Leases) Release(ctx context.Context, incarnation uuid.UUID) error {
	return l.with(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `
			WITH held AS (
				UPDATE lease SET until = clock_timestamp(), released = true WHERE incarnation = $1 RETURNING term, until
			)
			UPDATE lease_terms AS t SET ended = held.until FROM held WHERE t.term = held.term`, incarnation)
		return err
	})
}

// Lease returns the current lease, or [fleet.ErrNotFound] if the database has had no holder.
func (s *Store) Lease(ctx context.Context) (lease.Lease, error) {
	rows, _ := s.db.Query(ctx, `SELECT `+leaseColumns+` FROM lease`)
	l, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[lease.Lease])
	if err != nil {
		return lease.Lease{}, fmt.Errorf("lease of the database: %w", domainError(err))
	}
	return l, nil
}

// LeaseTerms returns the latest terms of the lease, the newest first.
func (s *Store) LeaseTerms(ctx context.Context, limit int) ([]lease.Term, error) {
	rows, _ := s.db.Query(ctx, `
		SELECT term, incarnation, node, host, version, since, reason, ended
		FROM lease_terms ORDER BY term DESC LIMIT $1`, limit)
	terms, err := pgx.CollectRows(rows, pgx.RowToStructByName[lease.Term])
	if err != nil {
		return nil, fmt.Errorf("terms of the lease: %w", domainError(err))
	}
	return terms, nil
}

// Close closes the connection. The next use opens a new one.
func (l *Leases) Close() {
	if l.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = l.conn.Close(ctx)
	l.conn = nil
}

// termLock is the first half of an advisory lock that each session of a server holds as shared;
// the second half is the server's term. A later term finds the sessions by it.
const termLock int32 = 0x666c6565 // "flee"

// errReplaced refuses a session to a process that has lost the lease.
var errReplaced = fmt.Errorf("%w: another fleetd took this database over", fleet.ErrUnavailable)

// endTimeout bounds how long sessions of earlier terms may take to end.
const endTimeout = 30 * time.Second

// Open does the same as the function [Open], for the holder of a lease. When it returns, no
// session of an earlier term remains and none can begin, so all further writes of such a process
// fail. Statements cost no more; a session costs one more round trip.
func (l *Leases) Open(ctx context.Context, held lease.Lease) (*pgxpool.Pool, error) {
	return open(ctx, l.config.Copy(), held)
}

// OpenForMigration does the same as Open. The pool's connections stay open while the database
// counts as silent, because a long migration may delay renewals.
func (l *Leases) OpenForMigration(ctx context.Context, held lease.Lease) (*pgxpool.Pool, error) {
	config := l.config.Copy()
	config.ConnConfig.DialFunc = l.pools.dial
	return open(ctx, config, held)
}

func open(ctx context.Context, config *pgxpool.Config, held lease.Lease) (*pgxpool.Pool, error) {
	prepare := config.AfterConnect
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if err := prepare(ctx, conn); err != nil {
			return err
		}
		return enterTerm(ctx, conn, held)
	}
	db, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	if err := endEarlier(ctx, db, held.Term); err != nil {
		db.Close()
		return nil, err
	}
	return db, nil
}

// enterTerm marks a session, and then checks that the lease is still held: the holder of the next
// lease looks for marks after it has acquired the lease.
func enterTerm(ctx context.Context, conn *pgx.Conn, l lease.Lease) error {
	var b pgx.Batch
	b.Queue(`SELECT pg_advisory_lock_shared($1, $2)`, termLock, l.Term)
	held := false
	b.Queue(`SELECT EXISTS (SELECT FROM lease WHERE incarnation = $1)`, l.Incarnation).QueryRow(func(row pgx.Row) error {
		return row.Scan(&held)
	})
	if err := conn.SendBatch(ctx, &b).Close(); err != nil {
		return err
	}
	if !held {
		return errReplaced
	}
	return nil
}

// endEarlier ends the sessions of earlier terms, and waits until they have ended.
func endEarlier(ctx context.Context, db *pgxpool.Pool, term int) error {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	for {
		var left int
		err := db.QueryRow(ctx, `
			SELECT count(pg_terminate_backend(pid)) FROM pg_locks
			WHERE locktype = 'advisory' AND objsubid = 2 AND classid::bigint = $1 AND objid::bigint < $2
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, termLock, term).Scan(&left)
		if err == nil && left == 0 {
			return nil
		}
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("ending the database sessions of the fleetd before: %w", domainError(err))
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the database sessions of the fleetd before have not ended within %s (%d left): "+
				"end them with pg_terminate_backend, or restart PostgreSQL", endTimeout, left)
		}
	}
}
