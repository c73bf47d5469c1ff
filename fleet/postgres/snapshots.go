package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/picture"
)

var _ picture.Store = (*Store)(nil)

// CreateSnapshot stores the metadata of an uploaded picture.
func (s *Store) CreateSnapshot(ctx context.Context, n picture.Snapshot) error {
	_, err := s.db.Exec(ctx, `
		INSERT INTO snapshots (id, kind, device_id, call_id, question, blob, media_type, width, height, size, created_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
		n.ID, n.Kind, n.Device, n.Call, cleanText(n.Question), n.Blob, n.MediaType, n.Width, n.Height, n.Size, n.CreatedAt)
	if err != nil {
		return fmt.Errorf("snapshot of device %s: %w", n.Device, domainError(err))
	}
	return nil
}

const selectSnapshots = `
	SELECT id, kind, device_id AS device, call_id AS call, question, blob, media_type, width, height, size, created_at
	FROM snapshots `

// scopedToPictures is [scopedTo] for pictures.
func scopedToPictures(ctx context.Context, args ...any) (string, []any) {
	return scopedBy(args, func(w *where) { w.pictureScope(ctx, "snapshots.") })
}

// Snapshot returns one snapshot, or [fleet.ErrNotFound].
func (s *Store) Snapshot(ctx context.Context, id uuid.UUID) (picture.Snapshot, error) {
	scoped, args := scopedToPictures(ctx, id)
	rows, _ := s.db.Query(ctx, selectSnapshots+`WHERE id = $1`+scoped, args...)
	n, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[picture.Snapshot])
	if err != nil {
		return picture.Snapshot{}, fmt.Errorf("snapshot %s: %w", id, domainError(err))
	}
	return n, nil
}

// SnapshotOfCall returns the latest picture uploaded for a call.
func (s *Store) SnapshotOfCall(ctx context.Context, call uuid.UUID) (picture.Snapshot, error) {
	scoped, args := scopedToPictures(ctx, call)
	rows, _ := s.db.Query(ctx, selectSnapshots+`WHERE call_id = $1`+scoped+` ORDER BY id DESC LIMIT 1`, args...)
	n, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[picture.Snapshot])
	if err != nil {
		return picture.Snapshot{}, fmt.Errorf("snapshot of call %s: %w", call, domainError(err))
	}
	return n, nil
}

// SnapshotsOfCall lists the pictures uploaded for a call, oldest first.
func (s *Store) SnapshotsOfCall(ctx context.Context, call uuid.UUID, limit int) ([]picture.Snapshot, error) {
	scoped, args := scopedToPictures(ctx, call, fleet.ClampLimit(limit))
	rows, _ := s.db.Query(ctx, selectSnapshots+`WHERE call_id = $1`+scoped+` ORDER BY id LIMIT $2`, args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[picture.Snapshot])
	if err != nil {
		return nil, fmt.Errorf("snapshots of call %s: %w", call, domainError(err))
	}
	return list, nil
}

// Snapshots lists the pictures of a device, newest first, or those of a fan-out: the newest of each
// device, by device.
func (s *Store) Snapshots(ctx context.Context, f picture.Filter) (fleet.Page[picture.Snapshot], error) {
	at, err := parseCursor(f.Cursor, snapshotList(f))
	if err != nil {
		return fleet.Page[picture.Snapshot]{}, err
	}
	return s.snapshots(ctx, f, at)
}

// SnapshotsAround returns the pictures before and after a picture in the order of [Store.Snapshots].
// The first has nil before it, the last nil after it.
func (s *Store) SnapshotsAround(ctx context.Context, f picture.Filter, n picture.Snapshot) (before,
	after *picture.Snapshot, err error) {
	f.Limit = 1
	for _, side := range []struct {
		back bool
		to   **picture.Snapshot
	}{{true, &before}, {false, &after}} {
		at := snapshotPlace(f, n)
		at.Back = side.back
		found, err := s.snapshots(ctx, f, &at)
		if err != nil {
			return nil, nil, err
		}
		if len(found.Items) > 0 {
			*side.to = &found.Items[0]
		}
	}
	return before, after, nil
}

// snapshotList names the list of a filter in cursors.
func snapshotList(f picture.Filter) string {
	if f.FanOut != uuid.Nil {
		return "snapshots_fanout"
	}
	return "snapshots"
}

// snapshotPlace returns the position of a picture in the list of a filter.
func snapshotPlace(f picture.Filter, n picture.Snapshot) cursor {
	if f.FanOut != uuid.Nil {
		return cursor{List: snapshotList(f), ID: string(n.Device)}
	}
	return newestPlace(snapshotList(f), n.CreatedAt, n.ID.String())
}

func (s *Store) snapshots(ctx context.Context, f picture.Filter, at *cursor) (fleet.Page[picture.Snapshot], error) {
	var w where
	w.pictureScope(ctx, "snapshots.")
	w.andText("kind = ?", string(f.Kind))
	if !f.Since.IsZero() {
		w.and("created_at >= ?", f.Since)
	}
	if !f.Until.IsZero() {
		w.and("created_at < ?", f.Until)
	}
	limit := fleet.ClampLimit(f.Limit)
	var sql string
	if f.FanOut != uuid.Nil {
		sql = w.fanOutSnapshots(ctx, f.FanOut, at, limit+1)
	} else {
		w.and("device_id = ?", cleanText(string(f.Device)))
		order := w.newestFirst(at, "id", "uuid")
		sql = selectSnapshots + w.String() + order + ` LIMIT ` + w.arg(limit+1)
	}
	rows, _ := s.db.Query(ctx, sql, w.args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[picture.Snapshot])
	if err != nil {
		return fleet.Page[picture.Snapshot]{}, cursorError(at, fmt.Errorf("snapshots: %w", domainError(err)))
	}
	return makePage(list, limit, at, func(n picture.Snapshot) cursor { return snapshotPlace(f, n) }), nil
}

// fanOutSnapshots returns the statement for the newest picture of each device of a fan-out, which w
// narrows. It walks the targets by their key, so that a page reads the calls of its devices only. The
// pictures are found by their calls: their order belongs to no index.
func (w *where) fanOutSnapshots(ctx context.Context, id uuid.UUID, at *cursor, limit int) string {
	from, _, _ := idWindow(id)
	fanOut := w.arg(id)
	w.and(`call_id = ANY (ARRAY(SELECT c.id FROM calls c
		WHERE c.fanout_id = target.fanout_id AND c.device_id = target.device_id AND c.created_at >= ?))`, from)
	latest := selectSnapshots + w.String() + ` ORDER BY created_at DESC, id DESC LIMIT 1`
	outer, visible := where{args: w.args}, where{}
	outer.conds = []string{"target.fanout_id = " + fanOut}
	visible.args = outer.args
	visible.conds = []string{"fanouts.id = " + fanOut}
	visible.fanOutScope(ctx)
	outer.args = visible.args
	outer.conds = append(outer.conds, "EXISTS (SELECT FROM fanouts"+visible.String()+")")
	order := " ORDER BY target.device_id"
	switch {
	case at.back():
		outer.and("target.device_id < ?", at.ID)
		order += " DESC"
	case at != nil:
		outer.and("target.device_id > ?", at.ID)
	}
	sql := `SELECT latest.* FROM fanout_targets target CROSS JOIN LATERAL (` + latest + `) latest` + outer.String() + order +
		` LIMIT ` + outer.arg(limit)
	w.args = outer.args
	return sql
}

// Callers returns who made the calls of pictures, by call. Calls that are no longer on record, or not
// for the reader, are missing.
func (s *Store) Callers(ctx context.Context, shots []picture.Snapshot) (map[uuid.UUID]fleet.Principal, error) {
	var w where
	var ids []uuid.UUID
	var first, last time.Time
	for _, shot := range shots {
		from, to, ok := idWindow(shot.Call)
		if !ok {
			continue
		}
		ids = append(ids, shot.Call)
		if first.IsZero() || from.Before(first) {
			first = from
		}
		if to.After(last) {
			last = to
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	w.and("id = ANY (?) AND created_at >= ? AND created_at < ?", ids, first, last)
	w.callScope(ctx, "calls.tool", "calls.device_id")
	rows, _ := s.db.Query(ctx, `SELECT id, actor_kind, actor_id, actor_name, actor_role FROM calls`+w.String(), w.args...)
	found := make(map[uuid.UUID]fleet.Principal, len(ids))
	var id uuid.UUID
	var by fleet.Principal
	if _, err := pgx.ForEachRow(rows, []any{&id, &by.Kind, &by.ID, &by.Name, &by.Role}, func() error {
		found[id] = by
		return nil
	}); err != nil {
		return nil, fmt.Errorf("callers of %d pictures: %w", len(shots), domainError(err))
	}
	return found, nil
}

// LatestSnapshots returns the newest picture of each of the devices that has one.
func (s *Store) LatestSnapshots(ctx context.Context, ids []fleet.DeviceID) (map[fleet.DeviceID]picture.Snapshot,
	error) {
	scoped, args := scopedToPictures(ctx,
		collect(ids, func(id fleet.DeviceID) string { return cleanText(string(id)) }))
	rows, _ := s.db.Query(ctx, `
		SELECT latest.* FROM unnest($1::text[]) AS asked (id) CROSS JOIN LATERAL
			(`+selectSnapshots+`WHERE device_id = asked.id`+scoped+` ORDER BY created_at DESC, id DESC LIMIT 1) latest`, args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[picture.Snapshot])
	if err != nil {
		return nil, fmt.Errorf("latest pictures of %d devices: %w", len(ids), domainError(err))
	}
	found := make(map[fleet.DeviceID]picture.Snapshot, len(list))
	for _, shot := range list {
		found[shot.Device] = shot
	}
	return found, nil
}
