package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/history"
	"fleetd/fleet/trend"
)

var _ trend.Store = (*Store)(nil)

// TrendRows implements [trend.Store]. The group decides what the rows count: which groups a principal may ask for is up
// to [trend.Service].
func (s *Store) TrendRows(ctx context.Context, g trend.Group, span trend.Span, metrics []trend.Metric) ([]trend.Row,
	time.Time, error) {
	if g.Kind == trend.OfQuery {
		q, err := fleet.ParseQuery(g.Value)
		if err == nil {
			err = history.CheckQuery(q)
		}
		if err != nil {
			return nil, time.Time{}, err
		}
	}
	var id int
	var since time.Time
	err := s.db.QueryRow(ctx, `SELECT id, since FROM trend_groups WHERE kind = $1 AND value = $2`, g.Kind,
		cleanText(g.Value)).Scan(&id, &since)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, time.Time{}, nil
	}
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("trends of %s %q: %w", g.Kind, g.Value, domainError(err))
	}
	table := `SELECT metric, at, 1 AS hours, keys, counts FROM trend_hours`
	if span.Daily() {
		table = `SELECT metric, at, hours, keys, counts FROM trend_days`
	}
	rows, _ := s.db.Query(ctx, table+` WHERE group_id = $1 AND metric = ANY ($2) AND at >= $3 AND at < $4 ORDER BY metric, at`,
		id, metrics, span.From, span.To)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[trend.Row])
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("trends of %s %q: %w", g.Kind, g.Value, domainError(err))
	}
	return found, since.UTC(), nil
}

// TrendEvents implements [trend.Store].
func (s *Store) TrendEvents(ctx context.Context, span trend.Span, kinds []trend.EventKind) ([]trend.Event, error) {
	rows, _ := s.db.Query(ctx, `
		SELECT at, kind, id, name FROM (
			SELECT created_at AS at, 'release' AS kind, id, version AS name FROM releases WHERE state <> 'draft'
			UNION ALL SELECT started_at, 'campaign', id, name FROM campaigns
			UNION ALL SELECT since, 'start', '00000000-0000-0000-0000-000000000000', node FROM lease_terms) e
		WHERE at >= $1 AND at < $2 AND kind = ANY ($3) ORDER BY at DESC LIMIT $4`, span.From, span.To, kinds, trend.MaxEvents)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[trend.Event])
	if err != nil {
		return nil, fmt.Errorf("events of trends: %w", domainError(err))
	}
	for i := range found {
		found[i].At = found[i].At.UTC()
	}
	slices.Reverse(found)
	return found, nil
}

// TrendHours implements [trend.Store].
func (s *Store) TrendHours(ctx context.Context, span trend.Span, since time.Time) ([]int, error) {
	rows, _ := s.db.Query(ctx, `
		SELECT floor(extract(epoch FROM hour - $1) / $4)::int, count(*)::int FROM trend_marks
		WHERE hour >= greatest($1, $3) AND hour < $2 AND state IN ('counted', 'done') GROUP BY 1`,
		span.From, span.To, since, int64(span.Step/time.Second))
	hours := make([]int, len(span.Times()))
	var i, n int
	_, err := pgx.ForEachRow(rows, []any{&i, &n}, func() error {
		if i >= 0 && i < len(hours) {
			hours[i] = n
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("counted hours: %w", domainError(err))
	}
	return hours, nil
}

// TrendGroups implements [trend.Store]. A group that has had no devices for a while is at the end.
func (s *Store) TrendGroups(ctx context.Context, kind trend.GroupKind) ([]string, error) {
	rows, _ := s.db.Query(ctx, `
		SELECT value FROM trend_groups g LEFT JOIN LATERAL (
			SELECT (SELECT sum(n) FROM unnest(counts) n) AS devices FROM trend_hours h
			WHERE h.group_id = g.id AND h.metric = $2 ORDER BY at DESC LIMIT 1) latest ON true
		WHERE kind = $1 ORDER BY devices DESC NULLS LAST, value LIMIT 500`, kind, trend.Devices)
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("groups of trends: %w", domainError(err))
	}
	return list, nil
}
