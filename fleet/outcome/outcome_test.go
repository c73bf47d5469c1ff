package outcome_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/outcome"
)

func TestOf(t *testing.T) {
	held := fleet.Refuse(fleet.ErrConflict, "device_held")
	tests := []struct {
		err    error
		status int
		code   string
		wait   int
	}{
		{fmt.Errorf("SELECT: %w", fleet.ErrNotFound), 404, "not_found", 0},
		{fleet.ErrInvalid, 422, "invalid_request", 0},
		{fleet.ErrForbidden, 403, "forbidden", 0},
		{fmt.Errorf("call: %w", held), 409, "device_held", 0},
		{fleet.ErrOffline, 409, "device_offline", 0},
		{fleet.ErrBusy, 503, "device_busy", 1},
		{fleet.ErrTooMany, 429, "too_many_attempts", 60},
		{fleet.ErrUnavailable, 503, "unavailable", 2},
		{context.DeadlineExceeded, 503, "unavailable", 2},
		{context.Canceled, 503, "unavailable", 2},
		{fmt.Errorf("read: %w", &http.MaxBytesError{Limit: 1024}), 413, "body_too_large", 0},
		{errors.New("pq: secret"), 500, "", 0},
	}
	for _, tt := range tests {
		got, code := outcome.Of(tt.err), ""
		if got.Refusal != nil {
			code = got.Refusal.Code
		}
		if got.Status != tt.status || code != tt.code || got.RetryAfter != tt.wait {
			t.Errorf("Of(%v) = %d %s, retry after %d; want %d %s, %d", tt.err, got.Status, code, got.RetryAfter, tt.status,
				tt.code, tt.wait)
		}
	}
}
