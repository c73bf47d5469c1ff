package console

import (
	"context"
	"errors"
	"net/http"
	"strconv"

	"fleetd/fleet"
	"fleetd/fleet/outcome"
	"fleetd/web/i18n"
	"fleetd/web/request"
	"fleetd/web/ui"
)

var errNoPage = fleet.Refuse(fleet.ErrNotFound, "no_page")

// fail responds with the page of an error. Internal errors are logged only here.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	o := outcome.Of(err)
	status := o.Status
	if status >= 500 && r.Context().Err() == nil {
		s.Log.Error("request failed", "method", r.Method, "path", request.Redact(r.URL.Path), "request", request.ID(w),
			"err", err)
	}
	if o.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(o.RetryAfter))
	}
	s.render(w, r, answer{status: status, page: s.errorPage(w, r, status, err).Page(), whole: true})
}

// errorPage returns the page of an error. The details of an internal error are only in the log,
// under the request's id.
func (s *Server) errorPage(w http.ResponseWriter, r *http.Request, status int, err error) ui.ErrorPage {
	ctx := inLanguage(r.Context())
	switch {
	case status == http.StatusNotFound:
		return ui.NotFound(ctx)
	case status == http.StatusForbidden:
		return ui.Forbidden(ctx, explain(r.Context(), err))
	case status >= 500:
		return ui.Failure(ctx, status, request.ID(w), explain(r.Context(), err))
	}
	return ui.Failure(ctx, status, errorCode(err), explain(r.Context(), err))
}

func statusOf(err error) int { return outcome.Of(err).Status }

func errorCode(err error) string {
	if e, ok := errors.AsType[*fleet.Error](err); ok {
		return e.Code
	}
	return ""
}

// explain returns the text of an error in the viewer's language. Errors without a code are not
// meant for people. Foreign parts are marked, as web/ui expects.
func explain(ctx context.Context, err error) string {
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		err = outcome.Of(tooLarge).Refusal
	}
	if e, ok := errors.AsType[*fleet.Error](err); ok {
		v := viewerOf(ctx)
		return i18n.ErrorMarked(v.lang, v.zone, e)
	}
	return ""
}

// unless returns nil for an error that is expected here.
func unless(err, expected error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}

// cutShort aborts a response of which a part has been sent already, so the reader does not mistake
// the part for the whole.
func (s *Server) cutShort(ctx context.Context, what string, err error) {
	if ctx.Err() == nil {
		s.Log.Error("response cut short", "what", what, "err", err)
	}
	panic(http.ErrAbortHandler)
}
