package api

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/alert"
	"fleetd/fleet/operator"
	"fleetd/fleet/webhook"
)

// An operator silences an alert and ends the silence; others may not, and nothing changes.
func TestSilencesOverREST(t *testing.T) {
	w := newWorld(t)
	w.alerts.Look(t.Context())
	found := decode[list[AlertView]](t, w.get(t, "/alerts"), 200).Items
	if len(found) != 1 {
		t.Fatalf("alerts %+v", found)
	}
	const path = "/alerts/silences"
	body := `{"alert_id":"` + found[0].ID.String() + `","duration_ms":3600000,"reason":"new boards <b>today"}`
	w.tokens["narrow"] = w.scoped(t, fleet.RoleAdmin, "tag:lab")
	w.tokens["model"] = w.model(t, operator.TokenRequest{Name: "model", Role: fleet.RoleOperator})
	for _, by := range []fleet.Role{fleet.RoleViewer, "narrow", "model"} {
		if p := w.as(t, by, "POST", path, body).problem(t); p.Status != http.StatusForbidden {
			t.Errorf("%s silenced an alert: %d", by, p.Status)
		}
	}
	soon := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	late := time.Now().AddDate(100, 0, 0).UTC().Format(time.RFC3339)
	for body, code := range map[string]string{
		`{"kind":"disk_low","until":"` + late + `","reason":"x"}`:                                            "invalid_silence_end",
		`{"kind":"disk_low","duration_ms":3155760000000,"reason":"x"}`:                                       "invalid_request",
		`{"kind":"disk_low","until":"` + soon + `","reason":"` + strings.Repeat("x", 10_000) + `"}`:          "invalid_request",
		`{"kind":"disk_low","until":"` + soon + `"}`:                                                         "invalid_request",
		`{"until":"` + soon + `","reason":"x"}`:                                                              "invalid_silence",
		`{"kind":"moon","until":"` + soon + `","reason":"x"}`:                                                "invalid_alert_kind",
		`{"query":"colour:red","until":"` + soon + `","reason":"x"}`:                                         "unknown_field",
		`{"kind":"disk_low","reason":"x"}`:                                                                   "invalid_silence_end",
		`{"alert_id":"01a1fc6b-6015-711c-9d5d-5b739ab112aa","until":"` + soon + `","reason":"x"}`:            "unknown_alert",
		`{"alert_id":"` + found[0].ID.String() + `","query":"tag:none","until":"` + soon + `","reason":"x"}`: "silence_not_covering",
	} {
		if p := w.as(t, fleet.RoleOperator, "POST", path, body).problem(t); p.Code != code {
			t.Errorf("%.120s: %s, want %s", body, p.Code, code)
		}
	}
	if all := decode[list[silenceView]](t, w.get(t, path+"?state=all"), 200).Items; len(all) != 0 {
		t.Fatalf("silences %+v", all)
	}

	made := decode[silenceView](t, w.as(t, fleet.RoleOperator, "POST", path, body), 201)
	if !made.Active || made.CreatedBy.Name != "operator-script" || *made.Alert != found[0].ID {
		t.Errorf("silence %+v", made)
	}
	one := decode[alertWithHistory](t, w.get(t, "/alerts/"+found[0].ID.String()), 200)
	if one.Silence == nil || one.Silence.ID != made.ID || one.Silence.Reason != "new boards <b>today" ||
		one.History[len(one.History)-1].Event != alert.Silenced {
		t.Errorf("alert %+v", one)
	}
	for _, by := range []fleet.Role{fleet.RoleViewer, "narrow", "model"} {
		if r := w.as(t, by, "DELETE", path+"/"+made.ID.String(), ""); r.status != http.StatusForbidden {
			t.Errorf("%s ended a silence: %d", by, r.status)
		}
	}
	if n := len(decode[list[silenceView]](t, w.get(t, path), 200).Items); n != 1 {
		t.Errorf("%d silences are active", n)
	}
	if r := w.as(t, fleet.RoleOperator, "DELETE", path+"/"+made.ID.String(), ""); r.status != 204 {
		t.Errorf("end: %d %s", r.status, r.body)
	}
	if p := w.as(t, fleet.RoleOperator, "DELETE", path+"/"+made.ID.String(), "").problem(t); p.Code != "silence_ended" {
		t.Errorf("a second time: %s", p.Code)
	}
	if p := w.as(t, fleet.RoleOperator, "DELETE", path+"/01a1fc6b-6015-711c-9d5d-5b739ab112aa", "").problem(t); p.Status != 404 {
		t.Errorf("an unknown silence: %d", p.Status)
	}
	one = decode[alertWithHistory](t, w.get(t, "/alerts/"+found[0].ID.String()), 200)
	if one.Silence != nil || one.History[len(one.History)-1].Event != alert.Unsilenced {
		t.Errorf("alert %+v", one)
	}
	audit := string(w.as(t, fleet.RoleViewer, "GET", "/audit", "").body)
	if strings.Count(audit, `"alert.silence"`) != 1 || strings.Count(audit, `"alert.unsilence"`) != 1 {
		t.Errorf("audit %s", audit)
	}
}

func TestShapesAndRoutesOverREST(t *testing.T) {
	w := newWorld(t)
	for body, code := range map[string]string{
		`"shape":"irc"`:                                         "invalid_request",
		`"shape":"telegram"`:                                    "invalid_webhook_chat",
		`"shape":"telegram","chat_id":"1\n2"`:                   "invalid_webhook_chat",
		`"shape":"slack","chat_id":"1"`:                         "invalid_webhook_chat",
		`"route":{"query":"tag:\""}`:                            "invalid_query",
		`"route":{"severity":"moon"}`:                           "invalid_request",
		`"route":{"kinds":["moon"]}`:                            "invalid_alert_kind",
		`"shape":"slack","language":"fr"`:                       "invalid_request",
		`"route":{"query":"` + strings.Repeat("x", 2000) + `"}`: "invalid_request",
	} {
		if p := w.post(t, "/webhooks", `{"name":"x","url":"http://127.0.0.1:9/",`+body+`}`).problem(t); p.Code != code {
			t.Errorf("%.100s: %s, want %s", body, p.Code, code)
		}
	}
	made := decode[newWebhookView](t, w.post(t, "/webhooks", `{"name":"x","url":"http://127.0.0.1:9/botSEKRET/sendMessage",
		"shape":"telegram","chat_id":"-100","language":"zh-CN","route":{"query":"tag:site/*","severity":"bad","kinds":["disk_low"]}}`), 201)
	if made.Shape != webhook.Telegram || made.Chat != "-100" || made.Lang != "zh-CN" || made.Route.Query != "tag:site/*" ||
		made.Route.Severity != alert.Bad || len(made.Route.Kinds) != 1 {
		t.Errorf("webhook %+v", made)
	}
	one := "/webhooks/" + made.ID.String()
	changed := decode[WebhookView](t, w.as(t, fleet.RoleAdmin, "PATCH", one, `{"name":"y"}`), 200)
	if changed.Shape != webhook.Telegram || changed.Route.Query != "tag:site/*" {
		t.Errorf("a change of the name made it %+v", changed)
	}
	changed = decode[WebhookView](t, w.as(t, fleet.RoleAdmin, "PATCH", one, `{"shape":"wecom","route":{}}`), 200)
	if changed.Shape != webhook.WeCom || changed.Chat != "" || changed.Route.Query != "" || changed.Route.Severity != alert.Warning {
		t.Errorf("changed to %+v", changed)
	}
	audit := string(w.as(t, fleet.RoleViewer, "GET", "/audit", "").body)
	if strings.Contains(audit, "SEKRET") || strings.Contains(w.log.String(), "SEKRET") {
		t.Error("the token is in the audit log or in the log")
	}
	groups := `{"groups":[{"name":"room","query":"tag:r","warning_percent":50,"critical_percent":80,"least":2,"span_ms":60000}]}`
	if p := w.as(t, fleet.RoleOperator, "PATCH", "/alerts/thresholds", groups).problem(t); p.Status != 403 {
		t.Errorf("an operator set groups: %d", p.Status)
	}
	if got := decode[thresholdsView](t, w.as(t, fleet.RoleAdmin, "PATCH", "/alerts/thresholds", groups), 200); len(got.Groups) != 1 ||
		got.Groups[0].Warning != 50 {
		t.Errorf("groups %+v", got.Groups)
	}
	kept := decode[thresholdsView](t, w.as(t, fleet.RoleAdmin, "PATCH", "/alerts/thresholds", `{"settle_ms":60000}`), 200)
	if len(kept.Groups) != 1 {
		t.Error("another change removed the groups")
	}
}
