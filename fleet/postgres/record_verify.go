package postgres

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"golang.org/x/mod/sumdb/tlog"

	"fleetd/fleet"
	"fleetd/fleet/record"
)

var _ record.VerifierStore = (*Store)(nil)

// ReadRecord implements [record.VerifierStore]. The snapshot keeps old versions of rows in the database until read
// returns.
func (s *Store) ReadRecord(ctx context.Context, read func(log, rows record.Reader) error) error {
	err := s.inSnapshot(ctx, func(tx pgx.Tx) error {
		var snapshot string
		if err := tx.QueryRow(ctx, `SELECT pg_export_snapshot()`).Scan(&snapshot); err != nil {
			return err
		}
		return s.inSnapshot(ctx, func(rows pgx.Tx) error {
			if _, err := rows.Exec(ctx, `SET TRANSACTION SNAPSHOT '`+snapshot+`'`); err != nil {
				return err
			}
			return read(recordReader{tx}, recordReader{rows})
		})
	})
	if err != nil {
		return fmt.Errorf("read the record: %w", domainError(err))
	}
	return nil
}

func (s *Store) inSnapshot(ctx context.Context, read func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, s.db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, read)
}

// A recordReader implements [record.Reader] in a transaction.
type recordReader struct{ tx pgx.Tx }

func (r recordReader) Keys(ctx context.Context) ([]string, error) {
	rows, _ := r.tx.Query(ctx, `SELECT verifier FROM record_keys ORDER BY id`)
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

func (r recordReader) Checkpoints(ctx context.Context, after int64, limit int) ([]record.Checkpoint, error) {
	rows, _ := r.tx.Query(ctx, `
		SELECT `+checkpointColumns+` FROM record_checkpoints WHERE size > $1 ORDER BY size LIMIT $2`, after, limit)
	return pgx.CollectRows(rows, toCheckpoint)
}

func (r recordReader) Batches(ctx context.Context, from int64, limit int) ([]record.Batch, error) {
	rows, _ := r.tx.Query(ctx, `
		SELECT first, keys, hashes FROM record_batches WHERE first >= $1 ORDER BY first LIMIT $2`, from, limit)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[record.Batch])
}

func (r recordReader) Tiles(ctx context.Context, level int, from int64, limit int) ([]record.Tile, error) {
	rows, _ := r.tx.Query(ctx, `
		SELECT level, n, hashes FROM record_tiles WHERE level = $1 AND n >= $2 ORDER BY n LIMIT $3`, level, from, limit)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[record.Tile])
}

func (r recordReader) Queued(ctx context.Context) (all []record.Leaf, err error) {
	rows, _ := r.tx.Query(ctx, `SELECT leaves FROM record_queue ORDER BY id`)
	var b []byte
	_, err = pgx.ForEachRow(rows, []any{&b}, func() error {
		leaves, err := record.ParseLeaves(b)
		all = append(all, leaves...)
		return err
	})
	return all, err
}

func (r recordReader) Removals(ctx context.Context) ([]record.Removal, error) {
	rows, _ := r.tx.Query(ctx, `SELECT kind, ref, at FROM record_removals`)
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (m record.Removal, err error) {
		var kind int16
		var ref []byte
		err = row.Scan(&kind, &ref, &m.At)
		m.Kind, m.Ref = record.Kind(kind), string(ref)
		return m, err
	})
}

// A recordSource is a table whose rows are entries of the sealed record.
type recordSource struct {
	table string
	at    string // column with the time of the row
	ref   string // expression for the key of a row, as bytea
	in    string // condition: rows that are not entries are left out
	// lines is a statement that returns the lines of rows by their number in the parameters, which keys makes.
	lines string
	keys  func(leaves []record.Leaf) []any
	line  func(row pgx.CollectableRow) (int64, []byte, error)
}

var recordSources = map[record.Kind]recordSource{
	record.Call: {table: "calls c", at: "created_at", ref: "uuid_send(id)", in: "finished_at IS NOT NULL",
		lines: `SELECT k.n, ` + sealedCallColumns + `, ` + originJoined + ` FROM ` + idKeys + `
			JOIN calls c ON c.id = k.id AND c.created_at = k.at AND c.created_at BETWEEN $3 AND $4` + originJoin + `
			WHERE finished_at IS NOT NULL`, keys: idKeysOf, line: callLine},
	record.LateAnswer: {table: "calls c", at: "created_at", ref: "uuid_send(id)", in: "late IS NOT NULL",
		lines: `SELECT k.n, c.id, c.created_at, c.late::text FROM ` + idKeys + `
			JOIN calls c ON c.id = k.id AND c.created_at = k.at AND c.created_at BETWEEN $3 AND $4
			WHERE late IS NOT NULL`, keys: idKeysOf, line: lateLine},
	record.Action: {table: "audit_entries", at: "created_at", ref: "uuid_send(id)", in: "true",
		lines: `SELECT k.n, a.id, a.created_at, a.actor_kind, a.actor_id, a.actor_name, a.actor_role, a.action, a.subject,
				a.detail::text, ` + originJoined + `
			FROM ` + idKeys + `
			JOIN audit_entries a ON a.id = k.id AND a.created_at = k.at AND a.created_at BETWEEN $3 AND $4` + originJoin,
		keys: idKeysOf, line: actionLine},
	record.Connection: {table: "presence_changes", at: "at", ref: "convert_to(device_id, 'UTF8')", in: "true",
		lines: `SELECT k.n, record_connection(p.device_id, p.at, p.presence, p.evidence_code, p.evidence_params, p.transport)
			FROM unnest($1::text[], $2::timestamptz[]) WITH ORDINALITY AS k (device, at, n)
			JOIN presence_changes p ON p.device_id = k.device AND p.at = k.at`,
		keys: func(leaves []record.Leaf) []any { return []any{recordRefs(leaves), recordTimes(leaves)} }, line: textLine},
	record.Step: {table: "deployment_events", at: "at", ref: "uuid_send(deployment_id) || uuid_send(id)",
		in: "kind <> 'planned'",
		lines: `SELECT k.n, record_step(e.deployment_id, e.id, e.at, e.attempt, e.kind, e.from_state, e.to_state,
				e.reason_code, e.reason_params)
			FROM unnest($1::uuid[], $2::uuid[]) WITH ORDINALITY AS k (deployment_id, id, n)
			JOIN deployment_events e ON e.deployment_id = k.deployment_id AND e.id = k.id`, keys: stepKeys, line: textLine},
	record.Firmware: {table: "device_firmware", at: "first_seen", ref: "convert_to(device_id || '/' || id, 'UTF8')",
		in: "true",
		lines: `SELECT k.n, record_firmware(f.id, f.device_id, f.version, f.first_seen)
			FROM unnest($1::bigint[]) WITH ORDINALITY AS k (id, n)
			JOIN device_firmware f ON f.id = k.id`, keys: firmwareKeys, line: textLine},
}

// idKeys are the rows to read by id and time. $3 and $4 are the earliest and the latest time, which exclude
// partitions.
const idKeys = `unnest($1::uuid[], $2::timestamptz[]) WITH ORDINALITY AS k (id, at, n)`

// recordTimes and recordIDs return arrays that pgx encodes without reflection.
func recordTimes(leaves []record.Leaf) pgtype.FlatArray[time.Time] {
	return collect(leaves, func(l record.Leaf) time.Time { return l.At })
}

func recordIDs(leaves []record.Leaf) pgtype.FlatArray[pgtype.UUID] {
	return collect(leaves, func(l record.Leaf) pgtype.UUID {
		return pgtype.UUID{Bytes: recordID(l.Ref), Valid: true}
	})
}

func recordRefs(leaves []record.Leaf) []string {
	return collect(leaves, func(l record.Leaf) string { return cleanText(l.Ref) })
}

func recordID(ref string) uuid.UUID {
	id, _ := uuid.FromBytes([]byte(ref)) // a damaged key finds no row
	return id
}

func idKeysOf(leaves []record.Leaf) []any {
	from, to := record.Span(leaves)
	return []any{recordIDs(leaves), recordTimes(leaves), from, to}
}

func stepKeys(leaves []record.Leaf) []any {
	part := func(from, to int) []uuid.UUID {
		return collect(leaves, func(l record.Leaf) uuid.UUID {
			if len(l.Ref) < to {
				return uuid.Nil
			}
			return recordID(l.Ref[from:to])
		})
	}
	return []any{part(0, 16), part(16, 32)}
}

func firmwareKeys(leaves []record.Leaf) []any {
	return []any{collect(leaves, func(l record.Leaf) int64 {
		_, id, _ := strings.Cut(l.Ref, "/")
		n, _ := strconv.ParseInt(id, 10, 64)
		return n
	})}
}

func callLine(row pgx.CollectableRow) (n int64, line []byte, err error) {
	c, err := toRecordCall(numbered{row, &n})
	if err != nil {
		return 0, nil, err
	}
	return n, c.Line(), nil
}

// numbered is a row whose first column is scanned separately.
type numbered struct {
	pgx.CollectableRow
	n *int64
}

func (r numbered) Scan(dest ...any) error {
	return r.CollectableRow.Scan(append([]any{r.n}, dest...)...)
}

func lateLine(row pgx.CollectableRow) (n int64, line []byte, err error) {
	var r record.LateRow
	if err = row.Scan(&n, &r.Call, &r.CreatedAt, &r.Late); err != nil {
		return 0, nil, err
	}
	return n, r.Line(), nil
}

func actionLine(row pgx.CollectableRow) (n int64, line []byte, err error) {
	var r record.ActionRow
	var trace uuid.NullUUID
	err = row.Scan(&n, &r.ID, &r.CreatedAt, &r.Actor.Kind, &r.Actor.ID, &r.Actor.Name, &r.Actor.Role, &r.Action,
		&r.Subject, &r.Detail, &r.Origin.Address, &r.Origin.Client, &trace)
	if err != nil {
		return 0, nil, err
	}
	r.Origin.Trace = trace.UUID
	return n, r.Line(), nil
}

func textLine(row pgx.CollectableRow) (n int64, line []byte, err error) {
	err = row.Scan(&n, &line)
	return n, line, err
}

func (r recordReader) Lines(ctx context.Context, k record.Kind, leaves []record.Leaf) ([][]byte, error) {
	lines := make([][]byte, len(leaves))
	source, known := recordSources[k]
	if !known || len(leaves) == 0 {
		return lines, nil
	}
	rows, err := r.tx.Query(ctx, source.lines, source.keys(leaves)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		n, line, err := source.line(rows)
		if err != nil {
			return nil, err
		}
		lines[n-1] = line
	}
	return lines, rows.Err()
}

func (r recordReader) Counts(ctx context.Context, k record.Kind, start time.Time) (map[time.Time]int64, error) {
	source := recordSources[k]
	counts := make(map[time.Time]int64)
	rows, _ := r.tx.Query(ctx, `
		SELECT date_bin('1 hour', `+source.at+`, '2000-01-01 00:00:00Z'), count(*) FROM `+source.table+`
		WHERE `+source.at+` >= $1 AND `+source.in+` GROUP BY 1`, start)
	var hour time.Time
	var n int64
	_, err := pgx.ForEachRow(rows, []any{&hour, &n}, func() error { counts[hour.UTC()] = n; return nil })
	return counts, err
}

func (r recordReader) RowKeys(ctx context.Context, k record.Kind, start, end time.Time) ([]record.Key, error) {
	source := recordSources[k]
	rows, _ := r.tx.Query(ctx, `
		SELECT `+source.ref+`, `+source.at+` FROM `+source.table+`
		WHERE `+source.at+` >= $1 AND `+source.at+` < $2 AND `+source.in+` ORDER BY 2, 1`, start, end)
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (key record.Key, err error) {
		var ref []byte
		err = row.Scan(&ref, &key.At)
		key.Ref, key.At = string(ref), key.At.UTC()
		return key, err
	})
}

func (r recordReader) LeavesAt(ctx context.Context, k record.Kind, start, end time.Time) (
	map[int64]record.Leaf, error) {
	rows, _ := r.tx.Query(ctx, `
		SELECT first, keys, hashes FROM record_batches WHERE span && tstzrange($1, $2, '[)') ORDER BY first`, start, end)
	found := make(map[int64]record.Leaf)
	var b record.Batch
	_, err := pgx.ForEachRow(rows, []any{&b.First, &b.Keys, &b.Hashes}, func() error {
		leaves, err := b.Leaves()
		for i, l := range leaves {
			if l.Kind == k && !l.At.Before(start) && l.At.Before(end) {
				found[b.First+int64(i)] = l
			}
		}
		return err
	})
	return found, err
}

// RecordLine returns the line of an entry; nil if its row was removed.
func (s *Store) RecordLine(ctx context.Context, l record.Leaf) (line []byte, err error) {
	lines, err := s.RecordLines(ctx, []record.Leaf{l})
	if err != nil {
		return nil, err
	}
	return lines[0], nil
}

// RecordHashes reads hashes of the tree of the size, for proofs.
func (s *Store) RecordHashes(ctx context.Context, tree tlog.Tree) tlog.HashReader {
	return tlog.TileHashReader(tree, recordTiles{ctx, s})
}

type recordTiles struct {
	ctx context.Context
	s   *Store
}

func (r recordTiles) Height() int { return record.TileHeight }

func (r recordTiles) ReadTiles(tiles []tlog.Tile) (data [][]byte, err error) {
	for _, t := range tiles {
		d, err := r.s.RecordTile(r.ctx, t)
		if err != nil {
			return nil, err
		}
		data = append(data, d)
	}
	return data, nil
}

func (recordTiles) SaveTiles([]tlog.Tile, [][]byte) {}

// RecordLines returns the lines of leaves of all kinds; nil for a missing row.
func (s *Store) RecordLines(ctx context.Context, leaves []record.Leaf) (lines [][]byte, err error) {
	err = s.inSnapshot(ctx, func(tx pgx.Tx) error {
		lines, err = record.Lines(ctx, recordReader{tx}, leaves)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("lines of the record: %w", domainError(err))
	}
	return lines, nil
}

// RecordEntries returns the numbers of the entries whose rows have the id. The time in the id leads to them.
func (s *Store) RecordEntries(ctx context.Context, id uuid.UUID) (numbers []int64, err error) {
	from, to, ok := idWindow(id)
	if !ok {
		return nil, nil
	}
	for _, at := range [][2]time.Time{{from.Add(idSlack - time.Second), to.Add(time.Second - idSlack)}, {from, to}} {
		rows, _ := s.db.Query(ctx, `
			SELECT first, keys, hashes FROM record_batches WHERE span && tstzrange($1, $2, '[)') ORDER BY first`, at[0], at[1])
		var b record.Batch
		_, err := pgx.ForEachRow(rows, []any{&b.First, &b.Keys, &b.Hashes}, func() error {
			leaves, err := b.Leaves()
			for i, l := range leaves {
				if l.Ref == string(id[:]) {
					numbers = append(numbers, b.First+int64(i))
				}
			}
			return err
		})
		if err != nil || len(numbers) > 0 {
			return numbers, err
		}
	}
	return nil, nil
}

// AuditVerification writes the result of a verification into the record.
func (s *Store) AuditVerification(ctx context.Context, by fleet.Principal, r record.Report) error {
	detail := map[string]any{"entries": r.Entries, "root": r.Latest.Root.String(), "sound": r.Sound(),
		"findings": int64(len(r.Findings)) + r.More}
	if !r.Sound() {
		f := r.Findings[0]
		detail["problem"], detail["entry"], detail["entry_subject"] = string(f.Problem), f.Entry, f.Subject()
	}
	return s.audited(ctx, by, "record.verify", "record", detail, func(pgx.Tx) error { return nil })
}
