package record

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
	"fleetd/web/console/pages"
	"fleetd/web/i18n"
	"fleetd/web/ui"
)

// logStreamRoutes are the pages of log streams.
func (s *Server) logStreamRoutes() []pages.Route {
	const get, post = http.MethodGet, http.MethodPost
	one := ui.PathLogStreams + "/{stream}"
	return []pages.Route{
		{Method: get, Pattern: ui.PathLogStreams, Role: fleet.RoleAdmin, Reach: access.Fleet, Page: s.listLogStreams},
		{Method: post, Pattern: ui.PathLogStreams, Role: fleet.RoleAdmin, Reach: access.Fleet, Page: s.createLogStream},
		{Method: get, Pattern: one, Role: fleet.RoleAdmin, Reach: access.Fleet, Page: s.showLogStream},
		{Method: post, Pattern: one, Role: fleet.RoleAdmin, Reach: access.Fleet, Page: s.saveLogStream},
		{Method: post, Pattern: one + "/test", Role: fleet.RoleAdmin, Reach: access.Fleet, Page: s.testLogStream},
		{Method: post, Pattern: one + "/replay", Role: fleet.RoleAdmin, Reach: access.Fleet, Page: s.replayLogStream},
		{Method: post, Pattern: one + "/enable", Role: fleet.RoleAdmin, Reach: access.Fleet, Page: s.switchLogStream(true)},
		{Method: post, Pattern: one + "/disable", Role: fleet.RoleAdmin, Reach: access.Fleet, Page: s.switchLogStream(false)},
		{Method: post, Pattern: one + "/delete", Role: fleet.RoleAdmin, Reach: access.Fleet, Page: s.deleteLogStream},
	}
}

func logStreamID(r *http.Request) (uuid.UUID, error) {
	id, err := uuid.Parse(chi.URLParam(r, "stream"))
	if err != nil {
		return id, pages.ErrNoPage
	}
	return id, nil
}

func logStreamReason(ctx context.Context, r fleet.Reason) string {
	if r.Code == "" {
		return ""
	}
	v := pages.ViewerOf(ctx)
	return i18n.BecauseMarked(v.Lang, v.Zone, "log_stream.failure.", r)
}

func (s *Server) logStreamsPage(ctx context.Context) (page ui.LogStreamsPage, err error) {
	list, size, err := s.LogStreams.List(ctx, pages.ViewerOf(ctx).Actor())
	for _, st := range list {
		page.Rows = append(page.Rows, ui.LogStreamRow{Stream: st, Size: size, Why: logStreamReason(ctx, st.Last.Reason)})
	}
	page.Form = ui.LogStreamForm{Kind: logstream.Webhook, From: "now"}
	return page, err
}

func (s *Server) listLogStreams(r *http.Request) (pages.Answer, error) {
	page, err := s.logStreamsPage(r.Context())
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
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
func (s *Server) createLogStream(r *http.Request) (pages.Answer, error) {
	if err := r.ParseForm(); err != nil {
		return pages.Answer{}, pages.FormError(err)
	}
	ctx := r.Context()
	form := logStreamForm(r.PostForm)
	_, secret, err := s.LogStreams.Create(ctx, pages.ViewerOf(ctx).Actor(), logStreamRequest(form))
	if err != nil && pages.StatusOf(err) >= http.StatusInternalServerError {
		return pages.Answer{}, err
	}
	page, failed := s.logStreamsPage(ctx)
	if failed != nil {
		return pages.Answer{}, failed
	}
	if err != nil {
		page.Form, page.Problem = form, pages.Explain(ctx, err)
		a, _ := pages.ShowAgain(page.Page())
		a.Status = pages.StatusOf(err)
		return a, nil
	}
	page.Secret = secret
	return pages.Show(page.Page())
}

func (s *Server) logStreamPage(r *http.Request) (page ui.LogStreamPage, err error) {
	id, err := logStreamID(r)
	if err != nil {
		return page, err
	}
	ctx := r.Context()
	st, deliveries, size, err := s.LogStreams.Get(ctx, pages.ViewerOf(ctx).Actor(), id)
	page.Row = ui.LogStreamRow{Stream: st, Size: size, Why: logStreamReason(ctx, st.Last.Reason)}
	page.Form = ui.LogStreamForm{Name: st.Name, Kind: st.Kind, URL: st.Shown, Filter: st.Filter}
	for _, d := range deliveries {
		page.Deliveries = append(page.Deliveries, ui.LogDeliveryRow{Delivery: d, Why: logStreamReason(ctx, d.Reason)})
	}
	return page, err
}

func (s *Server) showLogStream(r *http.Request) (pages.Answer, error) {
	page, err := s.logStreamPage(r)
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

func (s *Server) saveLogStream(r *http.Request) (pages.Answer, error) {
	if err := r.ParseForm(); err != nil {
		return pages.Answer{}, pages.FormError(err)
	}
	id, err := logStreamID(r)
	if err != nil {
		return pages.Answer{}, err
	}
	ctx := r.Context()
	form := logStreamForm(r.PostForm)
	_, err = s.LogStreams.Update(ctx, pages.ViewerOf(ctx).Actor(), id, logStreamRequest(form))
	if err == nil || pages.StatusOf(err) == http.StatusNotFound || pages.StatusOf(err) >= http.StatusInternalServerError {
		return s.logStreamActed(r, id, "flash.log_stream_saved", err)
	}
	page, failed := s.logStreamPage(r)
	if failed != nil {
		return pages.Answer{}, failed
	}
	form.Kind = page.Form.Kind
	page.Form, page.Problem = form, pages.Explain(ctx, err)
	a, _ := pages.ShowAgain(page.Page())
	a.Status = pages.StatusOf(err)
	return a, nil
}

// logStreamActed leads back to the stream after an act. A refusal becomes a message.
func (s *Server) logStreamActed(r *http.Request, id uuid.UUID, done string, err error, params ...any) (pages.Answer,
	error) {
	ctx := r.Context()
	switch status := pages.StatusOf(err); {
	case err == nil:
		s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, done, params...)})
	case status == http.StatusConflict || status == http.StatusUnprocessableEntity:
		s.Flash(ctx, ui.Flash{Bad: true, Text: pages.Explain(ctx, err)})
	default:
		return pages.Answer{}, err
	}
	return pages.GoTo(ui.LogStreamPath(id.String()))
}

func (s *Server) testLogStream(r *http.Request) (pages.Answer, error) {
	id, err := logStreamID(r)
	if err != nil {
		return pages.Answer{}, err
	}
	ctx := r.Context()
	d, err := s.LogStreams.Test(ctx, pages.ViewerOf(ctx).Actor(), id)
	if err == nil && !d.OK() {
		why := i18n.Because(pages.ViewerOf(ctx).Lang, pages.ViewerOf(ctx).Zone, "log_stream.failure.", d.Reason)
		s.Flash(ctx, ui.Flash{Bad: true, Text: pages.Text(ctx, "flash.log_stream_test_failed", "why", why)})
		return pages.GoTo(ui.LogStreamPath(id.String()))
	}
	return s.logStreamActed(r, id, "flash.log_stream_tested", err)
}

func (s *Server) replayLogStream(r *http.Request) (pages.Answer, error) {
	id, err := logStreamID(r)
	if err != nil {
		return pages.Answer{}, err
	}
	ctx := r.Context()
	next, err := s.LogStreams.Replay(ctx, pages.ViewerOf(ctx).Actor(), id, r.PostFormValue("from"))
	return s.logStreamActed(r, id, "flash.log_stream_replayed", err, "n", next)
}

func (s *Server) switchLogStream(on bool) pages.Handler {
	return func(r *http.Request) (pages.Answer, error) {
		id, err := logStreamID(r)
		if err != nil {
			return pages.Answer{}, err
		}
		_, err = s.LogStreams.Update(r.Context(), pages.ViewerOf(r.Context()).Actor(), id, logstream.Request{Enabled: &on})
		return s.logStreamActed(r, id, "flash.log_stream_saved", err)
	}
}

func (s *Server) deleteLogStream(r *http.Request) (pages.Answer, error) {
	id, err := logStreamID(r)
	if err != nil {
		return pages.Answer{}, err
	}
	ctx := r.Context()
	if err := s.LogStreams.Delete(ctx, pages.ViewerOf(ctx).Actor(), id); err != nil {
		return pages.Answer{}, err
	}
	s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, "flash.log_stream_deleted")})
	return pages.GoTo(ui.PathLogStreams)
}
