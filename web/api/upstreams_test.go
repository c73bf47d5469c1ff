package api

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/upstream"
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

	// Secrets can be written but not read, and reach the link.
	c, ok := w.upstreams.Choose(t.Context(), unit)
	if !ok || c.ID != office.ID || c.Key != "bearer-of-all" || c.Tools {
		t.Errorf("a device without the tag gets %+v", c)
	}
	if r := w.as(t, fleet.RoleAdmin, "PATCH", "/devices/"+string(unit), `{"tags":["lab"]}`); r.status != 200 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	fleettest.Eventually(t, "the tag has its effect", func() bool {
		c, _ = w.upstreams.Choose(t.Context(), unit)
		return c.ID == lab.ID
	})
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
		{`{"url":"wss://elsewhere.test/v"}`, "invalid_upstream_secret"}, // a token is never sent to another server
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
	secret := decode[UpstreamView](t, patch(`{"url":"wss://o.test/other?from=gate&key=s3cret&x"}`), 200)
	seen := decode[UpstreamView](t, w.as(t, fleet.RoleViewer, "GET", path, ""), 200)
	if secret.URL != "wss://o.test/other?from=gate&key=s3cret&x" || seen.URL != "wss://o.test/other?from=…&key=…&…" {
		t.Errorf("the address is %s to an administrator and %s to a viewer", secret.URL, seen.URL)
	}
	for _, path := range []string{"/upstreams", "/audit"} {
		if r := w.as(t, fleet.RoleViewer, "GET", path, ""); r.status != 200 || strings.Contains(string(r.body), "s3cret") {
			t.Errorf("a viewer reads at %s: %d %s", path, r.status, r.body)
		}
	}
	if p := patch(`{"enabled":false,"version":1}`).problem(t); p.Status != 409 || p.Code != "upstreams_changed" {
		t.Errorf("a stale change is answered %+v", p)
	}
	flag := "/upstreams/" + upstream.FixedID.String()
	for _, method := range []string{"PATCH", "DELETE"} {
		if p := w.as(t, fleet.RoleAdmin, method, flag, `{}`).problem(t); p.Status != 409 || p.Code != "upstream_fixed" {
			t.Errorf("%s of the flag's is answered %+v", method, p)
		}
	}

	at := time.Now()
	w.upstreamLink.mu.Lock()
	w.upstreamLink.health = upstream.Health{Failures: 3, LastFailure: &at, LastError: fleet.EndedUnreachable,
		RetryAt: &at, Open: 2}
	w.upstreamLink.outcome = upstream.Check{Error: fleet.EndedRefused, Took: time.Second}
	w.upstreamLink.mu.Unlock()
	if h := decode[UpstreamView](t, w.as(t, fleet.RoleAdmin, "GET", flag, ""), 200).Health; !h.Down || h.Failures != 3 || h.Conversations != 2 ||
		h.Code != "upstream_unreachable" || h.Message != "it is unreachable" || h.LastSuccess != nil {
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
	if strings.Count(audit, `"upstream.create"`) != 3 || strings.Count(audit, `"upstream.update"`) != 2 ||
		strings.Count(audit, `"upstream.move"`) != 1 || strings.Count(audit, `"upstream.delete"`) != 1 {
		t.Errorf("the audit has %s", audit)
	}

	// Another process reads the same.
	w.restartUpstreams(t)
	if again := w.upstreams.States(); len(again) != 2 || again[1].Name != "lab" {
		t.Errorf("%+v", again)
	}
}

// The health of a voice server before a restart comes from the conversations since its last change,
// until the first conversation after the restart.
func TestUpstreamHealthBeforeARestart(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"well", "failing", "changed", "new"} {
		body := fmt.Sprintf(`{"name":%q,"kind":"websocket","url":"ws://%s.test/","devices":"tag:x","tools":true,"enabled":true}`,
			name, name)
		if r := w.as(t, fleet.RoleAdmin, "POST", "/upstreams", body); r.status != 201 {
			t.Fatalf("%s: %s", name, r.body)
		}
	}
	begun := time.Now().UTC().Truncate(time.Microsecond)
	ended := begun.Add(time.Minute)
	var list []fleet.Conversation
	add := func(upstream string, n int, helloIn time.Duration, how fleet.ConversationEnd) {
		for range n {
			list = append(list, fleet.Conversation{ID: uuid.Must(uuid.NewV7()), Device: "a0:85:e3:00:00:01",
				Upstream: upstream, Begin: begun, End: &ended, Ended: how, HelloIn: helloIn})
		}
	}
	add("well", 4, 0, fleet.EndedUnreachable)
	add("well", 1, 120*time.Millisecond, fleet.EndedLost)
	add("failing", 1, 80*time.Millisecond, fleet.EndedByDevice)
	add("failing", 1, 0, fleet.EndedUnreachable)
	add("failing", 2, 0, fleet.EndedRefused)
	add("failing", 1, 0, fleet.EndedByDevice) // before the hello
	add("failing", 5, 0, fleet.EndedFull)
	add("changed", 3, 0, fleet.EndedRefused)
	if err := w.store.SaveConversations(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	changed := w.upstream(t, "changed")
	if r := w.as(t, fleet.RoleAdmin, "PATCH", "/upstreams/"+changed.ID.String(), `{"url":"ws://other.test/"}`); r.status != 200 {
		t.Fatalf("%s", r.body)
	}
	if got := w.upstream(t, "failing").Health; got != (upstream.Health{}) {
		t.Errorf("the process that saw them all says %+v", got)
	}

	w.restartUpstreams(t)
	success := begun.Add(120 * time.Millisecond)
	earlier := begun.Add(80 * time.Millisecond)
	for name, want := range map[string]upstream.Health{
		"well": {LastSuccess: &success, HelloIn: 120 * time.Millisecond},
		"failing": {LastSuccess: &earlier, HelloIn: 80 * time.Millisecond, Failures: 3, LastFailure: &ended,
			LastError: fleet.EndedRefused},
		"changed": {}, "new": {},
	} {
		if got := w.upstream(t, name).Health; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v; want %+v", name, got, want)
		}
	}
	if !w.upstream(t, "failing").Health.Down() {
		t.Error("three failures in a row before a restart are none after it")
	}

	// Later conversations count more.
	now := ended.Add(time.Minute)
	w.upstreamLink.set(upstream.Health{Failures: 1, LastFailure: &now, LastError: fleet.EndedNoHello})
	if h := w.upstream(t, "failing").Health; h.Failures != 4 || h.LastError != fleet.EndedNoHello || *h.LastSuccess != earlier {
		t.Errorf("after another failure: %+v", h)
	}
	w.upstreamLink.set(upstream.Health{LastSuccess: &now, HelloIn: time.Second})
	if h := w.upstream(t, "failing").Health; h.Failures != 0 || h.LastFailure != nil || h.HelloIn != time.Second {
		t.Errorf("after a success: %+v", h)
	}
}

// restartUpstreams reads the table as a new process does.
func (w *world) restartUpstreams(t *testing.T) {
	t.Helper()
	sealer, err := enrolment.NewSealer(make([]byte, enrolment.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	w.upstreams = upstream.New(upstream.Options{Store: w.store, Sealer: sealer, Link: &w.upstreamLink})
	if err := w.upstreams.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (w *world) upstream(t *testing.T, name string) upstream.State {
	t.Helper()
	all := w.upstreams.States()
	i := slices.IndexFunc(all, func(u upstream.State) bool { return u.Name == name })
	if i < 0 {
		t.Fatalf("no voice server %s", name)
	}
	return all[i]
}

func (l *upstreamLink) set(h upstream.Health) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.health = h
}
