package postgres

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/upstream"
)

var _ upstream.AccountStore = (*Store)(nil)

// UpstreamAccount returns the stored answer of a voice server's OTA address for a device, or
// [fleet.ErrNotFound].
func (s *Store) UpstreamAccount(ctx context.Context, server uuid.UUID, device fleet.DeviceID) (upstream.Account,
	error) {
	rows, _ := s.db.Query(ctx, `
		SELECT upstream_id AS upstream, device_id AS device, ota_url, client_id, url, token, code, message, challenge,
			asked_at
		FROM upstream_accounts WHERE upstream_id = $1 AND device_id = $2`, server, device)
	a, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[upstream.Account])
	if err != nil {
		return a, fmt.Errorf("account of %s at voice server %s: %w", device, server, domainError(err))
	}
	return a, nil
}

// SaveUpstreamAccount stores an answer of a voice server's OTA address.
func (s *Store) SaveUpstreamAccount(ctx context.Context, a upstream.Account) error {
	_, err := s.db.Exec(ctx, `
		INSERT INTO upstream_accounts (upstream_id, device_id, ota_url, client_id, url, token, code, message, challenge,
			asked_at)
		SELECT id, $2, $3, $4, $5, $6, $7, $8, $9, $10 FROM upstreams WHERE id = $1 FOR KEY SHARE
		ON CONFLICT (upstream_id, device_id) DO UPDATE SET ota_url = excluded.ota_url, client_id = excluded.client_id,
			url = excluded.url, token = excluded.token, code = excluded.code, message = excluded.message,
			challenge = excluded.challenge, asked_at = excluded.asked_at`,
		a.Upstream, a.Device, cleanText(a.OTAURL), cleanText(a.ClientID), cleanText(a.URL), a.Token, cleanText(a.Code),
		cleanText(a.Message), cleanText(a.Challenge), a.AskedAt)
	if err != nil {
		return fmt.Errorf("account of %s at voice server %s: %w", a.Device, a.Upstream, domainError(err))
	}
	return nil
}
