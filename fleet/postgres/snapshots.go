package postgres

import (
	"context"
	"fmt"

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

// SnapshotsOfKind lists a device's pictures of one kind, newest first.
func (s *Store) SnapshotsOfKind(ctx context.Context, device fleet.DeviceID, kind picture.SnapshotKind, limit int) (
	[]picture.Snapshot, error) {
	scoped, args := scopedToPictures(ctx, cleanText(string(device)), kind, fleet.ClampLimit(limit))
	rows, _ := s.db.Query(ctx, selectSnapshots+`WHERE device_id = $1 AND kind = $2`+scoped+` ORDER BY id DESC LIMIT $3`,
		args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[picture.Snapshot])
	if err != nil {
		return nil, fmt.Errorf("snapshots of device %s: %w", device, domainError(err))
	}
	return list, nil
}

// Snapshots lists a device's pictures, newest first.
func (s *Store) Snapshots(ctx context.Context, device fleet.DeviceID, limit int) ([]picture.Snapshot, error) {
	scoped, args := scopedToPictures(ctx, cleanText(string(device)), fleet.ClampLimit(limit))
	rows, _ := s.db.Query(ctx, selectSnapshots+`WHERE device_id = $1`+scoped+` ORDER BY id DESC LIMIT $2`, args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[picture.Snapshot])
	if err != nil {
		return nil, fmt.Errorf("snapshots of device %s: %w", device, domainError(err))
	}
	return list, nil
}

// LatestSnapshots returns the newest picture of each of the devices that has one.
func (s *Store) LatestSnapshots(ctx context.Context, ids []fleet.DeviceID) (map[fleet.DeviceID]picture.Snapshot,
	error) {
	scoped, args := scopedToPictures(ctx,
		collect(ids, func(id fleet.DeviceID) string { return cleanText(string(id)) }))
	rows, _ := s.db.Query(ctx, `
		SELECT latest.* FROM unnest($1::text[]) AS asked (id) CROSS JOIN LATERAL
			(`+selectSnapshots+`WHERE device_id = asked.id`+scoped+` ORDER BY id DESC LIMIT 1) latest`, args...)
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
