package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/alert"
)

// A silenceRow is a row of silences, also as JSON in a row of alerts.
type silenceRow struct {
	ID        uuid.UUID           `json:"id"`
	AlertID   *uuid.UUID          `json:"alert_id"`
	Kind      alert.Kind          `json:"kind"`
	Query     string              `json:"query"`
	Scope     string              `json:"scope"`
	Reason    string              `json:"reason"`
	CreatedAt time.Time           `json:"created_at"`
	Until     time.Time           `json:"until"`
	ByKind    fleet.PrincipalKind `json:"by_kind"`
	ByID      string              `json:"by_id"`
	ByName    string              `json:"by_name"`
	ByRole    fleet.Role          `json:"by_role"`
	EndedAt   *time.Time          `json:"ended_at"`
	EndedBy   string              `json:"ended_by"`
}

func (r silenceRow) silence() alert.Silence {
	s := alert.Silence{ID: r.ID, Kind: r.Kind, Query: r.Query, Scope: r.Scope, Reason: r.Reason, CreatedAt: r.CreatedAt,
		Until: r.Until, By: fleet.Principal{Kind: r.ByKind, ID: r.ByID, Name: r.ByName, Role: r.ByRole}, EndedAt: r.EndedAt,
		EndedBy: r.EndedBy}
	if r.AlertID != nil {
		s.Alert = *r.AlertID
	}
	return s
}

func toSilence(row pgx.CollectableRow) (alert.Silence, error) {
	r, err := pgx.RowToStructByName[silenceRow](row)
	return r.silence(), err
}

// silenceID returns the id of a silence for its column, nil without one.
func silenceID(s *alert.Silence) *uuid.UUID {
	if s == nil {
		return nil
	}
	return &s.ID
}

const silenceColumns = `id, alert_id, kind, query, scope, reason, created_at, until, by_kind, by_id, by_name, by_role,
	ended_at, ended_by`

// silenceDetail returns the detail of a silence's audit entries.
func silenceDetail(s alert.Silence) map[string]any {
	detail := map[string]any{"reason": s.Reason, "until": s.Until.UTC()}
	if s.Alert != uuid.Nil {
		detail["alert"] = s.Alert.String()
	}
	for name, value := range map[string]string{"kind": string(s.Kind), "query": s.Query, "scope": s.Scope} {
		if value != "" {
			detail[name] = value
		}
	}
	return detail
}

// CreateSilence adds a silence.
func (s *Store) CreateSilence(ctx context.Context, v alert.Silence) error {
	return s.audited(ctx, v.By, "alert.silence", v.ID.String(), silenceDetail(v), func(tx pgx.Tx) error {
		var of *uuid.UUID
		if v.Alert != uuid.Nil {
			of = &v.Alert
		}
		_, err := tx.Exec(ctx, `
			INSERT INTO silences (id, alert_id, kind, query, scope, reason, created_at, until, by_kind, by_id, by_name, by_role)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`,
			v.ID, of, v.Kind, cleanText(v.Query), cleanText(v.Scope), cleanText(v.Reason), v.CreatedAt, v.Until, v.By.Kind,
			cleanText(v.By.ID), cleanText(v.By.Name), v.By.Role)
		return err
	})
}

// EndSilence ends a silence before its time, or returns [fleet.ErrConflict] if it has ended.
func (s *Store) EndSilence(ctx context.Context, by fleet.Principal, id uuid.UUID, at time.Time) error {
	v, err := s.Silence(ctx, id)
	if err != nil {
		return err
	}
	return s.audited(ctx, by, "alert.unsilence", id.String(), silenceDetail(v), func(tx pgx.Tx) error {
		err := changeOne(ctx, tx, `UPDATE silences SET ended_at = $2, ended_by = $3
			WHERE id = $1 AND ended_at IS NULL AND until > $2`, id, at, cleanText(by.Name))
		if isNotFound(err) {
			return fmt.Errorf("%w: it has ended", fleet.ErrConflict)
		}
		return err
	})
}

// Silence returns one silence, or [fleet.ErrNotFound].
func (s *Store) Silence(ctx context.Context, id uuid.UUID) (alert.Silence, error) {
	rows, _ := s.db.Query(ctx, `SELECT `+silenceColumns+` FROM silences WHERE id = $1`, id)
	v, err := pgx.CollectExactlyOneRow(rows, toSilence)
	if err != nil {
		return v, fmt.Errorf("silence %s: %w", id, domainError(err))
	}
	return v, nil
}

// Silences lists silences, newest first.
func (s *Store) Silences(ctx context.Context, f alert.SilenceFilter) (fleet.Page[alert.Silence], error) {
	none := fleet.Page[alert.Silence]{}
	at, err := parseCursor(f.Cursor, "silences")
	if err != nil {
		return none, err
	}
	var w where
	if f.Active {
		w.and("ended_at IS NULL AND until > ?", f.Now)
	}
	order, err := w.idsDown(at)
	if err != nil {
		return none, err
	}
	limit := fleet.ClampLimit(f.Limit)
	rows, _ := s.db.Query(ctx, `SELECT `+silenceColumns+` FROM silences`+w.String()+order+` LIMIT `+w.arg(limit+1),
		w.args...)
	list, err := pgx.CollectRows(rows, toSilence)
	if err != nil {
		return none, fmt.Errorf("silences: %w", domainError(err))
	}
	return makePage(list, limit, at, func(v alert.Silence) cursor { return cursor{List: "silences", ID: v.ID.String()} }), nil
}

// ActiveSilences lists the silences that have not ended, the longest first.
func (s *Store) ActiveSilences(ctx context.Context, now time.Time) ([]alert.Silence, error) {
	rows, _ := s.db.Query(ctx, `SELECT `+silenceColumns+` FROM silences WHERE ended_at IS NULL AND until > $1
		ORDER BY until DESC, id LIMIT $2`, now, 2*alert.MaxSilences)
	list, err := pgx.CollectRows(rows, toSilence)
	if err != nil {
		return nil, fmt.Errorf("silences: %w", domainError(err))
	}
	return list, nil
}

// AttachSilence stores which silence applies to an alert, and the event if there is one. After the end of
// a silence it queues the alert for webhooks.
func (s *Store) AttachSilence(ctx context.Context, was alert.Alert, c alert.Change) error {
	err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		err := changeOne(ctx, tx, `UPDATE alerts SET silence_id = $3
			WHERE id = $1 AND state = $2 AND silence_id IS NOT DISTINCT FROM $4`,
			was.ID, was.State, silenceID(c.Alert.Silence), silenceID(was.Silence))
		if isNotFound(err) {
			return fmt.Errorf("%w: it has changed", fleet.ErrConflict)
		}
		if err != nil || c.Event == "" {
			return err
		}
		return s.recordAlert(ctx, tx, c)
	})
	if err != nil {
		return fmt.Errorf("silence of alert %s of %s: %w", was.ID, was.Kind, domainError(err))
	}
	return nil
}

// Covered counts the devices in service of an alert that match the filter, and those that do not.
func (s *Store) Covered(ctx context.Context, of alert.Devices, filter fleet.Query) (inside, outside int, err error) {
	var w where
	devices, ok := w.devicesOf(of)
	if !ok {
		return 0, 0, nil
	}
	covered := w.all(filter)
	err = s.db.QueryRow(ctx, `
		SELECT count(*) FILTER (WHERE `+covered+`), count(*) FILTER (WHERE (`+covered+`) IS NOT TRUE)
		FROM devices WHERE in_service AND `+devices, w.args...).Scan(&inside, &outside)
	if err != nil {
		return 0, 0, fmt.Errorf("devices of an alert with %q: %w", filter.Text, domainError(err))
	}
	return inside, outside, nil
}

// all returns one condition for the terms of a query.
func (w *where) all(q fleet.Query) string {
	inner := where{args: w.args}
	inner.terms(q, time.Now())
	w.args = inner.args
	if len(inner.conds) == 0 {
		return "true"
	}
	return "(" + strings.Join(inner.conds, " AND ") + ")"
}

// devicesOf returns the condition for the devices of an alert. ok is false if it concerns none.
func (w *where) devicesOf(of alert.Devices) (cond string, ok bool) {
	if of.IDs != nil {
		return "id = ANY (" + w.arg(of.IDs) + ")", true
	}
	q, err := fleet.ParseQuery(of.Query)
	if err != nil || q.Empty() {
		return "", false
	}
	return w.all(q), true
}
