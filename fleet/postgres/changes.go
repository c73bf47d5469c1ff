package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet/changes"
)

var _ changes.Store = (*Store)(nil)

// EventsSince implements [changes.Store]. The counts are those of the lists of the audit log with the same time.
func (s *Store) EventsSince(ctx context.Context, since time.Time) (e changes.Events, err error) {
	w := where{args: []any{since, idFloor(since.Add(-idSlack)), changes.MaxNamed}}
	within := func(add func(*where)) string {
		one := where{args: w.args, conds: []string{"true"}}
		add(&one)
		w.args = one.args
		return one.String()
	}
	ofDevice := func(w *where) { w.scopeOf(ctx, "device_id") }
	err = s.db.QueryRow(ctx, `
		WITH presences AS (SELECT count(DISTINCT device_id) FILTER (WHERE presence = 'offline')::int,
				count(DISTINCT device_id) FILTER (WHERE presence = 'online')::int
			FROM presence_changes`+within(ofDevice)+` AND at >= $1 AND presence IN ('offline', 'online')),
		builds AS (SELECT count(DISTINCT device_id)::int FROM device_firmware`+within(ofDevice)+` AND first_seen >= $1),
		configured AS (SELECT array_agg(device_id) FROM (SELECT DISTINCT device_id FROM report_changes`+within(ofDevice)+`
			AND at >= $1 AND code = 'configured' ORDER BY device_id LIMIT $3 + 1) named),
		steps AS (SELECT count(DISTINCT d.id) FILTER (WHERE e.to_state = 'succeeded')::int,
				count(DISTINCT d.id) FILTER (WHERE e.to_state <> 'succeeded')::int
			FROM deployment_events e JOIN deployments d ON d.id = e.deployment_id`+
		within(func(w *where) { w.scopeOfAll(ctx, deploymentAudience) })+`
				AND e.at >= $1 AND e.kind <> 'planned' AND e.to_state IN ('succeeded', 'failed', 'timed_out', 'rolled_back',
					'wrong_build', 'unhealthy', 'rejected')),
		made AS (SELECT count(*)::int, count(failure)::int FROM calls`+
		within(func(w *where) { w.callScope(ctx, "calls.tool", "calls.device_id") })+` AND created_at >= $1 AND id >= $2),
		alerted AS (SELECT count(*) FILTER (WHERE began_at >= $1)::int, count(*) FILTER (WHERE ended_at >= $1)::int
			FROM alerts WHERE began_at >= $1 OR ended_at >= $1)
		SELECT presences.*, builds.*, coalesce(configured.array_agg, '{}'), steps.*, made.*, alerted.*
		FROM presences, builds, configured, steps, made, alerted`, w.args...).Scan(&e.Offline, &e.Online, &e.Rebuilt,
		&e.Configured, &e.Updated, &e.NotUpdated, &e.Calls, &e.FailedCalls, &e.AlertsBegan, &e.AlertsEnd)
	if err != nil {
		return e, fmt.Errorf("events since %s: %w", since, domainError(err))
	}
	if e.ConfiguredMore = len(e.Configured) > changes.MaxNamed; e.ConfiguredMore {
		e.Configured = e.Configured[:changes.MaxNamed]
	}
	e.Acts, e.ActCount, err = s.actsSince(ctx, since)
	return e, err
}

// actsSince returns the most frequent actions of the audit log, and the number of all.
func (s *Store) actsSince(ctx context.Context, since time.Time) (acts []changes.Act, all int, err error) {
	var w where
	w.and("created_at >= ?", since)
	w.and("id >= ?", idFloor(since.Add(-idSlack)))
	w.auditScope(ctx)
	rows, _ := s.db.Query(ctx, `
		SELECT action, count(*)::int AS count, (array_agg(DISTINCT actor_name) FILTER (WHERE actor_name <> ''))[1:`+
		w.arg(changes.MaxNames)+`] AS names, sum(count(*)) OVER ()::int AS all
		FROM audit_entries`+w.String()+` GROUP BY action ORDER BY 2 DESC, 1 LIMIT `+w.arg(changes.MaxActs), w.args...)
	type row struct {
		changes.Act
		All int
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[row])
	if err != nil {
		return nil, 0, fmt.Errorf("acts since %s: %w", since, domainError(err))
	}
	for _, r := range found {
		acts, all = append(acts, r.Act), r.All
	}
	return acts, all, nil
}
