package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

var _ firmware.LinkStore = (*Store)(nil)

// FirmwareLink returns a link that may be used at the given time: not expired, not revoked, not
// used up, its image not revoked. Otherwise it returns [fleet.ErrNotFound]. A link is foreign if
// its image is not that of its deployment, or not in the plan of its campaign: the rows were then
// modified outside fleetd.
func (s *Store) FirmwareLink(ctx context.Context, tokenHash []byte, now time.Time) (firmware.Link, error) {
	rows, _ := s.db.Query(ctx, `
		SELECT l.token_hash, l.deployment_id AS deployment, l.campaign_id AS campaign, l.device_id AS device, l.attempt,
			l.image, l.size, l.expires_at, coalesce(v.board, '') AS board,
			d.image IS DISTINCT FROM l.image OR l.size <> i.size
				OR c.images IS NOT NULL AND l.image <> ALL (c.images) AS foreign,
			d.get_at IS NOT NULL AND d.attempt = l.attempt AS begun
		FROM firmware_links l JOIN images i ON i.sha256 = l.image AND i.revoked_at IS NULL
		JOIN deployments d ON d.id = l.deployment_id JOIN campaigns c ON c.id = d.campaign_id
		LEFT JOIN devices v ON v.id = l.device_id
		WHERE l.token_hash = $1 AND l.expires_at > $2 AND l.revoked_at IS NULL AND l.finished_at IS NULL`, tokenHash, now)
	l, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[firmware.Link])
	if err != nil {
		return firmware.Link{}, fmt.Errorf("firmware link: %w", domainError(err))
	}
	return l, nil
}

// FinishFirmwareLink marks a link as used up, after every byte was sent.
func (s *Store) FinishFirmwareLink(ctx context.Context, tokenHash []byte, at time.Time) error {
	err := changeOne(ctx, s.db, `UPDATE firmware_links SET finished_at = coalesce(finished_at, $2) WHERE token_hash = $1`,
		tokenHash, at)
	if err != nil {
		return fmt.Errorf("finish firmware link: %w", domainError(err))
	}
	return nil
}

// RevokeLinks revokes the links of deployments; none can be used after it returned.
func (s *Store) RevokeLinks(ctx context.Context, deployments []uuid.UUID, at time.Time) error {
	_, err := s.db.Exec(ctx, `
		UPDATE firmware_links SET revoked_at = $2
		WHERE deployment_id = ANY ($1) AND revoked_at IS NULL AND finished_at IS NULL`, deployments, at)
	if err != nil {
		return fmt.Errorf("revoke the links of %d deployments: %w", len(deployments), domainError(err))
	}
	return nil
}

// OffersSince counts the offers made to devices since the given time.
func (s *Store) OffersSince(ctx context.Context, devices []fleet.DeviceID, since time.Time) (map[fleet.DeviceID]int,
	error) {
	rows, _ := s.db.Query(ctx, `
		SELECT d.device_id AS value, count(*) AS count
		FROM deployments d, LATERAL (
			SELECT FROM deployment_events WHERE deployment_id = d.id AND at >= $2 AND kind = 'offered' OFFSET 0) e
		WHERE d.device_id = ANY ($1) AND d.updated_at >= $2
		GROUP BY 1`, texts(devices), since)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[fleet.DeviceCount])
	if err != nil {
		return nil, fmt.Errorf("offers to %d devices: %w", len(devices), domainError(err))
	}
	made := make(map[fleet.DeviceID]int, len(list))
	for _, c := range list {
		made[fleet.DeviceID(c.Value)] = c.Count
	}
	return made, nil
}
