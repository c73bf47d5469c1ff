package api

import (
	"net/http"
	"strings"
	"testing"

	"fleetd/fleet"
)

// Every invalid input gets a status, a code and the field at fault.
func TestBadInput(t *testing.T) {
	w := newWorld(t)
	const none = "/devices/0123456789ab"
	unknown := "/01a1fc6b-6015-711c-9d5d-5b739ab112aa"
	noImage := "/" + strings.Repeat("0", 64)
	plan := func(more string) string {
		return `{"name":"x","release_id":"01a1fc6b-6015-711c-9d5d-5b739ab112aa"` + more + `}`
	}
	release := w.release(t)
	good := func(more string) string { return `{"name":"x","release_id":"` + release.ID + `"` + more + `}` }
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
		{"POST", none + "/resolve-conflict", `{"act":"dismiss"}`, 404, "unknown_device", ""},
		{"POST", "/devices/a085e3112233/resolve-conflict", `{"act":"dismiss"}`, 409, "no_conflict", ""},
		{"POST", "/devices/a085e3112233/resolve-conflict", `{"act":"guess"}`, 422, "invalid_request", "body.act"},
		{"POST", "/devices/a085e3112233/resolve-conflict", `{}`, 422, "invalid_request", "body"},
		{"POST", "/devices/not%20one/resolve-conflict", `{"act":"dismiss"}`, 422, "invalid_device_id", ""},
		{"POST", none + "/replace", `{"successor":"a085e3112244"}`, 404, "unknown_device", ""},
		{"POST", "/devices/a085e3112233/replace", `{"successor":"0123456789ab"}`, 422, "unknown_device", "body.successor"},
		{"POST", "/devices/a085e3112233/replace", `{"successor":"a085e3112233"}`, 422, "invalid_successor", ""},
		{"POST", "/devices/a085e3112233/replace", `{"successor":"not/one"}`, 422, "invalid_device_id", ""},
		{"POST", "/devices/a085e3112233/replace", `{}`, 422, "invalid_successor", "body.successor"},
		{"POST", "/devices/a085e3112233/replace", `{"successor":"a085e3112244","code":"123456"}`, 422, "invalid_successor",
			"body.successor"},
		{"POST", "/devices/a085e3112233/replace", `{"code":"12"}`, 422, "invalid_code", ""},
		{"GET", "/devices/not%20one", "", 422, "invalid_device_id", ""},
		{"GET", "/devices/" + strings.Repeat("a", 81), "", 422, "invalid_request", "path.id"},
		{"GET", "/calls" + unknown, "", 404, "unknown_call", ""},
		{"GET", "/calls/7", "", 422, "invalid_request", "path.id"},
		{"GET", "/fanouts" + unknown, "", 404, "unknown_fanout", ""},
		{"POST", "/fanouts" + unknown + "/cancel", "", 404, "unknown_fanout", ""},
		{"GET", "/snapshots" + unknown, "", 404, "unknown_snapshot", ""},
		{"DELETE", "/tokens" + unknown, "", 404, "unknown_token", ""},
		{"PATCH", "/operators" + unknown, `{"disabled":true}`, 404, "unknown_operator", ""},

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
		{"POST", callPath, `{"tool":"self.x","arguments":{"a":"` + strings.Repeat("x", 4000) + `"}}`, 422,
			"arguments_too_large", ""},
		{"POST", callPath, `{"tool":"` + strings.Repeat("x", 70_000) + `"}`, 413, "body_too_large", ""},

		{"POST", "/devices/claim", `{"code":"12345"}`, 422, "invalid_code", ""},
		{"POST", "/devices/claim", `{}`, 422, "invalid_request", "body"},
		{"POST", "/devices/a085e3112233/hold", `{"reason":""}`, 422, "invalid_request", "body.reason"},
		{"POST", "/devices/a085e3112233/hold", `{"reason":" "}`, 422, "invalid_reason", "reason"},
		{"POST", "/devices/a085e3112233/hold", `{"reason":"x","until":"soon"}`, 422, "invalid_request", "body.until"},
		{"POST", "/devices/a085e3112233/hold", `{"reason":"x","until":"2001-01-01T00:00:00Z"}`, 422, "invalid_until",
			"until"},
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
		{"POST", "/fanouts", `{"tool":"self.x","q":"","offline":"maybe"}`, 422, "invalid_request", "body.offline"},
		{"POST", "/fanouts", `{"tool":"self.x","q":"","offline":"wait","offline_wait_ms":86400001}`, 422, "invalid_request",
			"body.offline_wait_ms"},
		{"POST", "/fanouts", `{"tool":"self.x","q":"","offline":"wait","offline_wait_ms":-1}`, 422, "invalid_request",
			"body.offline_wait_ms"},
		{"POST", "/fanouts", `{"tool":"self.x","q":"","offline":"skip","offline_wait_ms":1000}`, 422,
			"offline_wait_without_wait", "offline_wait_ms"},
		{"POST", "/fanouts", `{"tool":"self.x","q":"","offline_wait_ms":1000}`, 422, "offline_wait_without_wait",
			"offline_wait_ms"},
		{"POST", "/fanouts", `{"tool":"self.x","q":"","max_in_flight":2001}`, 422, "invalid_request", "body.max_in_flight"},
		{"POST", "/tokens", `{"name":"x","role":"god"}`, 422, "invalid_request", "body.role"},
		{"POST", "/tokens", `{"name":"x","expires_at":"2001-01-01T00:00:00Z"}`, 422, "invalid_expires_at", "expires_at"},
		{"POST", "/operators", `{"name":"ann","role":"viewer","password":"short"}`, 422, "invalid_request", "body.password"},
		{"POST", "/operators", `{"name":"ann","role":"viewer","password":"password123"}`, 422, "weak_password", "password"},
		{"POST", "/operators", `{"name":"-","role":"viewer","password":"long enough"}`, 422, "invalid_name", "name"},

		{"GET", "/serials?state=lost", "", 422, "invalid_request", "query.state"},
		{"GET", "/serials?cursor=non%20sense", "", 422, "invalid_cursor", ""},
		{"POST", "/serials", "", 422, "serial_file_empty", ""},
		{"POST", "/serials", "serial,key\nSN-1,short", 422, "invalid_serial_file", "line 2"},
		{"POST", "/serials/SN-1/release", "", 404, "unknown_serial", ""},
		{"DELETE", "/serials/SN-1", "", 404, "unknown_serial", ""},
		{"DELETE", "/serials/" + strings.Repeat("x", 65), "", 422, "invalid_request", "path.serial"},
		{"GET", "/key-rotation/devices?group=lost", "", 422, "invalid_request", "query.group[0]"},
		{"POST", "/key-rotation/start", "", 400, "malformed_json", ""},
		{"POST", "/key-rotation/start", `{"confirm":"yes"}`, 422, "not_confirmed", "confirm"},
		{"POST", "/key-rotation/finish", `{"confirm":"0"}`, 409, "no_rotation", ""},
		{"POST", "/key-rotation/abort", `{"confirm":"abort"}`, 409, "no_rotation", ""},
		{"POST", "/key-rotation/restart", "", 409, "no_rotation", ""},

		{"GET", "/images/7", "", 422, "invalid_request", "path.sha256"},
		{"GET", "/images" + noImage, "", 404, "unknown_image", ""},
		{"PATCH", "/images" + noImage, `{"notes":"x"}`, 404, "unknown_image", ""},
		{"PATCH", "/images" + noImage, `{"version":"9"}`, 422, "invalid_request", "body.version"},
		{"PATCH", "/images" + noImage, `{"board":7}`, 422, "invalid_request", "body.board"},
		{"DELETE", "/images" + noImage, "", 404, "unknown_image", ""},
		{"POST", "/images" + noImage + "/revoke", `{"reason":"x"}`, 404, "unknown_image", ""},
		{"POST", "/images" + noImage + "/revoke", `{"reason":""}`, 422, "invalid_request", "body.reason"},
		{"POST", "/images" + noImage + "/revoke", "", 400, "malformed_json", ""},
		{"GET", "/images" + noImage + "/fit", "", 404, "unknown_image", ""},
		{"GET", "/images" + noImage + "/fit?mode=fly", "", 422, "invalid_request", "query.mode"},
		{"GET", "/images?cursor=nonsense", "", 422, "invalid_cursor", ""},
		{"GET", "/images?limit=0", "", 422, "invalid_request", "query.limit"},

		{"GET", "/releases" + unknown, "", 404, "unknown_release", ""},
		{"GET", "/releases/7", "", 422, "invalid_request", "path.id"},
		{"GET", "/releases?state=ripe", "", 422, "invalid_request", "query.state"},
		{"GET", "/releases?cursor=nonsense", "", 422, "invalid_cursor", ""},
		{"GET", "/releases" + unknown + "/fit", "", 404, "unknown_release", ""},
		{"PATCH", "/releases" + unknown, `{"notes":"x"}`, 404, "unknown_release", ""},
		{"POST", "/releases" + unknown + "/release", "", 404, "unknown_release", ""},
		{"POST", "/releases" + unknown + "/deprecate", "", 404, "unknown_release", ""},
		{"POST", "/releases" + unknown + "/revoke", `{"reason":"x"}`, 404, "unknown_release", ""},
		{"POST", "/releases" + unknown + "/revoke", `{}`, 422, "invalid_request", "body"},
		{"POST", "/releases", `{}`, 422, "invalid_request", "body"},
		{"POST", "/releases", `{"images":"all"}`, 422, "invalid_request", "body.images"},
		{"POST", "/releases", `{"images":[],"board":"x"}`, 422, "invalid_request", "body.board"},

		{"GET", "/campaigns" + unknown, "", 404, "unknown_campaign", ""},
		{"GET", "/campaigns/dry-run", "", 422, "invalid_request", "path.id"},
		{"GET", "/campaigns?state=lost", "", 422, "invalid_request", "query.state[0]"},
		{"GET", "/campaigns?release=7", "", 422, "invalid_request", "query.release"},
		{"GET", "/campaigns?cursor=nonsense", "", 422, "invalid_cursor", ""},
		{"DELETE", "/campaigns" + unknown, "", 404, "unknown_campaign", ""},
		{"PATCH", "/campaigns" + unknown, `{"max_in_flight":5}`, 404, "unknown_campaign", ""},
		{"PATCH", "/campaigns" + unknown, `{"digest":"x"}`, 422, "invalid_request", "body.digest"},
		{"GET", "/campaigns" + unknown + "/deployments", "", 404, "unknown_campaign", ""},
		{"GET", "/campaigns" + unknown + "/deployments?state=lost", "", 422, "invalid_request", "query.state[0]"},
		{"GET", "/campaigns" + unknown + "/deployments?wave=first", "", 422, "invalid_request", "query.wave"},
		{"GET", "/campaigns" + unknown + "/deployments?device=not%20one", "", 422, "invalid_device_id", ""},
		{"GET", "/campaigns" + unknown + "/deployments/a085e3112233", "", 404, "unknown_deployment", ""},
		{"GET", "/campaigns" + unknown + "/deployments/not%20one", "", 422, "invalid_device_id", ""},
		{"POST", "/campaigns" + unknown + "/start", "", 404, "unknown_campaign", ""},
		{"POST", "/campaigns" + unknown + "/resume", "", 404, "unknown_campaign", ""},
		{"POST", "/campaigns" + unknown + "/advance", "", 404, "unknown_campaign", ""},
		{"POST", "/campaigns" + unknown + "/rollback", "", 404, "unknown_campaign", ""},
		{"POST", "/campaigns" + unknown + "/pull-now", "", 404, "unknown_campaign", ""},
		{"POST", "/campaigns" + unknown + "/pause", "", 404, "unknown_campaign", ""},
		{"POST", "/campaigns" + unknown + "/pause", `{"why":"x"}`, 422, "invalid_request", "body.why"},
		{"POST", "/campaigns" + unknown + "/abort", `{"rollback":true}`, 404, "unknown_campaign", ""},
		{"POST", "/campaigns" + unknown + "/abort", `{"rollback":"yes"}`, 422, "invalid_request", "body.rollback"},
		{"POST", "/campaigns" + unknown + "/retry", `{}`, 404, "unknown_campaign", ""},
		{"POST", "/campaigns" + unknown + "/retry", `{"states":["succeeded"]}`, 422, "invalid_request", "body.states[0]"},
		{"POST", "/campaigns" + unknown + "/retry", `{"devices":["not one"]}`, 422, "invalid_device_id", ""},
		{"POST", "/campaigns" + unknown + "/approve", `{"digest":"x"}`, 404, "unknown_campaign", ""},
		{"POST", "/campaigns" + unknown + "/approve", `{}`, 422, "invalid_request", "body"},
		{"POST", "/campaigns" + unknown + "/deny", `{"reason":"x"}`, 404, "unknown_campaign", ""},
		{"POST", "/campaigns" + unknown + "/deny", `{}`, 422, "invalid_request", "body"},
		{"POST", "/campaigns" + unknown + "/approve/again", "", 404, "not_found", ""},

		{"POST", "/campaigns", `{"name":"x","release_id":"7","q":""}`, 422, "invalid_request", "body.release_id"},
		{"POST", "/campaigns", `{"name":"x","q":""}`, 422, "invalid_request", "body"},
		{"POST", "/campaigns", plan(``), 422, "audience_missing", ""},
		{"POST", "/campaigns", plan(`,"q":"","devices":["a085e3112233"]`), 422, "audience_missing", ""},
		{"POST", "/campaigns", plan(`,"devices":[]`), 422, "invalid_request", "body.devices"},
		{"POST", "/campaigns", plan(`,"devices":["not one"]`), 422, "invalid_device_id", ""},
		{"POST", "/campaigns", plan(`,"q":"","mode":"fly"`), 422, "invalid_request", "body.mode"},
		{"POST", "/campaigns", plan(`,"q":"","colour":"red"`), 422, "invalid_request", "body.colour"},
		{"POST", "/campaigns", plan(`,"q":"","waves":[]`), 422, "invalid_request", "body.waves"},
		{"POST", "/campaigns", plan(`,"q":"","waves":[{"percent":"all"}]`), 422, "invalid_request", "body.waves[0].percent"},
		{"POST", "/campaigns", plan(`,"q":"","waves":[{"percent":101}]`), 422, "invalid_request", "body.waves[0].percent"},
		{"POST", "/campaigns", plan(`,"q":"","waves":[{"soak_ms":9999999999999999}]`), 422, "invalid_request",
			"body.waves[0].soak_ms"},
		{"POST", "/campaigns", plan(`,"q":"","windows":[{"cron":"* * * * *"}]`), 422, "invalid_request", "body.windows[0]"},
		{"POST", "/campaigns", plan(`,"q":"","start_at":"soon"`), 422, "invalid_request", "body.start_at"},
		{"POST", "/campaigns", plan(`,"q":"","max_in_flight":-1`), 422, "invalid_request", "body.max_in_flight"},
		{"POST", "/campaigns", plan(`,"q":"","max_in_flight":1.5`), 422, "invalid_request", "body.max_in_flight"},
		{"POST", "/campaigns", plan(`,"q":"","abort_rules":[{"class":"late"}]`), 422, "invalid_request",
			"body.abort_rules[0].class"},
		{"POST", "/campaigns", plan(`,"q":"","health_checks":[{"tool":"self.x","assert":[{"path":"$","op":"is"}]}]`), 422,
			"invalid_request", "body.health_checks[0].assert[0].op"},
		{"POST", "/campaigns", good(`,"q":"","waves":[{"percent":50},{"percent":20}]`), 422, "invalid_waves",
			"waves[1].percent"},
		{"POST", "/campaigns", good(`,"q":"","windows":[{"cron":"0 2 31 2 *","duration_ms":3600000}]`), 422,
			"window_never_opens", "windows"},
		{"POST", "/campaigns", good(`,"q":"colour:red"`), 422, "invalid_query", "q"},
		{"POST", "/campaigns", plan(`,"q":"` + strings.Repeat("x", 3<<20) + `"`), 413, "body_too_large", ""},
		{"POST", "/campaigns", plan(`,"q":""`), 422, "unknown_release", "body.release_id"},
		{"POST", "/campaigns/dry-run", plan(`,"q":""`), 422, "unknown_release", "body.release_id"},
		{"POST", "/campaigns/dry-run", plan(``), 422, "audience_missing", ""},

		{"GET", none + "/deployments", "", 404, "unknown_device", ""},
		{"GET", none + "/outlook", "", 404, "unknown_device", ""},
		{"DELETE", none + "/quarantine", "", 404, "unknown_device", ""},
		{"PATCH", "/devices/a085e3112233", `{"time_zone":"Mars/Olympus"}`, 422, "invalid_time_zone", "time_zone"},

		{"GET", "/nothing", "", 404, "not_found", ""},
		{"PUT", "/devices", "", 405, "method_not_allowed", ""},
	}
	for _, tt := range tests {
		r := w.as(t, fleet.RoleAdmin, tt.method, tt.path, tt.body)
		if p := r.problem(t); p.Status != tt.status || p.Code != tt.code || p.Field != tt.field {
			t.Errorf("%s %s %.200s\nanswered %s\nwant %d %s %s", tt.method, tt.path, tt.body, r.body, tt.status, tt.code,
				tt.field)
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
