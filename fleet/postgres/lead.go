package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// engineLock is the advisory lock of the process that runs the campaign engine.
const engineLock int64 = 0x666c656574656e67 // "fleeteng"

// How Lead waits, and how soon it notices that its connection is gone: at once
// if the server says so or the socket closes, else by a missing answer.
const (
	leadRetry   = time.Second
	leadCheck   = 5 * time.Second
	leadTimeout = 5 * time.Second
)

// errLeadLost ends the context of a run whose right was lost.
var errLeadLost = errors.New("the connection that held the engine's lock was lost")

// Lead waits until this process may run the engine, alone in the database, and
// calls run. ctx of run ends when that right is lost: with the connection that
// holds it. Lead then waits for its turn again. It returns when run returned
// with the right still held, or ctx ended.
func (s *Store) Lead(ctx context.Context, run func(ctx context.Context) error) error {
	waiting := ""
	for {
		conn, err := s.takeLead(ctx)
		switch {
		case ctx.Err() != nil:
			closeLead(conn)
			return nil
		case err != nil && waiting != err.Error():
			waiting = err.Error()
			s.log.Warn("the campaign engine waits for the database", "err", err)
		case conn != nil:
			waiting = ""
			if err := s.lead(ctx, conn, run); !errors.Is(err, errLeadLost) {
				return err
			}
			s.log.Warn("the campaign engine lost its lock and waits for its turn")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(leadRetry):
		}
	}
}

// takeLead returns a connection that holds the lock, out of the pool; nil if
// another process has it.
func (s *Store) takeLead(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, leadTimeout)
	defer cancel()
	pooled, err := s.db.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	var got bool
	if err := pooled.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, engineLock).Scan(&got); err != nil || !got {
		if err != nil {
			closeLead(pooled.Hijack()) // it may hold the lock all the same
		} else {
			pooled.Release()
		}
		return nil, err
	}
	return pooled.Hijack(), nil
}

// lead calls run and watches the connection meanwhile.
func (s *Store) lead(ctx context.Context, conn *pgx.Conn, run func(ctx context.Context) error) error {
	runCtx, end := context.WithCancelCause(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if err := watchLead(runCtx, conn); err != nil {
			end(fmt.Errorf("%w: %w", errLeadLost, err))
		}
	}()
	err := run(runCtx)
	lost := context.Cause(runCtx)
	end(nil)
	<-watched
	closeLead(conn)
	if errors.Is(lost, errLeadLost) && ctx.Err() == nil {
		return lost
	}
	return err
}

// watchLead returns an error when the connection is gone or holds the lock no
// more, nil when ctx ended.
func watchLead(ctx context.Context, conn *pgx.Conn) error {
	for {
		// The connection listens on no channel: this only waits, and returns early
		// when the connection ends.
		wait, cancel := context.WithTimeout(ctx, leadCheck)
		_, err := conn.WaitForNotification(wait)
		cancel()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && conn.IsClosed() {
			return err
		}
		if err := checkLead(ctx, conn); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
}

// checkLead asks the server: a connection that a proxy or firewall forgot looks
// alive from here.
func checkLead(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, leadTimeout)
	defer cancel()
	var held bool
	err := conn.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid()
			AND (classid::bigint << 32 | objid::bigint) = $1 AND objsubid = 1)`, engineLock).Scan(&held)
	if err == nil && !held {
		err = errors.New("the server does not know of the lock")
	}
	return err
}

// closeLead ends the session, and the lock with it.
func closeLead(conn *pgx.Conn) {
	if conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), leadTimeout)
	defer cancel()
	conn.Close(ctx)
}
