package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet/record"
)

// Retention defines how long records are kept. Zero keeps them for ever.
type Retention struct {
	Calls       time.Duration // with their fan-outs, and records that only time lines show
	Audit       time.Duration
	Connections time.Duration // presence; states of devices are kept as long as the shorter of this and Calls
	Steps       time.Duration // events of deployments that have ended
	Firmware    time.Duration // builds that a device no longer runs
	Snapshots   time.Duration // the rows; a sweep of the blob store deletes the files
	Vitals      time.Duration // reported by devices; the latest remain
	Alerts      time.Duration // from their end
}

// idempotencyTTL is how long a repeated request is recognised.
const idempotencyTTL = 24 * time.Hour

// deleteChunk bounds the rows of one deleting statement.
const deleteChunk = 10_000

// EnsurePartitions creates the partitions of this month and the next two, and of the days of
// vitals, and reports how many were missing.
func (s *Store) EnsurePartitions(ctx context.Context, now time.Time) (made int, err error) {
	if err := s.db.QueryRow(ctx, `SELECT ensure_partitions($1)`, now).Scan(&made); err != nil {
		return 0, fmt.Errorf("make partitions: %w", domainError(err))
	}
	days, err := s.ensureVitalsPartitions(ctx, now)
	return made + days, err
}

// A retained table has records that are deleted after some time. Rows that are entries of the sealed record
// have kinds.
type retained struct {
	table, column string
	keep          time.Duration
	kinds         []record.Kind
	months        bool   // the table has a partition for each month
	only          string // condition on the rows t that may be deleted; "" for all
}

func (r Retention) tables() []retained {
	return []retained{
		{table: "calls", column: "created_at", keep: r.Calls, kinds: []record.Kind{record.Call, record.LateAnswer}, months: true},
		{table: "audit_entries", column: "created_at", keep: r.Audit, kinds: []record.Kind{record.Action}, months: true},
		{table: "call_digests", column: "created_at", keep: r.Calls},
		{table: "fanouts", column: "finished_at", keep: r.Calls},
		{table: "approvals", column: "created_at", keep: r.Calls},
		{table: "report_changes", column: "at", keep: r.reports()},
		{table: "conversations", column: "created_at", keep: r.Calls},
		{table: "schedule_runs", column: "planned_at", keep: r.Calls},
		{table: "presence_samples", column: "at", keep: r.Connections},
		{table: "presence_changes", column: "at", keep: r.Connections, kinds: []record.Kind{record.Connection}},
		// The campaign engine reads the events of deployments that have not ended.
		{table: "deployment_events", column: "at", keep: r.Steps, kinds: []record.Kind{record.Step},
			only: `EXISTS (SELECT FROM deployments d WHERE d.id = t.deployment_id AND d.finished_at < $1)`},
		{table: "device_firmware", column: "first_seen", keep: r.Firmware, kinds: []record.Kind{record.Firmware},
			only: "NOT t.current AND t.last_seen < $1"},
		{table: "snapshots", column: "created_at", keep: r.Snapshots},
		{table: "alerts", column: "ended_at", keep: r.Alerts},
		{table: "silences", column: "until", keep: r.Alerts},
	}
}

// Retain deletes records that have exceeded their retention, and reports how many rows or whole
// partitions it removed.
func (s *Store) Retain(ctx context.Context, r Retention, now time.Time) (removed int64, err error) {
	for _, t := range r.tables() {
		if t.keep <= 0 {
			continue
		}
		before := now.Add(-t.keep)
		if err := s.recordDrop(ctx, t, before); err != nil {
			return removed, err
		}
		if t.months {
			dropped, err := s.DropPartitionsBefore(ctx, t.table, before)
			if err != nil {
				return removed, err
			}
			removed += int64(dropped)
		}
		deleted, err := s.deleteRows(ctx, t, before)
		if removed += deleted; err != nil {
			return removed, err
		}
	}
	if keep := r.states(); keep > 0 {
		n, err := s.forgetStates(ctx, now.Add(-keep))
		if removed += n; err != nil {
			return removed, err
		}
	}
	if r.Calls > 0 && r.Audit > 0 {
		unused := now.Add(-max(r.Calls, r.Audit) - 2*24*time.Hour) // last_seen is true to a day and [originsKnown]
		n, err := s.deleteBefore(ctx, "origins", "last_seen", unused)
		if removed += n; err != nil {
			return removed, err
		}
	}
	if r.Vitals > 0 {
		n, err := s.dropVitals(ctx, now.Add(-r.Vitals))
		return removed + n, err
	}
	return removed, nil
}

// recordDrop records that the rows of a table before the time may be missing from now on, if the table has some and
// its rows are entries of the sealed record.
func (s *Store) recordDrop(ctx context.Context, t retained, before time.Time) error {
	if len(t.kinds) == 0 {
		return nil
	}
	err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		var any bool
		err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM `+t.table+` t WHERE `+t.where()+`)`, before).Scan(&any)
		if err != nil || !any {
			return err
		}
		return queueRemoval(ctx, tx, collect(t.kinds, func(k record.Kind) record.Leaf {
			return record.Rowless(record.Dropped, k.String(), before)
		})...)
	})
	if err != nil {
		return fmt.Errorf("record the removal of old %s: %w", t.table, domainError(err))
	}
	return nil
}

// where selects the rows t before the time $1 that may be deleted.
func (t retained) where() string {
	if t.only == "" {
		return `t.` + t.column + ` < $1`
	}
	return `t.` + t.column + ` < $1 AND ` + t.only
}

// states is how long states of devices are kept: a moment of the past needs connections, too.
func (r Retention) states() time.Duration {
	if r.Calls <= 0 || r.Connections <= 0 {
		return max(r.Calls, r.Connections)
	}
	return min(r.Calls, r.Connections)
}

// restartMemory is the minimum time for which restarts of devices are kept: the longest period in
// which alerts count them, and an hour.
const restartMemory = 25 * time.Hour

// reports is how long changes between reports are kept, restarts among them.
func (r Retention) reports() time.Duration {
	if r.Calls <= 0 {
		return 0
	}
	return max(r.Calls, restartMemory)
}

// quarantineMemory is how long a quarantine is kept after its end.
const quarantineMemory = 30 * 24 * time.Hour

// failedTriesTTL is longer than any count of failed tries takes to recover.
const failedTriesTTL = time.Hour

// checkpointsKept is how long each checkpoint of the sealed record is kept. Of older ones, the last of each hour
// stays.
const checkpointsKept = 24 * time.Hour

// DeleteExpired deletes links, sessions, idempotency keys, quarantines and failed tries that have ended, and most of
// the older checkpoints.
func (s *Store) DeleteExpired(ctx context.Context, now time.Time) error {
	for _, t := range []struct {
		name, column string
		before       time.Time
	}{{"url_links", "expires_at", now.Add(-time.Hour)}, {"firmware_links", "expires_at", now.Add(-time.Hour)},
		{"sessions", "expiry", now}, {"logins", "expires_at", now}, {"known_browsers", "expires_at", now},
		{"idempotency_keys", "created_at", now.Add(-idempotencyTTL)}, {"quarantines", "until", now.Add(-quarantineMemory)},
		{"failed_tries", "at", now.Add(-failedTriesTTL)}} {
		if _, err := s.deleteBefore(ctx, t.name, t.column, t.before); err != nil {
			return err
		}
	}
	_, err := s.db.Exec(ctx, `
		DELETE FROM record_checkpoints WHERE size IN (SELECT size FROM (
			SELECT size, row_number() OVER (PARTITION BY date_trunc('hour', at) ORDER BY size DESC) AS n
			FROM record_checkpoints WHERE at < $1) old WHERE n > 1)`, now.Add(-checkpointsKept).Truncate(time.Hour))
	if err != nil {
		return fmt.Errorf("delete old checkpoints: %w", domainError(err))
	}
	return nil
}

// DropPartitionsBefore drops the months of a partitioned table that lie wholly before the cutoff.
// If they are in use, it leaves them to the next run, an hour later.
func (s *Store) DropPartitionsBefore(ctx context.Context, table string, cutoff time.Time) (dropped int, err error) {
	if err := s.db.QueryRow(ctx, `SELECT drop_partitions_before($1, $2)`, table, cutoff).Scan(&dropped); err != nil {
		return 0, fmt.Errorf("drop old partitions of %s: %w", table, domainError(err))
	}
	return dropped, nil
}

// deleteBefore deletes the rows of a table before the time.
func (s *Store) deleteBefore(ctx context.Context, table, column string, before time.Time) (deleted int64, err error) {
	return s.deleteRows(ctx, retained{table: table, column: column}, before)
}

// deleteRows deletes in chunks, so no statement holds its locks for long.
func (s *Store) deleteRows(ctx context.Context, t retained, before time.Time) (deleted int64, err error) {
	for {
		tag, err := s.db.Exec(ctx, `
			DELETE FROM `+t.table+` t WHERE (t.tableoid, t.ctid) IN (SELECT t.tableoid, t.ctid FROM `+t.table+` t WHERE `+
			t.where()+` LIMIT $2) AND `+t.where(), before, deleteChunk)
		if err != nil {
			return deleted, fmt.Errorf("delete old %s: %w", t.table, domainError(err))
		}
		deleted += tag.RowsAffected()
		if tag.RowsAffected() < deleteChunk {
			return deleted, nil
		}
	}
}
