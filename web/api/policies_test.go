package api

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/operator"
)

func TestPolicies(t *testing.T) {
	w := newWorld(t)
	all := decode[PolicyList](t, w.get(t, "/policies"), 200)
	if len(all.Items) != 2 || all.Version != 1 || !all.Items[0].Fixed || all.Items[0].Decision != call.DecisionDeny ||
		all.Otherwise != call.DecisionAllow {
		t.Fatalf("a new policy is %+v", all)
	}
	made := decode[PolicyView](t, w.post(t, "/policies", `{"name":"loud","tools":["self.audio_speaker.*"],
		"kinds":["model","program"],"decision":"require_approval","approval_ttl_ms":600000,"note":"neighbours",
		"arguments":{"properties":{"volume":{"minimum":80}},"required":["volume"]},"devices":"tag:lab",
		"window":{"cron":"0 22 * * *","duration_ms":28800000,"time_zone":"Europe/Berlin"},"rate_per_minute":2,"version":1}`), 201)
	if made.Position != 2 || !made.Enabled || made.Window == nil || made.Window.DurationMs != 28800000 ||
		made.UpdatedBy != "admin-script" || string(made.Arguments) != `{"properties":{"volume":{"minimum":80}},"required":["volume"]}` {
		t.Errorf("made %+v", made)
	}
	path := "/policies/" + made.ID.String()
	patch := func(body string) reply { return w.as(t, fleet.RoleAdmin, "PATCH", path, body) }
	if v := decode[PolicyView](t, patch(`{"clear_window":true,"arguments":{},"enabled":false,"version":2}`), 200); v.Window != nil ||
		string(v.Arguments) != "null" || v.Enabled || v.Note != "neighbours" {
		t.Errorf("changed to %+v", v)
	}
	if p := patch(`{"note":"x","version":2}`).problem(t); p.Status != 409 || p.Code != "policy_changed" ||
		fmt.Sprint(p.Params["version"]) != "3" {
		t.Errorf("a change of an older version is answered %+v", p)
	}
	if v := decode[PolicyView](t, patch(`{"position":0}`), 200); v.Position != 1 {
		t.Errorf("moved to %d", v.Position)
	}
	fixed := "/policies/" + all.Items[0].ID.String()
	for what, r := range map[string]reply{
		"policy_fixed":      w.as(t, fleet.RoleAdmin, "PATCH", fixed, `{"enabled":false}`),
		"unknown_policy":    w.as(t, fleet.RoleAdmin, "DELETE", "/policies/0192aaaa-0000-7000-8000-000000000000", ""),
		"unknown_field":     w.post(t, "/policies", `{"name":"x","decision":"deny","devices":"colour:red"}`),
		"invalid_schema":    w.post(t, "/policies", `{"name":"x","decision":"deny","arguments":{"$ref":"#"}}`),
		"limit_on_deny":     w.post(t, "/policies", `{"name":"x","decision":"deny","daily_budget":3}`),
		"window_needs_zone": w.post(t, "/policies", `{"name":"x","decision":"deny","window":{"cron":"0 2 * * *","duration_ms":3600000,"time_zone":"device"}}`),
		"name_missing":      w.post(t, "/policies", `{"decision":"deny"}`),
		"invalid_choice":    w.post(t, "/policies", `{"name":"x"}`),
	} {
		if p := r.problem(t); p.Code != what {
			t.Errorf("answered %+v, want %s", p, what)
		}
	}
	if r := w.as(t, fleet.RoleAdmin, "DELETE", path+"?version=4", ""); r.status != 204 {
		t.Errorf("removing is answered %d %s", r.status, r.body)
	}
	// The response to a change contains its warnings.
	deny := decode[PolicyView](t, w.post(t, "/policies", `{"name":"nothing","decision":"deny","position":1}`), 201)
	if len(deny.Warnings) != 1 || deny.Warnings[0].Code != "operators_locked_out" || deny.Warnings[0].Detail == "" {
		t.Errorf("warnings %+v", deny.Warnings)
	}
	if last := decode[PolicyList](t, w.get(t, "/policies"), 200).Items[2]; len(last.Warnings) != 1 ||
		last.Warnings[0].Code != "shadowed" || last.Warnings[0].Params["by"] != "nothing" {
		t.Errorf("warnings %+v", last.Warnings)
	}
	call := decode[callView](t, w.post(t, "/devices/"+string(unit)+"/calls", `{"tool":"self.get_device_status"}`), 200)
	if call.State != fleet.CallRefused || call.Error == nil || call.Error.Code != "policy_denied" {
		t.Errorf("a call that is denied: %+v", call)
	}
	if r := w.as(t, fleet.RoleAdmin, "PATCH", "/policies/"+deny.ID.String(), `{"enabled":false}`); r.status != 200 {
		t.Errorf("a table that denies everything cannot be changed: %d %s", r.status, r.body)
	}
}

func TestPolicyTrial(t *testing.T) {
	w := newWorld(t)
	w.post(t, "/policies", `{"name":"ask","tools":["self.audio_speaker.set_volume"],"kinds":["model"],"decision":"require_approval"}`)
	try := func(body string) TrialView {
		t.Helper()
		return decode[TrialView](t, w.as(t, fleet.RoleViewer, "POST", "/policies/test", body), 200)
	}
	codes := func(v TrialView) (all []string) {
		for _, r := range v.Items[0].Refusals {
			all = append(all, r.Code)
		}
		return all
	}
	v := try(`{"principal":{"kind":"model","name":"bot"},"device":"` + string(unit) + `","tool":"self.audio_speaker.set_volume","arguments":{"volume":7}}`)
	if d := v.Items[0]; d.Outcome != "pending_approval" || d.Verdict != "require_approval" || d.Rule == nil || d.Rule.Name != "ask" ||
		d.Bytes == nil || d.Bytes.IDIs != "next" || !strings.Contains(d.Bytes.Message, `{"volume":7}`) || len(d.Refusals) != 0 {
		t.Errorf("tried %+v", d)
	}
	v = try(`{"principal":{"kind":"model"},"device":"` + string(unit) + `","tool":"self.reboot"}`)
	if d := v.Items[0]; d.Outcome != "refused" || d.Verdict != "deny" || d.Rule == nil || d.Bytes != nil ||
		!slices.Equal(codes(v), []string{"user_only"}) || d.Refusals[0].Message == "" {
		t.Errorf("tried %+v", d)
	}
	// The response contains all errors at once.
	w.post(t, "/devices/"+string(unit)+"/hold", `{"reason":"on the bench"}`)
	v = try(`{"principal":{"kind":"program","role":"operator"},"device":"` + string(unit) +
		`","tool":"self.audio_speaker.set_volume","arguments":{"volume":700}}`)
	if got := codes(v); !slices.Equal(got, []string{"device_held", "invalid_arguments"}) || v.Items[0].Verdict != "allow" {
		t.Errorf("refusals %v, verdict %s", got, v.Items[0].Verdict)
	}
	v = try(`{"principal":{"kind":"program","role":"viewer"},"tool":"self.reboot","q":"id:a085e*","limit":1}`)
	if v.Matched < 2 || v.Tried != v.Matched || len(v.Items) != 1 || v.Outcomes["refused"] != v.Matched {
		t.Errorf("tried %+v", v)
	}
	// A trial with a token uses the token's access: here a model that sees one device.
	token, _, err := w.operators.NewToken(t.Context(), root, operator.TokenRequest{Name: "bot", Kind: fleet.KindModel,
		Role: fleet.RoleOperator, Scope: "id:" + string(other), Tools: []string{"self.get_*"}})
	if err != nil {
		t.Fatal(err)
	}
	v = try(`{"principal":{"token_id":"` + token.ID.String() + `"},"device":"` + string(unit) + `","tool":"self.reboot"}`)
	if got := codes(v); !slices.Equal(got, []string{"out_of_scope"}) || v.Principal.Kind != fleet.KindModel {
		t.Errorf("refusals %v of %+v", got, v.Principal)
	}
	v = try(`{"principal":{"token_id":"` + token.ID.String() + `"},"device":"` + string(other) + `","tool":"self.reboot"}`)
	if got := codes(v); !slices.Contains(got, "tool_not_allowed") || !slices.Contains(got, "user_only") {
		t.Errorf("refusals %v", got)
	}
	for body, want := range map[string]string{
		`{"principal":{"kind":"model"},"device":"ffffffffffff","tool":"x"}`:            "unknown_device",
		`{"principal":{},"tool":"x"}`:                                                  "invalid_choice",
		`{"principal":{"token_id":"0192aaaa-0000-7000-8000-000000000000"},"tool":"x"}`: "unknown_caller",
		`{"principal":{"kind":"model"},"q":"colour:red","tool":"x"}`:                   "unknown_field",
	} {
		if p := w.post(t, "/policies/test", body).problem(t); p.Code != want {
			t.Errorf("%s is answered %+v, want %s", body, p, want)
		}
	}
	if calls := w.get(t, "/calls"); strings.Contains(string(calls.body), `"tool"`) {
		t.Errorf("a trial left a record: %s", calls.body)
	}
}
