package ui

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"time"

	"fleetd/fleet/webhook"
)

// PathWebhooks is the list of webhooks, for admins: GET, POST name, url, events.
const PathWebhooks = "/settings/webhooks"

// WebhookPath acts on a webhook: "test", "delete", "enable" or "disable".
func WebhookPath(id, act string) string { return PathWebhooks + "/" + url.PathEscape(id) + "/" + act }

// A WebhooksPage shows the receivers of events, and the outcome of the latest delivery.
type WebhooksPage struct {
	Rows   []WebhookRow
	Secret string // of a new webhook: shown once

	Name, URL string   // as they were typed
	Events    []string // chosen; nil: all
	Problem   string   // why the last change failed, in the page's language
}

func (v WebhooksPage) wants(event string) bool {
	return v.Events == nil || slices.Contains(v.Events, event)
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
