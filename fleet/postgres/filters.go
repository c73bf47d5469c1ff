package postgres

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
)

var _ fleet.FilterStore = (*Store)(nil)

const selectFilters = `SELECT id, name, title, query, created_by, created_at FROM filters `

// Filters lists saved filters by name.
func (s *Store) Filters(ctx context.Context) ([]fleet.Filter, error) {
	rows, _ := s.db.Query(ctx, selectFilters+`ORDER BY name LIMIT $1`, 2*fleet.MaxFilters)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[fleet.Filter])
	if err != nil {
		return nil, fmt.Errorf("filters: %w", domainError(err))
	}
	return list, nil
}

// Filter returns one saved filter, or [fleet.ErrNotFound].
func (s *Store) Filter(ctx context.Context, id uuid.UUID) (fleet.Filter, error) {
	return s.filter(ctx, `WHERE id = $1`, id)
}

// FilterByName returns the saved filter with the name, or [fleet.ErrNotFound].
func (s *Store) FilterByName(ctx context.Context, name string) (fleet.Filter, error) {
	return s.filter(ctx, `WHERE name = $1`, cleanText(name))
}

func (s *Store) filter(ctx context.Context, where string, key any) (fleet.Filter, error) {
	rows, _ := s.db.Query(ctx, selectFilters+where, key)
	f, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[fleet.Filter])
	if err != nil {
		return fleet.Filter{}, fmt.Errorf("filter %v: %w", key, domainError(err))
	}
	return f, nil
}

// CreateFilter stores a new filter.
func (s *Store) CreateFilter(ctx context.Context, by fleet.Principal, f fleet.Filter) error {
	return s.audited(ctx, by, "filter.create", f.ID.String(), filterDetail(f), func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO filters (id, name, title, query, created_by, created_at) VALUES ($1, $2, $3, $4, $5, $6)`,
			f.ID, f.Name, cleanText(f.Title), cleanText(f.Query), cleanText(f.CreatedBy), f.CreatedAt)
		return filterError(err, f)
	})
}

// UpdateFilter stores a changed filter.
func (s *Store) UpdateFilter(ctx context.Context, by fleet.Principal, f fleet.Filter) error {
	return s.audited(ctx, by, "filter.update", f.ID.String(), filterDetail(f), func(tx pgx.Tx) error {
		return filterError(changeOne(ctx, tx, `UPDATE filters SET name = $2, title = $3, query = $4 WHERE id = $1`,
			f.ID, f.Name, cleanText(f.Title), cleanText(f.Query)), f)
	})
}

// DeleteFilter removes a filter.
func (s *Store) DeleteFilter(ctx context.Context, by fleet.Principal, id uuid.UUID) error {
	return s.audited(ctx, by, "filter.delete", id.String(), nil, func(tx pgx.Tx) error {
		return changeOne(ctx, tx, `DELETE FROM filters WHERE id = $1`, id)
	})
}

func filterDetail(f fleet.Filter) map[string]any {
	return map[string]any{"name": f.Name, "title": f.Title, "query": f.Query}
}

func filterError(err error, f fleet.Filter) error {
	if hasCode(err, "23505") {
		return fleet.Refuse(fleet.ErrConflict, "name_taken.filter", "name", f.Name).At("name")
	}
	return err
}
