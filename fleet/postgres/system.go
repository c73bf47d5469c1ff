package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet/system"
)

// grownTables lists the tables that grow with the fleet and with time. Only their sizes are
// queried, which is fast.
var grownTables = []string{"audit_entries", "alerts", "alert_events", "calls", "conversations", "core_dumps",
	"deployments", "deployment_events", "device_configs", "device_facts", "device_inventories", "device_jobs",
	"device_names", "device_states", "device_vitals", "devices", "fanout_targets", "fanouts", "fleet_frames",
	"idempotency_keys", "images", "inventories", "logins", "presence_changes", "presence_samples", "profile_counts",
	"report_changes", "river_job", "sessions", "snapshots", "url_links", "vitals_hours", "vitals_points"}

// largestTables is how many tables a report lists.
const largestTables = 10

// DatabaseReport returns the size of the database and the use of its connections.
func (s *Store) DatabaseReport(ctx context.Context) (r system.Database, err error) {
	err = s.db.QueryRow(ctx, `
		SELECT current_setting('server_version'), pg_database_size(current_database()),
			(SELECT max(version_id) FROM goose_db_version WHERE is_applied)`).Scan(&r.Server, &r.Bytes, &r.Migration)
	if err != nil {
		return r, fmt.Errorf("size of the database: %w", domainError(err))
	}
	rows, _ := s.db.Query(ctx, `
		SELECT t.name, sum(pg_total_relation_size(p.relid))::bigint AS bytes,
			CASE WHEN bool_and(c.reltuples < 0) THEN -1 ELSE sum(greatest(c.reltuples, 0))::bigint END AS rows
		FROM unnest($1::text[]) t (name), LATERAL (
			SELECT to_regclass(t.name) AS relid UNION SELECT relid FROM pg_partition_tree(to_regclass(t.name))) p, pg_class c
		WHERE c.oid = p.relid AND c.relkind = 'r'
		GROUP BY t.name ORDER BY bytes DESC, t.name LIMIT $2`, grownTables, largestTables)
	if r.Tables, err = pgx.CollectRows(rows, pgx.RowToStructByName[system.TableSize]); err != nil {
		return r, fmt.Errorf("sizes of tables: %w", domainError(err))
	}
	pool := s.db.Stat()
	r.InUse, r.Idle, r.Most = pool.AcquiredConns(), pool.IdleConns(), pool.MaxConns()
	return r, nil
}

// StoredImages counts the firmware images.
func (s *Store) StoredImages(ctx context.Context) (r system.StoredImages, err error) {
	err = s.db.QueryRow(ctx, `SELECT count(*), coalesce(sum(size), 0)::bigint FROM images`).Scan(&r.Count, &r.Bytes)
	if err != nil {
		return r, fmt.Errorf("images: %w", domainError(err))
	}
	return r, nil
}
