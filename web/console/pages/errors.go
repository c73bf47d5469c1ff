package pages

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

// ErrNoPage means that the address has no page.
var ErrNoPage = fleet.Refuse(fleet.ErrNotFound, "no_page")

// Fail responds with the page of an error. Internal errors are logged only here.
func (s *Responder) Fail(w http.ResponseWriter, r *http.Request, err error) {
	o := outcome.Of(err)
	status := o.Status
	if status >= 500 && r.Context().Err() == nil {
		s.log.Error("request failed", "method", r.Method, "path", request.Redact(r.URL.Path), "request", request.ID(w),
			"err", err)
	}
	if o.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(o.RetryAfter))
	}
	s.Render(w, r, Answer{Status: status, Page: s.errorPage(w, r, status, err).Page(), Whole: true})
}

// errorPage returns the page of an error. The details of an internal error are only in the log,
// under the request's id.
func (s *Responder) errorPage(w http.ResponseWriter, r *http.Request, status int, err error) ui.ErrorPage {
	ctx := InLanguage(r.Context())
	switch {
	case status == http.StatusNotFound:
		return ui.NotFound(ctx)
	case status == http.StatusForbidden:
		return ui.Forbidden(ctx, Explain(r.Context(), err))
	case status >= 500:
		return ui.Failure(ctx, status, request.ID(w), Explain(r.Context(), err))
	}
	return ui.Failure(ctx, status, ErrorCode(err), Explain(r.Context(), err))
}

// StatusOf returns the status of the response for an error.
func StatusOf(err error) int { return outcome.Of(err).Status }

// ErrorCode returns the code of an error; "" if the error has none.
func ErrorCode(err error) string {
	if e, ok := errors.AsType[*fleet.Error](err); ok {
		return e.Code
	}
	return ""
}

// Explain returns the text of an error in the viewer's language. Errors without a code are not
// meant for people. Foreign parts are marked, as web/ui expects.
func Explain(ctx context.Context, err error) string {
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		err = outcome.Of(tooLarge).Refusal
	}
	if e, ok := errors.AsType[*fleet.Error](err); ok {
		v := ViewerOf(ctx)
		return i18n.ErrorMarked(v.Lang, v.Zone, e)
	}
	return ""
}

// Unless returns nil for an error that is expected here.
func Unless(err, expected error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}

// CutShort aborts a response that has been sent in part, so that the reader does not mistake the part
// for the whole.
func (s *Responder) CutShort(ctx context.Context, what string, err error) {
	if ctx.Err() == nil {
		s.log.Error("response cut short", "what", what, "err", err)
	}
	panic(http.ErrAbortHandler)
}
