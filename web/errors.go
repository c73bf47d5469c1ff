package web

import (
	"context"
	"errors"
	"net/http"

	"fleetd/fleet"
	"fleetd/web/i18n"
	"fleetd/web/ui"
)

var errNoPage = fleet.Errorf(fleet.ErrNotFound, "no_page", "there is no such page")

var errCrossOrigin = fleet.Errorf(fleet.ErrForbidden, "cross_origin",
	"the request came from another site's page; nothing was changed")

// fail answers with the page of an error. Errors that are nobody's fault but
// ours are logged, once, here.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	status := statusOf(err)
	if status >= 500 && r.Context().Err() == nil {
		s.Log.Error("request failed", "method", r.Method, "path", redact(r.URL.Path), "request", requestID(r.Context()),
			"err", err)
	}
	if status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "60")
	}
	s.render(w, r, answer{status: status, page: s.errorPage(r, status, err).Page(), whole: true})
}

// errorPage says what went wrong. What is nobody's business stays in the log,
// under the request's id.
func (s *Server) errorPage(r *http.Request, status int, err error) ui.ErrorPage {
	ctx := inLanguage(r.Context())
	switch {
	case status == http.StatusNotFound:
		return ui.NotFound(ctx)
	case status == http.StatusForbidden:
		return ui.Forbidden(ctx, explain(r.Context(), err))
	case status >= 500:
		return ui.Failure(ctx, status, requestID(r.Context()), explain(r.Context(), err))
	}
	return ui.Failure(ctx, status, errorCode(err), explain(r.Context(), err))
}

// statusOf is the only place that turns the domain's errors into HTTP's.
func statusOf(err error) int {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, fleet.ErrTooMany):
		return http.StatusTooManyRequests
	case errors.Is(err, fleet.ErrNotFound):
		return http.StatusNotFound
	case errors.Is(err, fleet.ErrInvalid):
		return http.StatusUnprocessableEntity
	case errors.Is(err, fleet.ErrForbidden):
		return http.StatusForbidden
	case errors.Is(err, fleet.ErrConflict):
		return http.StatusConflict
	case errors.Is(err, fleet.ErrUnavailable), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

func errorCode(err error) string {
	var e *fleet.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// explain says in the viewer's language what went wrong: by the error's code,
// else in the domain's own words. Other errors are not meant for people.
func explain(ctx context.Context, err error) string {
	var e *fleet.Error
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return text(ctx, "error.too_large", "n", int(tooLarge.Limit>>10))
	case !errors.As(err, &e):
		return ""
	case i18n.Has("error.code." + e.Code):
		var args []any
		for name, value := range e.Params {
			args = append(args, name, value)
		}
		return text(ctx, "error.code."+e.Code, args...)
	}
	return e.Message
}
