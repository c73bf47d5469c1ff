package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/record"
	"fleetd/fleet/redaction"
)

var _ call.Store = (*Store)(nil)

// maxPageBytes ends a page of calls early: results may be large, and a page must fit into memory
// many times.
const maxPageBytes = 8 << 20

// recentCalls is how far LastArguments looks back.
const recentCalls = 20_000

// InsertCall stores a call in any state.
func (s *Store) InsertCall(ctx context.Context, c *fleet.Call) error {
	w, err := newCallWrite(c, true)
	if err != nil {
		return err
	}
	if err := s.calls.write(ctx, w); err != nil {
		return fmt.Errorf("call %s not put on record: %w", c.ID, err)
	}
	return nil
}

// MarkSent changes a pending call to sent. A call that is not pending must not be sent: MarkSent
// then returns [fleet.ErrConflict].
func (s *Store) MarkSent(ctx context.Context, c *fleet.Call) error {
	return s.update(ctx, c, func(state fleet.CallState) error {
		return fleet.Refuse(fleet.ErrConflict, "call_not_pending", "call", c.ID,
			"state", fleet.Because("state."+string(state)))
	})
}

// FinishCall stores the outcome of a call unless it already has one. A row in call_waits may
// remain; [Store.WaitingCalls] removes it.
func (s *Store) FinishCall(ctx context.Context, c *fleet.Call) error {
	err := s.update(ctx, c, func(state fleet.CallState) error { return nil })
	if err == nil && c.WaitUntil != nil {
		_, _ = s.db.Exec(ctx, `DELETE FROM call_waits WHERE call_id = $1`, c.ID)
	}
	return err
}

// update writes c's new state. If the write changed nothing, stayed decides whether the call's
// state is an error.
func (s *Store) update(ctx context.Context, c *fleet.Call, stayed func(fleet.CallState) error) error {
	w, err := newCallWrite(c, false)
	if err != nil {
		return err
	}
	if err := s.calls.write(ctx, w); err != nil {
		return fmt.Errorf("call %s not turned %s: %w", c.ID, c.State, err)
	}
	if w.changed {
		return nil
	}
	now, err := s.Call(fleet.WithoutScope(ctx), c.ID)
	if err != nil {
		return err
	}
	return stayed(now.State)
}

// SettleCalls stores outcomes, and inserts calls that are not on record. It processes them by id,
// so two such statements cannot deadlock.
func (s *Store) SettleCalls(ctx context.Context, calls []*fleet.Call) error {
	writes := make([]*callWrite, 0, len(calls))
	for _, c := range calls {
		if !c.State.Final() {
			return fleet.Refuse(fleet.ErrInvalid, "call_not_final", "call", c.ID,
				"state", fleet.Because("state."+string(c.State)))
		}
		w, err := newCallWrite(c, true)
		if err != nil {
			return err
		}
		writes = append(writes, w)
	}
	slices.SortFunc(writes, func(a, b *callWrite) int { return slices.Compare(a.row.id[:], b.row.id[:]) })
	args, err := s.calls.insertArgs(ctx, s.db, writes)
	if err == nil {
		err = pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
			if _, err := endCalls(ctx, tx, settleCalls, args...); err != nil {
				return err
			}
			return storeDigests(ctx, tx, writes...)
		})
	}
	if err != nil {
		return fmt.Errorf("settle %d calls: %w", len(calls), domainError(err))
	}
	return nil
}

// AddLateAnswer stores the first answer that arrived after the call was given up.
func (s *Store) AddLateAnswer(ctx context.Context, id uuid.UUID, late fleet.LateAnswer) error {
	from, to, _ := idWindow(id)
	if late.Result != nil {
		late.Result = json.RawMessage(*cleanJSON(late.Result))
	}
	stored := marshalled(late)
	err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		var has bool
		row := record.LateRow{Call: id, Late: *stored}
		err := tx.QueryRow(ctx, `
			SELECT created_at, late IS NOT NULL FROM calls
			WHERE id = $1 AND created_at >= $2 AND created_at < $3 FOR UPDATE`, id, from, to).Scan(&row.CreatedAt, &has)
		if err != nil || has {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE calls SET late = $3::json WHERE id = $1 AND created_at = $2`, id, row.CreatedAt,
			stored)
		if err != nil {
			return err
		}
		return queueLeaves(ctx, tx, []record.Leaf{row.Leaf()})
	})
	if err != nil {
		return fmt.Errorf("late answer to call %s: %w", id, domainError(err))
	}
	return nil
}

// unansweredAmong is how many of a device's latest calls are searched for one without an answer.
const unansweredAmong = 1000

// UnansweredCall returns the latest call to the device with the JSON-RPC id, if it was sent, has
// ended without an answer, and has no late one; otherwise [fleet.ErrNotFound].
func (s *Store) UnansweredCall(ctx context.Context, id fleet.DeviceID, rpcID int32) (fleet.Call, error) {
	rows, _ := s.db.Query(ctx, `
		SELECT `+callColumnList+` FROM (SELECT * FROM calls WHERE device_id = $1 ORDER BY id DESC LIMIT $2) AS latest
		WHERE rpc_id = $3 AND state = ANY ($4) AND late IS NULL ORDER BY id DESC LIMIT 1`, string(id), unansweredAmong, rpcID,
		[]fleet.CallState{fleet.CallUnknown, fleet.CallTimedOut})
	r, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[callRow])
	if err != nil {
		return fleet.Call{}, fmt.Errorf("call %d to %s: %w", rpcID, id, domainError(err))
	}
	return r.call()
}

const callColumnList = `id, created_at, device_id AS device, tool, arguments, actor_kind, actor_id, actor_name, actor_role,
	fanout_id, approval_id,
	state, result, error_code, error_message, error_params, evidence, late, rpc_id, timeout_ms, sent_at,
	finished_at, wait_until, sealed_arguments, ` + originOf

type callRow struct {
	ID           uuid.UUID
	CreatedAt    time.Time
	Device       fleet.DeviceID
	Tool         string
	Arguments    []byte
	ActorKind    fleet.PrincipalKind
	ActorID      string
	ActorName    string
	ActorRole    fleet.Role
	FanoutID     uuid.NullUUID
	ApprovalID   uuid.NullUUID
	State        fleet.CallState
	Result       []byte
	ErrorCode    *string
	ErrorMessage *string
	ErrorParams  []byte
	Evidence     []byte
	Late         []byte
	RPCID        int32
	TimeoutMs    int64
	SentAt       *time.Time
	FinishedAt   *time.Time
	WaitUntil    *time.Time

	SealedArguments []byte
	originRow
}

func (r callRow) call() (fleet.Call, error) {
	c := fleet.Call{ID: r.ID, Device: r.Device, Tool: r.Tool, Arguments: r.Arguments, FanOut: r.FanoutID.UUID,
		Approval: r.ApprovalID.UUID,
		State:    r.State,
		Actor:    fleet.Principal{Kind: r.ActorKind, ID: r.ActorID, Name: r.ActorName, Role: r.ActorRole},
		Result:   r.Result, RPCID: r.RPCID, Timeout: time.Duration(r.TimeoutMs) * time.Millisecond,
		CreatedAt: r.CreatedAt, SentAt: r.SentAt, FinishedAt: r.FinishedAt, WaitUntil: r.WaitUntil,
		Origin: r.origin(), Sealed: r.SealedArguments}
	var err error
	if c.Error, err = callErrorOf(r.ErrorCode, r.ErrorMessage, r.ErrorParams); err != nil {
		return c, fmt.Errorf("error of call %s: %w", r.ID, err)
	}
	if r.Evidence != nil {
		if err := json.Unmarshal(r.Evidence, &c.Evidence); err != nil {
			return c, fmt.Errorf("evidence of call %s: %w", r.ID, err)
		}
	}
	if r.Late != nil {
		if err := json.Unmarshal(r.Late, &c.Late); err != nil {
			return c, fmt.Errorf("late answer of call %s: %w", r.ID, err)
		}
	}
	return c, nil
}

func callErrorOf(code, message *string, params []byte) (*fleet.CallError, error) {
	if code == nil {
		return nil, nil
	}
	e := &fleet.CallError{Code: *code, Message: *message}
	if params == nil {
		return e, nil
	}
	return e, json.Unmarshal(params, &e.Params)
}

func (r callRow) size() int { return len(r.Arguments) + len(r.Result) + len(r.Evidence) + len(r.Late) }

// Call returns one call, or [fleet.ErrNotFound].
func (s *Store) Call(ctx context.Context, id uuid.UUID) (fleet.Call, error) {
	from, to, _ := idWindow(id)
	var w where
	w.and("id = ? AND created_at >= ? AND created_at < ?", id, from, to)
	w.callScope(ctx, "calls.tool", "calls.device_id")
	rows, _ := s.db.Query(ctx, `SELECT `+w.callColumns(ctx)+` FROM calls`+w.String(), w.args...)
	r, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[callRow])
	if err != nil {
		return fleet.Call{}, fmt.Errorf("call %s: %w", id, domainError(err))
	}
	return r.call()
}

// Calls lists calls, newest first. A page ends early when its results are large.
func (s *Store) Calls(ctx context.Context, f call.Filter) (fleet.Page[fleet.Call], error) {
	none := fleet.Page[fleet.Call]{}
	at, err := parseCursor(f.Cursor, "calls")
	if err != nil {
		return none, err
	}
	if _, ok := redaction.ParseDigest(f.Digest); f.Digest != "" && !ok {
		return none, fleet.Refuse(fleet.ErrInvalid, "invalid_call_digest").At("digest")
	}
	w := whereCalls(f)
	w.callScope(ctx, "calls.tool", "calls.device_id")
	order, err := w.idsDown(at)
	if err != nil {
		return none, err
	}
	limit := fleet.ClampLimit(f.Limit)
	sql := `SELECT ` + w.callColumns(ctx) + ` FROM calls` + w.String() + order + ` LIMIT ` + w.arg(limit+1)
	list, full, err := collectCalls(ctx, s.db, sql, w.args)
	if err != nil {
		return none, fmt.Errorf("calls: %w", domainError(err))
	}
	if full {
		limit = len(list) - 1
	}
	page := makePage(list, limit, at, func(c fleet.Call) cursor { return cursor{List: "calls", ID: c.ID.String()} })
	return page, nil
}

// collectCalls reads calls until their bytes fill a page. full means that it stopped there, one
// row beyond the page.
func collectCalls(ctx context.Context, db *pgxpool.Pool, sql string, args []any) (list []fleet.Call, full bool,
	err error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, false, err
	}
	defer rows.Close()
	for bytes := 0; rows.Next(); {
		r, err := pgx.RowToStructByName[callRow](rows)
		if err != nil {
			return nil, false, err
		}
		c, err := r.call()
		if err != nil {
			return nil, false, err
		}
		list = append(list, c)
		if bytes += r.size(); bytes > maxPageBytes && len(list) > 1 {
			return list, true, nil
		}
	}
	return list, false, rows.Err()
}

func whereCalls(f call.Filter) *where {
	var w where
	w.andText("device_id = ?", string(f.Device))
	w.andText("tool = ?", f.Tool)
	w.andText("actor_name = ?", f.Actor)
	if f.FanOut != uuid.Nil {
		w.and("fanout_id = ?", f.FanOut)
	}
	if f.Digest != "" {
		digest, _ := redaction.ParseDigest(f.Digest)
		w.and("(id, created_at) IN (SELECT call_id, created_at FROM call_digests WHERE digest = ?)", digest)
	}
	if f.Conversation != uuid.Nil {
		// Its device has few calls since then, while the fleet has many. Plug-ins and endpoints have
		// many, too, but the conversation made its calls before its end.
		w.and(`device_id = ANY (ARRAY(SELECT c.device_id FROM conversations c WHERE c.id = ?
			UNION ALL SELECT d.id FROM devices d WHERE d.kind IN ('plugin', 'endpoint')))`, f.Conversation)
		w.and("actor_id = ?", f.Conversation.String())
		begin, _, _ := idWindow(f.Conversation)
		w.and("created_at >= ?", begin)
		w.and("id >= ?", idFloor(begin.Add(-idSlack)))
		w.and(`created_at <= coalesce((SELECT c.end_at + interval '1 minute' FROM conversations c WHERE c.id = ?),
			'infinity')`, f.Conversation)
	}
	w.states(f.States)
	if !f.Since.IsZero() {
		w.and("created_at >= ?", f.Since)
		w.and("id >= ?", idFloor(f.Since.Add(-idSlack)))
	}
	if !f.Until.IsZero() {
		w.and("created_at < ?", f.Until)
		w.and("id < ?", idFloor(f.Until.Add(idSlack)))
	}
	return &w
}

// states selects the index that covers the states: see 0003_calls.sql.
func (w *where) states(states []fleet.CallState) {
	if len(states) == 0 {
		return
	}
	w.and("state = ANY (?)", states)
	switch {
	case slices.Equal(states, []fleet.CallState{fleet.CallPendingApproval}):
		w.and("id IN (SELECT subject_id FROM approvals WHERE state = 'waiting')")
	case slices.Equal(states, []fleet.CallState{fleet.CallPendingDevice}):
		w.and("id IN (SELECT call_id FROM call_waits)")
	case slices.Contains(states, fleet.CallPendingApproval) && !slices.ContainsFunc(states, fleet.CallState.Final):
		w.and(openSince, idFloor(time.Now().Add(-openFor-call.MaxApprovalTTL)))
	case !slices.ContainsFunc(states, fleet.CallState.Final):
		w.and(openSince, idFloor(time.Now().Add(-openFor)))
	case len(states) == 1 && states[0].Failed():
		w.and("failure = ?", states[0])
	case !slices.ContainsFunc(states, func(s fleet.CallState) bool { return !s.Failed() }):
		w.and("failure IS NOT NULL")
	}
}

// openSince starts at the oldest call that waits for its device, or waited and has not ended.
const openSince = "id >= least(?, (SELECT call_id FROM call_waits ORDER BY call_id LIMIT 1))"

// openFor is longer than any call without a row in call_waits stays open: it waits at most a
// minute for its turn, at most [call.MaxTimeout] for its answer, and some minutes more for the
// database to store its outcome. Only the newest calls are therefore searched for open ones, and
// no index is needed that every outcome would have to change.
const openFor = time.Hour

// openAmong is how many of the newest calls are searched for open ones, whatever their age: after
// the clock was set forward, calls of a minute ago lie far behind the newest; after it was set
// back, ahead of it.
const openAmong = 100_000

// RecoverCalls closes the calls that an earlier process left open, including calls whose ids lie
// in the future because the clock was set back. That process made its last call no later than its
// end, so the newest call bounds the search. Its sessions have ended ([Leases.Open]), so it
// cannot store another call. lost is the error of calls that may have been sent.
func (s *Store) RecoverCalls(ctx context.Context, lost *fleet.CallError) (canceled, unknown int64, err error) {
	toSend := fleet.NewCallError(fleet.CodeStopped + ".sending")
	err = pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		from, err := oldestOpen(ctx, tx)
		if err != nil {
			return err
		}
		if canceled, err = closeOpen(ctx, tx, from, fleet.CallPending, fleet.CallCanceled, toSend); err != nil {
			return err
		}
		unknown, err = closeOpen(ctx, tx, from, fleet.CallSent, fleet.CallUnknown, lost)
		return err
	})
	if err == nil {
		var approved, sent, waited int64
		err = pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) (err error) {
			// Calls that waited for an approval may be much older.
			if approved, err = closeApproved(ctx, tx, fleet.CallPending, fleet.CallCanceled, toSend); err != nil {
				return err
			}
			if sent, err = closeApproved(ctx, tx, fleet.CallSent, fleet.CallUnknown, lost); err != nil {
				return err
			}
			waited, err = closeWaited(ctx, tx, lost)
			return err
		})
		canceled, unknown = canceled+approved, unknown+sent+waited
	}
	if err != nil {
		return 0, 0, fmt.Errorf("close calls left open: %w", domainError(err))
	}
	return canceled, unknown, nil
}

// oldestOpen returns the earliest time at which an open call can have been made: [openFor] before
// the newest call, or the time of the oldest of the newest [openAmong] calls.
func oldestOpen(ctx context.Context, tx pgx.Tx) (time.Time, error) {
	var newest, oldest uuid.UUID
	err := tx.QueryRow(ctx, `SELECT id FROM calls ORDER BY id DESC LIMIT 1`).Scan(&newest)
	if errors.Is(err, pgx.ErrNoRows) {
		return time.Now(), nil
	}
	if err != nil {
		return time.Time{}, err
	}
	err = tx.QueryRow(ctx, `SELECT id FROM (SELECT id FROM calls ORDER BY id DESC LIMIT $1) AS newest ORDER BY id LIMIT 1`,
		openAmong).Scan(&oldest)
	at, _ := idTime(newest)
	from := at.Add(-openFor)
	if at, _ := idTime(oldest); at.Before(from) {
		from = at
	}
	return from, err
}

func closeOpen(ctx context.Context, tx pgx.Tx, from time.Time, state, to fleet.CallState, e *fleet.CallError) (int64,
	error) {
	return endCalls(ctx, tx, `
		UPDATE calls c
		SET state = $2, failure = $2, error_code = $3, error_message = $4, error_params = $9, finished_at = $5, result_hash =
			CASE WHEN fanout_id IS NULL THEN NULL ELSE $6::bytea END,
			sent_at = CASE WHEN $2 = 'canceled' THEN NULL ELSE sent_at END, sealed_arguments = NULL
		WHERE id >= $7 AND created_at >= $8 AND state = $1 AND (approval_id IS NULL OR fanout_id IS NOT NULL)`,
		state, to, e.Code, e.Message, time.Now(), hashAnswer(&fleet.Call{State: to, Error: e}), idFloor(from),
		from.Add(-idSlack), marshalled(e.Params))
}

// closeApproved closes approved calls that are still in the state.
func closeApproved(ctx context.Context, tx pgx.Tx, state, to fleet.CallState, e *fleet.CallError) (int64, error) {
	return endCalls(ctx, tx, `
		UPDATE calls c
		SET state = $2, failure = $2, error_code = $3, error_message = '', error_params = $4::json, finished_at = $5,
			sent_at = CASE WHEN $2 = 'canceled' THEN NULL ELSE sent_at END, sealed_arguments = NULL
		FROM (
			SELECT subject_id, created_at FROM approvals
			WHERE state = 'approved' AND subject = 'call'
			ORDER BY decided_at DESC LIMIT $6) AS a
		WHERE c.id = a.subject_id AND c.created_at = a.created_at AND c.state = $1`,
		state, to, e.Code, marshalled(e.Params), time.Now(), approvedAmong)
}

// approvedAmong is how many of the latest approvals are searched for open calls.
const approvedAmong = 10_000

// LastArguments returns the arguments that this actor last gave the tool. It searches only the
// actor's recent calls, because it only prefills a form.
func (s *Store) LastArguments(ctx context.Context, actor fleet.Principal, tool string) (json.RawMessage, error) {
	var arguments []byte
	scoped, args := scopedTo(ctx, "device_id", cleanText(actor.Name), cleanText(tool), actor.Kind, actor.ID, recentCalls)
	err := s.db.QueryRow(ctx, `
		SELECT arguments FROM (
			SELECT id, device_id, tool, actor_kind, actor_id, arguments FROM calls
			WHERE actor_name = $1 ORDER BY id DESC LIMIT $5) AS recent
		WHERE tool = $2 AND actor_kind = $3 AND actor_id = $4`+scoped+`
		ORDER BY id DESC LIMIT 1`, args...).Scan(&arguments)
	switch err = domainError(err); {
	case err == nil:
		return arguments, nil
	case isNotFound(err):
		return nil, nil
	}
	return nil, fmt.Errorf("last arguments of %s: %w", tool, err)
}
