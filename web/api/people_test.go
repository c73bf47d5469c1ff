package api

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetd/fleet"
	"fleetd/fleet/audit"
	"fleetd/fleet/operator"
)

func TestTokens(t *testing.T) {
	w := newWorld(t)
	expires := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	r := w.post(t, "/tokens", `{"name":"ci","expires_at":"`+expires+`"}`)
	made := decode[newTokenView](t, r, 201)
	if !strings.HasPrefix(made.Secret, "flt_") || made.Role != fleet.RoleOperator || made.ExpiresAt == nil ||
		made.CreatedBy != "admin-script" {
		t.Errorf("answered %s", r.body)
	}
	use := func() int {
		return w.as(t, "", "GET", "/devices", "", "Authorization", "Bearer "+made.Secret).status
	}
	if got := use(); got != 200 {
		t.Errorf("the new token is answered %d", got)
	}
	all := w.get(t, "/tokens")
	if n := len(decode[list[TokenView]](t, all, 200).Items); n != 4 || strings.Contains(string(all.body), "flt_") {
		t.Errorf("%d tokens: %s", n, all.body)
	}
	if r := w.as(t, fleet.RoleAdmin, "DELETE", "/tokens/"+made.ID.String(), ""); r.status != 204 {
		t.Errorf("revoking is answered %d %s", r.status, r.body)
	}
	if got := use(); got != 401 {
		t.Errorf("the revoked token is answered %d", got)
	}
}

func TestOperators(t *testing.T) {
	w := newWorld(t)
	ann := decode[operatorView](t, w.post(t, "/operators", `{"name":"ann","role":"viewer","password":"correct horse"}`),
		201)
	if p := w.post(t, "/operators", `{"name":"Ann","role":"admin","password":"correct horse"}`).problem(
		t); p.Status != 409 || p.Code != "name_taken" {
		t.Errorf("a taken name is answered %+v", p)
	}
	if all := decode[list[operatorView]](t, w.get(t, "/operators"), 200); len(all.Items) != 1 || !cmp.Equal(all.Items[0], ann) {
		t.Errorf("the operators are %+v", all.Items)
	}
	path := "/operators/" + ann.ID.String()
	patch := func(body string) operatorView {
		return decode[operatorView](t, w.as(t, fleet.RoleAdmin, "PATCH", path, body), 200)
	}
	patch(`{"password":"battery staple"}`)
	if _, err := w.operators.SignIn(t.Context(), "ann", "battery staple"); err != nil {
		t.Errorf("with the new password: %v", err)
	}
	if o := patch(`{"disabled":true}`); o.DisabledAt == nil {
		t.Errorf("answered %+v", o)
	}
	if _, err := w.operators.SignIn(t.Context(), "ann", "battery staple"); err == nil {
		t.Error("a locked out operator signed in")
	}
	if o := patch(`{"disabled":false}`); o.DisabledAt != nil {
		t.Errorf("answered %+v", o)
	}
}

func TestOperatorSessions(t *testing.T) {
	w := newWorld(t)
	o, err := w.operators.Create(t.Context(), root, operator.Request{Name: "ann", Password: "correct horse",
		Access: operator.Access{Role: fleet.RoleViewer}})
	if err != nil {
		t.Fatal(err)
	}
	const firefox = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
	open := func(address string) operator.Login {
		l, _, err := w.operators.OpenLogin(t.Context(), o, time.Hour, operator.SignedIn{Address: address, Agent: firefox})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	first := open("192.0.2.1")
	open("192.0.2.2")
	open("192.0.2.3")
	path := "/operators/" + o.ID.String() + "/sessions"
	listed := func() []sessionView {
		return decode[list[sessionView]](t, w.as(t, fleet.RoleAdmin, "GET", path, ""), 200).Items
	}
	if all := listed(); len(all) != 3 || all[0].Address != "192.0.2.3" || all[0].Browser != "Firefox · Linux" {
		t.Errorf("the sessions are %+v", all)
	}
	if all := decode[list[operatorView]](t, w.get(t, "/operators"), 200).Items; all[0].SignedInAt == nil ||
		all[0].SignedInFrom != "192.0.2.3" {
		t.Errorf("the latest sign-in is %+v", all[0])
	}
	if r := w.as(t, fleet.RoleOperator, "DELETE", path, ""); r.status != 403 {
		t.Errorf("an operator is answered %d %s", r.status, r.body)
	}
	const nothing = "/01a1fc6b-6015-711c-9d5d-5b739ab112aa"
	tests := []struct {
		method, path string
		status       int
		code         string
	}{
		{"DELETE", path + "/" + first.ID.String(), 204, ""},
		{"DELETE", path + "/" + first.ID.String(), 404, "unknown_session"},
		{"DELETE", path + "/x", 422, "invalid_request"},
		{"GET", "/operators" + nothing + "/sessions", 404, "unknown_operator"},
		{"DELETE", "/operators" + nothing + "/sessions", 404, "unknown_operator"},
		{"DELETE", "/operators" + nothing + "/sessions/" + first.ID.String(), 404, "unknown_session"},
	}
	for _, tt := range tests {
		r := w.as(t, fleet.RoleAdmin, tt.method, tt.path, "")
		if r.status != tt.status || tt.code != "" && r.problem(t).Code != tt.code {
			t.Errorf("%s %s is answered %d %s, want %d %s", tt.method, tt.path, r.status, r.body, tt.status, tt.code)
		}
	}
	if all := listed(); len(all) != 2 {
		t.Errorf("after one has ended there are %+v", all)
	}
	if r := w.as(t, fleet.RoleAdmin, "DELETE", path, ""); r.status != 204 || len(listed()) != 0 {
		t.Errorf("ending all is answered %d %s, and leaves %+v", r.status, r.body, listed())
	}
	open("192.0.2.4")
	w.as(t, fleet.RoleAdmin, "PATCH", "/operators/"+o.ID.String(), `{"password":"battery staple"}`)
	if all := listed(); len(all) != 0 {
		t.Errorf("with another password there are still %+v", all)
	}
	walk(t, w, "/audit?limit=1&action=operator.end_session", 2)
}

func TestSystem(t *testing.T) {
	w := newWorld(t)
	v := decode[systemView](t, w.as(t, fleet.RoleAdmin, "GET", "/system", ""), 200)
	if v.Version != "1.2.3" || v.Database.Bytes == 0 || v.Database.Migration < 36 || len(v.Database.Tables) == 0 ||
		v.Database.Pool.Most == 0 {
		t.Errorf("answered %+v", v)
	}
	if r := w.as(t, fleet.RoleOperator, "GET", "/system", ""); r.status != 403 {
		t.Errorf("an operator is answered %d", r.status)
	}
}

func TestAudit(t *testing.T) {
	w := newWorld(t)
	w.post(t, "/devices/a085e3112233/hold", `{"reason":"on the bench"}`)
	w.post(t, "/devices/a085e3112233/release", "")
	tests := []struct {
		query string
		want  int
	}{
		{"?subject=a085e3112233&action=device.hold", 1},
		{"?subject=a085e3112233&actor=admin-script", 2},
		{"?action=token.create", 3},
		{"?actor=nobody", 0},
	}
	for _, tt := range tests {
		r := w.get(t, "/audit"+tt.query)
		if got := decode[list[auditView]](t, r, 200).Items; len(got) != tt.want {
			t.Errorf("%s: %s, want %d", tt.query, r.body, tt.want)
		}
	}
	walk(t, w, "/audit?limit=2&actor=command+line", 5)
	for query, status := range map[string]int{"?kind=deed": 422, "?trace_id=x": 422, "?address=home": 422,
		"?address=127.0.0.1:80": 422, "?since=yesterday": 422,
		"?kind=action,call,connection,campaign_step,firmware,action": 422} {
		for _, path := range []string{"/audit", "/audit/export"} {
			if r := w.get(t, path+query); r.status != status {
				t.Errorf("%s%s: %d %s, want %d", path, query, r.status, r.body, status)
			}
		}
	}
}

// The list of all kinds and both exports have the same entries, with the origin of their requests.
func TestAuditKinds(t *testing.T) {
	w := newWorld(t)
	const trace = "0af7651916cd43dd8448eb211c80319c"
	from := []string{"Traceparent", "00-" + trace + "-b7ad6b7169203331-01", "User-Agent", "bench/7"}
	w.post(t, "/devices/a085e3112233/hold", `{"reason":"=1+1"}`, from...)
	w.post(t, callPath, volume50, from...)                                            // in the usual form
	w.post(t, callPath, volume50, append(from, "Prefer", "respond-async, wait=9")...) // by huma
	found := decode[list[auditView]](t, w.get(t, "/audit?kind=action,call&trace_id="+trace), 200).Items
	var kinds []audit.Kind
	for _, e := range found {
		kinds = append(kinds, e.Kind)
		if o := e.Origin; o == nil || o.Address != "127.0.0.1" || o.Client != "bench/7" || o.TraceID != trace {
			t.Errorf("the origin of %s is %+v", e.Action, o)
		}
	}
	if !slices.Equal(kinds, []audit.Kind{audit.Call, audit.Call, audit.Action}) {
		t.Errorf("the trace leads to %v", kinds)
	}

	for address, want := range map[string]bool{"127.0.0.1": true, "::ffff:127.0.0.1": true, "127.0.0.2": false} {
		there := decode[list[auditView]](t, w.get(t, "/audit?kind=action,call&address="+address), 200).Items
		if got := len(there) >= len(found); got != want {
			t.Errorf("%d entries are from %s", len(there), address)
		}
		for _, e := range there {
			if e.Origin == nil || e.Origin.Address != "127.0.0.1" {
				t.Errorf("an entry from %s has the origin %+v", address, e.Origin)
			}
		}
	}

	const all = "kind=action,call,connection,campaign_step,firmware"
	listed := decode[list[auditView]](t, w.get(t, "/audit?limit=500&"+all), 200).Items
	lines := bytes.Split(bytes.TrimSpace(w.get(t, "/audit/export?"+all).body), []byte("\n"))
	records, err := csv.NewReader(bytes.NewReader(w.get(t, "/audit/export?format=csv&"+all).body)).ReadAll()
	if err != nil || len(records) != len(listed)+1 || len(lines) != len(listed) {
		t.Fatalf("%d entries are listed, %d and %d exported: %v", len(listed), len(lines), len(records)-1, err)
	}
	for i, e := range listed {
		var line struct{ ID, Action, Client string }
		if err := json.Unmarshal(lines[i], &line); err != nil || line.ID != e.ID || records[i+1][2] != e.ID ||
			line.Action != e.Action || records[i+1][6] != e.Action {
			t.Errorf("entry %d, %s of %s, is exported as %s and %q: %v", i, e.Action, e.ID, lines[i], records[i+1], err)
		}
	}
}

func TestStats(t *testing.T) {
	w := newWorld(t)
	w.post(t, callPath, volume50)
	w.post(t, callPath, `{"tool":"self.fly"}`)
	if err := w.store.SavePresenceSample(t.Context(), time.Now().UTC()); err != nil {
		t.Fatal(err)
	}
	r := w.get(t, "/stats?step_ms=60000")
	s := decode[statsView](t, r, 200)
	sum := s.Presence.Online + s.Presence.Unresponsive + s.Presence.Offline + s.Presence.Pending
	if s.Devices != 3 || sum != 3 || len(s.Boards) != 1 || s.Boards[0] != (countView{"bread-compact-wifi", 3}) ||
		len(s.Versions) != 1 || len(s.Reached) != 1 {
		t.Errorf("answered %s", r.body)
	}
	succeeded, failed := 0, 0
	for _, b := range s.Calls {
		succeeded, failed = succeeded+b.Succeeded, failed+b.Failed
	}
	if succeeded != 1 || failed != 1 {
		t.Errorf("the calls are counted %+v", s.Calls)
	}
}
