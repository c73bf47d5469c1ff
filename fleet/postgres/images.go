package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

var _ firmware.Store = (*Store)(nil)

const imageColumns = `sha256, size, file_name, board, notes, chip, version, project, idf_version, elf_sha256, compiled_at, secure_version,
	min_chip_rev, max_chip_rev, flash_size, merged_binary, coalesce(signatures, '[]') AS signatures, not_offerable,
		uploaded_by, created_at,
	revoked_at, revoked_by, revoke_reason, manifest, manifest_signature, manifest_key, manifest_checked`

var scanImage = pgx.RowToStructByName[firmware.Image]

// CreateImage stores an image. If an image with that SHA-256 exists, it returns the stored one
// and false.
func (s *Store) CreateImage(ctx context.Context, by fleet.Principal, img firmware.Image) (stored firmware.Image,
	created bool, err error) {
	known := errors.New("known")
	detail := map[string]any{"file_name": img.FileName, "version": img.Version, "chip": img.Chip, "board": img.Board,
		"size": img.Size}
	err = s.audited(ctx, by, "image.upload", img.SHA256, detail, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			INSERT INTO images (sha256, size, file_name, board, notes, chip, version, project, idf_version, elf_sha256,
				compiled_at,
				secure_version, min_chip_rev, max_chip_rev, flash_size, merged_binary, signatures, not_offerable, uploaded_by,
					created_at,
				revoked_at, revoked_by, revoke_reason, manifest, manifest_signature, manifest_key, manifest_checked)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22,
				$23, $24, $25, $26, $27)
			ON CONFLICT (sha256) DO NOTHING`,
			img.SHA256, img.Size, cleanText(img.FileName), cleanText(img.Board), cleanText(img.Notes), cleanText(img.Chip),
			cleanText(img.Version),
			cleanText(img.Project), cleanText(img.IDFVersion), cleanText(img.ELFSHA256), cleanText(img.CompiledAt),
			img.SecureVersion, img.MinChipRev,
			img.MaxChipRev, img.FlashSize, img.MergedBinary, storableJSON(img.Signatures), cleanText(img.NotOfferable),
			storableJSON(img.UploadedBy),
			img.CreatedAt, img.RevokedAt, cleanText(img.RevokedBy), cleanText(img.RevokeReason),
			cleanText(img.Manifest), cleanText(img.ManifestSignature), cleanText(img.ManifestKey), img.ManifestChecked)
		if err == nil && tag.RowsAffected() == 0 {
			return known
		}
		return err
	})
	if err != nil && !errors.Is(err, known) {
		return firmware.Image{}, false, err
	}
	stored, readErr := s.Image(ctx, img.SHA256)
	return stored, err == nil, readErr
}

// Image returns one image, or [fleet.ErrNotFound].
func (s *Store) Image(ctx context.Context, sha256 string) (firmware.Image, error) {
	rows, _ := s.db.Query(ctx, `SELECT `+imageColumns+` FROM images WHERE sha256 = $1`, cleanText(sha256))
	img, err := pgx.CollectExactlyOneRow(rows, scanImage)
	if err != nil {
		return firmware.Image{}, fmt.Errorf("image %.12s: %w", sha256, domainError(err))
	}
	return img, nil
}

// ImagesByELF returns the images of builds that are not revoked, newest first.
func (s *Store) ImagesByELF(ctx context.Context, elfSHA256 []string) ([]firmware.Image, error) {
	rows, _ := s.db.Query(ctx, `
		SELECT `+imageColumns+` FROM images WHERE elf_sha256 = ANY ($1) AND elf_sha256 <> '' AND revoked_at IS NULL
		ORDER BY created_at DESC, sha256 DESC`, cleanTexts(elfSHA256))
	list, err := pgx.CollectRows(rows, scanImage)
	if err != nil {
		return nil, fmt.Errorf("images by build: %w", domainError(err))
	}
	return list, nil
}

// Images lists images, newest first.
func (s *Store) Images(ctx context.Context, f firmware.ImageFilter) (fleet.Page[firmware.Image], error) {
	none := fleet.Page[firmware.Image]{}
	at, err := parseCursor(f.Cursor, "images")
	if err != nil {
		return none, err
	}
	var w where
	w.andText("chip = ?", f.Chip)
	w.andText("board = ?", f.Board)
	w.andText("version = ?", f.Version)
	order := w.newestFirst(at, "sha256", "text")
	limit := fleet.ClampLimit(f.Limit)
	rows, _ := s.db.Query(ctx, `SELECT `+imageColumns+` FROM images`+w.String()+order+` LIMIT `+w.arg(limit+1), w.args...)
	list, err := pgx.CollectRows(rows, scanImage)
	if err != nil {
		return none, cursorError(at, fmt.Errorf("images: %w", domainError(err)))
	}
	return makePage(list, limit, at, func(img firmware.Image) cursor {
		return newestPlace("images", img.CreatedAt,
			img.SHA256)
	}), nil
}

// UpdateImage changes the board and notes of an image; nil changes nothing. Releases follow the
// image's board.
func (s *Store) UpdateImage(ctx context.Context, by fleet.Principal, sha256 string, board, notes *string) error {
	detail := map[string]any{}
	if board != nil {
		detail["board"] = *board
	}
	if notes != nil {
		detail["notes"] = *notes
	}
	return s.audited(ctx, by, "image.update", sha256, detail, func(tx pgx.Tx) error {
		return boardTaken(changeOne(ctx, tx,
			`UPDATE images SET board = coalesce($2, board), notes = coalesce($3, notes) WHERE sha256 = $1`,
			sha256, cleanTextPtr(board), cleanTextPtr(notes)))
	})
}

// SetImageManifest stores the manifest of img, with its signature and key.
func (s *Store) SetImageManifest(ctx context.Context, by fleet.Principal, img firmware.Image) error {
	detail := map[string]any{"key": img.ManifestKey, "checked": img.ManifestChecked}
	return s.audited(ctx, by, "image.sign", img.SHA256, detail, func(tx pgx.Tx) error {
		return changeOne(ctx, tx, `UPDATE images SET manifest = $2, manifest_signature = $3, manifest_key = $4, manifest_checked = $5 WHERE sha256 = $1`,
			img.SHA256, cleanText(img.Manifest), cleanText(img.ManifestSignature), cleanText(img.ManifestKey),
			img.ManifestChecked)
	})
}

// RunningByELF counts devices in service by the build they run.
func (s *Store) RunningByELF(ctx context.Context, elfSHA256 []string) (map[string]int, error) {
	scoped, args := scopedTo(ctx, "id", cleanTexts(elfSHA256))
	rows, _ := s.db.Query(ctx, `
		SELECT elf_sha256 AS value, count(*) AS count FROM devices
		WHERE in_service AND elf_sha256 = ANY ($1) AND elf_sha256 <> ''`+scoped+` GROUP BY 1`, args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[fleet.DeviceCount])
	if err != nil {
		return nil, fmt.Errorf("devices by build: %w", domainError(err))
	}
	running := make(map[string]int, len(list))
	for _, c := range list {
		running[c.Value] = c.Count
	}
	return running, nil
}

// RevokeImages revokes those of the images that are not yet revoked, with one audit entry for
// each.
func (s *Store) RevokeImages(ctx context.Context, by fleet.Principal, sha256 []string, reason string,
	at time.Time) error {
	err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error { return revokeImages(ctx, tx, by, sha256, reason, at) })
	if err != nil {
		return fmt.Errorf("revoke %d images: %w", len(sha256), domainError(err))
	}
	return nil
}

func revokeImages(ctx context.Context, tx pgx.Tx, by fleet.Principal, sha256 []string, reason string,
	at time.Time) error {
	rows, _ := tx.Query(ctx, `
		UPDATE images SET revoked_at = $2, revoked_by = $3, revoke_reason = $4
		WHERE sha256 = ANY ($1) AND revoked_at IS NULL RETURNING sha256`, cleanTexts(sha256), at, cleanText(by.Name),
		cleanText(reason))
	revoked, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, sha := range revoked {
		if err := writeAudit(ctx, tx, by, "image.revoke", sha, map[string]any{"reason": reason}); err != nil {
			return err
		}
	}
	return nil
}

// DeleteImage deletes an image that no release and no deployment refers to.
func (s *Store) DeleteImage(ctx context.Context, by fleet.Principal, sha256 string) error {
	return s.audited(ctx, by, "image.delete", sha256, nil, func(tx pgx.Tx) error {
		if err := imageUnused(ctx, tx, sha256); err != nil {
			return err
		}
		err := changeOne(ctx, tx, `DELETE FROM images WHERE sha256 = $1`, cleanText(sha256))
		if hasCode(err, "23503") { // foreign_key_violation: a row has just come to refer to it
			return fleet.Refuse(fleet.ErrConflict, "image_in_use.now", "image", fleet.CleanText(sha256, 12))
		}
		return err
	})
}

func imageUnused(ctx context.Context, tx pgx.Tx, sha256 string) error {
	var use, name string
	err := tx.QueryRow(ctx, `
		SELECT 'release', r.version FROM release_images i JOIN releases r ON r.id = i.release_id WHERE i.image = $1
		UNION ALL
		SELECT 'campaign', c.name FROM campaign_images i JOIN campaigns c ON c.id = i.campaign_id WHERE i.image = $1
		LIMIT 1`, cleanText(sha256)).Scan(&use, &name)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	return fleet.Refuse(fleet.ErrConflict, "image_in_use."+use, "image", fleet.CleanText(sha256, 12), "name", name)
}
