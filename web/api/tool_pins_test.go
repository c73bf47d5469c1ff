package api

import (
	"encoding/json"
	"strings"
	"testing"

	"fleetd/fleet"
)

func TestToolPins(t *testing.T) {
	w := newWorld(t)
	say := fleet.Tool{Name: "self.say", Description: "Says <it>.", Audience: fleet.AudienceModel,
		InputSchema: json.RawMessage(`{"type":"object","properties":{"text":{"type":"string"}}}`)}
	w.listing(t, unit, []fleet.Tool{say})
	const body = `{"device":"` + string(unit) + `","tool":"self.say"}`
	// printf '%s' '{"description":"Says <it>.","input_schema":{"properties":{"text":{"type":"string"}},"type":"object"}}' | sha256sum
	const digest = "9f66b9d40102443324b9be42788864b0bb1cc2794ba4a1b9c43cd0e8a5f0d514"
	if p := w.as(t, fleet.RoleOperator, "PUT", "/tool-pins", body).problem(t); p.Code != "forbidden" {
		t.Errorf("an operator is answered %+v", p)
	}
	pin := decode[toolPinView](t, w.as(t, fleet.RoleAdmin, "PUT", "/tool-pins", body), 200)
	if pin.Tool != "self.say" || pin.Digest != digest || pin.PinnedBy != "admin-script" {
		t.Errorf("pinned %+v", pin)
	}
	if all := decode[list[toolPinView]](t, w.as(t, fleet.RoleViewer, "GET", "/tool-pins", ""), 200).Items; len(all) != 1 ||
		all[0] != pin {
		t.Errorf("the pins are %+v, want %+v", all, pin)
	}
	say.Description = "Says it louder."
	w.listing(t, unit, []fleet.Tool{say, {Name: "self.more", Audience: fleet.AudienceModel}})
	if again := decode[toolPinView](t, w.as(t, fleet.RoleAdmin, "PUT", "/tool-pins", body), 200); again.Digest == digest {
		t.Errorf("pinned again %+v", again)
	}
	for _, tt := range []struct{ body, code string }{
		{`{"device":"a085e3110000","tool":"self.say"}`, "unknown_device"},
		{`{"device":"` + string(unit) + `","tool":"self.none"}`, "tool_not_listed"},
		{`{"device":"no such!","tool":"self.say"}`, "invalid_device_id"},
	} {
		if p := w.as(t, fleet.RoleAdmin, "PUT", "/tool-pins", tt.body).problem(t); p.Status != 422 || p.Code != tt.code {
			t.Errorf("%s is answered %+v, want %s", tt.body, p, tt.code)
		}
	}
	if r := w.as(t, fleet.RoleAdmin, "DELETE", "/tool-pins/self.say", ""); r.status != 204 {
		t.Errorf("deleting is answered %d %s", r.status, r.body)
	}
	if p := w.as(t, fleet.RoleAdmin, "DELETE", "/tool-pins/self.say", "").problem(t); p.Status != 404 ||
		p.Code != "unknown_tool_pin" {
		t.Errorf("deleting again is answered %+v", p)
	}
	audit := string(w.as(t, fleet.RoleAdmin, "GET", "/audit", "").body)
	if strings.Count(audit, `"tool_pin.save"`) != 2 || strings.Count(audit, `"tool_pin.delete"`) != 1 {
		t.Errorf("the audit has %s", audit)
	}
}
