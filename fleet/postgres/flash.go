package postgres

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/espimage"
	"fleetd/fleet/firmware"
)

var _ firmware.LayoutStore = (*Store)(nil)

// PutLayout stores a layout, replacing the image's previous one.
func (s *Store) PutLayout(ctx context.Context, by fleet.Principal, l firmware.ImageLayout) error {
	detail := map[string]any{"parts": len(l.Parts), "flash_size": l.FlashSize}
	if l.Problem.Code != "" {
		detail["problem_code"], detail["problem_params"] = l.Problem.Code, l.Problem.Params
	}
	return s.audited(ctx, by, "image.layout", l.Image, detail, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO image_layouts (image, flash_size, problem_code, problem_params, added_by, added_at)
			VALUES ($1, $2, $3, $4, $5, $6)
			ON CONFLICT (image) DO UPDATE
			SET flash_size = $2, problem_code = $3, problem_params = $4, added_by = $5, added_at = $6`,
			cleanText(l.Image), l.FlashSize, cleanText(l.Problem.Code), reasonParams(l.Problem), storableJSON(l.AddedBy),
			l.AddedAt)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `DELETE FROM image_parts WHERE image = $1`, cleanText(l.Image)); err != nil {
			return err
		}
		for _, p := range l.Parts {
			_, err := tx.Exec(ctx, `INSERT INTO image_parts (image, flash_offset, size, kind, label, sha256) VALUES ($1, $2, $3, $4, $5, $6)`,
				cleanText(l.Image), p.Offset, p.Size, string(p.Kind), cleanText(p.Label), cleanText(p.SHA256))
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// Layout returns the layout of an image, or [fleet.ErrNotFound].
func (s *Store) Layout(ctx context.Context, image string) (firmware.ImageLayout, error) {
	found, err := s.layouts(ctx, []string{image})
	if err == nil && found[image] == nil {
		err = fleet.ErrNotFound
	}
	if err != nil {
		return firmware.ImageLayout{}, fmt.Errorf("layout of image %.12s: %w", image, err)
	}
	return *found[image], nil
}

// layouts reads the layouts of images, and all their parts in a second query.
func (s *Store) layouts(ctx context.Context, images []string) (map[string]*firmware.ImageLayout, error) {
	rows, _ := s.db.Query(ctx, `SELECT image, flash_size, `+reasonColumn("", "problem")+`, added_by, added_at
		FROM image_layouts WHERE image = ANY ($1)`, cleanTexts(images))
	list, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByNameLax[firmware.ImageLayout])
	if err != nil {
		return nil, domainError(err)
	}
	found := make(map[string]*firmware.ImageLayout, len(list))
	for _, l := range list {
		found[l.Image] = l
	}
	rows, _ = s.db.Query(ctx, `
		SELECT image, kind, label, flash_offset, size, sha256 FROM image_parts
		WHERE image = ANY ($1) ORDER BY image, flash_offset`, cleanTexts(images))
	parts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[partRow])
	for _, p := range parts {
		if l := found[p.Image]; l != nil { // nil if replaced between the two queries
			l.Parts = append(l.Parts, firmware.ImagePart{Kind: espimage.PartKind(p.Kind), Label: p.Label, Offset: p.Offset,
				Size: p.Size, SHA256: p.SHA256})
		}
	}
	return found, domainError(err)
}

type partRow struct {
	Image, Kind, Label string
	Offset, Size       int64
	SHA256             string
}

// Installable lists images of released releases that are not revoked. Each is listed once, those
// of the newest release first.
func (s *Store) Installable(ctx context.Context, f firmware.InstallFilter) ([]firmware.Installable, error) {
	var w where
	w.andText("sha256 = ?", f.Image)
	w.andText("chip = ?", f.Chip)
	w.and("revoked_at IS NULL")
	rows, _ := s.db.Query(ctx, `
		SELECT release, release_version, `+imageColumns+`
		FROM images JOIN (
			SELECT DISTINCT ON (i.image) i.image, r.id AS release, r.version AS release_version, r.created_at AS released
			FROM release_images i JOIN releases r ON r.id = i.release_id
			WHERE r.state = 'released'
			ORDER BY i.image, r.created_at DESC, r.id DESC) newest ON newest.image = sha256`+
		w.String()+` ORDER BY released DESC, release DESC, board, chip LIMIT `+w.arg(f.Limit), w.args...)
	images, err := pgx.CollectRows(rows, pgx.RowToStructByName[installableRow])
	if err != nil {
		return nil, fmt.Errorf("installable images: %w", domainError(err))
	}
	layouts, err := s.layouts(ctx, collect(images, func(r installableRow) string { return r.SHA256 }))
	if err != nil {
		return nil, fmt.Errorf("installable images: %w", err)
	}
	return collect(images, func(r installableRow) firmware.Installable {
		return firmware.Installable{Image: r.Image, Release: r.Release, ReleaseVersion: r.ReleaseVersion,
			Layout: layouts[r.SHA256]}
	}), nil
}

type installableRow struct {
	Release        uuid.UUID
	ReleaseVersion string
	firmware.Image
}
