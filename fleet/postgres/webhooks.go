package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
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
	return s.publishTo(ctx, tx, kind, func(hook uuid.UUID) webhook.Job {
		return webhook.NewApprovalJob(hook, kind, at, a)
	})
}

// publishTo queues a delivery for each webhook that wants the event.
func (s *Store) publishTo(ctx context.Context, tx pgx.Tx, kind webhook.EventKind,
	job func(hook uuid.UUID) webhook.Job) error {
	if s.outbox == nil {
		return nil
	}
	rows, _ := tx.Query(ctx, `SELECT id FROM webhooks WHERE enabled AND $1 = ANY (events)`, kind)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil || len(ids) == 0 {
		return err
	}
	return s.outbox(ctx, tx, collect(ids, job))
}

const webhookColumns = `id, name, shown, address, events, secret, enabled, created_by, created_at, last_event, last_at, last_status,
	last_code, last_params`

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
	}](row)
	w := webhook.Webhook{ID: r.ID, Name: r.Name, Shown: r.Shown, Address: r.Address, Events: r.Events,
		Secret: r.Secret, Enabled: r.Enabled,
		CreatedBy: r.CreatedBy, CreatedAt: r.CreatedAt, Last: webhook.Delivery{Event: r.LastEvent, At: r.LastAt,
			Status: r.LastStatus, Reason: fleet.Reason{Code: r.LastCode}}}
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
	return map[string]any{"name": w.Name, "host": host, "events": w.Events, "enabled": w.Enabled}
}

// CreateWebhook adds a webhook.
func (s *Store) CreateWebhook(ctx context.Context, by fleet.Principal, w webhook.Webhook) error {
	return s.audited(ctx, by, "webhook.create", w.ID.String(), webhookDetail(w), func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO webhooks (id, name, shown, address, events, secret, enabled, created_by, created_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
			w.ID, cleanText(w.Name), cleanText(w.Shown), w.Address, w.Events, w.Secret, w.Enabled, cleanText(w.CreatedBy),
			w.CreatedAt)
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
			UPDATE webhooks SET name = $2, shown = $3, address = $4, url = NULL, events = $5, secret = $6, enabled = $7
			WHERE id = $1`,
			w.ID, cleanText(w.Name), cleanText(w.Shown), w.Address, w.Events, w.Secret, w.Enabled)
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
