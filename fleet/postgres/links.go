package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/picture"
)

var _ picture.URLLinkStore = (*Store)(nil)

// CreateURLLink stores a one-time link.
func (s *Store) CreateURLLink(ctx context.Context, l picture.URLLink) error {
	_, err := s.db.Exec(ctx, `
		INSERT INTO url_links (token_hash, purpose, device_id, call_id, blob, media_type, expires_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7)`, l.TokenHash, l.Purpose, l.Device, l.Call, l.Blob, l.MediaType, l.ExpiresAt)
	if err != nil {
		return fmt.Errorf("one-time link for call %s: %w", l.Call, domainError(err))
	}
	return nil
}

// UseURLLink marks the link used and returns it. Of two simultaneous uses only one succeeds.
func (s *Store) UseURLLink(ctx context.Context, tokenHash []byte, purpose fleet.LinkPurpose, now time.Time) (
	picture.URLLink, error) {
	rows, _ := s.db.Query(ctx, `
		UPDATE url_links SET used_at = $3
		WHERE token_hash = $1 AND purpose = $2 AND used_at IS NULL AND expires_at > $3
		RETURNING token_hash, purpose, device_id AS device, call_id AS call, blob, media_type, expires_at`, tokenHash,
		purpose, now)
	l, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[picture.URLLink])
	if err != nil {
		return picture.URLLink{}, fmt.Errorf("one-time link: %w", domainError(err))
	}
	return l, nil
}

// DeleteExpiredURLLinks deletes links that expired before the given time.
func (s *Store) DeleteExpiredURLLinks(ctx context.Context, before time.Time) error {
	if _, err := s.db.Exec(ctx, `DELETE FROM url_links WHERE expires_at < $1`, before); err != nil {
		return fmt.Errorf("expired links: %w", domainError(err))
	}
	return nil
}
