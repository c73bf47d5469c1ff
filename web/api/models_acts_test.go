package api

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/operator"
)

// state returns everything that a model must not change, from the database.
func (w *world) state(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for name, query := range map[string]string{
		"devices":   `SELECT id, name, tags, notes, hold_reason, hold_since, enrolment, retired_at FROM devices ORDER BY id`,
		"rules":     `SELECT id, name, enabled, decision, position FROM policies ORDER BY id`,
		"campaigns": `SELECT * FROM campaigns ORDER BY id`,
		"tokens":    `SELECT id, name, role, tools, revoked_at FROM tokens ORDER BY id`,
		"operators": `SELECT id, name, role, disabled_at FROM operators ORDER BY id`,
		"pins":      `SELECT * FROM tool_pins ORDER BY 1`, "upstreams": `SELECT * FROM upstreams ORDER BY 1`,
		"webhooks": `SELECT * FROM webhooks ORDER BY 1`, "filters": `SELECT * FROM filters ORDER BY 1`,
		"releases": `SELECT id, version, state FROM releases ORDER BY id`, "images": `SELECT * FROM images ORDER BY 1`,
		"rotations": `SELECT count(*) FROM signing_keys`, "enrolment": `SELECT * FROM enrolment_rules ORDER BY 1`,
	} {
		var rows string
		err := w.db.QueryRow(t.Context(), `SELECT coalesce(json_agg(x), '[]')::text FROM (`+query+`) x`).Scan(&rows)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all[name] = rows
	}
	return all
}

// A model decides nothing: whatever its role, its attempts leave the device, the policy, the
// campaign, the token and everything else unchanged.
func TestModelsDecideNothing(t *testing.T) {
	w := newWorld(t)
	w.api.failures = unlimited()
	// Models cannot reach devices with the tag critical; the rule is an admin's.
	decode[deviceView](t, w.as(t, fleet.RoleAdmin, "PATCH", "/devices/"+string(unit), `{"tags":["critical","lab"]}`), 200)
	rule := decode[struct{ ID uuid.UUID }](t, w.as(t, fleet.RoleAdmin, "POST", "/policies", `{"name":"no models here","kinds":["model"],
		"devices":"tag:critical","decision":"deny","position":1}`), 201)
	decode[deviceView](t, w.post(t, "/devices/"+string(other)+"/hold", `{"reason":"hands in machine"}`), 200)
	filter := decode[filterView](t, w.post(t, "/filters", `{"name":"lab","q":"tag:lab"}`), 201)
	at := decode[CampaignView](t, w.post(t, "/campaigns", w.planOf(t, `,"waves":[{"count":1,"gate":"manual"},{"percent":100}]`)),
		201)
	approval := w.planned(t, `,"approval_required":true`)
	w.act(t, at, "start", "")
	w.act(t, approval, "start", "")
	program, _, err := w.operators.NewToken(t.Context(), root, operator.TokenRequest{Name: "victim", Role: fleet.RoleAdmin})
	if err != nil {
		t.Fatal(err)
	}
	before := w.state(t)

	for _, role := range []fleet.Role{fleet.RoleOperator, fleet.RoleAdmin} {
		token := w.model(t, operator.TokenRequest{Name: "model " + string(role), Role: role, Tools: []string{"*"}})
		before["tokens"] = w.state(t)["tokens"]
		try := func(method, path, body string) reply {
			return w.as(t, "", method, path, body, "Authorization", "Bearer "+token)
		}
		call := func() string {
			return string(decode[callView](t, try("POST", "/devices/"+string(unit)+"/calls",
				`{"tool":"self.get_device_status"}`), 200).State)
		}
		if got := call(); got != string(fleet.CallRefused) {
			t.Errorf("the call that the rule denies is %s", got)
		}
		c, d := "/campaigns/"+at.ID.String(), "/devices/"+string(other)
		for _, act := range []struct{ method, path, body string }{
			{"POST", c + "/advance", ""}, {"POST", c + "/abort", `{"rollback":true}`}, {"POST", c + "/rollback", ""},
			{"POST", c + "/pull-now", ""}, {"POST", c + "/pause", ""}, {"POST", c + "/resume", ""}, {"POST", c + "/retry", `{}`},
			{"PATCH", c, `{"max_in_flight":1}`}, {"DELETE", c, ""},
			{"POST", "/campaigns/" + approval.ID.String() + "/approve", `{"digest":"` + approval.Digest + `"}`},
			{"POST", "/campaigns/" + approval.ID.String() + "/deny", `{"reason":"x"}`},
			{"DELETE", "/campaigns/" + approval.ID.String(), ""},
			{"POST", d + "/release", ""}, {"POST", d + "/hold", `{"reason":"mine"}`}, {"DELETE", d, ""},
			{"PATCH", "/devices/" + string(unit), `{"tags":["lab"]}`}, {"PATCH", d, `{"name":"x","notes":"y"}`},
			{"POST", "/devices/" + string(waiting) + "/approve", ""}, {"POST", "/devices/" + string(waiting) + "/reject", ""},
			{"POST", d + "/replace", `{"successor":"` + string(waiting) + `"}`}, {"POST", "/devices/claim", `{"code":"000000"}`},
			{"POST", "/devices/bulk", `{"act":"untag","tags":["critical"],"devices":["` + string(unit) + `"]}`},
			{"POST", "/devices/import", `{"csv":"id,tags\n` + string(unit) + `,lab\n"}`},
			{"PATCH", "/policies/" + rule.ID.String(), `{"enabled":false}`}, {"DELETE", "/policies/" + rule.ID.String(), ""},
			{"POST", "/policies", `{"name":"all","decision":"allow","position":0}`},
			{"PUT", "/tool-pins", `{"device":"` + string(unit) + `","tool":"self.get_device_status"}`},
			{"POST", "/webhooks", `{"name":"x","url":"https://example.net/"}`},
			{"POST", "/upstreams", `{"name":"x","url":"wss://example.net/"}`},
			{"POST", "/operators", `{"name":"mallory","role":"admin","password":"a long enough one"}`},
			{"POST", "/tokens", `{"name":"x","role":"admin"}`}, {"DELETE", "/tokens/" + program.ID.String(), ""},
			{"POST", "/key-rotation/start", `{"confirm":"rotate"}`},
			{"POST", "/enrolment/rules", `{"name":"x","decision":"approve"}`},
			{"PATCH", "/filters/" + filter.ID.String(), `{"q":"board:x"}`}, {"DELETE", "/filters/" + filter.ID.String(), ""},
			{"POST", "/releases", `{"version":"9"}`}, {"PATCH", "/alerts/thresholds", `{}`},
		} {
			r := try(act.method, act.path, act.body)
			if r.status != http.StatusForbidden {
				t.Errorf("%s %s by a model that is %s: %d %s", act.method, act.path, role, r.status, r.body)
			}
		}
		if got := call(); got != string(fleet.CallRefused) {
			t.Errorf("after all that, the call that the rule denies is %s", got)
		}
	}
	after := w.state(t)
	for name, rows := range before {
		if after[name] != rows {
			t.Errorf("a model changed %s:\n%s\nwas\n%s", name, after[name], rows)
		}
	}
}

// The same acts within fleetd, without REST.
func TestModelsDecideNothingInTheDomain(t *testing.T) {
	w := newWorld(t)
	at := w.planned(t, "")
	w.act(t, at, "start", "")
	if _, err := w.devices.Hold(t.Context(), root, other, "hands in machine", nil); err != nil {
		t.Fatal(err)
	}
	before := w.state(t)
	for _, kind := range []fleet.PrincipalKind{fleet.KindModel, fleet.KindVoice} {
		by := fleet.Principal{Kind: kind, ID: uuid.NewString(), Name: "m", Role: fleet.RoleAdmin}
		for name, act := range map[string]func() error{
			"advance": func() error { _, err := w.campaigns.Advance(t.Context(), by, at.ID); return err },
			"abort":   func() error { _, err := w.campaigns.Abort(t.Context(), by, at.ID, true); return err },
			"pause":   func() error { _, err := w.campaigns.Pause(t.Context(), by, at.ID, ""); return err },
			"pull":    func() error { _, err := w.campaigns.PullNow(t.Context(), by, at.ID); return err },
			"retry":   func() error { _, _, err := w.campaigns.Retry(t.Context(), by, at.ID, nil, nil); return err },
			"release": func() error { _, err := w.devices.Release(t.Context(), by, other); return err },
			"hold":    func() error { _, err := w.devices.Hold(t.Context(), by, unit, "x", nil); return err },
			"token": func() error {
				_, _, err := w.operators.NewToken(t.Context(), by, operator.TokenRequest{Name: "x", Role: fleet.RoleViewer})
				return err
			},
			"revoke": func() error { return w.operators.Revoke(t.Context(), by, uuid.New()) },
			"filter": func() error {
				_, err := w.filters.Create(t.Context(), by, fleet.Filter{Name: "x", Query: "tag:x"})
				return err
			},
		} {
			if err := act(); err == nil || !strings.Contains(err.Error(), "person_needed") {
				t.Errorf("%s by a %s: %v", name, kind, err)
			}
		}
	}
	for name, rows := range w.state(t) {
		if before[name] != rows {
			t.Errorf("a model changed %s:\n%s\nwas\n%s", name, rows, before[name])
		}
	}
}

// A model whose token lists no tools can call none; "*" means all.
func TestModelsWithoutTools(t *testing.T) {
	w := newWorld(t)
	for body, want := range map[string]struct {
		access string
		state  fleet.CallState
	}{
		`{"name":"none","kind":"model","role":"operator"}`:                        {"none", fleet.CallRefused},
		`{"name":"all","kind":"model","role":"operator","tools":["*"]}`:           {"all", fleet.CallSucceeded},
		`{"name":"some","kind":"model","role":"operator","tools":["self.get_*"]}`: {"some", fleet.CallSucceeded},
		`{"name":"program","role":"operator"}`:                                    {"all", fleet.CallSucceeded},
	} {
		made := decode[newTokenView](t, w.as(t, fleet.RoleAdmin, "POST", "/tokens", body), 201)
		if made.ToolAccess != want.access || (made.Warning != "") != (want.access == "none") {
			t.Errorf("%s: %q, %q", body, made.ToolAccess, made.Warning)
		}
		c := decode[callView](t, w.as(t, "", "POST", "/devices/"+string(unit)+"/calls", `{"tool":"self.get_device_status"}`,
			"Authorization", "Bearer "+made.Secret), 200)
		if c.State != want.state {
			t.Errorf("%s: the call is %s, %+v", body, c.State, c.Error)
		}
	}
	for _, shown := range decode[list[TokenView]](t, w.as(t, fleet.RoleAdmin, "GET", "/tokens", ""), 200).Items {
		if shown.Name == "none" && shown.ToolAccess != "none" || shown.Name == "all" && shown.ToolAccess != "all" {
			t.Errorf("listed %+v", shown)
		}
	}
}

// The results of a tool that a model may never call are hidden from it: by id, in lists, pictures,
// timelines, bulk calls and events.
func TestModelsSeeNothingOfOtherTools(t *testing.T) {
	w := newWorld(t)
	made := func(tool string) callView {
		return decode[callView](t, w.post(t, "/devices/"+string(unit)+"/calls", `{"tool":"`+tool+`"}`), 200)
	}
	w.listing(t, unit, append(slices.Clone(tools), fleet.Tool{Name: "self.vault.show", Audience: fleet.AudienceUser,
		InputSchema: json.RawMessage(`{"type":"object"}`)}))
	secret, open := made("self.vault.show"), made("self.get_device_status")
	set := decode[callView](t, w.post(t, "/devices/"+string(unit)+"/calls",
		`{"tool":"self.audio_speaker.set_volume","arguments":{"volume":3}}`), 200)
	picture := w.snapshot(t, unit)
	fan := decode[FanOutView](t, w.post(t, "/fanouts", `{"tool":"self.vault.show","devices":["`+string(unit)+`"]}`), 201)
	w.await(t, "/fanouts/"+fan.ID.String())
	w.listing(t, unit, tools) // an update removed the tool; its results remain

	see := w.model(t, operator.TokenRequest{Name: "reader", Role: fleet.RoleOperator, Tools: []string{"self.get_*"}})
	all := w.model(t, operator.TokenRequest{Name: "all", Role: fleet.RoleOperator, Tools: []string{"*"}})
	get := func(token, path string) reply {
		return w.as(t, "", "GET", path, "", "Authorization", "Bearer "+token)
	}
	for path, want := range map[string][2]int{ // of the reader, and of the model with all tools
		"/calls/" + secret.ID.String():             {404, 404},
		"/calls/" + set.ID.String():                {404, 200},
		"/calls/" + open.ID.String():               {200, 200},
		"/snapshots/" + picture:                    {404, 404},
		"/fanouts/" + fan.ID.String():              {404, 404},
		"/fanouts/" + fan.ID.String() + "/answers": {404, 404},
	} {
		for i, token := range []string{see, all} {
			if r := get(token, path); r.status != want[i] {
				t.Errorf("%s by model %d is answered %d %s", path, i, r.status, r.body)
			}
		}
	}
	device := "/devices/" + string(unit)
	for _, path := range []string{"/calls", device + "/calls", device + "/timeline", "/fanouts",
		"/snapshots?device=" + string(unit), device + "/tools", device + "/tools?audience=user", "/stats",
		device + "/inventories/diff"} {
		for i, token := range []string{see, all} {
			r := get(token, path)
			text := string(r.body)
			if r.status != 200 || strings.Contains(text, "self.vault") || strings.Contains(text, picture) ||
				strings.Contains(text, fleet.ToolReboot) || i == 0 && strings.Contains(text, "set_volume") {
				t.Errorf("%s by model %d is answered %d %s", path, i, r.status, text)
			}
		}
	}
	if got := decode[list[callView]](t, get(see, "/calls"), 200).Items; len(got) != 1 || got[0].ID != open.ID {
		t.Errorf("the reader's list is %+v", got)
	}
	if got := decode[list[callView]](t, w.get(t, "/calls?"+url.Values{"tool": {"self.vault.show"}}.Encode()),
		200).Items; len(got) != 2 {
		t.Errorf("a program sees %d calls of it, want 2", len(got))
	}

	lines := w.listen(t, "?kind=call", see)
	reboot := w.post(t, device+"/calls", `{"tool":"self.reboot","timeout_ms":100}`) // the device stays connected
	if c := decode[callView](t, reboot, 200); c.State != fleet.CallTimedOut {
		t.Errorf("the reboot is %s, %+v", c.State, c.Error)
	}
	made("self.get_device_status")
	if _, e := next(t, lines); e.Call == nil || e.Call.Tool != "self.get_device_status" {
		t.Errorf("the first event is %+v", e)
	}
}

// A saved filter is visible to a principal with a scope only if its query repeats that scope.
func TestFiltersInScope(t *testing.T) {
	w := newWorld(t)
	for _, f := range []string{`{"name":"vault","q":"id:a085e3112244 tag:vip"}`, `{"name":"lab-boxes","q":"board:esp* tag:lab"}`,
		`{"name":"lab-trap","q":"-name:\"x tag:lab y\""}`} {
		decode[filterView](t, w.post(t, "/filters", f), 201)
	}
	shown := decode[list[filterView]](t, w.as(t, "", "GET", "/filters", "", "Authorization",
		"Bearer "+w.scoped(t, fleet.RoleViewer, "tag:lab")), 200).Items
	if len(shown) != 1 || shown[0].Name != "lab-boxes" {
		t.Errorf("a token with the scope tag:lab reads %+v", shown)
	}
	if all := decode[list[filterView]](t, w.get(t, "/filters"), 200).Items; len(all) != 3 {
		t.Errorf("a token of the whole fleet reads %+v", all)
	}
}
