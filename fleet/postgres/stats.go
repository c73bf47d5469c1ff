package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/call"
)

var _ call.StatsStore = (*Store)(nil)

// Limits of the overview's queries.
const (
	maxBuckets = 1000
	minStep    = time.Second
)

// CallBuckets counts the calls created since the given time, in intervals of step, oldest first.
// Intervals without a call are left out.
func (s *Store) CallBuckets(ctx context.Context, since time.Time, step time.Duration) ([]call.Bucket, error) {
	if step < minStep {
		return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_step", "least_ms", minStep, "given_ms", step)
	}
	scoped, args := scopedBy([]any{since, step, idFloor(since.Add(-idSlack)), maxBuckets},
		func(w *where) { w.callScope(ctx, "calls.tool", "calls.device_id") })
	rows, _ := s.db.Query(ctx, `
		SELECT date_bin($2, created_at, $1) AS at, count(*) FILTER (WHERE state = 'succeeded') AS succeeded,
			count(failure) AS failed
		FROM calls WHERE created_at >= $1 AND id >= $3`+scoped+`
		GROUP BY 1 ORDER BY 1 LIMIT $4`, args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[call.Bucket])
	if err != nil {
		return nil, fmt.Errorf("calls over time: %w", domainError(err))
	}
	return list, nil
}

// RecentFailures lists the newest calls that did not succeed.
func (s *Store) RecentFailures(ctx context.Context, since time.Time, limit int) ([]fleet.Call, error) {
	var w where
	w.and("failure IS NOT NULL AND created_at >= ? AND id >= ?", since, idFloor(since.Add(-idSlack)))
	w.callScope(ctx, "calls.tool", "calls.device_id")
	list, _, err := collectCalls(ctx, s.db, `SELECT `+w.callColumns(ctx)+` FROM calls`+w.String()+
		` ORDER BY id DESC LIMIT `+w.arg(fleet.ClampLimit(limit)), w.args)
	if err != nil {
		return nil, fmt.Errorf("recent failures: %w", domainError(err))
	}
	return list, nil
}
