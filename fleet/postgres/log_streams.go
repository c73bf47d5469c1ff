package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/logstream"
)

var _ logstream.Store = (*Store)(nil)

// keptDeliveries is how many deliveries of a log stream are kept.
const keptDeliveries = 500

const deliveryColumns = `at, first_entry, last_entry, entries, requests, removed, took_ms, status, code, params`

const logStreamSelect = `
	SELECT s.id, name, kind, shown, address, secrets, ca, filter, batch, enabled, revision, created_by, created_at,
		next_entry, failures, d.*
	FROM log_streams s LEFT JOIN LATERAL (
		SELECT ` + deliveryColumns + ` FROM log_stream_deliveries WHERE stream_id = s.id ORDER BY id DESC LIMIT 1) d ON true `

// deliveryRow is a row of log_stream_deliveries; null without one.
type deliveryRow struct {
	at                                         *time.Time
	first, last                                *int64
	entries, requests, removed, tookMs, status *int64
	code                                       *string
	params                                     []byte
}

func (r *deliveryRow) dest() []any {
	return []any{&r.at, &r.first, &r.last, &r.entries, &r.requests, &r.removed, &r.tookMs, &r.status, &r.code, &r.params}
}

func (r *deliveryRow) delivery() (d logstream.Delivery, err error) {
	if r.at == nil {
		return d, nil
	}
	d = logstream.Delivery{At: *r.at, First: *r.first, Last: *r.last, Entries: int(*r.entries), Requests: int(*r.requests),
		Removed: int(*r.removed), Took: time.Duration(*r.tookMs) * time.Millisecond, Status: int(*r.status),
		Reason: fleet.Reason{Code: *r.code}}
	if r.params != nil {
		err = json.Unmarshal(r.params, &d.Reason.Params)
	}
	return d, err
}

func toLogStream(row pgx.CollectableRow) (s logstream.Stream, err error) {
	var filter []byte
	var last deliveryRow
	err = row.Scan(append([]any{&s.ID, &s.Name, &s.Kind, &s.Shown, &s.Address, &s.Secrets, &s.CA, &filter, &s.Batch,
		&s.Enabled, &s.Revision, &s.CreatedBy, &s.CreatedAt, &s.Next, &s.Failures}, last.dest()...)...)
	if err != nil {
		return s, err
	}
	if s.Last, err = last.delivery(); err != nil {
		return s, err
	}
	return s, json.Unmarshal(filter, &s.Filter)
}

// logStreamDetail returns the detail of a stream's audit entries. It contains only the host of the address.
func logStreamDetail(s logstream.Stream) map[string]any {
	_, host, _ := strings.Cut(s.Shown, "://")
	host, _, _ = strings.Cut(host, "/")
	return map[string]any{"name": s.Name, "kind": s.Kind, "host": host, "filter": s.Filter, "enabled": s.Enabled}
}

// CreateLogStream implements [logstream.Store].
func (s *Store) CreateLogStream(ctx context.Context, by fleet.Principal, l logstream.Stream) error {
	return s.audited(ctx, by, "log_stream.create", l.ID.String(), logStreamDetail(l), func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO log_streams (id, name, kind, shown, address, secrets, ca, filter, batch, enabled, revision, created_by,
				created_at, next_entry)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)`,
			l.ID, cleanText(l.Name), l.Kind, cleanText(l.Shown), l.Address, l.Secrets, cleanText(l.CA), l.Filter, l.Batch,
			l.Enabled, l.Revision, cleanText(l.CreatedBy), l.CreatedAt, l.Next)
		return err
	})
}

// LogStreams implements [logstream.Store].
func (s *Store) LogStreams(ctx context.Context) ([]logstream.Stream, error) {
	rows, _ := s.db.Query(ctx, logStreamSelect+`ORDER BY name, s.id`)
	list, err := pgx.CollectRows(rows, toLogStream)
	if err != nil {
		return nil, fmt.Errorf("log streams: %w", domainError(err))
	}
	return list, nil
}

// LogStream implements [logstream.Store].
func (s *Store) LogStream(ctx context.Context, id uuid.UUID) (logstream.Stream, error) {
	rows, _ := s.db.Query(ctx, logStreamSelect+`WHERE s.id = $1`, id)
	l, err := pgx.CollectExactlyOneRow(rows, toLogStream)
	if err != nil {
		return l, fmt.Errorf("log stream %s: %w", id, domainError(err))
	}
	return l, nil
}

// UpdateLogStream implements [logstream.Store].
func (s *Store) UpdateLogStream(ctx context.Context, by fleet.Principal, l logstream.Stream) error {
	return s.audited(ctx, by, "log_stream.change", l.ID.String(), logStreamDetail(l), func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			UPDATE log_streams SET name = $3, shown = $4, address = $5, secrets = $6, ca = $7, filter = $8, batch = $9,
				enabled = $10, failures = 0, revision = revision + 1
			WHERE id = $1 AND revision = $2`,
			l.ID, l.Revision, cleanText(l.Name), cleanText(l.Shown), l.Address, l.Secrets, cleanText(l.CA), l.Filter, l.Batch,
			l.Enabled)
		if err == nil && tag.RowsAffected() == 0 {
			return fleet.Refuse(fleet.ErrConflict, "log_stream_changed")
		}
		return err
	})
}

// ReplayLogStream implements [logstream.Store].
func (s *Store) ReplayLogStream(ctx context.Context, by fleet.Principal, id uuid.UUID, next int64) error {
	return s.audited(ctx, by, "log_stream.replay", id.String(), map[string]any{"next_entry": next}, func(tx pgx.Tx) error {
		return changeOne(ctx, tx, `
			UPDATE log_streams SET next_entry = $2, failures = 0, revision = revision + 1 WHERE id = $1`, id, next)
	})
}

// DeleteLogStream implements [logstream.Store].
func (s *Store) DeleteLogStream(ctx context.Context, by fleet.Principal, id uuid.UUID) error {
	return s.audited(ctx, by, "log_stream.delete", id.String(), nil, func(tx pgx.Tx) error {
		return changeOne(ctx, tx, `DELETE FROM log_streams WHERE id = $1`, id)
	})
}

// AdvanceLogStream implements [logstream.Store].
func (s *Store) AdvanceLogStream(ctx context.Context, id uuid.UUID, revision, next int64, failures int,
	d logstream.Delivery) (current bool, err error) {
	err = pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			UPDATE log_streams SET next_entry = greatest(next_entry, $3), failures = $4 WHERE id = $1 AND revision = $2`,
			id, revision, next, failures)
		if current = tag.RowsAffected() == 1; err != nil || !current || d.At.IsZero() {
			return err
		}
		_, err = tx.Exec(ctx, `
			INSERT INTO log_stream_deliveries (stream_id, `+deliveryColumns+`)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`, id, d.At, d.First, d.Last, d.Entries, d.Requests, d.Removed,
			d.Took.Milliseconds(), d.Status, d.Reason.Code, marshalled(d.Reason.Params))
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			DELETE FROM log_stream_deliveries WHERE stream_id = $1 AND id <= (
				SELECT id FROM log_stream_deliveries WHERE stream_id = $1 ORDER BY id DESC OFFSET $2 LIMIT 1)`,
			id, keptDeliveries)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("cursor of log stream %s: %w", id, domainError(err))
	}
	return current, nil
}

// StopLogStream implements [logstream.Store].
func (s *Store) StopLogStream(ctx context.Context, id uuid.UUID, revision int64) error {
	system := fleet.Principal{Kind: fleet.KindSystem, Name: "fleetd"}
	detail := map[string]any{"enabled": false, "status": http.StatusGone}
	return s.audited(ctx, system, "log_stream.change", id.String(), detail, func(tx pgx.Tx) error {
		return changeOne(ctx, tx, `
			UPDATE log_streams SET enabled = false, revision = revision + 1 WHERE id = $1 AND revision = $2`, id, revision)
	})
}

// LogStreamDeliveries implements [logstream.Store].
func (s *Store) LogStreamDeliveries(ctx context.Context, id uuid.UUID, limit int) ([]logstream.Delivery, error) {
	rows, _ := s.db.Query(ctx, `
		SELECT `+deliveryColumns+` FROM log_stream_deliveries WHERE stream_id = $1 ORDER BY id DESC LIMIT $2`, id, limit)
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (logstream.Delivery, error) {
		var r deliveryRow
		if err := row.Scan(r.dest()...); err != nil {
			return logstream.Delivery{}, err
		}
		return r.delivery()
	})
	if err != nil {
		return nil, fmt.Errorf("deliveries of log stream %s: %w", id, domainError(err))
	}
	return list, nil
}
