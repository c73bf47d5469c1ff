package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/telemetry"
)

var _ telemetry.CoreDumpStore = (*Store)(nil)

// CreateCoreDump stores the metadata of an uploaded core dump.
func (s *Store) CreateCoreDump(ctx context.Context, c telemetry.CoreDump) error {
	tag, err := s.db.Exec(ctx, `
		INSERT INTO core_dumps (id, device_id, call_id, blob, size, summary, elf_sha256, version, build_from,
			reset_reason, boots, created_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
		ON CONFLICT ON CONSTRAINT core_dump_once DO NOTHING`,
		c.ID, c.Device, c.Call, c.Blob, c.Size, cleanText(c.Summary), cleanText(c.ELFSHA256), cleanText(c.Version),
		c.BuildFrom,
		cleanText(c.ResetReason), c.Boots, c.CreatedAt)
	if err != nil {
		return fmt.Errorf("core dump of device %s: %w", c.Device, domainError(err))
	}
	if tag.RowsAffected() == 0 {
		return fleet.Refuse(fleet.ErrConflict, "core_dump_known", "device", c.Device)
	}
	return nil
}

const selectCoreDumps = `
	SELECT id, device_id AS device, call_id AS call, blob, size, summary, elf_sha256, version, build_from,
		reset_reason, boots, created_at
	FROM core_dumps `

// scopedToCoreDumps narrows a statement about core dumps. Their summaries need the same right as
// [fleet.ToolCoreDumpInfo], which returns them too.
func scopedToCoreDumps(ctx context.Context, args ...any) (string, []any) {
	return scopedBy(args, func(w *where) { w.reportScope(ctx, fleet.ToolCoreDumpInfo, "core_dumps.device_id") })
}

// CoreDump returns one core dump, or [fleet.ErrNotFound].
func (s *Store) CoreDump(ctx context.Context, id uuid.UUID) (telemetry.CoreDump, error) {
	scoped, args := scopedToCoreDumps(ctx, id)
	rows, _ := s.db.Query(ctx, selectCoreDumps+`WHERE id = $1`+scoped, args...)
	c, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[telemetry.CoreDump])
	if err != nil {
		return telemetry.CoreDump{}, fmt.Errorf("core dump %s: %w", id, domainError(err))
	}
	return c, nil
}

// CoreDumps lists a device's core dumps, newest first.
func (s *Store) CoreDumps(ctx context.Context, device fleet.DeviceID, limit int) ([]telemetry.CoreDump, error) {
	scoped, args := scopedToCoreDumps(ctx, cleanText(string(device)), fleet.ClampLimit(limit))
	rows, _ := s.db.Query(ctx, selectCoreDumps+`WHERE device_id = $1`+scoped+` ORDER BY id DESC LIMIT $2`, args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[telemetry.CoreDump])
	if err != nil {
		return nil, fmt.Errorf("core dumps of device %s: %w", device, domainError(err))
	}
	return list, nil
}

// DeleteCoreDump deletes a core dump.
func (s *Store) DeleteCoreDump(ctx context.Context, by fleet.Principal, id uuid.UUID) (unused bool, err error) {
	detail := map[string]any{}
	err = s.audited(ctx, by, "core_dump.delete", id.String(), detail, func(tx pgx.Tx) error {
		var device, blob string
		err := tx.QueryRow(ctx, `DELETE FROM core_dumps WHERE id = $1 RETURNING device_id, blob`, id).Scan(&device, &blob)
		if err != nil {
			return domainError(err)
		}
		detail["device"], detail["blob"] = device, blob
		return tx.QueryRow(ctx, `SELECT NOT `+blobNamed("$1"), blob).Scan(&unused)
	})
	return unused, err
}

// BuildsOf returns builds of known images whose hash begins with prefix.
func (s *Store) BuildsOf(ctx context.Context, prefix string, limit int) ([]string, error) {
	like := strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(cleanText(prefix)) + "%"
	rows, _ := s.db.Query(ctx, `SELECT DISTINCT elf_sha256 FROM images WHERE elf_sha256 LIKE $1 AND elf_sha256 <> '' ORDER BY 1 LIMIT $2`, like, limit)
	builds, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("builds that begin with %.64q: %w", prefix, domainError(err))
	}
	return builds, nil
}

// DeleteCoreDumpsBefore deletes core dumps that arrived before the given time, and returns the
// blobs that nothing refers to any longer.
func (s *Store) DeleteCoreDumpsBefore(ctx context.Context, before time.Time) (deleted int, unused []string, err error) {
	err = pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, `DELETE FROM core_dumps WHERE created_at < $1 RETURNING blob`, before)
		blobs, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || len(blobs) == 0 {
			return err
		}
		deleted = len(blobs)
		slices.Sort(blobs)
		for _, blob := range slices.Compact(blobs) {
			var free bool
			if err := tx.QueryRow(ctx, `SELECT NOT `+blobNamed("$1"), blob).Scan(&free); err != nil {
				return err
			}
			if free {
				unused = append(unused, blob)
			}
		}
		return nil
	})
	if err != nil {
		return 0, nil, fmt.Errorf("old core dumps: %w", domainError(err))
	}
	return deleted, unused, nil
}

// LastCoreDumps returns when the latest core dump arrived, for those of the devices that ever
// sent one.
func (s *Store) LastCoreDumps(ctx context.Context, ids []fleet.DeviceID) (map[fleet.DeviceID]time.Time, error) {
	scoped, args := scopedTo(ctx, "asked.id",
		collect(ids, func(id fleet.DeviceID) string { return cleanText(string(id)) }))
	rows, _ := s.db.Query(ctx, `
		SELECT asked.id, latest.created_at FROM unnest($1::text[]) AS asked (id) CROSS JOIN LATERAL
			(SELECT created_at FROM core_dumps WHERE device_id = asked.id ORDER BY id DESC LIMIT 1) latest
		WHERE true`+scoped, args...)
	found := make(map[fleet.DeviceID]time.Time)
	var id fleet.DeviceID
	var at time.Time
	if _, err := pgx.ForEachRow(rows, []any{&id, &at}, func() error { found[id] = at; return nil }); err != nil {
		return nil, fmt.Errorf("latest core dumps of %d devices: %w", len(ids), domainError(err))
	}
	return found, nil
}
