package api

import (
	"strings"
	"testing"
	"time"

	"fleetd/fleet"
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
	if all := decode[list[operatorView]](t, w.get(t, "/operators"), 200); len(all.Items) != 1 || all.Items[0] != ann {
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
