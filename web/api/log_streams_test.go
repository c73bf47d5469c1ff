package api

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

// The receiver of a log stream gets what the log has, and can check who sent it. The database and the answers contain
// no secret of either side.
func TestLogStreams(t *testing.T) {
	w := newWorld(t)
	w.run(t, w.record.Run, w.logStreams.Run)
	r := newReceiver(t)
	r.status.Store(200)
	const key, header = "of-the-receiver-7731", "bearer-of-the-receiver-7731"
	admin := func(method, path, body string) reply { return w.as(t, fleet.RoleAdmin, method, path, body) }
	made := decode[newLogStreamView](t, admin("POST", "/log-streams", `{"name":"siem","kind":"webhook","url":"`+r.URL+
		`/in?key=`+key+`","headers":"Authorization: `+header+`","from":"start","filter":{"actions":["device.hol*"]}}`), 201)
	if !strings.HasPrefix(made.Secret, "whsec_") || made.NextEntry != 0 || !made.Enabled || made.Batch != 1 {
		t.Fatalf("made %+v", made)
	}
	one := "/log-streams/" + made.ID.String()
	decode[any](t, w.as(t, fleet.RoleOperator, "POST", "/devices/"+string(unit)+"/hold", `{"reason":"smoke"}`), 200)

	p := r.next(t)
	verifier, err := standardwebhooks.NewWebhook(made.Secret)
	if err != nil {
		t.Fatal(err)
	}
	if err := verifier.Verify(p.body, p.header); err != nil {
		t.Error(err)
	}
	var e cloudevents.Event
	if err := json.Unmarshal(p.body, &e); err != nil {
		t.Fatal(err)
	}
	if e.Type() != "fleetd.action" || e.Subject() != string(unit) || p.header.Get("Authorization") != header ||
		!strings.Contains(string(e.Data()), `"action":"device.hold"`) {
		t.Errorf("posted %s with %v", p.body, p.header)
	}
	lines := admin("GET", "/audit/log/lines?from="+e.ID(), "").body
	var first struct{ Line json.RawMessage }
	if err := json.Unmarshal([]byte(strings.SplitN(string(lines), "\n", 2)[0]), &first); err != nil ||
		string(first.Line) != string(e.Data()) {
		t.Errorf("the log has %s, and the event %s", first.Line, e.Data())
	}
	var shown logStreamDetail
	fleettest.Eventually(t, "the stream is up to date", func() bool {
		shown = decode[logStreamDetail](t, admin("GET", one, ""), 200)
		return shown.NextEntry > 0 && shown.LagEntries == 0 && len(shown.Deliveries) == 1
	})
	if d := shown.Deliveries[0]; !d.OK || d.Entries != 1 || d.Requests != 1 || d.Status != 200 ||
		shown.URL != strings.TrimSuffix(r.URL, "/")+"/…" {
		t.Errorf("stream %+v", shown)
	}

	// Sent again from a time; a time after all entries is the end of the log.
	again := decode[replayView](t, admin("POST", one+"/replay", `{"from":"2020-01-01T00:00:00Z"}`), 200)
	if p := r.next(t); again.NextEntry != 0 || p.header.Get("Webhook-Id") != e.ID() {
		t.Errorf("replay from %d: %v", again.NextEntry, p.header)
	}
	later := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	end := decode[replayView](t, admin("POST", one+"/replay", `{"from":"`+later+`"}`), 200)
	if end.NextEntry == 0 {
		t.Error("a time after all entries is the start")
	}

	// A test reports why it failed.
	r.status.Store(500)
	if d := decode[logDeliveryView](t, admin("POST", one+"/test", ""), 200); d.OK || d.Code != "log_stream_status" ||
		d.Message != "the receiver responded with status 500" {
		t.Errorf("test: %+v", d)
	}
	r.next(t)

	// An address of this host's reserved ranges is not called.
	changed := decode[LogStreamView](t, admin("PATCH", one, `{"url":"http://169.254.169.254/latest"}`), 200)
	if d := decode[logDeliveryView](t, admin("POST", one+"/test", ""), 200); d.OK && changed.Enabled {
		t.Errorf("test of a metadata address: %+v", d)
	}
	w.wantNowhere(t, key, header, made.Secret)
	answers := string(admin("GET", "/log-streams", "").body) + string(admin("GET", "/audit?kind=action", "").body)
	for _, secret := range []string{key, header, made.Secret} {
		if strings.Contains(answers, secret) {
			t.Errorf("%q is shown", secret)
		}
	}

	for _, bad := range []struct{ path, body, code string }{
		{"/log-streams", `{"name":"x","kind":"syslog","url":"tcp://a.example:514"}`, "invalid_log_stream_url"},
		{"/log-streams", `{"name":"x","kind":"webhook","url":"https://a.example","filter":{"kinds":["x"]}}`, "invalid_log_stream_filter"},
		{one + "/replay", `{"from":"99999999"}`, "invalid_log_stream_start"},
	} {
		a := admin("POST", bad.path, bad.body)
		if a.status != 422 || !strings.Contains(string(a.body), bad.code) {
			t.Errorf("%s %s: %d %s", bad.path, bad.body, a.status, a.body)
		}
	}
	if a := admin("DELETE", one, ""); a.status != 204 {
		t.Errorf("delete: %d", a.status)
	}
	if a := admin("GET", one, ""); a.status != 404 {
		t.Errorf("deleted: %d", a.status)
	}
	var actions []string
	for _, e := range decode[list[auditView]](t, admin("GET", "/audit?action=log_stream.create", ""), 200).Items {
		actions = append(actions, e.Action)
	}
	if !slices.Equal(actions, []string{"log_stream.create"}) {
		t.Errorf("audit %v", actions)
	}
}
