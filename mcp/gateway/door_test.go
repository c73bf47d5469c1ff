package gateway_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/operator"
	"fleetd/fleet/outcome"
	"fleetd/mcp/gateway"
)

// failingFilters returns an error of any dependency.
type failingFilters struct {
	fleet.FilterStore
	err error
}

func (f *failingFilters) FilterByName(context.Context, string) (fleet.Filter, error) {
	return fleet.Filter{}, f.err
}

// The answer to each kind of failure has the same status, code and retry time as in REST.
func TestFailuresAreThoseOfREST(t *testing.T) {
	store := &failingFilters{}
	w := newWorld(t, func(o *gateway.Options) { o.Filters = fleet.NewFilters(store) })
	token := w.token(t, operator.TokenRequest{})
	for _, tt := range []struct {
		err    error
		status int
		code   string
		wait   string
	}{
		{fleet.ErrNotFound, 404, "unknown_filter", ""},
		{fleet.ErrInvalid, 422, "invalid_request", ""},
		{fleet.Refuse(fleet.ErrInvalid, "invalid_query"), 422, "invalid_query", ""},
		{fleet.ErrForbidden, 403, "forbidden", ""},
		{fleet.ErrConflict, 409, "conflict", ""},
		{fleet.Refuse(fleet.ErrConflict, "device_held"), 409, "device_held", ""},
		{fleet.ErrOffline, 409, "device_offline", ""},
		{fleet.ErrBusy, 503, "device_busy", "1"},
		{fleet.ErrTooMany, 429, "too_many_attempts", "60"},
		{fleet.ErrUnavailable, 503, "unavailable", "2"},
		{context.Canceled, 503, "unavailable", "2"},
		{context.DeadlineExceeded, 503, "unavailable", "2"},
		{errors.New("pq: secret"), 500, "unavailable", ""},
	} {
		store.err = fmt.Errorf("SELECT: %w", tt.err)
		resp := w.post(t, token, "/mcp/groups/lab", listTools)
		var e struct{ Code, Detail string }
		if err := json.NewDecoder(resp.Body).Decode(&e); err != nil {
			t.Fatal(err)
		}
		wait := resp.Header.Get("Retry-After")
		if resp.StatusCode != tt.status || e.Code != tt.code || wait != tt.wait || strings.Contains(e.Detail, "SELECT") {
			t.Errorf("%v: %d %v, Retry-After %q; want %d %s, %q", tt.err, resp.StatusCode, e, wait, tt.status, tt.code, tt.wait)
		}
		o := outcome.Of(store.err)
		if resp.StatusCode != o.Status || o.RetryAfter > 0 && wait != strconv.Itoa(o.RetryAfter) {
			t.Errorf("%v: %d, Retry-After %q; the table has %v", tt.err, resp.StatusCode, wait, o)
		}
	}
}

// Bad tokens are counted by address, and for IPv6 by network, because one machine has
// 2^64 addresses. A good token from the same address still works.
func TestBadTokens(t *testing.T) {
	w := newWorld(t)
	token := w.token(t, operator.TokenRequest{})
	post := func(token, address string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader(listTools))
		r.RemoteAddr = address
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		rec := httptest.NewRecorder()
		w.gateway.ServeHTTP(rec, r)
		return rec
	}
	for _, tt := range []struct {
		name    string
		address func(n int) string
		other   string
	}{
		{"IPv4", func(int) string { return "192.0.2.7:80" }, "192.0.2.8:80"},
		{"IPv6", func(n int) string { return fmt.Sprintf("[2001:db8:1:2::%x]:80", n) }, "[2001:db8:1:3::1]:80"},
	} {
		for n := 1; n <= 31; n++ {
			r, want := post("flt_guess", tt.address(n)), http.StatusUnauthorized
			if n == 31 {
				want = http.StatusTooManyRequests
			}
			if r.Code != want || (r.Header().Get("Retry-After") != "") != (n == 31) {
				t.Fatalf("%s: guess %d is answered %d, Retry-After %q", tt.name, n, r.Code, r.Header().Get("Retry-After"))
			}
		}
		if r := post("flt_guess", tt.other); r.Code != http.StatusUnauthorized {
			t.Errorf("%s: a guess from another network is answered %d", tt.name, r.Code)
		}
		if r := post(token, tt.address(1)); r.Code != http.StatusOK {
			t.Errorf("%s: a good token is answered %d", tt.name, r.Code)
		}
	}
}
