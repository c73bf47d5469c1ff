package record

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
	"fleetd/web/console/pages"
	"fleetd/web/i18n"
	"fleetd/web/ui"
)

// webhookRoutes are the settings of webhooks.
func (s *Server) webhookRoutes() []pages.Route {
	const get, post = http.MethodGet, http.MethodPost
	hook := ui.PathWebhooks + "/{webhook}"
	return []pages.Route{
		{Method: get, Pattern: ui.PathWebhooks, Role: fleet.RoleAdmin, Reach: access.Fleet, Page: s.listWebhooks},
		{Method: post, Pattern: ui.PathWebhooks, Role: fleet.RoleAdmin, Reach: access.Fleet, Page: s.createWebhook},
		{Method: post, Pattern: hook + "/test", Role: fleet.RoleAdmin, Reach: access.Fleet, Page: s.testWebhook},
		{Method: post, Pattern: hook, Role: fleet.RoleAdmin, Reach: access.Fleet, Page: s.changeWebhook},
		{Method: post, Pattern: hook + "/enable", Role: fleet.RoleAdmin, Reach: access.Fleet, Page: s.switchWebhook(true)},
		{Method: post, Pattern: hook + "/disable", Role: fleet.RoleAdmin, Reach: access.Fleet, Page: s.switchWebhook(false)},
		{Method: post, Pattern: hook + "/delete", Role: fleet.RoleAdmin, Reach: access.Fleet, Page: s.deleteWebhook},
	}
}

func (s *Server) webhooksPage(ctx context.Context) (page ui.WebhooksPage, err error) {
	v := pages.ViewerOf(ctx)
	hooks, err := s.Webhooks.List(ctx, v.Actor())
	for _, w := range hooks {
		row := ui.WebhookRow{ID: w.ID.String(), Name: w.Name, URL: w.Shown, Enabled: w.Enabled, At: w.Last.At,
			OK: w.Last.Reason.Code == "", Status: w.Last.Status, Form: ui.WebhookForm{ID: w.ID.String(), Name: w.Name,
				Shape: w.Shape, Chat: w.Chat, Lang: w.Lang, Route: w.Route}}
		for _, e := range w.Events {
			row.Events = append(row.Events, string(e))
		}
		row.Form.Events = row.Events
		if !row.OK {
			row.Why = i18n.BecauseMarked(v.Lang, v.Zone, "webhook.failure.", w.Last.Reason)
		}
		page.Rows = append(page.Rows, row)
	}
	page.Form.Shape, page.Form.Lang = webhook.Fleetd, string(v.Lang)
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

func (s *Server) listWebhooks(r *http.Request) (pages.Answer, error) {
	page, err := s.webhooksPage(r.Context())
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

// webhookChanged redirects to the list after a change.
func (s *Server) webhookChanged(r *http.Request, key string, err error) (pages.Answer, error) {
	if err != nil {
		return pages.Answer{}, err
	}
	s.Flash(r.Context(), ui.Flash{Text: pages.Text(r.Context(), key)})
	return pages.GoTo(ui.PathWebhooks)
}

// createWebhook returns the page itself: the secret is shown only once.
func (s *Server) createWebhook(r *http.Request) (pages.Answer, error) {
	if err := r.ParseForm(); err != nil {
		return pages.Answer{}, pages.FormError(err)
	}
	ctx := r.Context()
	form, request := postedWebhook(r.PostForm)
	_, secret, err := s.Webhooks.Create(ctx, pages.ViewerOf(ctx).Actor(), request)
	if err != nil && pages.StatusOf(err) >= http.StatusInternalServerError {
		return pages.Answer{}, err
	}
	page, failed := s.webhooksPage(ctx)
	switch {
	case failed != nil:
		return pages.Answer{}, failed
	case err != nil:
		page.Form = form
		page.Problem = pages.Explain(ctx, err)
		a, _ := pages.ShowAgain(page.Page())
		a.Status = pages.StatusOf(err)
		return a, nil
	}
	if form.Shape != webhook.Fleetd { // nothing is signed
		return s.webhookChanged(r, "flash.webhook_saved", nil)
	}
	page.Secret = secret
	return pages.Show(page.Page())
}

// changeWebhook changes a webhook; an empty URL keeps the address.
func (s *Server) changeWebhook(r *http.Request) (pages.Answer, error) {
	id, err := webhookID(r)
	if err != nil {
		return pages.Answer{}, err
	}
	if err := r.ParseForm(); err != nil {
		return pages.Answer{}, pages.FormError(err)
	}
	ctx := r.Context()
	form, request := postedWebhook(r.PostForm)
	if form.URL == "" {
		request.URL = nil
	}
	_, err = s.Webhooks.Update(ctx, pages.ViewerOf(ctx).Actor(), id, request)
	if err == nil || pages.StatusOf(err) >= http.StatusInternalServerError || errors.Is(err, fleet.ErrNotFound) {
		return s.webhookChanged(r, "flash.webhook_saved", err)
	}
	page, failed := s.webhooksPage(ctx)
	if failed != nil {
		return pages.Answer{}, failed
	}
	page.Problem = pages.Explain(ctx, err)
	for i := range page.Rows {
		if page.Rows[i].ID == id.String() {
			form.ID = page.Rows[i].ID
			page.Rows[i].Form, page.Rows[i].Open = form, true
		}
	}
	a, _ := pages.ShowAgain(page.Page())
	a.Status = pages.StatusOf(err)
	return a, nil
}

// webhookID returns the webhook in the address.
func webhookID(r *http.Request) (uuid.UUID, error) {
	id, err := uuid.Parse(chi.URLParam(r, "webhook"))
	if err != nil {
		return id, pages.ErrNoPage
	}
	return id, nil
}

func (s *Server) testWebhook(r *http.Request) (pages.Answer, error) {
	id, err := webhookID(r)
	if err != nil {
		return pages.Answer{}, err
	}
	ctx := r.Context()
	v := pages.ViewerOf(ctx)
	d, err := s.Webhooks.Test(ctx, v.Actor(), id)
	switch {
	case err != nil:
		return pages.Answer{}, err
	case d.Reason.Code != "":
		why := i18n.Because(v.Lang, v.Zone, "webhook.failure.", d.Reason)
		s.Flash(ctx, ui.Flash{Bad: true, Text: pages.Text(ctx, "flash.webhook_test_failed", "why", why)})
		return pages.GoTo(ui.PathWebhooks)
	}
	return s.webhookChanged(r, "flash.webhook_tested", nil)
}

func (s *Server) switchWebhook(on bool) pages.Handler {
	return func(r *http.Request) (pages.Answer, error) {
		id, err := webhookID(r)
		if err != nil {
			return pages.Answer{}, err
		}
		_, err = s.Webhooks.Update(r.Context(), pages.ViewerOf(r.Context()).Actor(), id, webhook.Request{Enabled: &on})
		return s.webhookChanged(r, "flash.webhook_saved", err)
	}
}

func (s *Server) deleteWebhook(r *http.Request) (pages.Answer, error) {
	id, err := webhookID(r)
	if err != nil {
		return pages.Answer{}, err
	}
	err = s.Webhooks.Delete(r.Context(), pages.ViewerOf(r.Context()).Actor(), id)
	return s.webhookChanged(r, "flash.webhook_deleted", err)
}
