package api

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/alert"
	"fleetd/fleet/webhook"
)

// TestAlerts opens an alert as the loop does, and follows it over REST and a webhook.
func TestAlerts(t *testing.T) {
	w := newWorld(t)
	posted := make(chan string, 10)
	signatures := make(chan bool, 10)
	var secret string
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		signatures <- r.Header.Get(webhook.SignatureHeader) == webhook.Sign([]byte(secret), body)
		posted <- string(body)
	}))
	defer receiver.Close()
	made := decode[newWebhookView](t, w.post(t, "/webhooks", `{"name":"on call","url":"`+receiver.URL+
		`","events":["alert.opened","alert.acknowledged"]}`), 201)
	secret = made.Secret
	w.run(t, w.jobs.Run)

	// A request changes only the thresholds that it names.
	before := decode[thresholdsView](t, w.get(t, "/alerts/thresholds"), 200)
	change := `{"conditions":[{"kind":"tools_changed","span_ms":3600000}],"end_after_ms":60000}`
	for _, role := range []fleet.Role{fleet.RoleViewer, fleet.RoleOperator} {
		if p := w.as(t, role, "PATCH", "/alerts/thresholds", change).problem(t); p.Status != 403 {
			t.Errorf("%s set thresholds: %d", role, p.Status)
		}
	}
	after := decode[thresholdsView](t, w.as(t, fleet.RoleAdmin, "PATCH", "/alerts/thresholds", change), 200)
	for i, c := range after.Conditions {
		if was := before.Conditions[i]; c.Kind == alert.ToolsChanged && (*c.Span != 3_600_000 || *c.Count != *was.Count) {
			t.Errorf("tools_changed is %+v", c)
		}
	}
	for body, code := range map[string]string{
		`{"conditions":[{"kind":"tools_changed","count":0}]}`:     "invalid_threshold",
		`{"conditions":[{"kind":"disk_low","count":3}]}`:          "invalid_threshold",
		`{"conditions":[{"kind":"crash_loop","span_ms":1}]}`:      "invalid_threshold",
		`{"conditions":[{"kind":"made_up","enabled":false}]}`:     "invalid_request",
		`{"conditions":[{"kind":"online_dropped","percent":-3}]}`: "invalid_request",
		`{"settle_ms":1500}`: "invalid_alert_wait",
	} {
		if p := w.as(t, fleet.RoleAdmin, "PATCH", "/alerts/thresholds", body).problem(t); p.Code != code {
			t.Errorf("%s: %s, want %s", body, p.Code, code)
		}
	}

	// The world's devices listed a second set of tools with the same firmware.
	w.alerts.Look(t.Context())
	found := decode[list[AlertView]](t, w.get(t, "/alerts"), 200).Items
	if len(found) != 1 || found[0].Kind != alert.ToolsChanged || found[0].State != alert.Open || found[0].Devices != 2 ||
		!strings.Contains(found[0].Message, "2 devices changed their tools") {
		t.Fatalf("alerts %+v", found)
	}
	one := "/alerts/" + found[0].ID.String()
	if p := w.as(t, fleet.RoleViewer, "POST", one+"/acknowledge", `{}`).problem(t); p.Status != 403 {
		t.Errorf("a viewer acknowledged it: %d", p.Status)
	}
	acked := decode[AlertView](t, w.as(t, fleet.RoleOperator, "POST", one+"/acknowledge", `{"note":"new board"}`), 200)
	if acked.State != alert.Acknowledged || *acked.AckedBy != "operator-script" || acked.Note != "new board" {
		t.Errorf("acknowledged: %+v", acked)
	}
	if p := w.as(t, fleet.RoleOperator, "POST", one+"/acknowledge", `{}`).problem(t); p.Code != "alert_not_open" ||
		p.Status != 409 {
		t.Errorf("a second time: %+v", p)
	}
	whole := decode[alertWithHistory](t, w.get(t, one), 200)
	if len(whole.History) != 2 || whole.History[1].Event != alert.Acked || whole.History[1].By != "operator-script" {
		t.Errorf("history %+v", whole.History)
	}
	if n := len(decode[list[AlertView]](t, w.get(t, "/alerts?state=ended"), 200).Items); n != 0 {
		t.Errorf("%d have ended", n)
	}

	// Deliveries are concurrent jobs: they may arrive in either order.
	arrived := map[webhook.EventKind]bool{}
	for len(arrived) < 2 {
		select {
		case body := <-posted:
			var message struct {
				Event webhook.EventKind
				URL   string
				Alert struct {
					ID   string
					Kind alert.Kind
				}
			}
			if err := json.Unmarshal([]byte(body), &message); err != nil || arrived[message.Event] ||
				message.Alert.ID != found[0].ID.String() || message.URL != "http://fleet.test"+one || !<-signatures {
				t.Fatalf("posted %s (%v)", body, err)
			}
			arrived[message.Event] = true
		case <-time.After(time.Minute):
			t.Fatalf("only %v was posted", arrived)
		}
	}
	if !arrived[webhook.AlertOpened] || !arrived[webhook.AlertAcknowledged] {
		t.Errorf("posted %v", arrived)
	}

	// A principal without access to the whole fleet gets a refusal rather than an empty list.
	w.tokens["narrow"] = w.scoped(t, fleet.RoleAdmin, "tag:lab")
	for _, path := range []string{"/alerts", one, "/alerts/thresholds", "/alerts/mail"} {
		if p := w.as(t, "narrow", "GET", path, "").problem(t); p.Status != 403 {
			t.Errorf("GET %s with a filter: %d", path, p.Status)
		}
	}
}

func TestAlertMailSettings(t *testing.T) {
	w := newWorld(t)
	admin := fleet.RoleAdmin
	got := decode[alertMailView](t, w.as(t, admin, "PATCH", "/alerts/mail",
		`{"recipients":["ada@example.org"],"language":"zh-CN"}`), 200)
	if got.Enabled || len(got.Recipients) != 1 || got.Language != "zh-CN" || got.LastAt != nil {
		t.Errorf("mail %+v", got)
	}
	for body, code := range map[string]string{
		`{"recipients":["Ada <ada@example.org>"]}`:               "invalid_recipients",
		`{"recipients":["a@example.org\r\nBcc: b@example.org"]}`: "invalid_recipients",
		`{"recipients":["a@example.org,b@example.org"]}`:         "invalid_recipients",
		`{"language":"fr"}`: "invalid_request",
	} {
		if p := w.as(t, admin, "PATCH", "/alerts/mail", body).problem(t); p.Code != code {
			t.Errorf("%s: %s, want %s", body, p.Code, code)
		}
	}
	if p := w.as(t, admin, "POST", "/alerts/mail/test", "").problem(t); p.Code != "mail_off" {
		t.Errorf("a test without a mail server: %s", p.Code)
	}
}
