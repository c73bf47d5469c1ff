package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/call"
)

// WaitForDevice stores a call as waiting until its device is back. For a call that already has
// its outcome it changes nothing and returns [fleet.ErrConflict].
func (s *Store) WaitForDevice(ctx context.Context, c *fleet.Call, wait call.Wait) error {
	w, err := newCallWrite(c, true)
	if err != nil {
		return err
	}
	args, err := s.calls.insertArgs(ctx, s.db, []*callWrite{w})
	if err != nil {
		return waitError(c, "not put on record as waiting", err)
	}
	err = pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, insertCalls+` ON CONFLICT DO NOTHING`, args...); err != nil {
			return err
		}
		err := changeOne(ctx, tx, `
			UPDATE calls SET state = 'pending_device', wait_until = $3, arguments = $4::json, evidence = $5::json,
				sent_at = NULL, rpc_id = 0, sealed_arguments = $6
			WHERE id = $1 AND created_at = $2 AND state IN ('pending_device', 'pending', 'sent')`,
			c.ID, c.CreatedAt, c.WaitUntil, w.row.arguments, w.row.evidence, w.row.sealed)
		if err != nil {
			return err
		}
		if err := storeDigests(ctx, tx, w); err != nil {
			return err
		}
		return keepWait(ctx, tx, c, wait)
	})
	return waitError(c, "not put on record as waiting", err)
}

func keepWait(ctx context.Context, db execer, c *fleet.Call, wait call.Wait) error {
	_, err := db.Exec(ctx, `
		INSERT INTO call_waits (call_id, created_at, interrupt, picture) VALUES ($1, $2, $3, $4)
		ON CONFLICT DO NOTHING`, c.ID, c.CreatedAt, wait.Interrupt, wait.Picture)
	return err
}

func waitError(c *fleet.Call, what string, err error) error {
	switch {
	case err == nil:
		return nil
	case isNotFound(err):
		err = fleet.Refuse(fleet.ErrConflict, "call_not_pending", "call", c.ID, "state", fleet.Because("state.canceled"))
	case certainlyUndone(err):
		err = fmt.Errorf("%w: %w", fleet.ErrNotStored, domainError(err))
	}
	return fmt.Errorf("call %s %s: %w", c.ID, what, domainError(err))
}

// SendWaiting changes a call that waits for its device to sent.
func (s *Store) SendWaiting(ctx context.Context, c *fleet.Call) error {
	w, err := newCallWrite(c, true)
	if err != nil {
		return err
	}
	return waitError(c, "not turned sent", changeOne(ctx, s.db, `
		UPDATE calls SET state = 'sent', sent_at = $3, rpc_id = $4, arguments = $5::json, evidence = $6::json
		WHERE id = $1 AND created_at = $2 AND state IN ('pending_device', 'sent')`,
		c.ID, c.CreatedAt, c.SentAt, c.RPCID, w.row.arguments, w.row.evidence))
}

// WaitingCalls lists the calls that wait for their devices, oldest first.
func (s *Store) WaitingCalls(ctx context.Context) ([]call.WaitingCall, error) {
	_, err := s.db.Exec(ctx, `
		DELETE FROM call_waits w WHERE NOT EXISTS (
			SELECT FROM calls c
			WHERE c.id = w.call_id AND c.created_at = w.created_at AND c.state IN ('pending_device', 'sent'))`)
	if err != nil {
		return nil, fmt.Errorf("waits of calls that are over: %w", domainError(err))
	}
	type waitingRow struct {
		callRow
		Interrupt bool
		Picture   string
	}
	rows, _ := s.db.Query(ctx, `
		SELECT c.*, w.interrupt, w.picture
		FROM call_waits w JOIN LATERAL (
			SELECT `+callColumnList+` FROM calls
			WHERE calls.id = w.call_id AND calls.created_at = w.created_at AND state = 'pending_device') AS c ON true
		ORDER BY w.call_id`)
	waiting, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (call.WaitingCall, error) {
		r, err := pgx.RowToStructByName[waitingRow](row)
		if err != nil {
			return call.WaitingCall{}, err
		}
		c, err := r.call()
		return call.WaitingCall{Call: c, Wait: call.Wait{Interrupt: r.Interrupt, Picture: r.Picture}}, err
	})
	if err != nil {
		return nil, fmt.Errorf("calls that wait for their devices: %w", domainError(err))
	}
	return waiting, nil
}

// closeWaited closes calls that waited for their devices and were sent by a process that crashed.
func closeWaited(ctx context.Context, tx pgx.Tx, e *fleet.CallError) (int64, error) {
	return endCalls(ctx, tx, `
		UPDATE calls c SET state = 'unknown', failure = 'unknown', error_code = $1, error_message = '',
			error_params = $2::json, finished_at = now(), sealed_arguments = NULL
		FROM call_waits w WHERE c.id = w.call_id AND c.created_at = w.created_at AND c.state = 'sent'`,
		e.Code, marshalled(e.Params))
}
