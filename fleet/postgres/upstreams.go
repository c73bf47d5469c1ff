package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/upstream"
)

var _ upstream.Store = (*Store)(nil)

type upstreamRow struct {
	ID        uuid.UUID
	Position  int
	Name      string
	Kind      upstream.Kind
	URL       string
	Auth      upstream.Auth
	Secret    []byte
	Devices   string
	Tools     bool
	Enabled   bool
	UpdatedBy string
	CreatedAt time.Time
	UpdatedAt time.Time
}

func (r upstreamRow) upstream() upstream.Server {
	return upstream.Server{ID: r.ID, Position: r.Position, Name: r.Name, Kind: r.Kind, URL: r.URL, Auth: r.Auth,
		Secret: r.Secret, Devices: r.Devices, Tools: r.Tools, Enabled: r.Enabled, UpdatedBy: r.UpdatedBy,
		CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt}
}

// Upstreams returns the voice servers in order, and the version of the table, in one snapshot.
func (s *Store) Upstreams(ctx context.Context) (list []upstream.Server, version int64, err error) {
	err = pgx.BeginTxFunc(ctx, s.db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly},
		func(tx pgx.Tx) error {
			if err := tx.QueryRow(ctx, `SELECT version FROM upstream_version`).Scan(&version); err != nil {
				return err
			}
			rows, _ := tx.Query(ctx, `
				SELECT id, position, name, kind, url, auth, secret, devices, tools, enabled, updated_by, created_at, updated_at
				FROM upstreams ORDER BY position, id`)
			all, err := pgx.CollectRows(rows, pgx.RowToStructByName[upstreamRow])
			list = collect(all, upstreamRow.upstream)
			return err
		})
	if err != nil {
		return nil, 0, fmt.Errorf("voice servers: %w", domainError(err))
	}
	return list, version, nil
}

// UpstreamVersion returns the version of the table.
func (s *Store) UpstreamVersion(ctx context.Context) (version int64, err error) {
	if err := s.db.QueryRow(ctx, `SELECT version FROM upstream_version`).Scan(&version); err != nil {
		return 0, fmt.Errorf("version of the voice servers: %w", domainError(err))
	}
	return version, nil
}

// changeUpstreams changes the table and increments its version, if the current version is the one
// that the change is based on.
func (s *Store) changeUpstreams(ctx context.Context, by fleet.Principal, version int64, action string,
	u upstream.Server, change func(pgx.Tx) error) error {
	return s.audited(ctx, by, action, u.ID.String(), u.Detail(), func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `UPDATE upstream_version SET version = version + 1 WHERE version = $1`, version)
		switch {
		case err != nil:
			return err
		case tag.RowsAffected() == 0:
			return fleet.Refuse(fleet.ErrConflict, "upstreams_changed", "version", version).At("version")
		}
		return change(tx)
	})
}

// CreateUpstream adds a voice server at its position.
func (s *Store) CreateUpstream(ctx context.Context, by fleet.Principal, version int64, u upstream.Server) error {
	return s.changeUpstreams(ctx, by, version, "upstream.create", u, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `UPDATE upstreams SET position = position + 1 WHERE position >= $1`,
			u.Position); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `
			INSERT INTO upstreams (id, name, kind, url, auth, secret, devices, tools, enabled, updated_by, updated_at, position,
				created_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)`,
			append(upstreamColumns(u), u.Position, u.CreatedAt)...)
		return err
	})
}

// UpdateUpstream stores a changed voice server.
func (s *Store) UpdateUpstream(ctx context.Context, by fleet.Principal, version int64, u upstream.Server) error {
	return s.changeUpstreams(ctx, by, version, "upstream.update", u, func(tx pgx.Tx) error {
		return changeOne(ctx, tx, `
			UPDATE upstreams SET name = $2, kind = $3, url = $4, auth = $5, secret = $6, devices = $7, tools = $8, enabled = $9,
				updated_by = $10, updated_at = $11
			WHERE id = $1`, upstreamColumns(u)...)
	})
}

func upstreamColumns(u upstream.Server) []any {
	return []any{u.ID, cleanText(u.Name), string(u.Kind), cleanText(u.URL), string(u.Auth), u.Secret,
		cleanText(u.Devices), u.Tools, u.Enabled, cleanText(u.UpdatedBy), u.UpdatedAt}
}

// DeleteUpstream removes a voice server.
func (s *Store) DeleteUpstream(ctx context.Context, by fleet.Principal, version int64, u upstream.Server) error {
	return s.changeUpstreams(ctx, by, version, "upstream.delete", u, func(tx pgx.Tx) error {
		if err := changeOne(ctx, tx, `DELETE FROM upstreams WHERE id = $1`, u.ID); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `UPDATE upstreams SET position = position - 1 WHERE position > $1`, u.Position)
		return err
	})
}

// OrderUpstreams stores the positions of the voice servers.
func (s *Store) OrderUpstreams(ctx context.Context, by fleet.Principal, version int64, ids []uuid.UUID,
	moved upstream.Server) error {
	return s.changeUpstreams(ctx, by, version, "upstream.move", moved, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			UPDATE upstreams u SET position = o.position - 1
			FROM unnest($1::uuid[]) WITH ORDINALITY AS o (id, position) WHERE u.id = o.id`, ids)
		return err
	})
}
