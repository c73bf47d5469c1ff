package api

import (
	"net/http"
	"strings"
	"testing"

	"fleetd/fleet"
)

func TestEnrolmentRules(t *testing.T) {
	w := newWorld(t)
	made := decode[ruleView](t, w.post(t, "/enrolment/rules",
		`{"name":"lab","action":"accept","boards":["Bread-*"],"networks":["10.1.2.3/16"],
		"devices":["A0:85:E3:11:22:99","a085e3112288"],"until":"2099-01-01T00:00:00Z",
		"max_devices":5,"tags":["lab"]}`), http.StatusCreated)
	if !made.Enabled || made.Boards[0] != "bread-*" || made.Networks[0] != "10.1.0.0/16" || made.DevicesCount != 2 ||
		made.Devices[0] != "a085e3112288" || made.CreatedBy != "admin-script" {
		t.Errorf("made %+v", made)
	}
	shut := decode[ruleView](t, w.post(t, "/enrolment/rules", `{"name":"all else","action":"refuse","enabled":false}`),
		http.StatusCreated)
	moved := decode[ruleView](t, w.as(t, fleet.RoleAdmin, "PATCH", "/enrolment/rules/"+shut.ID.String(), `{"position":0}`),
		http.StatusOK)
	if moved.Position != 0 || moved.Enabled {
		t.Errorf("moved: %+v", moved)
	}
	changed := decode[ruleView](t, w.as(t, fleet.RoleAdmin, "PATCH", "/enrolment/rules/"+made.ID.String(),
		`{"enabled":false,"clear_until":true,"devices":[]}`), http.StatusOK)
	if changed.Enabled || changed.Until != nil || changed.DevicesCount != 0 || changed.Name != "lab" ||
		changed.Position != 1 {
		t.Errorf("changed: %+v", changed)
	}
	all := decode[list[ruleView]](t, w.get(t, "/enrolment/rules"), http.StatusOK)
	if len(all.Items) != 2 || all.Items[0].ID != shut.ID {
		t.Errorf("listed: %+v", all.Items)
	}
	asking := decode[waitingList](t, w.get(t, "/enrolment/waiting"), http.StatusOK)
	if len(asking.Items) != 1 || asking.Items[0].DeviceID != waiting || asking.Items[0].Rule == nil ||
		asking.Items[0].Rule.ID != shut.ID || asking.Items[0].Rule.Enabled {
		t.Errorf("waiting: %+v", asking.Items)
	}
	if r := w.as(t, fleet.RoleAdmin, "DELETE", "/enrolment/rules/"+made.ID.String(),
		""); r.status != http.StatusNoContent {
		t.Errorf("deleted: %d %s", r.status, r.body)
	}
	if p := w.get(t, "/enrolment/rules/"+made.ID.String()).problem(t); p.Code != "unknown_rule" {
		t.Errorf("after that: %+v", p)
	}
}

func TestEnrolmentRuleBadInput(t *testing.T) {
	w := newWorld(t)
	const rules = "/enrolment/rules"
	id := decode[ruleView](t, w.post(t, rules, `{"name":"x","action":"refuse"}`), http.StatusCreated).ID.String()
	tests := []struct {
		method, path, body, code string
		status                   int
	}{
		{"POST", rules, `{}`, "name_missing", 422},
		{"POST", rules, `{"name":"x"}`, "invalid_rule_action", 422},
		{"POST", rules, `{"name":"x","action":"admit"}`, "invalid_request", 422},
		{"POST", rules, `{"name":"x","action":"accept"}`, "rule_too_wide", 422},
		{"POST", rules, `{"name":"x","action":"accept","networks":["lab"]}`, "invalid_network", 422},
		{"POST", rules, `{"name":"x","action":"accept","devices":["a085e3112233","a085"]}`, "invalid_device_list", 422},
		{"POST", rules, `{"name":"x","action":"refuse","until":"2020-01-02T00:00:00Z","from":"2020-01-03T00:00:00Z"}`,
			"invalid_window", 422},
		{"POST", rules, `{"name":"x","action":"refuse","max_devices":-1}`, "invalid_request", 422},
		{"POST", rules, `{"name":"x","action":"refuse","colour":"red"}`, "invalid_request", 422},
		{"POST", rules, `{"name":"` + strings.Repeat("x", 130) + `","action":"refuse"}`, "invalid_request", 422},
		{"PATCH", rules + "/" + id, `{"name":""}`, "name_missing", 422},
		{"PATCH", rules + "/" + id, `{"action":"accept"}`, "rule_too_wide", 422},
		{"PATCH", rules + "/01a1fc6b-6015-711c-9d5d-5b739ab112aa", `{"enabled":true}`, "unknown_rule", 404},
		{"DELETE", rules + "/01a1fc6b-6015-711c-9d5d-5b739ab112aa", ``, "unknown_rule", 404},
		{"GET", rules + "/7", ``, "invalid_request", 422},
	}
	for _, tt := range tests {
		r := w.as(t, fleet.RoleAdmin, tt.method, tt.path, tt.body)
		if p := r.problem(t); p.Status != tt.status || p.Code != tt.code {
			t.Errorf("%s %s %s: %s", tt.method, tt.path, tt.body, r.body)
		} else if tt.code == "invalid_device_list" && p.Params["line"] != 2.0 {
			t.Errorf("the line at fault is %v", p.Params)
		}
	}
}
