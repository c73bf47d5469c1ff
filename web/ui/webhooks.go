package ui

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"time"

	"fleetd/fleet/alert"
	"fleetd/fleet/webhook"
)

// PathWebhooks is the list of webhooks, for admins: GET, POST the fields of a [WebhookForm]. With an id, POST changes
// the webhook.
const PathWebhooks = "/settings/webhooks"

// WebhookPath acts on a webhook: "test", "delete", "enable" or "disable".
func WebhookPath(id, act string) string { return PathWebhooks + "/" + url.PathEscape(id) + "/" + act }

// A WebhooksPage shows the receivers of events, and the outcome of the latest delivery.
type WebhooksPage struct {
	Rows   []WebhookRow
	Secret string // of a new webhook: shown once

	Form    WebhookForm // of a new webhook, as typed
	Problem string      // why the last change failed, in the page's language
}

// A WebhookForm is a webhook as typed.
type WebhookForm struct {
	ID        string // "" for a new webhook
	Name, URL string
	Events    []string // chosen; nil: all
	Shape     webhook.Shape
	Chat      string
	Lang      string
	Route     alert.Route
}

func (f WebhookForm) wants(event string) bool {
	return f.Events == nil || slices.Contains(f.Events, event)
}

func (f WebhookForm) action() string {
	if f.ID == "" {
		return PathWebhooks
	}
	return PathWebhooks + "/" + url.PathEscape(f.ID)
}

// A WebhookRow is a webhook in the settings.
type WebhookRow struct {
	ID, Name, URL string
	Events        []string
	Enabled       bool
	At            *time.Time // of the latest delivery
	OK            bool
	Status        int
	Why           string // why it failed, in the page's language

	Form WebhookForm
	Open bool // its form is open, after a refused change
}

// routeText describes the alerts that the receiver gets; "" for all.
func routeText(ctx context.Context, r alert.Route) string {
	var parts []string
	if r.Least == alert.Bad {
		parts = append(parts, t(ctx, "route.only_bad"))
	}
	for _, k := range r.Kinds {
		parts = append(parts, t(ctx, "alert.kind."+string(k)))
	}
	return strings.Join(parts, " · ")
}

// webhookEvents are the events that a webhook can receive.
var webhookEvents = func() (all []string) {
	for _, e := range webhook.EventKinds {
		all = append(all, string(e))
	}
	return all
}()

func webhookSwitch(enabled bool) string {
	if enabled {
		return "disable"
	}
	return "enable"
}

// webhookEventNames lists the events of a webhook.
func webhookEventNames(ctx context.Context, events []string) string {
	if len(events) == len(webhookEvents) {
		return t(ctx, "webhooks.all_events")
	}
	names := make([]string, len(events))
	for i, e := range events {
		names[i] = t(ctx, "webhooks.event."+e)
	}
	return strings.Join(names, " · ")
}
