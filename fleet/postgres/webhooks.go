package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/alert"
	"fleetd/fleet/call"
	"fleetd/fleet/webhook"
)

var _ webhook.Store = (*Store)(nil)

// An Outbox queues deliveries in the transaction of the change that they report.
type Outbox func(ctx context.Context, tx pgx.Tx, jobs []webhook.Job) error

// SetOutbox sets where deliveries are queued; without it none are. It must be called before the
// store is used.
func (s *Store) SetOutbox(o Outbox) { s.outbox = o }

// publish queues an event about an approval for each webhook that wants it.
func (s *Store) publish(ctx context.Context, tx pgx.Tx, kind webhook.EventKind, at time.Time, a call.Approval) error {
	if s.outbox == nil {
		return nil
	}
	rows, _ := tx.Query(ctx, `SELECT id FROM webhooks WHERE enabled AND $1 = ANY (events)`, kind)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil || len(ids) == 0 {
		return err
	}
	return s.outbox(ctx, tx, collect(ids, func(hook uuid.UUID) webhook.Job {
		return webhook.NewApprovalJob(hook, kind, at, a)
	}))
}

// publishAlert queues what each webhook gets of a change. The webhooks with a route that the alert has come into
// are kept with it: they also get its end, when its devices are back, and get it as opened if it comes into the
// route later.
func (s *Store) publishAlert(ctx context.Context, tx pgx.Tx, c alert.Change) error {
	if s.outbox == nil || c.Event == "" && c.Alert.QuietSince != nil {
		return nil
	}
	rows, _ := tx.Query(ctx, `SELECT `+webhookColumns+` FROM webhooks WHERE enabled ORDER BY id LIMIT $1`, maxPeople)
	hooks, err := pgx.CollectRows(rows, toWebhook)
	if err != nil || len(hooks) == 0 {
		return err
	}
	var routed []uuid.UUID
	if err := tx.QueryRow(ctx, `SELECT routed FROM alerts WHERE id = $1`, c.Alert.ID).Scan(&routed); err != nil {
		return err
	}
	known := len(routed)
	var jobs []webhook.Job
	for _, w := range hooks {
		before := !w.Route.Limits() || slices.Contains(routed, w.ID)
		within := w.Route.Admits(c.Alert.Kind, c.Alert.Severity)
		if within && w.Route.Query != "" && !before {
			if within, err = routes(ctx, tx, w.Route.Query, c.Affected()); err != nil {
				return err
			}
		}
		if event := w.Gets(c.Event, before, within); event != "" {
			jobs = append(jobs, webhook.NewAlertJob(w.ID, c.At, event, c.Alert))
		}
		if within && !before {
			routed = append(routed, w.ID)
		}
	}
	if len(routed) > known {
		if err := changeOne(ctx, tx, `UPDATE alerts SET routed = $2 WHERE id = $1`, c.Alert.ID, routed); err != nil {
			return err
		}
	}
	if len(jobs) == 0 {
		return nil
	}
	return s.outbox(ctx, tx, jobs)
}

// routes reports whether a device of an alert matches the filter.
func routes(ctx context.Context, tx pgx.Tx, filter string, of alert.Devices) (found bool, err error) {
	q, err := fleet.ParseQuery(filter)
	if err != nil {
		return false, nil // a later version wrote it
	}
	var w where
	devices, ok := w.devicesOf(of)
	if !ok {
		return false, nil
	}
	sql := `SELECT EXISTS (SELECT FROM devices WHERE in_service AND ` + devices + ` AND ` + w.all(q) + `)`
	err = tx.QueryRow(ctx, sql, w.args...).Scan(&found)
	return found, err
}

const webhookColumns = `id, name, shown, address, events, secret, enabled, created_by, created_at, last_event, last_at, last_status,
	last_code, last_params, shape, chat, lang, route_query, route_severity, route_kinds`

func toWebhook(row pgx.CollectableRow) (webhook.Webhook, error) {
	r, err := pgx.RowToStructByName[struct {
		ID         uuid.UUID
		Name       string
		Shown      string
		Address    []byte
		Events     []webhook.EventKind
		Secret     []byte
		Enabled    bool
		CreatedBy  string
		CreatedAt  time.Time
		LastEvent  webhook.EventKind
		LastAt     *time.Time
		LastStatus int
		LastCode   string
		LastParams []byte
		Shape      webhook.Shape
		Chat, Lang string

		RouteQuery    string
		RouteSeverity alert.Severity
		RouteKinds    []alert.Kind
	}](row)
	w := webhook.Webhook{ID: r.ID, Name: r.Name, Shown: r.Shown, Address: r.Address, Events: r.Events,
		Secret: r.Secret, Enabled: r.Enabled,
		CreatedBy: r.CreatedBy, CreatedAt: r.CreatedAt, Last: webhook.Delivery{Event: r.LastEvent, At: r.LastAt,
			Status: r.LastStatus, Reason: fleet.Reason{Code: r.LastCode}}, Shape: r.Shape, Chat: r.Chat, Lang: r.Lang,
		Route: alert.Route{Query: r.RouteQuery, Least: r.RouteSeverity, Kinds: r.RouteKinds}}
	if err == nil && r.LastParams != nil {
		err = json.Unmarshal(r.LastParams, &w.Last.Reason.Params)
	}
	return w, err
}

// webhookDetail returns the detail of a webhook's audit entries. It contains only the host of the
// address, since viewers can read the entries.
func webhookDetail(w webhook.Webhook) map[string]any {
	_, host, _ := strings.Cut(w.Shown, "://")
	host, _, _ = strings.Cut(host, "/")
	detail := map[string]any{"name": w.Name, "host": host, "events": w.Events, "enabled": w.Enabled, "shape": w.Shape}
	if w.Shape != webhook.Fleetd {
		detail["language"] = w.Lang
	}
	if w.Route.Limits() {
		detail["query"], detail["severity"], detail["kinds"] = w.Route.Query, w.Route.Least, w.Route.Kinds
	}
	return detail
}

// CreateWebhook adds a webhook.
func (s *Store) CreateWebhook(ctx context.Context, by fleet.Principal, w webhook.Webhook) error {
	return s.audited(ctx, by, "webhook.create", w.ID.String(), webhookDetail(w), func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO webhooks (id, name, shown, address, events, secret, enabled, created_by, created_at, shape, chat, lang,
				route_query, route_severity, route_kinds)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)`,
			w.ID, cleanText(w.Name), cleanText(w.Shown), w.Address, w.Events, w.Secret, w.Enabled, cleanText(w.CreatedBy),
			w.CreatedAt, w.Shape, w.Chat, w.Lang, cleanText(w.Route.Query), w.Route.Least,
			append([]alert.Kind{}, w.Route.Kinds...))
		return err
	})
}

// Webhooks lists webhooks by name.
func (s *Store) Webhooks(ctx context.Context) ([]webhook.Webhook, error) {
	rows, _ := s.db.Query(ctx, `SELECT `+webhookColumns+` FROM webhooks ORDER BY name, id LIMIT $1`, maxPeople)
	list, err := pgx.CollectRows(rows, toWebhook)
	if err != nil {
		return nil, fmt.Errorf("webhooks: %w", domainError(err))
	}
	return list, nil
}

// Webhook returns one webhook, or [fleet.ErrNotFound].
func (s *Store) Webhook(ctx context.Context, id uuid.UUID) (webhook.Webhook, error) {
	rows, _ := s.db.Query(ctx, `SELECT `+webhookColumns+` FROM webhooks WHERE id = $1`, id)
	w, err := pgx.CollectExactlyOneRow(rows, toWebhook)
	if err != nil {
		return w, fmt.Errorf("webhook %s: %w", id, domainError(err))
	}
	return w, nil
}

// UpdateWebhook stores a changed webhook.
func (s *Store) UpdateWebhook(ctx context.Context, by fleet.Principal, w webhook.Webhook) error {
	return s.audited(ctx, by, "webhook.change", w.ID.String(), webhookDetail(w), func(tx pgx.Tx) error {
		return changeOne(ctx, tx, `
			UPDATE webhooks SET name = $2, shown = $3, address = $4, url = NULL, events = $5, secret = $6, enabled = $7,
				shape = $8, chat = $9, lang = $10, route_query = $11, route_severity = $12, route_kinds = $13
			WHERE id = $1`,
			w.ID, cleanText(w.Name), cleanText(w.Shown), w.Address, w.Events, w.Secret, w.Enabled, w.Shape, w.Chat, w.Lang,
			cleanText(w.Route.Query), w.Route.Least, append([]alert.Kind{}, w.Route.Kinds...))
	})
}

// DeleteWebhook removes a webhook.
func (s *Store) DeleteWebhook(ctx context.Context, by fleet.Principal, id uuid.UUID) error {
	return s.audited(ctx, by, "webhook.delete", id.String(), nil, func(tx pgx.Tx) error {
		return changeOne(ctx, tx, `DELETE FROM webhooks WHERE id = $1`, id)
	})
}

// SealWebhooks seals the addresses that are stored unencrypted, and reports how many.
func (s *Store) SealWebhooks(ctx context.Context,
	seal func(id uuid.UUID, url string) (shown string, address []byte)) (n int, err error) {
	type open struct {
		ID  uuid.UUID
		URL string
	}
	err = pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, `SELECT id, url FROM webhooks WHERE url IS NOT NULL FOR UPDATE`)
		list, err := pgx.CollectRows(rows, pgx.RowToStructByName[open])
		if err != nil {
			return err
		}
		for _, w := range list {
			shown, address := seal(w.ID, w.URL)
			if err := changeOne(ctx, tx, `UPDATE webhooks SET shown = $2, address = $3, url = NULL WHERE id = $1`,
				w.ID, cleanText(shown), address); err != nil {
				return err
			}
		}
		n = len(list)
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("addresses of webhooks not sealed: %w", domainError(err))
	}
	return n, nil
}

// SetWebhookDelivery stores the outcome of the latest attempt.
func (s *Store) SetWebhookDelivery(ctx context.Context, id uuid.UUID, d webhook.Delivery) error {
	err := changeOne(ctx, s.db, `
		UPDATE webhooks SET last_event = $2, last_at = $3, last_status = $4, last_code = $5, last_params = $6::json
		WHERE id = $1`, id, d.Event, d.At, d.Status, d.Reason.Code, marshalled(d.Reason.Params))
	if err != nil {
		return fmt.Errorf("delivery to webhook %s: %w", id, domainError(err))
	}
	return nil
}
