package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/record"
)

// queueLeaf is the statement that queues leaves for the log. It belongs in the transaction of the entries.
const queueLeaf = `INSERT INTO record_queue (leaves) VALUES ($1)`

// queueLeaves queues leaves for the log in the transaction of their entries.
func queueLeaves(ctx context.Context, tx pgx.Tx, leaves []record.Leaf) error {
	if len(leaves) == 0 {
		return nil
	}
	var b []byte
	for _, l := range leaves {
		b = l.Append(b)
	}
	_, err := tx.Exec(ctx, queueLeaf, b)
	return err
}

// queueRows returns SQL that queues the leaves of the rows of a CTE: a leaf is made by the expression.
func queueRows(leaf, from string) string {
	return `INSERT INTO record_queue (leaves) SELECT string_agg(` + leaf + `, '') FROM ` + from + ` HAVING count(*) > 0`
}

// These expressions make the leaves of rows of their tables.
const (
	connectionLeaf = `record_leaf(4, convert_to(device_id, 'UTF8'), at, record_connection(device_id, at, presence,
		evidence_code, evidence_params, transport))`
	stepLeaf = `record_leaf(5, uuid_send(deployment_id) || uuid_send(id), at, record_step(deployment_id, id, at, attempt,
		kind, from_state, to_state, reason_code, reason_params))`
	firmwareLeaf = `record_leaf(6, convert_to(device_id || '/' || id, 'UTF8'), first_seen, record_firmware(id, device_id, version,
		first_seen))`
)

// queueRemoval records, in the transaction of a removal, that rows were removed: see [record.Rowless].
func queueRemoval(ctx context.Context, tx pgx.Tx, removals ...record.Leaf) error {
	for _, r := range removals {
		_, err := tx.Exec(ctx, `INSERT INTO record_removals (kind, ref, at) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`,
			int16(r.Kind), []byte(r.Ref), r.At)
		if err != nil {
			return err
		}
	}
	return queueLeaves(ctx, tx, removals)
}

// recordCall returns what the log seals of the call.
func (r *callColumns) recordCall() *record.CallRow {
	return &record.CallRow{ID: r.id, CreatedAt: r.createdAt, Device: r.device, Tool: r.tool, Arguments: r.arguments,
		Actor: recordWho(r.actor), FanOut: r.fanOut.Bytes, Approval: r.approval.Bytes, State: r.state, Result: r.result,
		ErrorCode: r.errorCode, ErrorMessage: r.errorMessage, ErrorParams: r.errorParams, Evidence: r.evidence,
		RPCID: r.rpcID, TimeoutMs: r.timeoutMs, SentAt: r.sentAt, FinishedAt: r.finishedAt, Origin: recordOrigin(r.origin)}
}

func recordWho(p fleet.Principal) record.Who {
	return record.Who{Kind: string(p.Kind), ID: p.ID, Name: p.Name, Role: string(p.Role)}
}

// sealedCallColumns, and the columns of the origin, are what the line of the call c is made of; see [toRecordCall].
const sealedCallColumns = `c.id, c.created_at, c.device_id, c.tool, c.arguments::text, c.actor_kind, c.actor_id,
	c.actor_name, c.actor_role, c.fanout_id, c.approval_id, c.state, c.result::text, c.error_code, c.error_message,
	c.error_params::text, c.evidence::text, c.rpc_id, c.timeout_ms, c.sent_at, c.finished_at`

func toRecordCall(row pgx.CollectableRow) (*record.CallRow, error) {
	var r record.CallRow
	var fanOut, approval, trace uuid.NullUUID
	err := row.Scan(&r.ID, &r.CreatedAt, &r.Device, &r.Tool, &r.Arguments, &r.Actor.Kind, &r.Actor.ID, &r.Actor.Name,
		&r.Actor.Role, &fanOut, &approval, &r.State, &r.Result, &r.ErrorCode, &r.ErrorMessage, &r.ErrorParams,
		&r.Evidence, &r.RPCID, &r.TimeoutMs, &r.SentAt, &r.FinishedAt, &r.Origin.Address, &r.Origin.Client, &trace)
	r.FanOut, r.Approval, r.Origin.Trace = fanOut.UUID, approval.UUID, trace.UUID
	return &r, err
}

// endCalls runs a statement that gives calls their outcomes, and queues their leaves. The statement names the
// table calls c. It returns the number of calls.
func endCalls(ctx context.Context, tx pgx.Tx, sql string, args ...any) (int64, error) {
	rows, _ := tx.Query(ctx, sql+` RETURNING `+sealedCallColumns+`, `+originOf, args...)
	ended, err := pgx.CollectRows(rows, toRecordCall)
	if err != nil {
		return 0, err
	}
	leaves := make([]record.Leaf, len(ended))
	for i, c := range ended {
		leaves[i] = c.Leaf()
	}
	return int64(len(ended)), queueLeaves(ctx, tx, leaves)
}
