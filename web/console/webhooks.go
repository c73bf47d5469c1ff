package console

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/alert"
	"fleetd/fleet/webhook"
	"fleetd/web/access"
	"fleetd/web/i18n"
	"fleetd/web/ui"
)

// webhookRoutes are the settings of webhooks.
func (s *Server) webhookRoutes() []route {
	const get, post = http.MethodGet, http.MethodPost
	hook := ui.PathWebhooks + "/{webhook}"
	return []route{
		{method: get, pattern: ui.PathWebhooks, role: fleet.RoleAdmin, reach: access.Fleet, page: s.listWebhooks},
		{method: post, pattern: ui.PathWebhooks, role: fleet.RoleAdmin, reach: access.Fleet, page: s.createWebhook},
		{method: post, pattern: hook + "/test", role: fleet.RoleAdmin, reach: access.Fleet, page: s.testWebhook},
		{method: post, pattern: hook, role: fleet.RoleAdmin, reach: access.Fleet, page: s.changeWebhook},
		{method: post, pattern: hook + "/enable", role: fleet.RoleAdmin, reach: access.Fleet, page: s.switchWebhook(true)},
		{method: post, pattern: hook + "/disable", role: fleet.RoleAdmin, reach: access.Fleet, page: s.switchWebhook(false)},
		{method: post, pattern: hook + "/delete", role: fleet.RoleAdmin, reach: access.Fleet, page: s.deleteWebhook},
	}
}

func (s *Server) webhooksPage(ctx context.Context) (page ui.WebhooksPage, err error) {
	v := viewerOf(ctx)
	hooks, err := s.Webhooks.List(ctx, v.actor())
	for _, w := range hooks {
		row := ui.WebhookRow{ID: w.ID.String(), Name: w.Name, URL: w.Shown, Enabled: w.Enabled, At: w.Last.At,
			OK: w.Last.Reason.Code == "", Status: w.Last.Status, Form: ui.WebhookForm{ID: w.ID.String(), Name: w.Name,
				Shape: w.Shape, Chat: w.Chat, Lang: w.Lang, Route: w.Route}}
		for _, e := range w.Events {
			row.Events = append(row.Events, string(e))
		}
		row.Form.Events = row.Events
		if !row.OK {
			row.Why = i18n.BecauseMarked(v.lang, v.zone, "webhook.failure.", w.Last.Reason)
		}
		page.Rows = append(page.Rows, row)
	}
	page.Form.Shape, page.Form.Lang = webhook.Fleetd, string(v.lang)
	return page, err
}

// postedRoute reads the route of a receiver.
func postedRoute(v url.Values) (r alert.Route) {
	r.Query, r.Least = v.Get("query"), alert.Severity(cmp.Or(v.Get("severity"), string(alert.Warning)))
	for _, k := range v["kinds"] {
		r.Kinds = append(r.Kinds, alert.Kind(k))
	}
	return r
}

// postedWebhook reads the form of a webhook.
func postedWebhook(v url.Values) (f ui.WebhookForm, r webhook.Request) {
	f = ui.WebhookForm{Name: v.Get("name"), URL: v.Get("url"), Events: append([]string{}, v["events"]...),
		Shape: webhook.Shape(cmp.Or(v.Get("shape"), string(webhook.Fleetd))), Chat: v.Get("chat"),
		Lang: cmp.Or(v.Get("language"), alert.MailLangs[0]), Route: postedRoute(v)}
	events := []webhook.EventKind{}
	for _, e := range f.Events {
		events = append(events, webhook.EventKind(e))
	}
	r = webhook.Request{Name: &f.Name, URL: &f.URL, Events: events, Shape: &f.Shape, Lang: &f.Lang, Route: &f.Route}
	if f.Shape == webhook.Telegram { // the field is hidden for other shapes
		r.Chat = &f.Chat
	}
	return f, r
}

func (s *Server) listWebhooks(r *http.Request) (answer, error) {
	page, err := s.webhooksPage(r.Context())
	if err != nil {
		return answer{}, err
	}
	return show(page.Page())
}

// webhookChanged redirects to the list after a change.
func (s *Server) webhookChanged(r *http.Request, key string, err error) (answer, error) {
	if err != nil {
		return answer{}, err
	}
	s.flash(r.Context(), ui.Flash{Text: text(r.Context(), key)})
	return goTo(ui.PathWebhooks)
}

// createWebhook returns the page itself: the secret is shown only once.
func (s *Server) createWebhook(r *http.Request) (answer, error) {
	if err := r.ParseForm(); err != nil {
		return answer{}, formError(err)
	}
	ctx := r.Context()
	form, request := postedWebhook(r.PostForm)
	_, secret, err := s.Webhooks.Create(ctx, viewerOf(ctx).actor(), request)
	if err != nil && statusOf(err) >= http.StatusInternalServerError {
		return answer{}, err
	}
	page, failed := s.webhooksPage(ctx)
	switch {
	case failed != nil:
		return answer{}, failed
	case err != nil:
		page.Form = form
		page.Problem = explain(ctx, err)
		a, _ := showAgain(page.Page())
		a.status = statusOf(err)
		return a, nil
	}
	if form.Shape != webhook.Fleetd { // nothing is signed
		return s.webhookChanged(r, "flash.webhook_saved", nil)
	}
	page.Secret = secret
	return show(page.Page())
}

// changeWebhook changes a webhook; an empty URL keeps the address.
func (s *Server) changeWebhook(r *http.Request) (answer, error) {
	id, err := webhookID(r)
	if err != nil {
		return answer{}, err
	}
	if err := r.ParseForm(); err != nil {
		return answer{}, formError(err)
	}
	ctx := r.Context()
	form, request := postedWebhook(r.PostForm)
	if form.URL == "" {
		request.URL = nil
	}
	_, err = s.Webhooks.Update(ctx, viewerOf(ctx).actor(), id, request)
	if err == nil || statusOf(err) >= http.StatusInternalServerError || errors.Is(err, fleet.ErrNotFound) {
		return s.webhookChanged(r, "flash.webhook_saved", err)
	}
	page, failed := s.webhooksPage(ctx)
	if failed != nil {
		return answer{}, failed
	}
	page.Problem = explain(ctx, err)
	for i := range page.Rows {
		if page.Rows[i].ID == id.String() {
			form.ID = page.Rows[i].ID
			page.Rows[i].Form, page.Rows[i].Open = form, true
		}
	}
	a, _ := showAgain(page.Page())
	a.status = statusOf(err)
	return a, nil
}

// webhookID returns the webhook in the address.
func webhookID(r *http.Request) (uuid.UUID, error) {
	id, err := uuid.Parse(chi.URLParam(r, "webhook"))
	if err != nil {
		return id, errNoPage
	}
	return id, nil
}

func (s *Server) testWebhook(r *http.Request) (answer, error) {
	id, err := webhookID(r)
	if err != nil {
		return answer{}, err
	}
	ctx := r.Context()
	v := viewerOf(ctx)
	d, err := s.Webhooks.Test(ctx, v.actor(), id)
	switch {
	case err != nil:
		return answer{}, err
	case d.Reason.Code != "":
		why := i18n.Because(v.lang, v.zone, "webhook.failure.", d.Reason)
		s.flash(ctx, ui.Flash{Bad: true, Text: text(ctx, "flash.webhook_test_failed", "why", why)})
		return goTo(ui.PathWebhooks)
	}
	return s.webhookChanged(r, "flash.webhook_tested", nil)
}

func (s *Server) switchWebhook(on bool) handler {
	return func(r *http.Request) (answer, error) {
		id, err := webhookID(r)
		if err != nil {
			return answer{}, err
		}
		_, err = s.Webhooks.Update(r.Context(), viewerOf(r.Context()).actor(), id, webhook.Request{Enabled: &on})
		return s.webhookChanged(r, "flash.webhook_saved", err)
	}
}

func (s *Server) deleteWebhook(r *http.Request) (answer, error) {
	id, err := webhookID(r)
	if err != nil {
		return answer{}, err
	}
	err = s.Webhooks.Delete(r.Context(), viewerOf(r.Context()).actor(), id)
	return s.webhookChanged(r, "flash.webhook_deleted", err)
}
