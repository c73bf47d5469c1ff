package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/place"
)

var _ place.Store = (*Store)(nil)

// crashSpan is how long a crash counts in the figures of places.
const crashSpan = 24 * time.Hour

// placesOf finds the places of each set of tags: its tags, and what precedes a slash in them. Devices are grouped by
// their set of tags before they are counted, because there are far fewer sets.
const placesOf = `
	split AS MATERIALIZED (SELECT tags_key, tag, string_to_array(tag, '/') AS parts
		FROM (SELECT DISTINCT tags_key FROM d) sets, unnest(string_to_array(btrim(tags_key, E'\x01'), E'\x01')) tag),
	n AS MATERIALIZED (SELECT DISTINCT split.tags_key, p.path COLLATE "C" AS path
		FROM split, generate_series(1, cardinality(parts)) level, array_to_string(parts[1:level], '/') AS p (path)
		WHERE NOT parts[1:level] && ARRAY['', '.', '..'])`

// Places implements [place.Store].
func (s *Store) Places(ctx context.Context, f place.Filter) ([]place.Place, error) {
	now := time.Now()
	var w where
	w.and("in_service AND tags_key <> ''")
	w.scope(ctx)
	if f.Within != "" {
		q, err := fleet.ParseQuery(f.Within.Query())
		if err != nil {
			return nil, err
		}
		w.terms(q, now)
	}
	since := w.arg(now.Add(-crashSpan))
	devices := w.String()
	alerts, err := w.alerting(f.Alerts, now)
	if err != nil {
		return nil, err
	}
	var runs where
	runs.args = w.args
	runs.and("c.state IN ('scheduled', 'running', 'paused', 'stopping')")
	runs.scopeOfAll(ctx, audience{"deployments", "campaign_id", "c.id"})
	w.args = runs.args
	within := w.arg(string(f.Within))
	rows, _ := s.db.Query(ctx, `
		WITH crashed AS MATERIALIZED (SELECT DISTINCT c.device_id FROM report_changes c
			WHERE c.at > `+since+` AND `+isCrash+`),
		d AS MATERIALIZED (SELECT id, tags_key, version, presence, transport FROM devices`+devices+`),
		`+placesOf+`,
		runs AS (SELECT n.path, array_agg(DISTINCT r.id ORDER BY r.id) AS campaigns
			FROM (SELECT DISTINCT c.id, d.tags_key FROM campaigns c JOIN deployments t ON t.campaign_id = c.id
				JOIN d ON d.id = t.device_id`+runs.String()+` AND t.state NOT IN ('skipped', 'canceled', 'removed')) r
			JOIN n ON n.tags_key = r.tags_key GROUP BY n.path),
		alerting AS (SELECT n.path, array_agg(DISTINCT a.alert) AS alerts
			FROM (SELECT DISTINCT a.alert, d.tags_key FROM (`+alerts+`) a JOIN d ON d.id = a.id) a
			JOIN n ON n.tags_key = a.tags_key GROUP BY n.path),
		sets AS (SELECT tags_key, version, count(*) AS devices,
				count(*) FILTER (WHERE presence <> 'pending' AND NOT (presence = 'offline' AND transport = 'ws')) AS joined,
				count(*) FILTER (WHERE presence = 'online') AS online,
				count(*) FILTER (WHERE id IN (SELECT device_id FROM crashed)) AS crashed
			FROM d GROUP BY tags_key, version),
		versions AS (SELECT n.path, version, sum(devices)::int AS devices, sum(joined)::int AS joined,
				sum(online)::int AS online, sum(crashed)::int AS crashed
			FROM sets JOIN n ON n.tags_key = sets.tags_key GROUP BY n.path, version),
		counted AS (SELECT path, sum(devices)::int AS devices, sum(joined)::int AS joined, sum(online)::int AS online,
				sum(crashed)::int AS crashed, (count(*) FILTER (WHERE version <> ''))::int AS versions,
				coalesce((array_agg(version ORDER BY devices DESC, version) FILTER (WHERE version <> ''))[1], '') AS version,
				coalesce(max(devices) FILTER (WHERE version <> ''), 0) AS on_version,
				coalesce(sum(devices) FILTER (WHERE version <> ''), 0)::int AS reporting
			FROM versions GROUP BY path)
		SELECT path, devices, joined, online, crashed, versions, version, on_version, reporting, campaigns, alerts
		FROM counted LEFT JOIN runs USING (path) LEFT JOIN alerting USING (path)
		WHERE `+within+` = '' OR path = `+within+` OR starts_with(path, `+within+` || '/')
		ORDER BY cardinality(string_to_array(path, '/')), devices DESC, path LIMIT `+w.arg(f.Limit+1), w.args...)
	type row struct {
		place.Place
		Alerts []int
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[row])
	if err != nil {
		return nil, fmt.Errorf("places within %q: %w", f.Within, domainError(err))
	}
	return collect(found, func(r row) place.Place {
		slices.Sort(r.Alerts)
		r.Place.Alerts = collect(r.Alerts, func(i int) uuid.UUID { return f.Alerts[i].ID })
		return r.Place
	}), nil
}

// maxPlaceAlerts bounds the alerts with a query of their own: each reads the devices.
const maxPlaceAlerts = 100

// alerting returns a statement for the devices of each alert, by the alert's place in the list.
func (w *where) alerting(alerts []place.Alert, now time.Time) (string, error) {
	parts := []string{"SELECT 0 AS alert, '' AS id WHERE false"}
	for i, a := range alerts[:min(maxPlaceAlerts, len(alerts))] {
		of := where{args: w.args}
		switch {
		case len(a.IDs) > 0:
			of.and("id = ANY (?)", a.IDs)
		case a.Query != "":
			q, err := fleet.ParseQuery(a.Query)
			if err != nil {
				return "", fmt.Errorf("alert %s: %w", a.ID, err)
			}
			of.query(q, now)
		default:
			continue
		}
		parts = append(parts, "SELECT "+of.arg(i)+"::int, id FROM devices"+of.String())
		w.args = of.args
	}
	return strings.Join(parts, " UNION ALL "), nil
}
