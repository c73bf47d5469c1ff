package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/alert"
	"fleetd/fleet/webhook"
	"fleetd/web/access"
	"fleetd/web/i18n"
)

func (a *api) registerWebhooks() {
	const path, one = "/webhooks", "/webhooks/{id}"
	register(a, operation{id: "list-webhooks", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodGet, path: path, role: fleet.RoleAdmin,
		summary: "List webhooks, without their secrets and the secret parts of their addresses"}, a.listWebhooks)
	register(a, operation{id: "create-webhook", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodPost, path: path, role: fleet.RoleAdmin, created: true,
		summary: "Add a webhook",
		about: "Of the shape fleetd, each delivery is a POST of JSON with event, at, sent_at, delivery_id, url and the subject of the event. X-Fleetd-Signature is sha256= and the HMAC-SHA256 of the body with the secret; X-Fleetd-Timestamp is sent_at in Unix seconds. " +
			"An answer below 300 within 10 seconds ends the delivery; redirects are not followed. The other shapes are messages for chat services, unsigned; an answer that reports an error fails the delivery. Failed deliveries are repeated for some two hours. The secret is in this answer alone."}, a.createWebhook)
	register(a, operation{id: "update-webhook", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodPatch, path: one, role: fleet.RoleAdmin,
		noun: "webhook", summary: "Change a webhook"}, a.updateWebhook)
	register(a, operation{id: "delete-webhook", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodDelete, path: one, role: fleet.RoleAdmin,
		noun: "webhook", summary: "Delete a webhook"}, a.deleteWebhook)
	register(a, operation{id: "test-webhook", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodPost, path: one + "/test", role: fleet.RoleAdmin,
		noun: "webhook", summary: "Post one test event now"}, a.testWebhook)
}

// WebhookView is a webhook without its secret.
type WebhookView struct {
	ID        uuid.UUID           `json:"id" format:"uuid"`
	Name      string              `json:"name"`
	URL       string              `json:"url" doc:"Scheme and host; the rest is a secret of the receiver, shown as …"`
	Events    []webhook.EventKind `json:"events" nullable:"false"`
	Enabled   bool                `json:"enabled"`
	CreatedBy string              `json:"created_by"`
	CreatedAt time.Time           `json:"created_at"`
	Last      *deliveryView       `json:"last_delivery" doc:"null before the first"`
	Shape     webhook.Shape       `json:"shape" enum:"fleetd,slack,telegram,wecom,feishu,dingtalk" doc:"Format of the deliveries"`
	Chat      string              `json:"chat_id" doc:"Telegram chat; empty for other shapes"`
	Lang      string              `json:"language" enum:"en,zh-CN" doc:"Of the text for a chat service"`
	Route     routeView           `json:"route" doc:"The alerts that it gets; approvals are not limited"`
}

// routeView limits the alerts that a webhook gets.
type routeView struct {
	Query    string         `json:"query,omitempty" maxLength:"1024" doc:"Filter that one of the alert's devices must match; empty: all alerts"`
	Severity alert.Severity `json:"severity,omitempty" enum:"warning,bad" doc:"Lowest severity. Default: warning"`
	Kinds    []alert.Kind   `json:"kinds,omitempty" nullable:"false" maxItems:"50" doc:"Kinds of alerts; empty: all"`
}

// route returns the domain's route; nil if it was omitted.
func (v *routeView) route() *alert.Route {
	if v == nil {
		return nil
	}
	return &alert.Route{Query: v.Query, Least: v.Severity, Kinds: v.Kinds}
}

// TransformSchema marks last_delivery as nullable.
func (WebhookView) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return orNull(s, "last_delivery")
}

// deliveryView is one attempt to deliver an event.
type deliveryView struct {
	Event   webhook.EventKind `json:"event"`
	At      time.Time         `json:"at"`
	OK      bool              `json:"ok"`
	Status  int               `json:"status" doc:"Of the answer; 0 without one"`
	Code    string            `json:"code,omitempty" doc:"Why it failed"`
	Message string            `json:"message,omitempty"`
	Params  fleet.Params      `json:"params,omitempty"`
}

func delivery(d webhook.Delivery) *deliveryView {
	if d.At == nil {
		return nil
	}
	v := &deliveryView{Event: d.Event, At: utc(*d.At), OK: d.Reason.Code == "", Status: d.Status, Code: d.Reason.Code,
		Params: d.Reason.Params}
	if !v.OK {
		v.Message = i18n.Because(i18n.English, time.UTC, "webhook.failure.", d.Reason)
	}
	return v
}

func webhookOf(w webhook.Webhook) WebhookView {
	return WebhookView{ID: w.ID, Name: w.Name, URL: w.Shown, Events: w.Events, Enabled: w.Enabled, CreatedBy: w.CreatedBy,
		CreatedAt: utc(w.CreatedAt), Last: delivery(w.Last), Shape: w.Shape, Chat: w.Chat, Lang: w.Lang,
		Route: routeView{Query: w.Route.Query, Severity: w.Route.Least, Kinds: w.Route.Kinds}}
}

func (a *api) listWebhooks(ctx context.Context, by fleet.Principal, _ *struct{}) (*answer[list[WebhookView]], error) {
	hooks, err := a.Webhooks.List(ctx, by)
	if err != nil {
		return nil, err
	}
	return listOf(hooks, webhookOf), nil
}

type createWebhookInput struct {
	Body struct {
		Name    string              `json:"name" minLength:"1" maxLength:"120"`
		URL     string              `json:"url" minLength:"1" maxLength:"2000" doc:"http or https"`
		Events  []webhook.EventKind `json:"events,omitempty" nullable:"false" enum:"approval.requested,approval.decided,alert.opened,alert.worsened,alert.acknowledged,alert.ended" doc:"Default: all"`
		Secret  string              `json:"secret,omitempty" maxLength:"200" doc:"At least 16 bytes; generated if omitted"`
		Enabled *bool               `json:"enabled,omitempty" doc:"Default: true"`
		Shape   *webhook.Shape      `json:"shape,omitempty" enum:"fleetd,slack,telegram,wecom,feishu,dingtalk" doc:"Default: fleetd"`
		Chat    *string             `json:"chat_id,omitempty" maxLength:"40" doc:"Telegram chat: a number, or @ and the name of a channel; required for telegram"`
		Lang    *string             `json:"language,omitempty" enum:"en,zh-CN" doc:"Of the text for a chat service. Default: en"`
		Route   *routeView          `json:"route,omitempty" doc:"Default: all alerts"`
	}
}

// newWebhookView is a webhook with its secret.
type newWebhookView struct {
	WebhookView
	Secret string `json:"secret" doc:"Shown only once"`
}

func (a *api) createWebhook(ctx context.Context, by fleet.Principal, in *createWebhookInput) (
	*answer[newWebhookView], error) {
	b := &in.Body
	w, secret, err := a.Webhooks.Create(ctx, by, webhook.Request{Name: &b.Name, URL: &b.URL, Events: b.Events,
		Secret: &b.Secret, Enabled: b.Enabled, Shape: b.Shape, Chat: b.Chat, Lang: b.Lang, Route: b.Route.route()})
	if err != nil {
		return nil, err
	}
	return answerWith(newWebhookView{webhookOf(w), secret}), nil
}

type updateWebhookInput struct {
	IDPath
	Body struct {
		Name    *string             `json:"name,omitempty" maxLength:"120"`
		URL     *string             `json:"url,omitempty" maxLength:"2000" doc:"Omitted, or as shown in the list: stays as it is"`
		Events  []webhook.EventKind `json:"events,omitempty" nullable:"false" enum:"approval.requested,approval.decided,alert.opened,alert.worsened,alert.acknowledged,alert.ended"`
		Secret  *string             `json:"secret,omitempty" maxLength:"200"`
		Enabled *bool               `json:"enabled,omitempty"`
		Shape   *webhook.Shape      `json:"shape,omitempty" enum:"fleetd,slack,telegram,wecom,feishu,dingtalk"`
		Chat    *string             `json:"chat_id,omitempty" maxLength:"40" doc:"Telegram chat; required for telegram"`
		Lang    *string             `json:"language,omitempty" enum:"en,zh-CN"`
		Route   *routeView          `json:"route,omitempty" doc:"Replaces the whole route"`
	}
}

func (a *api) updateWebhook(ctx context.Context, by fleet.Principal, in *updateWebhookInput) (*answer[WebhookView],
	error) {
	b := &in.Body
	w, err := a.Webhooks.Update(ctx, by, in.uuid(), webhook.Request{Name: b.Name, URL: b.URL, Events: b.Events,
		Secret: b.Secret, Enabled: b.Enabled, Shape: b.Shape, Chat: b.Chat, Lang: b.Lang, Route: b.Route.route()})
	if err != nil {
		return nil, err
	}
	return answerWith(webhookOf(w)), nil
}

func (a *api) deleteWebhook(ctx context.Context, by fleet.Principal, in *IDPath) (*empty, error) {
	return &empty{}, a.Webhooks.Delete(ctx, by, in.uuid())
}

func (a *api) testWebhook(ctx context.Context, by fleet.Principal, in *IDPath) (*answer[deliveryView], error) {
	d, err := a.Webhooks.Test(ctx, by, in.uuid())
	if err != nil {
		return nil, err
	}
	return answerWith(*delivery(d)), nil
}
