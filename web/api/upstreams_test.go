package api

import (
	"strings"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
)

func (w *world) upstreamNames(t *testing.T) (names []string) {
	t.Helper()
	for i, u := range decode[UpstreamList](t, w.as(t, fleet.RoleAdmin, "GET", "/upstreams", ""), 200).Items {
		if u.Position != i {
			t.Errorf("%s is at %d, want %d", u.Name, u.Position, i)
		}
		names = append(names, u.Name)
	}
	return names
}

func TestUpstreams(t *testing.T) {
	w := newWorld(t)
	w.listing(t, unit, tools)
	first := decode[UpstreamList](t, w.as(t, fleet.RoleAdmin, "GET", "/upstreams", ""), 200)
	if len(first.Items) != 1 || !first.Items[0].Fixed || !first.Items[0].SecretSet || first.Items[0].Name != "flag.test" {
		t.Fatalf("without any on record: %+v", first.Items)
	}

	lab := decode[UpstreamView](t, w.post(t, "/upstreams", `{"name":"lab","url":"ws://lab.test:8000/xiaozhi/v1/",
		"auth":"secret","secret":"hush-hush","devices":"tag:lab"}`), 201)
	if lab.Kind != "websocket" || !lab.Tools || !lab.Enabled || !lab.SecretSet || lab.UpdatedBy != "admin-script" ||
		lab.Position != 0 {
		t.Errorf("made %+v", lab)
	}
	decode[UpstreamView](t, w.post(t, "/upstreams", `{"name":"mute","kind":"none","devices":"name:shy","position":0}`), 201)
	office := decode[UpstreamView](t, w.post(t, "/upstreams", `{"name":"office","url":"wss://o.test/v","auth":"token",
		"secret":"bearer-of-all","tools":false}`), 201)
	if got := strings.Join(w.upstreamNames(t), " "); got != "mute lab office flag.test" {
		t.Errorf("the list is %s", got)
	}

	// Secrets can be written, not read, and reach the link.
	c, ok := w.upstreams.Choose(t.Context(), unit)
	if !ok || c.ID != office.ID || c.Key != "bearer-of-all" || c.Tools {
		t.Errorf("a device without the tag gets %+v", c)
	}
	if r := w.as(t, fleet.RoleAdmin, "PATCH", "/devices/"+string(unit), `{"tags":["lab"]}`); r.status != 200 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	deadline := time.Now().Add(20 * time.Second)
	for c, _ = w.upstreams.Choose(t.Context(), unit); c.ID != lab.ID && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond)
		c, _ = w.upstreams.Choose(t.Context(), unit)
	}
	if c.Key != "hush-hush" {
		t.Errorf("a device with the tag gets %+v", c)
	}
	m := decode[UpstreamMatchView](t, w.as(t, fleet.RoleAdmin, "GET", "/upstreams/match?device=a0:85:e3:11:22:33", ""), 200)
	if m.Upstream == nil || m.Upstream.Name != "lab" || !m.Voice || len(m.Steps) != 4 || m.Steps[0].Outcome != "unfit" ||
		m.Steps[0].Term != "name:shy" || m.Steps[1].Outcome != "chosen" || m.Steps[3].Outcome != "later" {
		t.Errorf("matches %+v", m)
	}
	if p := w.as(t, fleet.RoleAdmin, "GET", "/upstreams/match?device=a085e3119999", "").problem(t); p.Status != 404 || p.Code != "unknown_device" {
		t.Errorf("an unknown device is answered %+v", p)
	}

	path := "/upstreams/" + office.ID.String()
	patch := func(body string) reply { return w.as(t, fleet.RoleAdmin, "PATCH", path, body) }
	for _, tt := range []struct{ body, code string }{
		{`{"url":"wss://elsewhere.test/v"}`, "invalid_upstream_secret"}, // a token goes to no other server
		{`{"auth":"secret"}`, "invalid_upstream_secret"},
		{`{"auth":"none","secret":"x"}`, "invalid_upstream_secret"},
		{`{"url":"http://o.test/v"}`, "invalid_upstream_url"},
		{`{"url":"ws://ann:pw@o.test/v"}`, "invalid_upstream_url"},
		{`{"url":"ws://"}`, "invalid_upstream_url"},
		{`{"url":"javascript:alert(1)"}`, "invalid_upstream_url"},
		{`{"url":"ws://o.test/#x"}`, "invalid_upstream_url"},
		{`{"url":""}`, "invalid_upstream_url"},
		{`{"name":" "}`, "invalid_name"},
		{`{"devices":"colour:red"}`, "unknown_field"},
	} {
		if p := patch(tt.body).problem(t); p.Status != 422 || p.Code != tt.code {
			t.Errorf("%s is answered %+v, want %s", tt.body, p, tt.code)
		}
	}
	moved := decode[UpstreamView](t, patch(`{"position":0,"tools":true,"url":"wss://o.test/other"}`), 200)
	if moved.Position != 0 || !moved.Tools || moved.URL != "wss://o.test/other" || !moved.SecretSet {
		t.Errorf("changed to %+v", moved)
	}
	if p := patch(`{"enabled":false,"version":1}`).problem(t); p.Status != 409 || p.Code != "upstreams_changed" {
		t.Errorf("a stale change is answered %+v", p)
	}
	flag := "/upstreams/" + fleet.FixedUpstreamID.String()
	for _, method := range []string{"PATCH", "DELETE"} {
		if p := w.as(t, fleet.RoleAdmin, method, flag, `{}`).problem(t); p.Status != 409 || p.Code != "upstream_fixed" {
			t.Errorf("%s of the flag's is answered %+v", method, p)
		}
	}

	at := time.Now()
	w.upstreamLink.mu.Lock()
	w.upstreamLink.health = fleet.UpstreamHealth{Failures: 3, LastFailure: &at, LastError: fleet.EndedUnreachable,
		RetryAt: &at, Open: 2}
	w.upstreamLink.outcome = fleet.UpstreamCheck{Error: fleet.EndedRefused, Took: time.Second}
	w.upstreamLink.mu.Unlock()
	if h := decode[UpstreamView](t, w.as(t, fleet.RoleAdmin, "GET", flag, ""), 200).Health; !h.Down || h.Failures != 3 || h.Conversations != 2 ||
		h.Code != "upstream_unreachable" || h.Message != "it cannot be reached" || h.LastSuccess != nil {
		t.Errorf("health %+v", h)
	}
	checked := decode[UpstreamCheckView](t, w.post(t, flag+"/check", `{}`), 200)
	if checked.OK || checked.Code != "upstream_refused" || checked.TookMs != 1000 || checked.Message == "" ||
		len(w.upstreamLink.checked) != 1 || w.upstreamLink.checked[0].Key != "of-the-flag" {
		t.Errorf("checked %+v", checked)
	}

	if r := w.as(t, fleet.RoleAdmin, "DELETE", path, ""); r.status != 204 {
		t.Errorf("deleting is answered %d %s", r.status, r.body)
	}
	if got := strings.Join(w.upstreamNames(t), " "); got != "mute lab flag.test" {
		t.Errorf("the list is %s", got)
	}
	if p := patch(`{}`).problem(t); p.Status != 404 || p.Code != "unknown_upstream" {
		t.Errorf("a deleted one is answered %+v", p)
	}
	audit := string(w.as(t, fleet.RoleAdmin, "GET", "/audit", "").body)
	everything := audit + string(w.as(t, fleet.RoleAdmin, "GET", "/upstreams", "").body) + w.log.String()
	for _, secret := range []string{"hush-hush", "bearer-of-all", "of-the-flag"} {
		if strings.Contains(everything, secret) {
			t.Errorf("%s is shown", secret)
		}
	}
	if strings.Count(audit, `"upstream.create"`) != 3 || strings.Count(audit, `"upstream.update"`) != 1 ||
		strings.Count(audit, `"upstream.move"`) != 1 || strings.Count(audit, `"upstream.delete"`) != 1 {
		t.Errorf("the audit has %s", audit)
	}

	// Another process sees the same.
	sealer, err := enrolment.NewSealer(make([]byte, enrolment.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	again := fleet.NewUpstreams(fleet.UpstreamsOptions{Store: w.store, Sealer: sealer, Link: &w.upstreamLink})
	if err := again.Load(t.Context()); err != nil || len(again.States()) != 2 || again.States()[1].Name != "lab" {
		t.Errorf("%v, %+v", err, again.States())
	}
}
