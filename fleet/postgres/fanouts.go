package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/call"
)

var _ call.FanOutStore = (*Store)(nil)

// CreateFanOut stores a fan-out and its targets.
func (s *Store) CreateFanOut(ctx context.Context, f *call.FanOut, targets []call.FanOutTarget) error {
	detail := map[string]any{"tool": f.Tool, "query": f.Query, "targets": f.Targets, "skipped": f.Skipped}
	err := s.audited(ctx, f.Actor, "fanout.create", f.ID.String(), detail, func(tx pgx.Tx) error {
		return insertFanOut(ctx, tx, f, targets)
	})
	if certainlyUndone(err) {
		err = fmt.Errorf("%w: %w", fleet.ErrNotStored, err)
	}
	return err
}

func insertFanOut(ctx context.Context, tx pgx.Tx, f *call.FanOut, targets []call.FanOutTarget) error {
	_, err := tx.Exec(ctx, `
			INSERT INTO fanouts (id, actor_kind, actor_id, actor_name, actor_role, query, tool, arguments, max_in_flight,
				timeout_ms,
				state, targets, skipped, created_at, finished_at, canceled_by, offline_wait_ms, approval_id, policy_version,
				interrupt, retry_of, sealed_arguments)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8::json, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22)`,
		f.ID, f.Actor.Kind, f.Actor.ID, cleanText(f.Actor.Name), f.Actor.Role, cleanText(f.Query), cleanText(f.Tool),
		cleanJSON(f.Arguments),
		f.MaxInFlight, f.Timeout.Milliseconds(), f.State, f.Targets, f.Skipped, f.CreatedAt, f.FinishedAt,
		cleanText(f.CanceledBy), f.OfflineWait.Milliseconds(), pgUUID(f.Approval), f.PolicyVersion, f.Interrupt,
		pgUUID(f.RetryOf), f.Sealed)
	if err != nil {
		return err
	}
	devices := collect(targets, func(t call.FanOutTarget) string { return string(t.Device) })
	reasons := collect(targets, func(t call.FanOutTarget) string { return cleanText(t.Reason) })
	if f.Approval == uuid.Nil {
		_, err = tx.Exec(ctx, `
			INSERT INTO fanout_targets (fanout_id, device_id, reason) SELECT $1, * FROM unnest($2::text[], $3::text[])`,
			f.ID, devices, reasons)
		return err
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO fanout_targets (fanout_id, device_id, reason, tool_digest, elf_sha256, version)
		SELECT $1, * FROM unnest($2::text[], $3::text[], $4::bytea[], $5::text[], $6::text[])`,
		f.ID, devices, reasons, collect(targets, func(t call.FanOutTarget) []byte { return t.Build.Tool[:] }),
		collect(targets, func(t call.FanOutTarget) string { return cleanText(t.Build.ELF) }),
		collect(targets, func(t call.FanOutTarget) string { return cleanText(t.Build.Version) }))
	return err
}

const fanOutColumns = `id, actor_kind, actor_id, actor_name, actor_role, query, tool, arguments, max_in_flight, timeout_ms,
	state, targets, skipped, created_at, finished_at, canceled_by, offline_wait_ms, approval_id, policy_version,
	started_at, interrupt, retry_of, code, sealed_arguments`

type fanOutRow struct {
	ID          uuid.UUID
	ActorKind   fleet.PrincipalKind
	ActorID     string
	ActorName   string
	ActorRole   fleet.Role
	Query       string
	Tool        string
	Arguments   []byte
	MaxInFlight int
	TimeoutMs   int64
	State       call.FanOutState
	Targets     int
	Skipped     int
	CreatedAt   time.Time
	FinishedAt  *time.Time
	CanceledBy  string

	OfflineWaitMs int64
	ApprovalID    uuid.NullUUID
	PolicyVersion int64
	StartedAt     *time.Time
	Interrupt     bool
	RetryOf       uuid.NullUUID
	Code          string

	SealedArguments []byte
}

func (r fanOutRow) fanOut() call.FanOut {
	return call.FanOut{ID: r.ID, Actor: fleet.Principal{Kind: r.ActorKind, ID: r.ActorID, Name: r.ActorName,
		Role: r.ActorRole},
		Query: r.Query, Tool: r.Tool, Arguments: r.Arguments, MaxInFlight: r.MaxInFlight,
		Timeout: time.Duration(r.TimeoutMs) * time.Millisecond, State: r.State, Targets: r.Targets, Skipped: r.Skipped,
		CreatedAt: r.CreatedAt, FinishedAt: r.FinishedAt, CanceledBy: r.CanceledBy,
		OfflineWait: time.Duration(r.OfflineWaitMs) * time.Millisecond,
		Approval:    r.ApprovalID.UUID, PolicyVersion: r.PolicyVersion, StartedAt: r.StartedAt, Interrupt: r.Interrupt,
		RetryOf: r.RetryOf.UUID, Code: r.Code, Sealed: r.SealedArguments}
}

// scopedToFanOuts is [scopedToAll] for fan-outs.
func scopedToFanOuts(ctx context.Context, args ...any) (string, []any) {
	return scopedBy(args, func(w *where) { w.fanOutScope(ctx) })
}

// scopedWithinFanOut is [scopedToFanOuts] for rows that belong to the fan-out $1.
func scopedWithinFanOut(ctx context.Context, args ...any) (string, []any) {
	scoped, args := scopedToFanOuts(ctx, args...)
	if scoped != "" {
		scoped = " AND EXISTS (SELECT FROM fanouts WHERE fanouts.id = $1" + scoped + ")"
	}
	return scoped, args
}

// FanOut returns one fan-out, or [fleet.ErrNotFound].
func (s *Store) FanOut(ctx context.Context, id uuid.UUID) (call.FanOut, error) {
	scoped, args := scopedToFanOuts(ctx, id)
	rows, _ := s.db.Query(ctx, `SELECT `+fanOutColumns+` FROM fanouts WHERE id = $1`+scoped, args...)
	r, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[fanOutRow])
	if err != nil {
		return call.FanOut{}, fmt.Errorf("fan-out %s: %w", id, domainError(err))
	}
	return r.fanOut(), nil
}

// FanOuts lists fan-outs, newest first.
func (s *Store) FanOuts(ctx context.Context, limit int, at string) (fleet.Page[call.FanOut], error) {
	none := fleet.Page[call.FanOut]{}
	from, err := parseCursor(at, "fanouts")
	if err != nil {
		return none, err
	}
	var w where
	w.fanOutScope(ctx)
	order, err := w.idsDown(from)
	if err != nil {
		return none, err
	}
	limit = fleet.ClampLimit(limit)
	rows, _ := s.db.Query(ctx, `SELECT `+fanOutColumns+` FROM fanouts`+w.String()+order+` LIMIT `+w.arg(limit+1),
		w.args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[fanOutRow])
	if err != nil {
		return none, fmt.Errorf("fan-outs: %w", domainError(err))
	}
	page := makePage(list, limit, from, func(r fanOutRow) cursor { return cursor{List: "fanouts", ID: r.ID.String()} })
	return mapPage(page, fanOutRow.fanOut), nil
}

// RunningFanOuts lists the fan-outs to be continued, oldest first.
func (s *Store) RunningFanOuts(ctx context.Context) ([]call.FanOut, error) {
	scoped, args := scopedToFanOuts(ctx)
	rows, _ := s.db.Query(ctx, `SELECT `+fanOutColumns+` FROM fanouts WHERE state = 'running'`+scoped+` ORDER BY id`,
		args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[fanOutRow])
	if err != nil {
		return nil, fmt.Errorf("running fan-outs: %w", domainError(err))
	}
	return collect(list, fanOutRow.fanOut), nil
}

// FinishFanOut ends a running fan-out, or cancels one that waits for its approval. If it has
// already ended, the error is [fleet.ErrConflict].
func (s *Store) FinishFanOut(ctx context.Context, by fleet.Principal, id uuid.UUID, state call.FanOutState,
	at time.Time) error {
	who := ""
	if state == call.FanOutCanceled {
		who = cleanText(by.Name)
	}
	return s.audited(ctx, by, "fanout."+string(state), id.String(), nil, func(tx pgx.Tx) error {
		err := changeOne(ctx, tx, `
			UPDATE fanouts SET state = $2, finished_at = $3, canceled_by = $4, sealed_arguments = NULL
			WHERE id = $1 AND (state = 'running' OR state = 'pending_approval' AND $2 = 'canceled')`, id, state, at, who)
		if err == nil && state == call.FanOutCanceled {
			err = withdrawApprovalOf(ctx, tx, by, call.ApprovalOfFanOut, id, at)
		}
		if !isNotFound(err) {
			return err
		}
		var now string
		if err := tx.QueryRow(ctx, `SELECT state FROM fanouts WHERE id = $1`, id).Scan(&now); err != nil {
			return err
		}
		return fleet.Refuse(fleet.ErrConflict, "not_running", "state", fleet.Because("state."+string(now)))
	})
}

// StopFanOut cancels a running fan-out, and stores the reason for each device without a call. If
// it has already ended, the error is [fleet.ErrConflict].
func (s *Store) StopFanOut(ctx context.Context, id uuid.UUID, code string, at time.Time) error {
	system := fleet.Principal{Kind: fleet.KindSystem, Name: "fleetd"}
	detail := map[string]any{"code": code}
	return s.audited(ctx, system, "fanout.canceled", id.String(), detail, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			UPDATE fanout_targets t SET reason = $2
			WHERE t.fanout_id = $1 AND t.reason = ''
			AND NOT EXISTS (SELECT FROM calls c WHERE c.fanout_id = $1 AND c.device_id = t.device_id
				AND c.created_at >= `+fanOutBegan+` AND NOT `+notMade+`)`, id, code)
		if err != nil {
			return err
		}
		err = changeOne(ctx, tx, `
			UPDATE fanouts SET state = 'canceled', finished_at = $2, code = $3, targets = targets - $4,
				skipped = skipped + $4, sealed_arguments = NULL
			WHERE id = $1 AND state = 'running'`, id, at, code, tag.RowsAffected())
		if isNotFound(err) {
			return fleet.Refuse(fleet.ErrConflict, "not_running", "state", fleet.Because("state.completed"))
		}
		return err
	})
}
