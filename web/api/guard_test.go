package api

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/httprate"

	"fleetd/fleet"
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

// needs is the authorization matrix, kept separately from the declarations so
// that a change of one is noticed.
var needs = map[string]fleet.Role{
	"list-devices": fleet.RoleViewer, "get-device": fleet.RoleViewer, "list-tools": fleet.RoleViewer,
	"list-inventories": fleet.RoleViewer, "diff-inventories": fleet.RoleViewer, "list-firmware": fleet.RoleViewer,
	"get-facts": fleet.RoleViewer, "list-device-calls": fleet.RoleViewer, "list-calls": fleet.RoleViewer,
	"get-call": fleet.RoleViewer, "interrupt-call": fleet.RoleOperator,
	"list-fanouts": fleet.RoleViewer, "get-fanout": fleet.RoleViewer, "list-snapshots": fleet.RoleViewer,
	"get-snapshot": fleet.RoleViewer, "list-conversations": fleet.RoleViewer, "get-conversation": fleet.RoleViewer,
	"list-timeline": fleet.RoleViewer,
	"list-tokens":   fleet.RoleViewer, "list-operators": fleet.RoleViewer, "get-stats": fleet.RoleViewer,
	"list-audit":    fleet.RoleViewer,
	"stream-events": fleet.RoleViewer, "list-images": fleet.RoleViewer, "get-image": fleet.RoleViewer,
	"fit-image":     fleet.RoleViewer,
	"list-releases": fleet.RoleViewer, "list-floors": fleet.RoleViewer, "get-release": fleet.RoleViewer, "fit-release": fleet.RoleViewer,
	"list-campaigns": fleet.RoleViewer, "get-campaign": fleet.RoleViewer, "list-deployments": fleet.RoleViewer,
	"get-deployment":          fleet.RoleViewer,
	"list-device-deployments": fleet.RoleViewer, "get-outlook": fleet.RoleViewer, "list-quarantines": fleet.RoleViewer,
	"upload-image": fleet.RoleOperator, "put-image-layout": fleet.RoleOperator, "update-image": fleet.RoleOperator,
	"sign-image": fleet.RoleOperator, "delete-image": fleet.RoleOperator, "revoke-image": fleet.RoleAdmin,
	"create-release": fleet.RoleOperator, "update-release": fleet.RoleOperator, "release-release": fleet.RoleOperator,
	"deprecate-release": fleet.RoleOperator, "revoke-release": fleet.RoleAdmin,
	"set-floor": fleet.RoleAdmin, "clear-floor": fleet.RoleAdmin,
	"create-campaign": fleet.RoleOperator, "dry-run-campaign": fleet.RoleViewer, "update-campaign": fleet.RoleOperator,
	"discard-campaign": fleet.RoleOperator,
	"start-campaign":   fleet.RoleOperator, "approve-campaign": fleet.RoleOperator, "deny-campaign": fleet.RoleOperator,
	"pause-campaign":  fleet.RoleOperator,
	"resume-campaign": fleet.RoleOperator, "advance-campaign": fleet.RoleOperator, "pull-now-campaign": fleet.RoleOperator,
	"abort-campaign": fleet.RoleOperator, "retry-campaign": fleet.RoleOperator, "rollback-campaign": fleet.RoleOperator,
	"clear-quarantine": fleet.RoleOperator,
	"update-device":    fleet.RoleOperator, "claim-device": fleet.RoleOperator, "hold-device": fleet.RoleOperator,
	"release-device": fleet.RoleOperator, "approve-device": fleet.RoleOperator, "reject-device": fleet.RoleOperator,
	"resolve-conflict-device": fleet.RoleOperator,
	"bulk-devices":            fleet.RoleOperator, "import-devices": fleet.RoleOperator, "export-devices": fleet.RoleViewer,
	"make-call": fleet.RoleOperator, "create-fanout": fleet.RoleOperator,
	"cancel-fanout": fleet.RoleOperator, "retry-fanout": fleet.RoleOperator,
	"list-fanout-answers": fleet.RoleViewer, "export-fanout-answers": fleet.RoleViewer,
	"retire-device": fleet.RoleAdmin, "replace-device": fleet.RoleAdmin, "create-token": fleet.RoleAdmin,
	"revoke-token": fleet.RoleAdmin,
	"list-filters": fleet.RoleViewer, "create-filter": fleet.RoleOperator, "update-filter": fleet.RoleOperator,
	"delete-filter":          fleet.RoleOperator,
	"list-operator-sessions": fleet.RoleAdmin, "end-operator-sessions": fleet.RoleAdmin,
	"end-operator-session": fleet.RoleAdmin, "get-system": fleet.RoleAdmin,
	"create-operator": fleet.RoleAdmin, "update-operator": fleet.RoleAdmin,
	"list-tool-pins": fleet.RoleViewer, "put-tool-pin": fleet.RoleAdmin, "delete-tool-pin": fleet.RoleAdmin,
	"list-policies": fleet.RoleViewer, "test-policy": fleet.RoleViewer,
	"create-policy": fleet.RoleAdmin, "update-policy": fleet.RoleAdmin, "delete-policy": fleet.RoleAdmin,
	"list-core-dumps": fleet.RoleViewer, "get-core-dump": fleet.RoleViewer, "fetch-core-dump": fleet.RoleOperator,
	"delete-core-dump": fleet.RoleOperator, "get-core-dump-content": fleet.RoleOperator,
	"get-vitals": fleet.RoleViewer, "list-vitals": fleet.RoleViewer, "list-jobs": fleet.RoleViewer,
	"get-config":           fleet.RoleViewer,
	"get-image-layout":     fleet.RoleViewer,
	"list-enrolment-rules": fleet.RoleViewer, "get-enrolment-rule": fleet.RoleViewer,
	"list-waiting-devices":  fleet.RoleViewer,
	"create-enrolment-rule": fleet.RoleAdmin, "update-enrolment-rule": fleet.RoleAdmin,
	"delete-enrolment-rule": fleet.RoleAdmin,
	"list-serials":          fleet.RoleViewer, "load-serials": fleet.RoleAdmin, "release-serial": fleet.RoleAdmin,
	"delete-serial":    fleet.RoleAdmin,
	"get-key-rotation": fleet.RoleViewer, "list-key-rotation-devices": fleet.RoleViewer,
	"start-key-rotation":  fleet.RoleAdmin,
	"finish-key-rotation": fleet.RoleAdmin, "abort-key-rotation": fleet.RoleAdmin,
	"restart-key-rotation-devices": fleet.RoleAdmin,
	"list-approvals":               fleet.RoleViewer, "get-approval": fleet.RoleViewer,
	"approve-call": fleet.RoleOperator, "deny-call": fleet.RoleOperator, "withdraw-call": fleet.RoleOperator,
	"list-webhooks": fleet.RoleAdmin, "create-webhook": fleet.RoleAdmin, "update-webhook": fleet.RoleAdmin,
	"delete-webhook": fleet.RoleAdmin, "test-webhook": fleet.RoleAdmin,
	"list-alerts": fleet.RoleViewer, "get-alert": fleet.RoleViewer, "acknowledge-alert": fleet.RoleOperator,
	"get-alert-thresholds": fleet.RoleViewer, "update-alert-thresholds": fleet.RoleAdmin,
	"get-alert-mail": fleet.RoleAdmin, "update-alert-mail": fleet.RoleAdmin, "test-alert-mail": fleet.RoleAdmin,
	"list-upstreams": fleet.RoleViewer, "get-upstream": fleet.RoleViewer, "create-upstream": fleet.RoleAdmin,
	"update-upstream": fleet.RoleAdmin, "delete-upstream": fleet.RoleAdmin, "check-upstream": fleet.RoleAdmin,
	"match-upstream": fleet.RoleViewer,
}

var pathParam = regexp.MustCompile(`\{[^}]*\}`)

// A role that may not make a request is refused before anything else is checked;
// a role that may gets further.
func TestAuthorizationMatrix(t *testing.T) {
	w := newWorld(t)
	w.api.failures = unlimited()
	var ids []string
	for _, op := range w.routes() {
		ids = append(ids, op.id)
		path := pathParam.ReplaceAllString(op.path, "%20") // no id of anything: nothing happens
		if r := w.as(t, "", op.method, path, ""); r.status != http.StatusUnauthorized ||
			r.problem(t).Code != "token_missing" {
			t.Errorf("%s: nobody is answered %d %s", op.id, r.status, r.body)
		}
		for _, role := range []fleet.Role{fleet.RoleViewer, fleet.RoleOperator, fleet.RoleAdmin} {
			w.tryRole(t, op, role, path)
		}
	}
	if want := slices.Sorted(maps.Keys(needs)); !slices.Equal(slices.Sorted(slices.Values(ids)), want) {
		t.Errorf("the operations are %q, the matrix has %q", ids, want)
	}
}

func (w *world) tryRole(t *testing.T, op route, role fleet.Role, path string) {
	t.Helper()
	if op.id == "stream-events" {
		path += "?device=%20"
	}
	r := w.as(t, role, op.method, path, "")
	switch refused := r.status == http.StatusForbidden; {
	case refused == role.Allows(needs[op.id]):
		t.Errorf("%s: a %s is answered %d %s; it needs %s", op.id, role, r.status, r.body, needs[op.id])
	case refused && r.problem(t).Code != "forbidden":
		t.Errorf("%s: a %s is answered %s", op.id, role, r.body)
	case r.status == http.StatusUnauthorized || r.status >= 500:
		t.Errorf("%s: a %s is answered %d %s", op.id, role, r.status, r.body)
	}
}

func TestAuthentication(t *testing.T) {
	w := newWorld(t)
	past := time.Now().Add(-time.Second)
	_, expired, err := w.operators.NewToken(t.Context(), root, fleet.TokenRequest{Name: "expired", Role: fleet.RoleAdmin, ExpiresAt: &past})
	if err != nil {
		t.Fatal(err)
	}
	revokedToken, revoked, _ := w.operators.NewToken(t.Context(), root, fleet.TokenRequest{Name: "revoked", Role: fleet.RoleAdmin})
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
	for range failuresPerMinute + 1 {
		last = w.as(t, "", http.MethodGet, "/devices", "", "Authorization", "Bearer flt_guess")
	}
	if p := last.problem(t); p.Status != 429 || p.Code != "too_many_attempts" || last.header.Get("Retry-After") == "" {
		t.Errorf("the last guess is answered %v %s", last.header, last.body)
	}
	if r := w.get(t, "/devices"); r.status != http.StatusOK {
		t.Errorf("a good token from the same address is answered %d", r.status)
	}
}

// brokenAudit fails as any dependency may.
type brokenAudit struct{ err error }

func (b brokenAudit) AuditEntries(context.Context, fleet.AuditFilter) (fleet.Page[fleet.AuditEntry], error) {
	if b.err == nil {
		panic("a bug")
	}
	return fleet.Page[fleet.AuditEntry]{}, b.err
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
