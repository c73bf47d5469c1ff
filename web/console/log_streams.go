package console

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/logstream"
	"fleetd/web/access"
	"fleetd/web/i18n"
	"fleetd/web/ui"
)

// logStreamRoutes are the pages of log streams.
func (s *Server) logStreamRoutes() []route {
	const get, post = http.MethodGet, http.MethodPost
	one := ui.PathLogStreams + "/{stream}"
	return []route{
		{method: get, pattern: ui.PathLogStreams, role: fleet.RoleAdmin, reach: access.Fleet, page: s.listLogStreams},
		{method: post, pattern: ui.PathLogStreams, role: fleet.RoleAdmin, reach: access.Fleet, page: s.createLogStream},
		{method: get, pattern: one, role: fleet.RoleAdmin, reach: access.Fleet, page: s.showLogStream},
		{method: post, pattern: one, role: fleet.RoleAdmin, reach: access.Fleet, page: s.saveLogStream},
		{method: post, pattern: one + "/test", role: fleet.RoleAdmin, reach: access.Fleet, page: s.testLogStream},
		{method: post, pattern: one + "/replay", role: fleet.RoleAdmin, reach: access.Fleet, page: s.replayLogStream},
		{method: post, pattern: one + "/enable", role: fleet.RoleAdmin, reach: access.Fleet, page: s.switchLogStream(true)},
		{method: post, pattern: one + "/disable", role: fleet.RoleAdmin, reach: access.Fleet, page: s.switchLogStream(false)},
		{method: post, pattern: one + "/delete", role: fleet.RoleAdmin, reach: access.Fleet, page: s.deleteLogStream},
	}
}

func logStreamID(r *http.Request) (uuid.UUID, error) {
	id, err := uuid.Parse(chi.URLParam(r, "stream"))
	if err != nil {
		return id, errNoPage
	}
	return id, nil
}

func logStreamReason(ctx context.Context, r fleet.Reason) string {
	if r.Code == "" {
		return ""
	}
	v := viewerOf(ctx)
	return i18n.BecauseMarked(v.lang, v.zone, "log_stream.failure.", r)
}

func (s *Server) logStreamsPage(ctx context.Context) (page ui.LogStreamsPage, err error) {
	list, size, err := s.LogStreams.List(ctx, viewerOf(ctx).actor())
	for _, st := range list {
		page.Rows = append(page.Rows, ui.LogStreamRow{Stream: st, Size: size, Why: logStreamReason(ctx, st.Last.Reason)})
	}
	page.Form = ui.LogStreamForm{Kind: logstream.Webhook, From: "now"}
	return page, err
}

func (s *Server) listLogStreams(r *http.Request) (answer, error) {
	page, err := s.logStreamsPage(r.Context())
	if err != nil {
		return answer{}, err
	}
	return show(page.Page())
}

// logStreamForm reads the form of a stream.
func logStreamForm(f url.Values) ui.LogStreamForm {
	return ui.LogStreamForm{Name: f.Get("name"), Kind: logstream.Kind(f.Get("kind")), URL: f.Get("url"),
		Headers: f.Get("headers"), CA: f.Get("ca_certificates"), Certificate: f.Get("client_certificate"),
		Key: f.Get("client_key"), From: f.Get("from"), Filter: logstream.Filter{Kinds: f["kinds"],
			Actions: strings.Fields(f.Get("actions")), Outcomes: strings.Fields(f.Get("outcomes")),
			Devices: strings.Fields(f.Get("devices"))}}
}

// logStreamRequest returns the change that a form asks for. Empty secrets stay as they are.
func logStreamRequest(f ui.LogStreamForm) logstream.Request {
	r := logstream.Request{Name: &f.Name, Kind: f.Kind, URL: &f.URL, Filter: &f.Filter, From: f.From}
	for _, secret := range []struct {
		text string
		to   **string
	}{{f.Headers, &r.Headers}, {f.CA, &r.CA}, {f.Certificate, &r.Certificate}, {f.Key, &r.Key}} {
		if strings.TrimSpace(secret.text) != "" {
			*secret.to = &secret.text
		}
	}
	return r
}

// createLogStream returns the page itself: the secret is shown only once.
func (s *Server) createLogStream(r *http.Request) (answer, error) {
	if err := r.ParseForm(); err != nil {
		return answer{}, formError(err)
	}
	ctx := r.Context()
	form := logStreamForm(r.PostForm)
	_, secret, err := s.LogStreams.Create(ctx, viewerOf(ctx).actor(), logStreamRequest(form))
	if err != nil && statusOf(err) >= http.StatusInternalServerError {
		return answer{}, err
	}
	page, failed := s.logStreamsPage(ctx)
	if failed != nil {
		return answer{}, failed
	}
	if err != nil {
		page.Form, page.Problem = form, explain(ctx, err)
		a, _ := showAgain(page.Page())
		a.status = statusOf(err)
		return a, nil
	}
	page.Secret = secret
	return show(page.Page())
}

func (s *Server) logStreamPage(r *http.Request) (page ui.LogStreamPage, err error) {
	id, err := logStreamID(r)
	if err != nil {
		return page, err
	}
	ctx := r.Context()
	st, deliveries, size, err := s.LogStreams.Get(ctx, viewerOf(ctx).actor(), id)
	page.Row = ui.LogStreamRow{Stream: st, Size: size, Why: logStreamReason(ctx, st.Last.Reason)}
	page.Form = ui.LogStreamForm{Name: st.Name, Kind: st.Kind, URL: st.Shown, Filter: st.Filter}
	for _, d := range deliveries {
		page.Deliveries = append(page.Deliveries, ui.LogDeliveryRow{Delivery: d, Why: logStreamReason(ctx, d.Reason)})
	}
	return page, err
}

func (s *Server) showLogStream(r *http.Request) (answer, error) {
	page, err := s.logStreamPage(r)
	if err != nil {
		return answer{}, err
	}
	return show(page.Page())
}

func (s *Server) saveLogStream(r *http.Request) (answer, error) {
	if err := r.ParseForm(); err != nil {
		return answer{}, formError(err)
	}
	id, err := logStreamID(r)
	if err != nil {
		return answer{}, err
	}
	ctx := r.Context()
	form := logStreamForm(r.PostForm)
	_, err = s.LogStreams.Update(ctx, viewerOf(ctx).actor(), id, logStreamRequest(form))
	if err == nil || statusOf(err) == http.StatusNotFound || statusOf(err) >= http.StatusInternalServerError {
		return s.logStreamActed(r, id, "flash.log_stream_saved", err)
	}
	page, failed := s.logStreamPage(r)
	if failed != nil {
		return answer{}, failed
	}
	form.Kind = page.Form.Kind
	page.Form, page.Problem = form, explain(ctx, err)
	a, _ := showAgain(page.Page())
	a.status = statusOf(err)
	return a, nil
}

// logStreamActed leads back to the stream after an act. A refusal becomes a message.
func (s *Server) logStreamActed(r *http.Request, id uuid.UUID, done string, err error, params ...any) (answer, error) {
	ctx := r.Context()
	switch status := statusOf(err); {
	case err == nil:
		s.flash(ctx, ui.Flash{Text: text(ctx, done, params...)})
	case status == http.StatusConflict || status == http.StatusUnprocessableEntity:
		s.flash(ctx, ui.Flash{Bad: true, Text: explain(ctx, err)})
	default:
		return answer{}, err
	}
	return goTo(ui.LogStreamPath(id.String()))
}

func (s *Server) testLogStream(r *http.Request) (answer, error) {
	id, err := logStreamID(r)
	if err != nil {
		return answer{}, err
	}
	ctx := r.Context()
	d, err := s.LogStreams.Test(ctx, viewerOf(ctx).actor(), id)
	if err == nil && !d.OK() {
		why := i18n.Because(viewerOf(ctx).lang, viewerOf(ctx).zone, "log_stream.failure.", d.Reason)
		s.flash(ctx, ui.Flash{Bad: true, Text: text(ctx, "flash.log_stream_test_failed", "why", why)})
		return goTo(ui.LogStreamPath(id.String()))
	}
	return s.logStreamActed(r, id, "flash.log_stream_tested", err)
}

func (s *Server) replayLogStream(r *http.Request) (answer, error) {
	id, err := logStreamID(r)
	if err != nil {
		return answer{}, err
	}
	ctx := r.Context()
	next, err := s.LogStreams.Replay(ctx, viewerOf(ctx).actor(), id, r.PostFormValue("from"))
	return s.logStreamActed(r, id, "flash.log_stream_replayed", err, "n", next)
}

func (s *Server) switchLogStream(on bool) handler {
	return func(r *http.Request) (answer, error) {
		id, err := logStreamID(r)
		if err != nil {
			return answer{}, err
		}
		_, err = s.LogStreams.Update(r.Context(), viewerOf(r.Context()).actor(), id, logstream.Request{Enabled: &on})
		return s.logStreamActed(r, id, "flash.log_stream_saved", err)
	}
}

func (s *Server) deleteLogStream(r *http.Request) (answer, error) {
	id, err := logStreamID(r)
	if err != nil {
		return answer{}, err
	}
	ctx := r.Context()
	if err := s.LogStreams.Delete(ctx, viewerOf(ctx).actor(), id); err != nil {
		return answer{}, err
	}
	s.flash(ctx, ui.Flash{Text: text(ctx, "flash.log_stream_deleted")})
	return goTo(ui.PathLogStreams)
}
