package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/endpoint"
)

var _ endpoint.Store = (*Store)(nil)

type endpointRow struct {
	Name                               string
	Settings                           endpoint.Settings
	ProviderHash, ConsumerHash         []byte
	ProviderHint, ConsumerHint         string
	ProviderIssuedBy, ConsumerIssuedBy string
	ProviderIssuedAt, ConsumerIssuedAt *time.Time
	Version                            int64
	CreatedAt                          time.Time
	UpdatedBy                          string
	UpdatedAt                          time.Time
}

// Endpoints returns all endpoints by name.
func (s *Store) Endpoints(ctx context.Context) ([]endpoint.Endpoint, error) {
	rows, _ := s.db.Query(ctx, `
		SELECT name, settings, provider_hash, provider_hint, provider_issued_by, provider_issued_at,
			consumer_hash, consumer_hint, consumer_issued_by, consumer_issued_at, version, created_at, updated_by, updated_at
		FROM endpoints
		ORDER BY name`)
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (endpoint.Endpoint, error) {
		r, err := pgx.RowToStructByName[endpointRow](row)
		return endpoint.Endpoint{Name: r.Name, Settings: r.Settings,
			Provider: endpointToken(r.ProviderHash, r.ProviderHint, r.ProviderIssuedBy, r.ProviderIssuedAt),
			Consumer: endpointToken(r.ConsumerHash, r.ConsumerHint, r.ConsumerIssuedBy, r.ConsumerIssuedAt),
			Version:  r.Version, CreatedAt: r.CreatedAt, UpdatedBy: r.UpdatedBy, UpdatedAt: r.UpdatedAt}, err
	})
	if err != nil {
		return nil, fmt.Errorf("endpoints: %w", domainError(err))
	}
	return list, nil
}

func endpointToken(hash []byte, hint, by string, at *time.Time) (t endpoint.Token) {
	if hash == nil || at == nil {
		return t
	}
	copy(t.Hash[:], hash)
	t.Hint, t.IssuedBy, t.IssuedAt = hint, by, *at
	return t
}

// CreateEndpoint stores an endpoint, or fails with [fleet.ErrConflict] if its name is taken.
func (s *Store) CreateEndpoint(ctx context.Context, by fleet.Principal, e endpoint.Endpoint) error {
	return s.writeEndpoint(ctx, by, "endpoint.create", e, `
		INSERT INTO endpoints (name, settings, provider_hash, provider_hint, provider_issued_by, provider_issued_at,
			consumer_hash, consumer_hint, consumer_issued_by, consumer_issued_at, version, created_at, updated_by, updated_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $14, $12, $13)`, e.CreatedAt)
}

// UpdateEndpoint replaces an endpoint whose version is one less.
func (s *Store) UpdateEndpoint(ctx context.Context, by fleet.Principal, act endpoint.Act, e endpoint.Endpoint) error {
	return s.writeEndpoint(ctx, by, string(act), e, `
		UPDATE endpoints SET settings = $2, provider_hash = $3, provider_hint = $4, provider_issued_by = $5,
			provider_issued_at = $6, consumer_hash = $7, consumer_hint = $8, consumer_issued_by = $9,
			consumer_issued_at = $10, version = $11, updated_by = $12, updated_at = $13
		WHERE name = $1 AND version = $11 - 1`)
}

func (s *Store) writeEndpoint(ctx context.Context, by fleet.Principal, action string, e endpoint.Endpoint, sql string,
	more ...any) error {
	settings, err := json.Marshal(e.Settings)
	if err != nil {
		return err
	}
	clean := cleanJSON(settings)
	if clean == nil {
		return fleet.Refuse(fleet.ErrInvalid, "endpoint_field.pattern", "field", "tools", "value", "")
	}
	detail := map[string]any{"second_connection": e.Second, "tools": e.Tools, "audience": e.Audience,
		"offer_to_voice": e.OfferToVoice, "disabled": e.Disabled, "provider_token": e.Provider.Hint,
		"consumer_token": e.Consumer.Hint, "version": e.Version}
	args := []any{e.Name, *clean}
	for _, t := range []endpoint.Token{e.Provider, e.Consumer} {
		if !t.Exists() {
			args = append(args, nil, "", "", nil)
			continue
		}
		args = append(args, t.Hash[:], t.Hint, cleanText(t.IssuedBy), t.IssuedAt)
	}
	args = append(append(args, e.Version, cleanText(e.UpdatedBy), e.UpdatedAt), more...)
	return s.audited(ctx, by, action, e.Name, detail, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, sql, args...)
		if err == nil && tag.RowsAffected() == 0 {
			return fleet.Refuse(fleet.ErrConflict, "endpoint_changed", "endpoint", e.Name, "version", e.Version)
		}
		return err
	})
}

// DeleteEndpoint removes an endpoint, or fails with [fleet.ErrNotFound].
func (s *Store) DeleteEndpoint(ctx context.Context, by fleet.Principal, name string) error {
	return s.audited(ctx, by, "endpoint.delete", cleanText(name), nil, func(tx pgx.Tx) error {
		return changeOne(ctx, tx, `DELETE FROM endpoints WHERE name = $1`, cleanText(name))
	})
}

// consumerNow returns the principal of an endpoint's consumer, or [fleet.ErrNotFound] if its
// token was revoked or the endpoint is disabled or deleted.
func (s *Store) consumerNow(ctx context.Context, p fleet.Principal) (fleet.Principal, error) {
	rows, _ := s.db.Query(ctx, `
		SELECT true FROM endpoints
		WHERE name = $1 AND consumer_hash IS NOT NULL AND NOT coalesce((settings->>'disabled')::boolean, false)`,
		strings.TrimPrefix(p.ID, fleet.EndpointPrefix))
	if _, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[bool]); err != nil {
		return fleet.Principal{}, fmt.Errorf("consumer of %s: %w", p.ID, domainError(err))
	}
	return p, nil
}
