package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

// CreateRelease puts a release on record.
func (s *Store) CreateRelease(ctx context.Context, by fleet.Principal, r firmware.Release) error {
	detail := map[string]any{"version": r.Version, "state": r.State, "images": shas(r.Images)}
	return s.audited(ctx, by, "release.create", r.ID.String(), detail, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO releases (id, version, notes, state, created_by, created_at, changed_at, reason)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
			r.ID, cleanText(r.Version), cleanText(r.Notes), r.State, storableJSON(r.CreatedBy), r.CreatedAt, r.ChangedAt,
			cleanText(r.Reason))
		if err != nil {
			return err
		}
		return addReleaseImages(ctx, tx, r)
	})
}

func shas(images []firmware.Image) []string {
	return collect(images, func(img firmware.Image) string { return cleanText(img.SHA256) })
}

func addReleaseImages(ctx context.Context, tx pgx.Tx, r firmware.Release) error {
	tag, err := tx.Exec(ctx, `
		INSERT INTO release_images (release_id, image, chip, board)
		SELECT $1, sha256, chip, board FROM images WHERE sha256 = ANY ($2) AND revoked_at IS NULL`, r.ID, shas(r.Images))
	if err != nil {
		return boardTaken(err)
	}
	if int(tag.RowsAffected()) != len(r.Images) {
		return fleet.Refuse(fleet.ErrConflict, "image_not_there", "images", len(r.Images), "version", r.Version,
			"there", tag.RowsAffected())
	}
	return nil
}

// boardTaken replaces the error of the constraint that a release has one image per chip and
// board.
func boardTaken(err error) error {
	if violates(err, "release_images_board") {
		return fleet.Refuse(fleet.ErrConflict, "board_taken")
	}
	return err
}

// violates reports whether a statement failed for the named constraint or unique index.
func violates(err error, constraint string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.ConstraintName == constraint
}

const releaseColumns = `id, version, notes, state, created_by, created_at, changed_at, reason`

// Release returns one release with its images, or [fleet.ErrNotFound].
func (s *Store) Release(ctx context.Context, id uuid.UUID) (firmware.Release, error) {
	rows, _ := s.db.Query(ctx, `SELECT `+releaseColumns+` FROM releases WHERE id = $1`, id)
	list, err := s.collectReleases(ctx, rows)
	if err == nil && len(list) == 0 {
		err = fleet.ErrNotFound
	}
	if err != nil {
		return firmware.Release{}, fmt.Errorf("release %s: %w", id, err)
	}
	return list[0], nil
}

// Releases lists releases, newest first.
func (s *Store) Releases(ctx context.Context, f firmware.ReleaseFilter) (fleet.Page[firmware.Release], error) {
	none := fleet.Page[firmware.Release]{}
	at, err := parseCursor(f.Cursor, "releases")
	if err != nil {
		return none, err
	}
	var w where
	w.andText("state = ?", string(f.State))
	order := w.newestFirst(at, "id", "uuid")
	limit := fleet.ClampLimit(f.Limit)
	rows, _ := s.db.Query(ctx, `SELECT `+releaseColumns+` FROM releases`+w.String()+order+` LIMIT `+w.arg(limit+1),
		w.args...)
	list, err := s.collectReleases(ctx, rows)
	if err != nil {
		return none, cursorError(at, fmt.Errorf("releases: %w", err))
	}
	return makePage(list, limit, at, func(r firmware.Release) cursor {
		return newestPlace("releases", r.CreatedAt,
			r.ID.String())
	}), nil
}

// collectReleases reads releases and, in a second query, the images of all of them.
func (s *Store) collectReleases(ctx context.Context, rows pgx.Rows) ([]firmware.Release, error) {
	list, err := pgx.CollectRows(rows, pgx.RowToStructByNameLax[firmware.Release])
	if err != nil || len(list) == 0 {
		return nil, domainError(err)
	}
	rows, _ = s.db.Query(ctx, `
		SELECT r.release_id, `+imageColumns+`
		FROM images JOIN (SELECT release_id, image FROM release_images WHERE release_id = ANY ($1)) r ON r.image = sha256
		ORDER BY board, chip`, collect(list, func(r firmware.Release) uuid.UUID { return r.ID }))
	type row struct {
		ReleaseID uuid.UUID
		firmware.Image
	}
	images, err := pgx.CollectRows(rows, pgx.RowToStructByName[row])
	if err != nil {
		return nil, domainError(err)
	}
	of := make(map[uuid.UUID][]firmware.Image, len(list))
	for _, img := range images {
		of[img.ReleaseID] = append(of[img.ReleaseID], img.Image)
	}
	for i := range list {
		list[i].Images = of[list[i].ID]
	}
	return list, nil
}

// UpdateRelease changes a draft's notes, version and images.
func (s *Store) UpdateRelease(ctx context.Context, by fleet.Principal, r firmware.Release) error {
	detail := map[string]any{"version": r.Version, "notes": r.Notes, "images": shas(r.Images)}
	return s.audited(ctx, by, "release.update", r.ID.String(), detail, func(tx pgx.Tx) error {
		err := changeOne(ctx, tx, `UPDATE releases SET version = $2, notes = $3 WHERE id = $1 AND state = 'draft'`,
			r.ID, cleanText(r.Version), cleanText(r.Notes))
		if isNotFound(err) {
			return whyNotRelease(ctx, tx, r.ID)
		}
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `DELETE FROM release_images WHERE release_id = $1`, r.ID); err != nil {
			return err
		}
		return addReleaseImages(ctx, tx, r)
	})
}

// whyNotRelease returns the error for a release that cannot be changed: it is unknown, or in
// another state.
func whyNotRelease(ctx context.Context, tx pgx.Tx, id uuid.UUID) error {
	var now string
	if err := tx.QueryRow(ctx, `SELECT state FROM releases WHERE id = $1`, id).Scan(&now); err != nil {
		return err
	}
	return fleet.Refuse(fleet.ErrConflict, "release_changed", "state", fleet.Because("state."+string(now)))
}

// SetReleaseState changes a release from one state to another. Revoking a release revokes its
// images.
func (s *Store) SetReleaseState(ctx context.Context, by fleet.Principal, id uuid.UUID, from, to firmware.ReleaseState,
	reason string, at time.Time) error {
	detail := map[string]any{"from": from, "reason": reason}
	return s.audited(ctx, by, "release."+string(to), id.String(), detail, func(tx pgx.Tx) error {
		err := changeOne(ctx, tx, `UPDATE releases SET state = $3, changed_at = $4, reason = $5 WHERE id = $1 AND state = $2`,
			id, from, to, at, cleanText(reason))
		if isNotFound(err) {
			return whyNotRelease(ctx, tx, id)
		}
		if err != nil || to != firmware.ReleaseRevoked {
			return err
		}
		rows, _ := tx.Query(ctx, `SELECT image FROM release_images WHERE release_id = $1`, id)
		images, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		return revokeImages(ctx, tx, by, images, reason, at)
	})
}
