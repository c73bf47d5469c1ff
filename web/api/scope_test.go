package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/operator"
	"fleetd/fleet/telemetry"
)

// sides are the two devices of a world, one on each side of the scope tag:in,
// with the records of each.
type sides map[fleet.DeviceID]*belongings

type belongings struct {
	device                                     fleet.DeviceID
	call, snapshot, coreDump, campaign, fanOut string
	name, tag, reason, campaignName            string
	approval, conversation                     string
}

const marker = "zqxmarker"

// newSides puts unit inside of the scope and other outside, and marks other.
func newSides(t *testing.T, w *world) sides {
	t.Helper()
	w.connect(other)
	all := sides{
		unit:  {device: unit, name: "plain", tag: "in", reason: "plain", campaignName: "plain"},
		other: {device: other, name: "name-" + marker, tag: marker, reason: "reason-" + marker, campaignName: "camp-" + marker},
	}
	release := w.release(t)
	say := fleet.Tool{Name: "self.say", Audience: fleet.AudienceModel,
		InputSchema: json.RawMessage(`{"type":"object","properties":{"text":{"type":"string"}}}`)}
	for _, id := range []fleet.DeviceID{unit, other} {
		b := all[id]
		w.listing(t, id, append(slices.Clone(tools), say))
		at := "/devices/" + string(id)
		ok := func(r reply) reply {
			t.Helper()
			if r.status >= 300 {
				t.Fatalf("setting up %s: %d %s", id, r.status, r.body)
			}
			return r
		}
		ok(w.as(t, fleet.RoleAdmin, "PATCH", at, fmt.Sprintf(`{"name":%q,"tags":[%q],"notes":%q}`, b.name, b.tag, b.name)))
		ok(w.post(t, at+"/hold", fmt.Sprintf(`{"reason":%q}`, b.reason)))
		ok(w.post(t, at+"/release", ""))
		now := time.Now().UTC()
		if err := w.store.SaveVitals(t.Context(), map[fleet.DeviceID]telemetry.Vitals{id: {At: now}}); err != nil {
			t.Fatal(err)
		}
		if err := w.store.SaveDeviceConfigs(t.Context(), map[fleet.DeviceID]telemetry.Config{id: {At: now, Version: 1,
			Values: json.RawMessage(`{"name":"` + b.name + `"}`)}}); err != nil {
			t.Fatal(err)
		}
		b.call = decode[callView](t, w.post(t, at+"/calls", `{"tool":"self.say","arguments":{"text":"`+b.name+
			`"}}`), 200).ID.String()
		b.snapshot = w.snapshot(t, id)
		b.coreDump = w.coreDump(t, id, b.name)
		c := ok(w.post(t, "/campaigns", fmt.Sprintf(`{"name":%q,"release_id":%q,"q":"id:%s"}`, b.campaignName,
			release.ID, id)))
		b.campaign = decode[CampaignView](t, c, 201).ID.String()
		f := ok(w.post(t, "/fanouts", fmt.Sprintf(
			`{"q":"id:%s","tool":"self.say","arguments":{"text":%q}}`, id, b.name)))
		b.fanOut = decode[FanOutView](t, f, 201).ID.String()
		w.await(t, "/fanouts/"+b.fanOut) // no test reads its calls
		b.conversation = w.conversation(t, id, b.name)
		remove := w.askFirst(t, "self.say")
		asked := decode[callView](t, w.post(t, at+"/calls", `{"tool":"self.say","arguments":{"text":"`+b.name+`"}}`), 200)
		b.approval = asked.ApprovalID.String()
		remove()
	}
	return all
}

// conversation stores a conversation of a device.
func (w *world) conversation(t *testing.T, id fleet.DeviceID, upstream string) string {
	t.Helper()
	c := fleet.Conversation{ID: uuid.Must(uuid.NewV7()), Device: id, Upstream: upstream, Begin: time.Now().UTC()}
	if err := w.store.SaveConversations(t.Context(), []fleet.Conversation{c}); err != nil {
		t.Fatal(err)
	}
	return c.ID.String()
}

// coreDump stores a core dump of a device, as if the device had uploaded it.
func (w *world) coreDump(t *testing.T, id fleet.DeviceID, text string) string {
	t.Helper()
	url, err := w.snapshots.CoreDumpURL(t.Context(), id, uuid.Must(uuid.NewV7()), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	c, err := w.coreDumps.Receive(t.Context(), path.Base(url), func() (io.Reader, error) {
		return bytes.NewReader([]byte(text)), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return c.ID.String()
}

// address fills in a path of the document with a device or its records.
func (b *belongings) address(of string) string {
	id := "%20" // of no object: nothing happens
	switch strings.Split(of, "/")[1] {
	case "devices":
		id = string(b.device)
	case "calls":
		id = b.call
	case "snapshots":
		id = b.snapshot
	case "core-dumps":
		id = b.coreDump
	case "fanouts":
		id = b.fanOut
	case "campaigns":
		id = b.campaign
	case "approvals":
		id = b.approval
	case "conversations":
		id = b.conversation
	}
	return pathParam.ReplaceAllStringFunc(of, func(param string) string {
		switch param {
		case "{id}":
			return id
		case "{device}":
			return string(b.device)
		}
		return "%20"
	})
}

// scoped creates a token for the devices inside, or with "" for all.
func (w *world) scoped(t *testing.T, role fleet.Role, scope string) string {
	t.Helper()
	_, secret, err := w.operators.NewToken(t.Context(), root, operator.TokenRequest{Name: string(role) + " of " + scope,
		Role: role, Scope: scope})
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

// Both ways to read a call obey the scope.
func TestScopeOfCalls(t *testing.T) {
	w := newWorld(t)
	newSides(t, w)
	for _, secret := range []string{w.scoped(t, fleet.RoleOperator, "tag:in")} {
		for id, want := range map[fleet.DeviceID]int{unit: 200, other: 404} {
			for _, body := range []string{volume50, strings.Replace(volume50, `"tool"`, `"\u0074ool"`, 1)} {
				r := w.as(t, "", "POST", "/devices/"+string(id)+"/calls", body, "Authorization", "Bearer "+secret)
				if r.status != want {
					t.Errorf("%s of %s is answered %d %s, want %d", body, id, r.status, r.body, want)
				}
			}
		}
	}
}

// Nothing that belongs to a device outside of the scope is readable.
func TestScopeLeaksNothing(t *testing.T) {
	w := newWorld(t)
	w.api.failures = unlimited()
	all := newSides(t, w)
	// A campaign over both devices, and a call that it made to the one inside.
	both := decode[CampaignView](t, w.post(t, "/campaigns", fmt.Sprintf(
		`{"name":"both-%s","release_id":%q,"q":"chip:esp32s3"}`, marker, w.release(t).ID)), 201)
	call, err := w.api.Calls.Make(t.Context(), call.Request{Device: unit, Tool: "self.get_device_status",
		Actor: fleet.Principal{Kind: fleet.KindCampaign, ID: both.ID.String(), Name: both.Name, Role: fleet.RoleOperator}})
	if err != nil || call.State != fleet.CallSucceeded {
		t.Fatalf("%+v %v", call, err)
	}
	decode[FanOutView](t, w.post(t, "/fanouts", `{"q":"id:a085e31122* -name:`+marker+`","tool":"self.say"}`), 201)
	secret := w.scoped(t, fleet.RoleAdmin, "tag:in")
	bearer := []string{"Authorization", "Bearer " + secret}
	events := w.listen(t, "", secret)

	check := func(what string, body []byte, foreign ...string) {
		t.Helper()
		for _, text := range append(foreign, marker) {
			if bytes.Contains(body, []byte(text)) {
				t.Errorf("%s discloses %s: %s", what, text, body)
			}
		}
	}
	reads := 0
	for _, op := range w.routes() {
		if op.method != http.MethodGet || op.id == "stream-events" {
			continue
		}
		inside := w.as(t, "", op.method, all[unit].address(op.path), "", bearer...)
		check(op.id, inside.body, string(other))
		outside := w.as(t, "", op.method, all[other].address(op.path), "", bearer...)
		check(op.id+" about the hidden device", outside.body)
		if inside.status == 200 {
			reads++
		}
	}
	if reads < 25 {
		t.Errorf("only %d operations could be read", reads)
	}
	for _, at := range []string{"/devices?q=" + marker, "/devices?q=tag:" + marker, "/calls?device=" + string(other),
		"/calls?fanout=" + all[other].fanOut, "/snapshots?device=" + string(other), "/snapshots?device=" + string(other) + "&kind=screen&since=2020-01-01T00:00:00Z",
		"/snapshots?device=" + string(unit) + "&limit=1", "/snapshots?device=" + string(unit),
		"/audit?subject=" + string(other), "/campaigns/" + both.ID.String(), "/audit?limit=500",
		"/campaigns/" + both.ID.String() + "/deployments", "/devices/" + string(unit) + "/deployments",
		"/campaigns/" + both.ID.String() + "/deployments/" + string(unit), "/calls?tool=self.get_device_status",
		"/calls/" + call.ID.String()} {
		r := w.as(t, "", "GET", at, "", bearer...)
		if strings.Contains(at, marker) || strings.Contains(at, string(other)) {
			var found list[json.RawMessage]
			if json.Unmarshal(r.body, &found) != nil || len(found.Items) > 0 {
				t.Errorf("%s finds %s", at, r.body)
			}
		} else {
			check(at, r.body, string(other))
		}
	}
	if s := decode[statsView](t, w.as(t, "", "GET", "/stats", "", bearer...), 200); s.Devices != 1 || len(s.Reached) > 0 {
		t.Errorf("the statistics count %+v, want the one device inside", s)
	}
	for _, act := range []struct{ path, body string }{
		{"/fanouts", `{"q":"","tool":"self.get_device_status","dry_run":true}`},
		{"/fanouts", `{"devices":["` + string(unit) + `","` + string(other) + `"],"tool":"self.get_device_status","dry_run":true}`},
		{"/campaigns/dry-run", w.planOf(t, "")},
	} {
		r := w.as(t, "", "POST", act.path, act.body, bearer...)
		check(act.path, r.body, string(other))
		var p struct{ Matched int }
		if err := json.Unmarshal(r.body, &p); err != nil || r.status != 200 || p.Matched != 1 {
			t.Errorf("%s %s matches %s, want the device inside alone", act.path, act.body, r.body)
		}
	}

	// Events: those of the hidden device do not arrive, those of the other do.
	w.post(t, "/devices/"+string(other)+"/calls", `{"tool":"self.say","arguments":{"text":"`+marker+`"}}`)
	w.post(t, "/devices/"+string(other)+"/hold", `{"reason":"`+marker+`"}`)
	w.post(t, "/fanouts", `{"q":"id:`+string(other)+`","tool":"self.get_device_status"}`)
	w.as(t, fleet.RoleAdmin, "PATCH", "/campaigns/"+both.ID.String(), w.planOf(t, ""))
	w.post(t, "/devices/"+string(unit)+"/hold", `{"reason":"plain"}`)
	w.post(t, "/devices/"+string(unit)+"/calls", volume50)
	for end := time.Now().Add(time.Minute); ; {
		kind, e := next(t, events)
		body, _ := json.Marshal(e)
		check("the event "+kind, body, string(other), both.ID.String(), all[other].fanOut)
		if e.Call != nil && e.Call.State == fleet.CallSucceeded && e.Call.Tool == "self.audio_speaker.set_volume" {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the call to the device inside is no event")
		}
	}
}

// An act of a principal with a narrower scope reaches no further.
func TestScopeOfActs(t *testing.T) {
	w := newWorld(t)
	newSides(t, w)
	bearer := []string{"Authorization", "Bearer " + w.scoped(t, fleet.RoleAdmin, "tag:in")}
	made := decode[CampaignView](t, w.as(t, "", "POST", "/campaigns", w.planOf(t, `,"supersede":true`), bearer...), 201)
	if made.Targets+made.Skipped != 1 {
		t.Errorf("the campaign has %d targets and %d skipped devices, want the device inside alone", made.Targets,
			made.Skipped)
	}
	fit := decode[fitView](t, w.as(t, "", "GET", "/releases/"+made.ReleaseID.String()+"/fit", "", bearer...), 200)
	if fit.Matched != 1 {
		t.Errorf("the release is judged for %d devices, want the device inside alone", fit.Matched)
	}
	f := decode[FanOutView](t, w.as(t, "", "POST", "/fanouts", `{"q":"","tool":"self.get_device_status"}`, bearer...), 201)
	if f.Targets+f.Skipped != 1 {
		t.Errorf("the fan-out has %d targets and %d skipped devices, want the device inside alone", f.Targets, f.Skipped)
	}
	plan := w.planOf(t, `,"continuous":true,"max_devices":100,"end_at":"`+
		time.Now().Add(time.Hour).UTC().Format(time.RFC3339)+`"`)
	continuous := decode[CampaignView](t, w.as(t, "", "POST", "/campaigns", plan, bearer...), 201)
	if continuous.Within != "tag:in" {
		t.Errorf("a continuous campaign is held within %q, want the token's filter", continuous.Within)
	}
	for _, body := range []string{`{"tags":["out"]}`, `{"tags":[]}`} {
		if p := w.as(t, "", "PATCH", "/devices/"+string(unit), body, bearer...).problem(t); p.Code != "leaves_scope" {
			t.Errorf("%s is answered %+v", body, p)
		}
	}
	r := w.as(t, "", "POST", "/devices/"+string(unit)+"/replace", `{"successor":"`+string(other)+`"}`, bearer...)
	if p := r.problem(t); p.Code != "unknown_device" && p.Code != "unknown_successor" {
		t.Errorf("replacing by a hidden device is answered %s", r.body)
	}
}

// A token above its rate gets the response that HTTP defines.
func TestTokenRate(t *testing.T) {
	w := newWorld(t)
	made := decode[newTokenView](t, w.post(t, "/tokens",
		`{"name":"slow","kind":"model","role":"viewer","scope":"tag:lab","tools":["self.get_*"],"per_minute":2}`), 201)
	if made.Kind != fleet.KindModel || made.Scope != "tag:lab" || made.PerMinute != 2 ||
		!slices.Equal(made.Tools, []string{"self.get_*"}) {
		t.Errorf("made %+v", made)
	}
	var last reply
	for range 3 {
		last = w.as(t, "", "GET", "/devices", "", "Authorization", "Bearer "+made.Secret)
	}
	if p := last.problem(t); p.Status != 429 || p.Code != "token_rate" {
		t.Errorf("the third request of a minute is answered %+v", p)
	}
	// A slot becomes free 30 seconds after the second request.
	if wait, err := strconv.Atoi(last.header.Get("Retry-After")); err != nil || wait < 1 || wait > 30 {
		t.Errorf("Retry-After %q", last.header.Get("Retry-After"))
	}
	if r := w.post(t, "/tokens", `{"name":"x","scope":"version<2"}`).problem(t); r.Code != "invalid_scope_field" {
		t.Errorf("a scope that asks for the version is answered %+v", r)
	}
}

// A principal cannot create another with more permissions.
func TestNoWiderPrincipals(t *testing.T) {
	w := newWorld(t)
	for _, r := range []operator.TokenRequest{
		{Name: "some devices", Role: fleet.RoleAdmin, Scope: "tag:in"},
		{Name: "some tools", Role: fleet.RoleAdmin, Tools: []string{"self.get_*"}},
		{Name: "model", Role: fleet.RoleAdmin, Kind: fleet.KindModel},
	} {
		_, secret, err := w.operators.NewToken(t.Context(), root, r)
		if err != nil {
			t.Fatal(err)
		}
		for at, body := range map[string]string{"/tokens": `{"name":"wide","role":"admin"}`,
			"/operators": `{"name":"wide","role":"admin","password":"correct horse"}`} {
			if got := w.as(t, "", "POST", at, body, "Authorization", "Bearer "+secret); got.status != 403 {
				t.Errorf("%s by the token for %s is answered %d %s", at, r.Name, got.status, got.body)
			}
		}
	}
}

func TestAccessOfOperators(t *testing.T) {
	w := newWorld(t)
	add := func(body string) operatorView { return decode[operatorView](t, w.post(t, "/operators", body), 201) }
	ann := add(`{"name":"ann","role":"admin","password":"correct horse"}`)
	bob := add(`{"name":"bob","role":"operator","scope":"tag:lab","rest":"viewer","password":"correct horse"}`)
	if bob.Scope != "tag:lab" || bob.Rest != fleet.RoleViewer {
		t.Errorf("added %+v", bob)
	}
	patch := func(id, body string) reply { return w.as(t, fleet.RoleAdmin, "PATCH", "/operators/"+id, body) }
	for body, code := range map[string]string{`{"role":"operator"}`: "last_admin", `{"scope":"tag:lab"}`: "last_admin",
		`{"disabled":true}`: "last_admin", `{"scope":"tag:lab","rest":"viewer"}`: "last_admin"} {
		if p := patch(ann.ID.String(), body).problem(t); p.Status != 409 || p.Code != code {
			t.Errorf("%s of the last admin is answered %+v", body, p)
		}
	}
	if p := patch(bob.ID.String(), `{"rest":"admin"}`).problem(t); p.Code != "invalid_rest" {
		t.Errorf("a higher role elsewhere is answered %+v", p)
	}
	now := decode[operatorView](t, patch(bob.ID.String(), `{"role":"admin","scope":""}`), 200)
	if now.Role != fleet.RoleAdmin || now.Scope != "" || now.Rest != "" {
		t.Errorf("changed to %+v", now)
	}
	decode[operatorView](t, patch(ann.ID.String(), `{"role":"viewer"}`), 200) // bob is the last admin now
	err := w.operators.SetAccess(t.Context(), fleet.Principal{Kind: fleet.KindOperator, ID: bob.ID.String(), Name: "bob",
		Role: fleet.RoleAdmin}, bob.ID, operator.Access{Role: fleet.RoleViewer})
	if e, ok := err.(*fleet.Error); !ok || e.Code != "self_access" {
		t.Errorf("changing oneself is answered %v", err)
	}
	found := decode[list[auditView]](t, w.get(t, "/audit?action=operator.access"), 200)
	if len(found.Items) != 2 {
		t.Errorf("%d changes of access are on record, want 2", len(found.Items))
	}
}
