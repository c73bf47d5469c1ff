package postgres

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/fleet"
	"fleetd/fleet/origin"
	"fleetd/fleet/redaction"
)

// A callWrite is one row to be inserted or updated.
type callWrite struct {
	row     callColumns
	insert  bool
	changed bool // an update found its row in a state that may change
	done    chan error
}

// callColumns contains the column values of a call. It shares nothing with the call, so the
// caller may continue to change the call.
type callColumns struct {
	id                      uuid.UUID
	createdAt               time.Time
	device, tool            string
	arguments               *string
	sealed                  []byte // true arguments of a call that waits; nil for most
	digests                 [][]byte
	actor                   fleet.Principal
	fanOut, approval        pgtype.UUID
	state                   string
	failure                 *string
	result                  *string
	resultHash              []byte
	errorCode, errorMessage *string
	errorParams             *string
	evidence                *string
	rpcID                   int32
	timeoutMs               int64
	sentAt, finishedAt      *time.Time
	waitUntil               *time.Time
	origin                  origin.Origin
	originID                pgtype.UUID // filled in by [knownOrigins.store]
	leaf                    []byte      // of the outcome; nil before
}

func newCallWrite(c *fleet.Call, insert bool) (*callWrite, error) {
	from, to, ok := idWindow(c.ID)
	if !ok || c.CreatedAt.Before(from) || !c.CreatedAt.Before(to) {
		return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_call_id", "call", c.ID, "created_at", c.CreatedAt)
	}
	r := callColumns{id: c.ID, createdAt: c.CreatedAt, device: string(c.Device), tool: cleanText(c.Tool), actor: c.Actor,
		fanOut: pgUUID(c.FanOut), approval: pgUUID(c.Approval), state: string(c.State),
		result: cleanJSON(c.Result), rpcID: c.RPCID, timeoutMs: c.Timeout.Milliseconds(),
		sentAt: copyTime(c.SentAt), finishedAt: copyTime(c.FinishedAt), waitUntil: copyTime(c.WaitUntil),
		origin: c.Origin}
	if insert || c.State.Final() {
		r.arguments = cleanJSON(c.Arguments)
		r.actor.ID, r.actor.Name = cleanText(c.Actor.ID), cleanText(c.Actor.Name)
	}
	if c.State == fleet.CallPendingApproval || c.State == fleet.CallPendingDevice {
		r.sealed = c.Sealed
	}
	if insert {
		for _, text := range c.Digests {
			if digest, ok := redaction.ParseDigest(text); ok {
				r.digests = append(r.digests, digest)
			}
		}
	}
	if len(c.Evidence) > 0 {
		r.evidence = marshalled(c.Evidence)
	}
	if c.State.Failed() {
		r.failure = &r.state
	}
	if c.Error != nil {
		code, message := cleanText(c.Error.Code), cleanText(c.Error.Message)
		r.errorCode, r.errorMessage, r.errorParams = &code, &message, marshalled(c.Error.Params)
	}
	if c.FanOut != uuid.Nil && c.State.Final() {
		r.resultHash = hashAnswer(c)
	}
	if c.State.Final() {
		r.leaf = r.recordCall().Leaf().Append(nil)
	}
	return &callWrite{row: r, insert: insert, done: make(chan error, 1)}, nil
}

func pgUUID(id uuid.UUID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: id != uuid.Nil} }

// size returns roughly how many bytes the row adds to a message to the database.
func (r *callColumns) size() int {
	n := 300
	for _, s := range []*string{r.arguments, r.result, r.errorMessage, r.errorParams, r.evidence} {
		if s != nil {
			n += len(*s)
		}
	}
	return n
}

func copyTime(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	c := *t
	return &c
}

// hashAnswer returns a hash that is equal for devices of a fan-out that gave the same answer.
// Package mcp encodes equal results to equal bytes, so the bytes are hashed.
func hashAnswer(c *fleet.Call) []byte {
	h := sha256.New()
	h.Write([]byte(c.State))
	h.Write([]byte{0})
	switch {
	case len(c.Result) > 0:
		h.Write(c.Result)
	case c.Error != nil:
		h.Write([]byte(c.Error.Code + "\x00" + c.Error.Message))
		params := maps.Clone(c.Error.Params)
		delete(params, "bytes") // answers too large to be stored form one group
		h.Write([]byte(fleet.Reason{Params: params}.String()))
	}
	return h.Sum(nil)
}

const insertCalls = `
	INSERT INTO calls AS c (id, created_at, device_id, tool, arguments, actor_kind, actor_id, actor_name, actor_role,
		fanout_id, state, failure, result, result_hash, error_code, error_message, evidence, rpc_id, timeout_ms, sent_at,
			finished_at, error_params, approval_id, wait_until, origin_id, trace_id, sealed_arguments)
	SELECT id, created_at, device_id, tool, arguments::json, actor_kind, actor_id, actor_name, actor_role, fanout_id,
		state, failure, result::json, result_hash, error_code, error_message, evidence::json, rpc_id, timeout_ms,
			sent_at, finished_at, error_params::json, approval_id, wait_until, origin_id, trace_id, sealed_arguments
	FROM unnest($1::uuid[], $2::timestamptz[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
		$9::text[], $10::uuid[],
		$11::text[], $12::text[], $13::text[], $14::bytea[], $15::text[], $16::text[], $17::text[], $18::int[],
			$19::bigint[], $20::timestamptz[], $21::timestamptz[],
		$22::text[], $23::uuid[], $24::timestamptz[], $25::uuid[], $26::uuid[], $27::bytea[])
		AS u (id, created_at, device_id, tool, arguments, actor_kind, actor_id, actor_name, actor_role, fanout_id,
		state, failure, result, result_hash, error_code, error_message, evidence, rpc_id, timeout_ms, sent_at, finished_at,
		error_params, approval_id, wait_until, origin_id, trace_id, sealed_arguments)`

// The conflict clause waits for a blocked transaction with the same call. Either that transaction
// commits and its row is updated to the outcome, or it fails when it resumes.
const settleCalls = insertCalls + `
	ON CONFLICT (id, created_at) DO UPDATE
	SET state = excluded.state, failure = excluded.failure, result = excluded.result, result_hash = excluded.result_hash,
		error_code = excluded.error_code, error_message = excluded.error_message, evidence = excluded.evidence,
		rpc_id = excluded.rpc_id, sent_at = excluded.sent_at, finished_at = excluded.finished_at, sealed_arguments = NULL
	WHERE c.state IN ('pending_approval', 'pending_device', 'pending', 'sent')`

// A final call is not changed, and a sent call does not become sent again. Id and created_at
// together are the key, and determine the row's partition.
const updateCalls = `
	WITH changed AS (UPDATE calls c
	SET state = u.state, failure = u.failure, result = u.result::json, result_hash = u.result_hash,
		error_code = u.error_code,
		error_message = u.error_message, evidence = u.evidence::json, rpc_id = u.rpc_id, sent_at = u.sent_at,
			finished_at = u.finished_at,
		error_params = u.error_params::json,
		sealed_arguments = CASE WHEN u.finished_at IS NULL THEN c.sealed_arguments END
	FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::text[], $7::text[], $8::text[],
		$9::int[], $10::timestamptz[], $11::timestamptz[],
		$12::timestamptz[], $13::text[], $14::bytea[])
		AS u (id, state, failure, result, result_hash, error_code, error_message, evidence, rpc_id, sent_at, finished_at,
			created_at,
		error_params, leaf)
	WHERE c.id = u.id AND c.created_at = u.created_at
	AND (c.state = 'pending' OR (c.state IN ('pending_device', 'sent') AND u.state <> 'sent'))
	RETURNING c.id, u.leaf),
	queued AS (INSERT INTO record_queue (leaves)
		SELECT string_agg(leaf, '') FROM changed HAVING count(leaf) > 0)
	SELECT id FROM changed`

// send writes a batch in one round trip and one transaction: PostgreSQL commits a pgx batch
// as a whole. It also runs the extra statements.
func (c *committer) send(ctx context.Context, db *pgxpool.Pool, batch []*callWrite, extra ...string) error {
	var inserts, updates []*callWrite
	for _, w := range batch {
		if w.insert {
			inserts = append(inserts, w)
		} else {
			updates = append(updates, w)
		}
	}
	var b pgx.Batch
	if len(inserts) > 0 {
		args, err := c.insertArgs(ctx, db, inserts)
		if err != nil {
			return fmt.Errorf("%w: %w", fleet.ErrNotStored, domainError(err))
		}
		b.Queue(insertCalls, args...)
		var leaves []byte
		for _, w := range inserts {
			leaves = append(leaves, w.row.leaf...)
		}
		if len(leaves) > 0 {
			b.Queue(queueLeaf, leaves)
		}
		if args := digestArgs(inserts); args != nil {
			b.Queue(insertDigests, args...)
		}
	}
	if len(updates) > 0 {
		b.Queue(updateCalls, updateArgs(updates)...).Query(func(rows pgx.Rows) error { return noteChanged(rows, updates) })
	}
	for _, sql := range extra {
		b.Queue(sql)
	}
	conn, err := db.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", fleet.ErrNotStored, domainError(err))
	}
	defer conn.Release()
	err = conn.SendBatch(ctx, &b).Close()
	if certainlyUndone(err) {
		return fmt.Errorf("%w: %w", fleet.ErrNotStored, domainError(err))
	}
	return domainError(err)
}

func noteChanged(rows pgx.Rows, updates []*callWrite) error {
	changed, err := pgx.CollectRows(rows, pgx.RowTo[[16]byte])
	if err != nil {
		return err
	}
	found := make(map[uuid.UUID]bool, len(changed))
	for _, id := range changed {
		found[id] = true
	}
	for _, w := range updates {
		w.changed = found[w.row.id]
	}
	return nil
}

// column returns an array with the values of one column. pgx encodes a FlatArray without
// reflection.
func column[T any](writes []*callWrite, of func(*callColumns) T) pgtype.FlatArray[T] {
	out := make(pgtype.FlatArray[T], len(writes))
	for i, w := range writes {
		out[i] = of(&w.row)
	}
	return out
}

// sparse is [column] for one that is null in most calls. If it is null in all of these it returns null: unnest pads it
// with nulls to the length of the others, and neither side handles an array.
func sparse[T any](writes []*callWrite, has func(T) bool, of func(*callColumns) T) pgtype.FlatArray[T] {
	for _, w := range writes {
		if has(of(&w.row)) {
			return column(writes, of)
		}
	}
	return nil
}

func given[T any](p *T) bool    { return p != nil }
func valid(id pgtype.UUID) bool { return id.Valid }
func notNil(b []byte) bool      { return b != nil }

func ids(writes []*callWrite) pgtype.FlatArray[pgtype.UUID] {
	return column(writes, func(r *callColumns) pgtype.UUID { return pgtype.UUID{Bytes: r.id, Valid: true} })
}

// insertArgs returns the arguments of [insertCalls]. It stores the origins of the calls first.
func (c *committer) insertArgs(ctx context.Context, db *pgxpool.Pool, ws []*callWrite) ([]any, error) {
	if err := c.origins.store(ctx, db, ws); err != nil {
		return nil, fmt.Errorf("origins of calls: %w", err)
	}
	return []any{
		ids(ws),
		column(ws, func(r *callColumns) time.Time { return r.createdAt }),
		column(ws, func(r *callColumns) string { return r.device }),
		column(ws, func(r *callColumns) string { return r.tool }),
		sparse(ws, given, func(r *callColumns) *string { return r.arguments }),
		column(ws, func(r *callColumns) string { return string(r.actor.Kind) }),
		column(ws, func(r *callColumns) string { return r.actor.ID }),
		column(ws, func(r *callColumns) string { return r.actor.Name }),
		column(ws, func(r *callColumns) string { return string(r.actor.Role) }),
		sparse(ws, valid, func(r *callColumns) pgtype.UUID { return r.fanOut }),
		column(ws, func(r *callColumns) string { return r.state }),
		sparse(ws, given, func(r *callColumns) *string { return r.failure }),
		sparse(ws, given, func(r *callColumns) *string { return r.result }),
		sparse(ws, notNil, func(r *callColumns) []byte { return r.resultHash }),
		sparse(ws, given, func(r *callColumns) *string { return r.errorCode }),
		sparse(ws, given, func(r *callColumns) *string { return r.errorMessage }),
		sparse(ws, given, func(r *callColumns) *string { return r.evidence }),
		column(ws, func(r *callColumns) int32 { return r.rpcID }),
		column(ws, func(r *callColumns) int64 { return r.timeoutMs }),
		sparse(ws, given, func(r *callColumns) *time.Time { return r.sentAt }),
		sparse(ws, given, func(r *callColumns) *time.Time { return r.finishedAt }),
		sparse(ws, given, func(r *callColumns) *string { return r.errorParams }),
		sparse(ws, valid, func(r *callColumns) pgtype.UUID { return r.approval }),
		sparse(ws, given, func(r *callColumns) *time.Time { return r.waitUntil }),
		sparse(ws, valid, func(r *callColumns) pgtype.UUID { return r.originID }),
		sparse(ws, valid, func(r *callColumns) pgtype.UUID { return traceID(r.origin) }),
		sparse(ws, notNil, func(r *callColumns) []byte { return r.sealed }),
	}, nil
}

const insertDigests = `
	INSERT INTO call_digests (digest, call_id, created_at) SELECT * FROM unnest($1::bytea[], $2::uuid[], $3::timestamptz[])
	ON CONFLICT DO NOTHING`

// digestArgs returns the arguments of [insertDigests], nil if no call has a digest.
func digestArgs(ws []*callWrite) []any {
	var digests [][]byte
	var calls []uuid.UUID
	var times []time.Time
	for _, w := range ws {
		for _, digest := range w.row.digests {
			digests, calls, times = append(digests, digest), append(calls, w.row.id), append(times, w.row.createdAt)
		}
	}
	if digests == nil {
		return nil
	}
	return []any{digests, calls, times}
}

// storeDigests stores the digests of calls that were inserted in the transaction.
func storeDigests(ctx context.Context, tx pgx.Tx, ws ...*callWrite) error {
	args := digestArgs(ws)
	if args == nil {
		return nil
	}
	_, err := tx.Exec(ctx, insertDigests, args...)
	return err
}

func updateArgs(ws []*callWrite) []any {
	return []any{
		ids(ws),
		column(ws, func(r *callColumns) string { return r.state }),
		sparse(ws, given, func(r *callColumns) *string { return r.failure }),
		sparse(ws, given, func(r *callColumns) *string { return r.result }),
		sparse(ws, notNil, func(r *callColumns) []byte { return r.resultHash }),
		sparse(ws, given, func(r *callColumns) *string { return r.errorCode }),
		sparse(ws, given, func(r *callColumns) *string { return r.errorMessage }),
		sparse(ws, given, func(r *callColumns) *string { return r.evidence }),
		column(ws, func(r *callColumns) int32 { return r.rpcID }),
		sparse(ws, given, func(r *callColumns) *time.Time { return r.sentAt }),
		sparse(ws, given, func(r *callColumns) *time.Time { return r.finishedAt }),
		column(ws, func(r *callColumns) time.Time { return r.createdAt }),
		sparse(ws, given, func(r *callColumns) *string { return r.errorParams }),
		sparse(ws, notNil, func(r *callColumns) []byte { return r.leaf }),
	}
}
