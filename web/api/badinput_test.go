package api

import (
	"net/http"
	"strings"
	"testing"

	"fleetd/fleet"
)

// Every way to be wrong gets a status, a code and the field at fault.
func TestBadInput(t *testing.T) {
	w := newWorld(t)
	const none = "/devices/0123456789ab"
	nobody := "/01a1fc6b-6015-711c-9d5d-5b739ab112aa"
	tests := []struct {
		method, path, body string
		status             int
		code, field        string
	}{
		{"GET", none, "", 404, "unknown_device", ""},
		{"GET", none + "/tools", "", 404, "unknown_device", ""},
		{"GET", none + "/inventories", "", 404, "unknown_device", ""},
		{"GET", none + "/inventories/diff", "", 404, "unknown_device", ""},
		{"GET", none + "/firmware", "", 404, "unknown_device", ""},
		{"GET", none + "/facts", "", 404, "unknown_device", ""},
		{"GET", none + "/calls", "", 404, "unknown_device", ""},
		{"POST", none + "/calls", volume50, 404, "unknown_device", ""},
		{"PATCH", none, `{"name":"x"}`, 404, "unknown_device", ""},
		{"DELETE", none, "", 404, "unknown_device", ""},
		{"POST", none + "/hold", `{"reason":"x"}`, 404, "unknown_device", ""},
		{"POST", none + "/release", "", 404, "unknown_device", ""},
		{"POST", none + "/approve", "", 404, "unknown_device", ""},
		{"POST", none + "/reject", "", 404, "unknown_device", ""},
		{"POST", none + "/replace", `{"successor":"a085e3112244"}`, 404, "unknown_device", ""},
		{"POST", "/devices/a085e3112233/replace", `{"successor":"0123456789ab"}`, 422, "unknown_device", "body.successor"},
		{"POST", "/devices/a085e3112233/replace", `{"successor":"a085e3112233"}`, 422, "invalid_successor", ""},
		{"POST", "/devices/a085e3112233/replace", `{"successor":"not/one"}`, 422, "invalid_device_id", ""},
		{"GET", "/devices/not%20one", "", 422, "invalid_device_id", ""},
		{"GET", "/devices/" + strings.Repeat("a", 81), "", 422, "invalid_request", "path.id"},
		{"GET", "/calls" + nobody, "", 404, "unknown_call", ""},
		{"GET", "/calls/7", "", 422, "invalid_request", "path.id"},
		{"GET", "/fanouts" + nobody, "", 404, "unknown_fanout", ""},
		{"POST", "/fanouts" + nobody + "/cancel", "", 404, "unknown_fanout", ""},
		{"GET", "/snapshots" + nobody, "", 404, "unknown_snapshot", ""},
		{"DELETE", "/tokens" + nobody, "", 404, "unknown_token", ""},
		{"PATCH", "/operators" + nobody, `{"disabled":true}`, 404, "unknown_operator", ""},

		{"GET", "/devices?limit=0", "", 422, "invalid_request", "query.limit"},
		{"GET", "/devices?limit=501", "", 422, "invalid_request", "query.limit"},
		{"GET", "/devices?limit=many", "", 422, "invalid_request", "query.limit"},
		{"GET", "/devices?sort=colour", "", 422, "invalid_request", "query.sort"},
		{"GET", "/devices?q=colour:red", "", 422, "unknown_field", ""},
		{"GET", "/devices?q=%00", "", 422, "invalid_query", ""},
		{"GET", "/devices?cursor=nonsense", "", 422, "invalid_cursor", ""},
		{"GET", "/calls?cursor=nonsense", "", 422, "invalid_cursor", ""},
		{"GET", "/audit?cursor=nonsense", "", 422, "invalid_cursor", ""},
		{"GET", "/fanouts?cursor=nonsense", "", 422, "invalid_cursor", ""},
		{"GET", "/calls?since=yesterday", "", 422, "invalid_request", "query.since"},
		{"GET", "/calls?until=2026-13-01T00:00:00Z", "", 422, "invalid_request", "query.until"},
		{"GET", "/calls?state=tired", "", 422, "invalid_request", "query.state[0]"},
		{"GET", "/calls?fanout=7", "", 422, "invalid_request", "query.fanout"},
		{"GET", "/calls?device=not%20one", "", 422, "invalid_device_id", ""},
		{"GET", "/stats?since=2001-01-01T00:00:00Z", "", 422, "invalid_since", "query.since"},
		{"GET", "/stats?since=2101-01-01T00:00:00Z", "", 422, "invalid_since", "query.since"},
		{"GET", "/stats?step_ms=0", "", 422, "invalid_request", "query.step_ms"},
		{"GET", "/snapshots", "", 422, "invalid_request", ""},
		{"GET", "/events?kind=weather", "", 422, "invalid_request", "query.kind[0]"},
		{"GET", "/events?device=not%20one", "", 422, "invalid_device_id", ""},
		{"GET", "/devices/a085e3112233/tools?audience=cats", "", 422, "invalid_request", "query.audience"},
		{"GET", "/devices/a085e3112233/inventories/diff?from=7", "", 422, "unknown_inventory", "query.from"},
		{"GET", "/devices/a085e3112255/inventories/diff", "", 422, "unknown_inventory", "query.from"},

		{"POST", callPath, "", 400, "malformed_json", ""},
		{"POST", callPath, `{"tool":`, 400, "malformed_json", "body"},
		{"POST", callPath, volume50 + "x", 400, "malformed_json", "body"},
		{"POST", callPath, `[]`, 422, "invalid_request", "body"},
		{"POST", callPath, `{}`, 422, "invalid_request", "body"},
		{"POST", callPath, `{"tool":""}`, 422, "invalid_request", "body.tool"},
		{"POST", callPath, `{"tool":7}`, 422, "invalid_request", "body.tool"},
		{"POST", callPath, `{"tool":"self.x","args":{}}`, 422, "invalid_request", "body.args"},
		{"POST", callPath, `{"tool":"self.x","arguments":[1]}`, 422, "invalid_request", "body.arguments"},
		{"POST", callPath, `{"tool":"self.x","arguments":"{}"}`, 422, "invalid_request", "body.arguments"},
		{"POST", callPath, `{"tool":"self.x","timeout_ms":-1}`, 422, "invalid_request", "body.timeout_ms"},
		{"POST", callPath, `{"tool":"self.x","timeout_ms":300001}`, 422, "invalid_request", "body.timeout_ms"},
		{"POST", callPath, `{"tool":"self.x","timeout_ms":1.5}`, 422, "invalid_request", "body.timeout_ms"},
		{"POST", callPath, `{"tool":"self.x","arguments":{"a":"` + strings.Repeat("x", 4000) + `"}}`, 422, "arguments_too_large", ""},
		{"POST", callPath, `{"tool":"` + strings.Repeat("x", 70_000) + `"}`, 413, "body_too_large", ""},

		{"POST", "/devices/claim", `{"code":"12345"}`, 422, "invalid_code", ""},
		{"POST", "/devices/claim", `{}`, 422, "invalid_request", "body"},
		{"POST", "/devices/a085e3112233/hold", `{"reason":""}`, 422, "invalid_request", "body.reason"},
		{"POST", "/devices/a085e3112233/hold", `{"reason":" "}`, 422, "invalid_reason", "reason"},
		{"POST", "/devices/a085e3112233/hold", `{"reason":"x","until":"soon"}`, 422, "invalid_request", "body.until"},
		{"POST", "/devices/a085e3112233/hold", `{"reason":"x","until":"2001-01-01T00:00:00Z"}`, 422, "invalid_until", "until"},
		{"POST", "/devices/a085e3112233/approve", "", 409, "already_enrolled", ""},
		{"PATCH", "/devices/a085e3112233", `{"tags":["two words"]}`, 422, "invalid_tag", "tags"},
		{"PATCH", "/devices/a085e3112233", `{"tags":"lab"}`, 422, "invalid_request", "body.tags"},
		{"PATCH", "/devices/a085e3112233", `{"name":"a\u0000b"}`, 422, "invalid_name", "name"},
		{"PATCH", "/devices/a085e3112233", `{"version":"9"}`, 422, "invalid_request", "body.version"},
		{"POST", "/fanouts", `{"tool":"self.x"}`, 422, "audience_missing", ""},
		{"POST", "/fanouts", `{"tool":"self.x","q":"","devices":["a085e3112233"]}`, 422, "audience_missing", ""},
		{"POST", "/fanouts", `{"tool":"self.x","q":"colour:red"}`, 422, "unknown_field", ""},
		{"POST", "/fanouts", `{"tool":"self.x","devices":[]}`, 422, "invalid_request", "body.devices"},
		{"POST", "/fanouts", `{"tool":"self.x","devices":["not one"]}`, 422, "invalid_device_id", ""},
		{"POST", "/fanouts", `{"tool":"self.fly","q":""}`, 422, "empty_audience", ""},
		{"POST", "/fanouts", `{"tool":"self.x","q":"","max_in_flight":2001}`, 422, "invalid_request", "body.max_in_flight"},
		{"POST", "/tokens", `{"name":"x","role":"god"}`, 422, "invalid_request", "body.role"},
		{"POST", "/tokens", `{"name":"x","expires_at":"2001-01-01T00:00:00Z"}`, 422, "invalid_expires_at", "expires_at"},
		{"POST", "/operators", `{"name":"ann","role":"viewer","password":"short"}`, 422, "invalid_request", "body.password"},
		{"POST", "/operators", `{"name":"-","role":"viewer","password":"long enough"}`, 422, "invalid_name", "name"},

		{"GET", "/nothing", "", 404, "not_found", ""},
		{"PUT", "/devices", "", 405, "method_not_allowed", ""},
	}
	for _, tt := range tests {
		r := w.as(t, fleet.RoleAdmin, tt.method, tt.path, tt.body)
		if p := r.problem(t); p.Status != tt.status || p.Code != tt.code || p.Field != tt.field {
			t.Errorf("%s %s %.200s\nanswered %s\nwant %d %s %s", tt.method, tt.path, tt.body, r.body, tt.status, tt.code, tt.field)
		}
		if strings.Contains(string(r.body), "short") || strings.Contains(string(r.body), "SQLSTATE") {
			t.Errorf("%s %s: the answer repeats what it should not: %s", tt.method, tt.path, r.body)
		}
	}
	if log := w.log.String(); strings.Contains(log, "request failed") {
		t.Errorf("bad input was logged as a failure: %s", log)
	}
}

func TestContentTypes(t *testing.T) {
	w := newWorld(t)
	for ct, status := range map[string]int{
		"application/json": 200, "application/json; charset=utf-8": 200, "": 200,
		"text/plain": 415, "application/x-www-form-urlencoded": 415, "nonsense": 415,
	} {
		if r := w.post(t, callPath, volume50, "Content-Type", ct); r.status != status {
			t.Errorf("%q: answered %d %s, want %d", ct, r.status, r.body, status)
		} else if status == 415 && r.problem(t).Code != "unsupported_media_type" {
			t.Errorf("%q: answered %s", ct, r.body)
		}
	}
	if r := w.as(t, fleet.RoleViewer, http.MethodGet, "/devices", "", "Accept", "text/html"); r.status != 200 {
		t.Errorf("a browser's Accept is answered %d", r.status)
	}
	if r := w.as(t, fleet.RoleViewer, http.MethodPut, "/devices", ""); r.header.Get("Allow") != "GET" {
		t.Errorf("Allow is %q", r.header.Get("Allow"))
	}
}
