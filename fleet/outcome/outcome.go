// Package outcome maps failures to HTTP for the console, REST and MCP: the status of a
// failure, when to try again, and the message for a failure without a code.
//
// It writes neither pages, problem documents nor MCP answers; its callers do. It uses the
// kind and the code of an error, never its text, and has no state.
package outcome

import (
	"context"
	"errors"
	"net/http"

	"fleetd/fleet"
)

// An Outcome is a failure in terms of HTTP.
type Outcome struct {
	Status     int
	RetryAfter int          // seconds; 0 if a retry does not help
	Refusal    *fleet.Error // the failure's code, or the code of its kind
}

// table lists the kinds of failure. The first match is used.
var table = []struct {
	kind error
	Outcome
}{
	{fleet.ErrNotFound, Outcome{http.StatusNotFound, 0, fleet.Refuse(fleet.ErrNotFound, "not_found")}},
	{fleet.ErrInvalid, Outcome{http.StatusUnprocessableEntity, 0,
		fleet.Refuse(fleet.ErrInvalid, "invalid_request.stored")}},
	{fleet.ErrForbidden, Outcome{http.StatusForbidden, 0, fleet.Refuse(fleet.ErrForbidden, "forbidden.kind")}},
	{fleet.ErrConflict, Outcome{http.StatusConflict, 0, fleet.Refuse(fleet.ErrConflict, "conflict")}},
	{fleet.ErrOffline, Outcome{http.StatusConflict, 0, fleet.Refuse(fleet.ErrOffline, "device_offline")}},
	{fleet.ErrBusy, Outcome{http.StatusServiceUnavailable, 1, fleet.Refuse(fleet.ErrBusy, "device_busy")}},
	{fleet.ErrTooMany, Outcome{http.StatusTooManyRequests, 60,
		fleet.Refuse(fleet.ErrTooMany, "too_many_attempts.kind")}},
	{fleet.ErrUnavailable, Outcome{http.StatusServiceUnavailable, 2,
		fleet.Refuse(fleet.ErrUnavailable, "unavailable")}},
	{context.Canceled, Outcome{http.StatusServiceUnavailable, 2,
		fleet.Refuse(fleet.ErrUnavailable, "unavailable.ended")}},
	{context.DeadlineExceeded, Outcome{http.StatusServiceUnavailable, 2,
		fleet.Refuse(fleet.ErrUnavailable, "unavailable.slow")}},
}

// Of returns the outcome of a failure. A failure that the table does not list is an internal
// error: its Refusal is nil, and its text belongs only in the log. Of shows nothing of an
// error that wraps a [fleet.Error], because it may quote SQL.
func Of(err error) Outcome {
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return Outcome{http.StatusRequestEntityTooLarge, 0,
			fleet.Refuse(fleet.ErrInvalid, "body_too_large", "limit_bytes", tooLarge.Limit)}
	}
	for _, row := range table {
		if !errors.Is(err, row.kind) {
			continue
		}
		o := row.Outcome
		if refusal, ok := errors.AsType[*fleet.Error](err); ok {
			o.Refusal = refusal
		}
		return o
	}
	return Outcome{Status: http.StatusInternalServerError}
}
