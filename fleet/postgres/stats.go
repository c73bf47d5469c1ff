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
// Intervals without a call are left out. A device of "" counts the calls of all.
func (s *Store) CallBuckets(ctx context.Context, device fleet.DeviceID, since time.Time, step time.Duration) (
	[]call.Bucket, error) {
	if step < minStep {
		return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_step", "least_ms", minStep, "given_ms", step)
	}
	scoped, args := scopedBy([]any{since, step, idFloor(since.Add(-idSlack)), maxBuckets},
		func(w *where) {
			w.callScope(ctx, "calls.tool", "calls.device_id")
			if device != "" {
				w.and("calls.device_id = ?", device)
			}
		})
	rows, _ := s.db.Query(ctx, `
		SELECT date_bin($2, created_at, $1) AS at, count(*) FILTER (WHERE state = 'succeeded') AS succeeded,
			count(failure) AS failed, count(*) FILTER (WHERE failure = 'tool_error') AS tool_errors,
			count(*) FILTER (WHERE failure IN ('timed_out', 'unknown')) AS no_answer
		FROM calls WHERE created_at >= $1 AND id >= $3`+scoped+`
		GROUP BY 1 ORDER BY 1 LIMIT $4`, args...)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[call.Bucket])
	if err != nil {
		return nil, fmt.Errorf("calls over time: %w", domainError(err))
	}
	return list, nil
}
