package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/mod/sumdb/tlog"

	"fleetd/fleet/publish"
	"fleetd/fleet/record"
)

var (
	_ record.SequencerStore = (*Store)(nil)
	_ publish.Store         = (*Store)(nil)
)

// RecordKeys implements [record.SequencerStore].
func (s *Store) RecordKeys(ctx context.Context) ([]string, error) {
	rows, _ := s.db.Query(ctx, `SELECT verifier FROM record_keys ORDER BY id`)
	keys, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("keys of the record: %w", domainError(err))
	}
	return keys, nil
}

// AddRecordKey implements [record.SequencerStore]. A key that signed before signs again. With the first key, the
// log starts.
func (s *Store) AddRecordKey(ctx context.Context, verifier string) error {
	err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		var first bool
		var start time.Time
		err := tx.QueryRow(ctx, `SELECT at, NOT EXISTS (SELECT FROM record_keys) FROM record_start`).Scan(&start, &first)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			INSERT INTO record_keys (verifier, from_size)
			VALUES ($1, coalesce((SELECT max(size) FROM record_checkpoints), 0))
			ON CONFLICT (verifier) DO UPDATE SET id = DEFAULT`, verifier)
		if err != nil || !first {
			return err
		}
		return queueLeaves(ctx, tx, []record.Leaf{record.Rowless(record.Started, "", start)})
	})
	if err != nil {
		return fmt.Errorf("add the key of the record: %w", domainError(err))
	}
	return nil
}

const checkpointColumns = `size, root, at, term, note`

func toCheckpoint(row pgx.CollectableRow) (c record.Checkpoint, err error) {
	var root []byte
	if err = row.Scan(&c.Size, &root, &c.At, &c.Term, &c.Note); err != nil {
		return c, err
	}
	if len(root) != tlog.HashSize {
		return c, fmt.Errorf("the root of the checkpoint of %d entries has %d bytes", c.Size, len(root))
	}
	c.Root = tlog.Hash(root)
	return c, nil
}

// LatestCheckpoint implements [record.SequencerStore].
func (s *Store) LatestCheckpoint(ctx context.Context) (record.Checkpoint, error) {
	rows, _ := s.db.Query(ctx, `SELECT `+checkpointColumns+` FROM record_checkpoints ORDER BY size DESC LIMIT 1`)
	c, err := pgx.CollectExactlyOneRow(rows, toCheckpoint)
	if errors.Is(err, pgx.ErrNoRows) {
		return record.Checkpoint{}, nil
	}
	if err != nil {
		return c, fmt.Errorf("latest checkpoint of the record: %w", domainError(err))
	}
	return c, nil
}

// CosignedCheckpoints implements [record.Store].
func (s *Store) CosignedCheckpoints(ctx context.Context) ([]string, error) {
	rows, _ := s.db.Query(ctx, `SELECT note FROM record_cosignatures ORDER BY size DESC`)
	notes, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("checkpoints that witnesses signed: %w", domainError(err))
	}
	return notes, nil
}

// CosignedSize implements [publish.Store].
func (s *Store) CosignedSize(ctx context.Context, witness string) (size int64, err error) {
	err = s.db.QueryRow(ctx, `SELECT coalesce((SELECT size FROM record_cosignatures WHERE witness = $1), 0)`, witness).
		Scan(&size)
	if err != nil {
		return 0, fmt.Errorf("size that a witness signed: %w", domainError(err))
	}
	return size, nil
}

// StoreCosignature implements [publish.Store].
func (s *Store) StoreCosignature(ctx context.Context, witness string, c record.Checkpoint, at time.Time) error {
	_, err := s.db.Exec(ctx, `
		INSERT INTO record_cosignatures (witness, size, note, cosigned_at) VALUES ($1, $2, $3, $4)
		ON CONFLICT (witness) DO UPDATE SET size = $2, note = $3, cosigned_at = $4`, witness, c.Size, c.Note, at)
	if err != nil {
		return fmt.Errorf("store the signature of a witness: %w", domainError(err))
	}
	return nil
}

// RecordEdge implements [record.SequencerStore].
func (s *Store) RecordEdge(ctx context.Context, size int64) (*record.Edge, error) {
	var tiles [][]tlog.Hash
	for level, n := 0, size; n > 0; level, n = level+1, n/record.TileWidth {
		var hashes []tlog.Hash
		if width := int(n % record.TileWidth); width > 0 {
			data, err := s.RecordTile(ctx, tlog.Tile{H: record.TileHeight, L: level, N: n / record.TileWidth, W: width})
			if err != nil {
				return nil, err
			}
			if hashes, err = record.Unflatten(data); err != nil {
				return nil, err
			}
		}
		tiles = append(tiles, hashes)
	}
	return record.NewEdge(size, tiles)
}

// RecordTile returns the hashes of a tile. Those of a partial tile are leaves, or follow from the tiles below.
func (s *Store) RecordTile(ctx context.Context, t tlog.Tile) ([]byte, error) {
	data, err := s.recordTile(ctx, t)
	if err != nil {
		return nil, fmt.Errorf("tile %d of level %d of the record: %w", t.N, t.L, domainError(err))
	}
	if len(data) < t.W*tlog.HashSize {
		return nil, fmt.Errorf("tile %d of level %d of the record has %d hashes instead of %d", t.N, t.L,
			len(data)/tlog.HashSize, t.W)
	}
	return data[:t.W*tlog.HashSize], nil
}

func (s *Store) recordTile(ctx context.Context, t tlog.Tile) (data []byte, err error) {
	if t.W == record.TileWidth {
		err = s.db.QueryRow(ctx, `SELECT hashes FROM record_tiles WHERE level = $1 AND n = $2`, t.L, t.N).Scan(&data)
		return data, err
	}
	first := t.N * record.TileWidth
	if t.L == 0 {
		leaves, err := s.RecordLeaves(ctx, first, first+int64(t.W))
		for _, l := range leaves {
			data = append(data, l.Hash[:]...)
		}
		return data, err
	}
	rows, _ := s.db.Query(ctx, `
		SELECT hashes FROM record_tiles WHERE level = $1 AND n >= $2 AND n < $3 ORDER BY n`, t.L-1, first, first+int64(t.W))
	var below []byte
	_, err = pgx.ForEachRow(rows, []any{&below}, func() error {
		hashes, err := record.Unflatten(below)
		if err != nil {
			return err
		}
		h := record.Fold(hashes)
		data = append(data, h[:]...)
		return nil
	})
	return data, err
}

// RecordLeaves returns the leaves of the entries from first, before end.
func (s *Store) RecordLeaves(ctx context.Context, first, end int64) ([]record.Leaf, error) {
	var all []record.Leaf
	rows, _ := s.db.Query(ctx, `
		SELECT first, keys, hashes FROM record_batches
		WHERE first < $2 AND first >= coalesce((SELECT max(first) FROM record_batches WHERE first <= $1), 0)
		ORDER BY first`, first, end)
	batches, err := pgx.CollectRows(rows, pgx.RowToStructByPos[record.Batch])
	if err != nil {
		return nil, fmt.Errorf("entries %d to %d of the record: %w", first, end, domainError(err))
	}
	next := first
	for _, b := range batches {
		leaves, err := b.Leaves()
		if err != nil {
			return nil, fmt.Errorf("entries from %d of the record: %w", b.First, err)
		}
		if b.First > next || b.First+int64(len(leaves)) <= next {
			return nil, fmt.Errorf("entries from %d of the record are missing", next)
		}
		leaves = leaves[next-b.First:]
		leaves = leaves[:min(int64(len(leaves)), end-next)]
		all = append(all, leaves...)
		next += int64(len(leaves))
	}
	if next < end {
		return nil, fmt.Errorf("entries from %d of the record are missing", next)
	}
	return all, nil
}

// RecordDevices implements [record.Store].
func (s *Store) RecordDevices(ctx context.Context, leaves []record.Leaf) ([]string, error) {
	devices := make([]string, len(leaves))
	for kind, sql := range map[record.Kind]string{
		record.Step: `SELECT k.n, d.device_id FROM unnest($1::uuid[], $2::uuid[]) WITH ORDINALITY AS k (id, event, n)
			JOIN deployments d ON d.id = k.id`,
		record.LateAnswer: `SELECT k.n, c.device_id FROM ` + idKeys + `
			JOIN calls c ON c.id = k.id AND c.created_at = k.at AND c.created_at BETWEEN $3 AND $4`,
	} {
		var at []int
		var of []record.Leaf
		for i, l := range leaves {
			if l.Kind == kind {
				at, of = append(at, i), append(of, l)
			}
		}
		if len(of) == 0 {
			continue
		}
		rows, _ := s.db.Query(ctx, sql, recordSources[kind].keys(of)...)
		var n int
		var device string
		_, err := pgx.ForEachRow(rows, []any{&n, &device}, func() error { devices[at[n-1]] = device; return nil })
		if err != nil {
			return nil, fmt.Errorf("devices of entries of the record: %w", domainError(err))
		}
	}
	return devices, nil
}

// RecordEntryAt implements [record.Store].
func (s *Store) RecordEntryAt(ctx context.Context, at time.Time) (n int64, err error) {
	err = s.db.QueryRow(ctx, `
		SELECT coalesce(min(first), (SELECT coalesce(max(size), 0) FROM record_checkpoints))
		FROM record_batches WHERE span && tstzrange($1, NULL, '[]')`, at).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("entry of the record at a time: %w", domainError(err))
	}
	return n, nil
}

// recordLock orders processes that append to the log, even those of two terms.
const recordLock = 0x666c7265 // "flre"

// queueChunk bounds the rows of the queue that one statement removes.
const queueChunk = 2000

// AppendQueued implements [record.SequencerStore].
func (s *Store) AppendQueued(ctx context.Context, size int64, atMost int,
	seal func([]record.Leaf) (record.Addition, error)) (n int, err error) {
	err = pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		var latest int64
		err := tx.QueryRow(ctx, `
			SELECT coalesce((SELECT max(size) FROM record_checkpoints), 0) FROM pg_advisory_xact_lock($1)`,
			recordLock).Scan(&latest)
		if err != nil {
			return err
		}
		if latest != size {
			return fmt.Errorf("%w: it has %d entries, not %d", record.ErrMoved, latest, size)
		}
		leaves, err := takeQueued(ctx, tx, atMost)
		if n = len(leaves); err != nil || n == 0 {
			return err
		}
		added, err := seal(leaves)
		if err != nil {
			return err
		}
		return storeAddition(ctx, tx, leaves, added)
	})
	if err != nil {
		return 0, fmt.Errorf("append to the record: %w", domainError(err))
	}
	return n, nil
}

// takeQueued removes rows from the queue, in the order of their ids, until their leaves are enough.
func takeQueued(ctx context.Context, tx pgx.Tx, atMost int) (all []record.Leaf, err error) {
	type queued struct {
		ID     int64
		Leaves []byte
	}
	for len(all) < atMost {
		rows, _ := tx.Query(ctx, `
			DELETE FROM record_queue WHERE id = ANY (ARRAY(SELECT id FROM record_queue ORDER BY id LIMIT $1))
			RETURNING id, leaves`, queueChunk)
		list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[queued])
		if err != nil {
			return nil, err
		}
		slices.SortFunc(list, func(a, b queued) int { return int(a.ID - b.ID) })
		for _, q := range list {
			leaves, err := record.ParseLeaves(q.Leaves)
			if err != nil {
				return nil, fmt.Errorf("row %d of record_queue: %w; if it was added by hand, delete it", q.ID, err)
			}
			all = append(all, leaves...)
		}
		if len(list) < queueChunk {
			break
		}
	}
	return all, nil
}

func storeAddition(ctx context.Context, tx pgx.Tx, leaves []record.Leaf, a record.Addition) error {
	var b pgx.Batch
	for _, batch := range a.Batches {
		n := len(batch.Hashes) / tlog.HashSize
		from, to := record.Span(leaves[:n])
		leaves = leaves[n:]
		b.Queue(`
			INSERT INTO record_batches (first, entries, keys, hashes, span)
			VALUES ($1, $2, $3, $4, tstzrange($5, $6, '[]'))`, batch.First, n, batch.Keys, batch.Hashes, from, to)
	}
	for _, t := range a.Tiles {
		b.Queue(`INSERT INTO record_tiles (level, n, hashes) VALUES ($1, $2, $3)`, t.Level, t.N, t.Hashes)
	}
	c := a.Checkpoint
	b.Queue(`INSERT INTO record_checkpoints (`+checkpointColumns+`) VALUES ($1, $2, $3, $4, $5)`, c.Size, c.Root[:], c.At,
		c.Term, c.Note)
	return tx.SendBatch(ctx, &b).Close()
}

// QueuedLeaves implements [record.SequencerStore].
func (s *Store) QueuedLeaves(ctx context.Context) (n int64, since time.Time, err error) {
	var oldest *time.Time
	err = s.db.QueryRow(ctx, `SELECT count(*), min(queued_at) FROM record_queue`).Scan(&n, &oldest)
	if err != nil {
		return 0, time.Time{}, fmt.Errorf("queue of the record: %w", domainError(err))
	}
	if oldest != nil {
		since = *oldest
	}
	return n, since, nil
}
