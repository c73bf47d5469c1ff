// Package large fills a database with a large fleet and its record, for tests and measurements of
// pages that read much: devices, a year of calls, actions, presence and earlier states. It writes
// the rows that fleetd would have written, with their leaves of the sealed record, and is as fast
// as COPY. It runs no fleetd.
package large

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/fleet"
	"fleetd/fleet/record"
)

// A Fleet is what is written.
type Fleet struct {
	Devices int
	Calls   int
	FanOuts int           // one of ten calls belongs to one
	Actions int           // audit entries
	Span    time.Duration // before Now, in which all of it happened
	Now     time.Time

	// Seal, if not nil, gets the leaves of the rows, as a transaction of fleetd would have queued them.
	Seal func(leaves []byte)
}

// DeviceID returns the id of a device by its number.
func DeviceID(n int) fleet.DeviceID { return fleet.DeviceID(fmt.Sprintf("02%010x", n)) }

// deviceSQL is [DeviceID] of the number i, in SQL.
const deviceSQL = `'02' || lpad(to_hex(i), 10, '0')`

// Write fills an empty database, and brings its statistics up to date.
func (f Fleet) Write(ctx context.Context, db *pgxpool.Pool) error {
	for at := f.Now.Add(-f.Span); at.Before(f.Now); at = at.AddDate(0, 1, 0) {
		if _, err := db.Exec(ctx, `SELECT ensure_partitions($1)`, at); err != nil {
			return fmt.Errorf("partitions of %s: %w", at.Format("2006-01"), err)
		}
	}
	for _, step := range []struct {
		what  string
		write func(context.Context, *pgxpool.Pool) error
	}{{"devices", f.devices}, {"fan-outs", f.fanOuts}, {"calls", f.calls}, {"actions", f.actions}} {
		if err := step.write(ctx, db); err != nil {
			return fmt.Errorf("write %s: %w", step.what, err)
		}
	}
	return run(ctx, db, `VACUUM ANALYZE devices`, `VACUUM ANALYZE calls`, `VACUUM ANALYZE audit_entries`)
}

func run(ctx context.Context, db *pgxpool.Pool, statements ...string) error {
	for _, sql := range statements {
		if _, err := db.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%.60s: %w", sql, err)
		}
	}
	return nil
}

func (f Fleet) devices(ctx context.Context, db *pgxpool.Pool) error {
	return run(ctx, db,
		`INSERT INTO inventories SELECT 'inv' || i, '[]', array_agg('self.t' || j), now() FROM generate_series(0, 9) i,
			generate_series(0, 9) j WHERE (i + j) % 3 = 0 GROUP BY i`,
		fmt.Sprintf(`
			INSERT INTO devices (id, name, name_key, tags, tags_key, board, board_key, chip, version, version_key,
				elf_sha256, slot, presence, presence_since, last_seen, enrolment, inventory_id, hold_reason, hold_kind, hold_id,
				hold_name, hold_role, hold_since, created_at, notes, presence_evidence_code, client_id)
			SELECT `+deviceSQL+`, n, n, tags, E'\x01' || array_to_string(tags, E'\x01') || E'\x01',
				'board-' || i %% 20, 'board-' || i %% 20, 'esp32s3',
				'2.' || i %% 7 || '.' || i %% 3, ARRAY[2, i %% 7, i %% 3], md5(i::text) || md5(i::text), 'ota_' || i %% 2,
				(ARRAY['online', 'offline', 'unresponsive', 'pending'])[1 + i %% 4], now(),
				now() - make_interval(mins => (i * 7919) %% 20000), 'enrolled', 'inv' || i %% 10,
				CASE WHEN h THEN 'r' END, CASE WHEN h THEN 'operator' END, CASE WHEN h THEN '1' END,
				CASE WHEN h THEN 'ada' END, CASE WHEN h THEN 'admin' END, CASE WHEN h THEN now() END,
				now() - make_interval(mins => (i * 31) %% 500000), 'in the rack', 'connected', md5(i::text)
			FROM generate_series(0, %d - 1) i, LATERAL (SELECT
				CASE WHEN i %% 2 = 0 THEN 'unit ' || (i * 7919) %% 100000 ELSE '' END
					|| CASE WHEN i %% 1000 = 0 THEN ' kitchen' ELSE '' END AS n,
				CASE WHEN i %% 5 = 0 THEN ARRAY['lab', 'floor-' || i %% 9] ELSE ARRAY['floor-' || i %% 9] END AS tags,
				i %% 50 = 0 AS h) x`, f.Devices))
}

// Catalogue lists 50 tools with two definitions each, which the inventories of a fleet that was written offer.
func Catalogue(ctx context.Context, db *pgxpool.Pool) error {
	return run(ctx, db,
		`UPDATE inventories SET catalogued = true`,
		`INSERT INTO tool_definitions (tool, digest, description, input_schema, audience, device_id, first_seen)
			SELECT 'self.t' || j, sha256((j || '/' || k)::text::bytea), 'd', '{"type":"object"}', 'model', '020000000000', now()
			FROM generate_series(0, 49) j, generate_series(0, 1) k`,
		`INSERT INTO inventory_tools SELECT 'self.t' || j, sha256((j || '/' || i % 2)::text::bytea), 'inv' || i, 'model'
			FROM generate_series(0, 49) j, generate_series(0, 9) i`,
		`INSERT INTO inventory_places SELECT DISTINCT inventory_id, board, version, now() FROM devices`,
		`ANALYZE`)
}

// FanOut returns the id of a fan-out by its number.
func (f Fleet) FanOut(n int) uuid.UUID {
	return idAt(f.at(n, f.FanOuts), "fan-out", n)
}

func (f Fleet) fanOuts(ctx context.Context, db *pgxpool.Pool) error {
	_, err := db.CopyFrom(ctx, pgx.Identifier{"fanouts"}, []string{"id", "actor_kind", "actor_id", "actor_name", "actor_role",
		"query", "tool", "max_in_flight", "timeout_ms", "state", "targets", "skipped", "created_at", "started_at", "finished_at"},
		pgx.CopyFromSlice(f.FanOuts, func(i int) ([]any, error) {
			at := f.at(i, f.FanOuts)
			return []any{f.FanOut(i), "operator", "1", "op1", "operator", "tag:lab", tool(i), 64, 10_000, "completed",
				f.Calls / 10 / f.FanOuts, 0, at, at, at.Add(time.Minute)}, nil
		}))
	return err
}

// at returns the time of a thing, of n that are spread evenly.
func (f Fleet) at(i, n int) time.Time {
	left := float64(n-i) / float64(n)
	return f.Now.Add(-time.Duration(left * float64(f.Span))).UTC().Truncate(time.Microsecond)
}

// idAt returns a UUID of version 7 with the time.
func idAt(at time.Time, kind string, n int) (id uuid.UUID) {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", kind, n))
	copy(id[:], sum[:])
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(at.UnixMilli()))
	copy(id[:6], ms[2:])
	id[6], id[8] = id[6]&0x0f|0x70, id[8]&0x3f|0x80
	return id
}

func tool(i int) string { return fmt.Sprintf("self.t%d", i%10) }

// Addresses that requests came from.
const (
	OftenFrom  = "192.0.2.7"    // one of usualCount with the same share
	SeldomFrom = "198.51.100.1" // one request in seldomEvery, over the whole year
	OnceFrom   = "198.51.100.2" // one in 200, all in a row after a fifth of the year

	usualCount  = 40
	seldomEvery = 100_003
)

// onceFrom returns which of n requests came from [OnceFrom].
func onceFrom(n int) (first, end int) { return n / 5, n/5 + n/200 }

// originOf returns where request i of n came from.
func originOf(i, n int) (id uuid.UUID, from record.From) {
	switch first, end := onceFrom(n); {
	case i%seldomEvery == 0:
		return originAt(SeldomFrom)
	case i >= first && i < end:
		return originAt(OnceFrom)
	default:
		return originAt(fmt.Sprintf("192.0.2.%d", i%usualCount))
	}
}

func originAt(address string) (id uuid.UUID, from record.From) {
	from = record.From{Address: address, Client: "bench/1"}
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s%s", len(from.Address), from.Address, from.Client))
	return uuid.UUID(sum[:16]), from
}

func (f Fleet) origins(ctx context.Context, db *pgxpool.Pool) error {
	seen := map[string]time.Time{SeldomFrom: f.Now}
	_, end := onceFrom(f.Calls)
	seen[OnceFrom] = f.at(end, f.Calls)
	for i := range usualCount {
		seen[fmt.Sprintf("192.0.2.%d", i)] = f.Now
	}
	var rows [][]any
	for address, at := range seen {
		id, from := originAt(address)
		rows = append(rows, []any{id, from.Address, from.Client, at})
	}
	_, err := db.CopyFrom(ctx, pgx.Identifier{"origins"}, []string{"id", "address", "client", "last_seen"},
		pgx.CopyFromRows(rows))
	return err
}

// flush is the number of leaves that one transaction queues: calls in flight commit together.
const flush = 64

// leaves collects leaves for Seal.
type leaves struct {
	seal    func([]byte)
	waiting []byte
	n       int
}

func (l *leaves) add(leaf func() record.Leaf) {
	if l.seal == nil {
		return
	}
	l.waiting = leaf().Append(l.waiting)
	if l.n++; l.n == flush {
		l.end()
	}
}

func (l *leaves) end() {
	if len(l.waiting) > 0 {
		l.seal(l.waiting)
	}
	l.waiting, l.n = nil, 0
}

// call returns the call i, and the word for its failure.
func (f Fleet) call(i int) (r *record.CallRow, failure *string, origin uuid.UUID) {
	at := f.at(i, f.Calls)
	done := at.Add(20 * time.Millisecond)
	arguments, result := `{"volume":50}`, `{"content":[{"type":"text","text":"true"}],"isError":false}`
	r = &record.CallRow{ID: idAt(at, "call", i), CreatedAt: at, Device: string(DeviceID(i * 7919 % f.Devices)), Tool: tool(i / 3),
		Arguments: &arguments, Actor: record.Who{Kind: "operator", ID: "1", Name: fmt.Sprintf("op%d", i%20), Role: "operator"},
		State: "succeeded", Result: &result, RPCID: int32(i % 1000), TimeoutMs: 10_000, SentAt: &at, FinishedAt: &done}
	if i%100 == 0 {
		r.State, r.Result, failure = "timed_out", nil, &timedOut
		r.ErrorCode, r.ErrorMessage = &timedOut, &timedOut
	}
	origin, r.Origin = originOf(i, f.Calls)
	if i%10 == 0 && f.FanOuts > 0 {
		r.FanOut = f.FanOut(int(int64(i) * int64(f.FanOuts) / int64(f.Calls)))
	}
	return r, failure, origin
}

var timedOut = "timed_out"

func (f Fleet) calls(ctx context.Context, db *pgxpool.Pool) error {
	if err := f.origins(ctx, db); err != nil {
		return err
	}
	sealed := leaves{seal: f.Seal}
	_, err := db.CopyFrom(ctx, pgx.Identifier{"calls"}, []string{"id", "created_at", "device_id", "tool", "arguments",
		"actor_kind", "actor_id", "actor_name", "actor_role", "fanout_id", "state", "failure", "result", "error_code", "error_message",
		"rpc_id", "timeout_ms", "sent_at", "finished_at", "origin_id"}, pgx.CopyFromSlice(f.Calls, func(i int) ([]any, error) {
		r, failure, origin := f.call(i)
		sealed.add(r.Leaf)
		return []any{r.ID, r.CreatedAt, r.Device, r.Tool, *r.Arguments, r.Actor.Kind, r.Actor.ID, r.Actor.Name, r.Actor.Role,
			uuid.NullUUID{UUID: r.FanOut, Valid: r.FanOut != uuid.Nil}, r.State, failure, r.Result, r.ErrorCode, r.ErrorMessage,
			r.RPCID, r.TimeoutMs, r.SentAt, r.FinishedAt, origin}, nil
	}))
	sealed.end()
	return err
}

func (f Fleet) actions(ctx context.Context, db *pgxpool.Pool) error {
	sealed := leaves{seal: f.Seal}
	names := []string{"device.hold", "device.release", "device.approve", "token.create"}
	_, err := db.CopyFrom(ctx, pgx.Identifier{"audit_entries"}, []string{"id", "created_at", "actor_kind", "actor_id",
		"actor_name", "actor_role", "action", "subject", "detail", "origin_id"},
		pgx.CopyFromSlice(f.Actions, func(i int) ([]any, error) {
			at := f.at(i, f.Actions)
			origin, from := originOf(i, f.Actions)
			r := &record.ActionRow{ID: idAt(at, "action", i), CreatedAt: at, Actor: record.Who{Kind: "operator", ID: "1",
				Name: fmt.Sprintf("op%d", i%20), Role: "operator"}, Action: names[i%len(names)],
				Subject: string(DeviceID(i * 7919 % f.Devices)), Detail: `{"reason": "r"}`, Origin: from}
			sealed.add(r.Leaf)
			return []any{r.ID, r.CreatedAt, r.Actor.Kind, r.Actor.ID, r.Actor.Name, r.Actor.Role, r.Action, r.Subject, r.Detail,
				origin}, nil
		}))
	sealed.end()
	return err
}
