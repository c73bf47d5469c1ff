package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/httprate"

	"fleetd/fleet"
	"fleetd/fleet/audit"
	"fleetd/fleet/operator"
)

type route struct{ method, path, id string }

// routes lists every operation of the document.
func (w *world) routes() []route {
	var all []route
	for path, item := range w.api.huma.OpenAPI().Paths {
		for method, op := range operationsOf(item) {
			all = append(all, route{method, path, op.OperationID})
		}
	}
	slices.SortFunc(all, func(a, b route) int {
		return cmp.Or(cmp.Compare(a.path, b.path),
			cmp.Compare(a.method, b.method))
	})
	return all
}

var pathParam = regexp.MustCompile(`\{[^}]*\}`)

func TestAuthentication(t *testing.T) {
	w := newWorld(t)
	past := time.Now().Add(-time.Second)
	_, expired, err := w.operators.NewToken(t.Context(), root, operator.TokenRequest{Name: "expired", Role: fleet.RoleAdmin, ExpiresAt: &past})
	if err != nil {
		t.Fatal(err)
	}
	revokedToken, revoked, _ := w.operators.NewToken(t.Context(), root, operator.TokenRequest{Name: "revoked", Role: fleet.RoleAdmin})
	if err := w.operators.Revoke(t.Context(), root, revokedToken.ID); err != nil {
		t.Fatal(err)
	}
	good := w.tokens[fleet.RoleViewer]
	tests := []struct {
		authorization, code string
		status              int
	}{
		{"", "token_missing", 401},
		{good, "token_missing", 401},
		{"Basic " + good, "token_missing", 401},
		{"Bearer", "token_missing", 401},
		{"Bearer ", "token_missing", 401},
		{"Bearer flt_nonsense", "invalid_token", 401},
		{"Bearer " + good + "x", "invalid_token", 401},
		{"Bearer " + strings.Repeat("x", 8000), "invalid_token", 401},
		{"Bearer " + expired, "invalid_token", 401},
		{"Bearer " + revoked, "invalid_token", 401},
		{"Bearer " + good, "", 200},
		{"bearer  " + good, "", 200},
	}
	for _, tt := range tests {
		r := w.as(t, "", http.MethodGet, "/devices", "", "Authorization", tt.authorization)
		if r.status != tt.status || (tt.code != "" && (r.problem(t).Code != tt.code ||
			r.header.Get("WWW-Authenticate") == "")) {
			t.Errorf("%.40q is answered %d %s %v", tt.authorization, r.status, r.body, r.header)
		}
	}
}

func TestFailedAuthenticationIsLimited(t *testing.T) {
	w := newWorld(t)
	var last reply
	// A slow machine sends fewer requests than that within a minute.
	for i := 0; i < 2*failuresPerMinute && last.status != http.StatusTooManyRequests; i++ {
		last = w.as(t, "", http.MethodGet, "/devices", "", "Authorization", "Bearer flt_guess")
		if i < failuresPerMinute && last.status != http.StatusUnauthorized {
			t.Fatalf("guess %d is answered %d", i, last.status)
		}
	}
	if p := last.problem(t); p.Status != 429 || p.Code != "too_many_attempts" || last.header.Get("Retry-After") == "" {
		t.Errorf("the last guess is answered %v %s", last.header, last.body)
	}
	if r := w.get(t, "/devices"); r.status != http.StatusOK {
		t.Errorf("a good token from the same address is answered %d", r.status)
	}
}

// brokenAudit fails with err.
type brokenAudit struct{ err error }

func (b brokenAudit) AuditEntries(context.Context, audit.Filter) (fleet.Page[audit.Entry], error) {
	if b.err == nil {
		panic("a bug")
	}
	return fleet.Page[audit.Entry]{}, b.err
}

func TestFailures(t *testing.T) {
	w := newWorld(t)
	tests := []struct {
		err    error
		status int
		code   string
	}{
		{errors.New("relation \"secret_table\" does not exist"), 500, "internal"},
		{nil, 500, "internal"},
		{errors.Join(fleet.ErrUnavailable, errors.New("secret_table is away")), 503, "unavailable"},
		{fleet.Refuse(fleet.ErrUnavailable, "stopping"), 503, "stopping"},
		{context.DeadlineExceeded, 503, "unavailable"},
	}
	for _, tt := range tests {
		w.api.Audit = brokenAudit{tt.err}
		before := len(w.log.String())
		r := w.get(t, "/audit")
		p := r.problem(t)
		logged := w.log.String()[before:]
		if p.Status != tt.status || p.Code != tt.code || strings.Contains(string(r.body), "secret_table") {
			t.Errorf("%v: answered %s", tt.err, r.body)
		}
		if tt.status == 500 && (p.RequestID == "" || strings.Count(logged, p.RequestID) != 1) {
			t.Errorf("%v: the log has %q, the answer %s", tt.err, logged, r.body)
		}
		if (tt.status == 503) != (r.header.Get("Retry-After") != "") {
			t.Errorf("%v: Retry-After is %q", tt.err, r.header.Get("Retry-After"))
		}
	}
}

func unlimited() *httprate.RateLimiter { return httprate.NewRateLimiter(1_000_000, time.Minute) }
