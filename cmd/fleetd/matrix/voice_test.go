package matrix

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/broker/voice/voicetest"
	"fleetd/cmd/fleetd/server"
	"fleetd/fleet"
	"fleetd/fleet/call"
)

// talkingWorld is a world whose devices talk to a voice server.
func talkingWorld(t *testing.T) (*world, *voicetest.Server) {
	t.Helper()
	up := voicetest.Start(voicetest.Options{Secret: "s3cret", MCP: true})
	t.Cleanup(up.Close)
	w := newWorld(t, func(c *server.Config) {
		c.VoiceUpstream, c.VoiceSecret = up.URL(true), "s3cret"
		c.VoiceUDPAddr, c.VoiceUDPEndpoint = "127.0.0.1:0", "127.0.0.1:0"
		c.ConversationWait = call.DefaultConversationWait
	})
	return w, up
}

// talk begins a conversation of the connected device of a side. It returns the voice
// server's end once the tools are listed.
func (w *world) talk(up *voicetest.Server, s side) *voicetest.Session {
	w.t.Helper()
	d := w.sims[w.live[s]]
	d.Talk()
	var talk *voicetest.Session
	w.eventually("the conversation of the device "+string(s), func() bool {
		for _, c := range up.Sessions() {
			if c.Header.Get("Device-Id") == d.ID() && c.Listed() {
				talk = c
			}
		}
		return talk != nil
	})
	w.conversation(s)
	return talk
}

// conversation returns the id of the conversation of a device, once it is on record.
func (w *world) conversation(s side) (id string) {
	w.t.Helper()
	w.eventually("the record of the conversation", func() bool {
		for _, c := range w.must("GET", "/conversations?device="+string(w.live[s]), nil).items() {
			id, _ = c["id"].(string)
		}
		return id != ""
	})
	return id
}

// The model of a voice server acts only through a conversation: it calls the tools for
// models of the device in the conversation, except those that a policy denies, and
// nothing of the server or of another device.
func TestVoice(t *testing.T) {
	t.Parallel()
	const denied = "self.audio_speaker.set_volume"
	w, up := talkingWorld(t)
	w.watch()
	w.must("POST", "/policies", obj{"name": "ask first", "enabled": true, "tools": []string{asked}, "decision": "require_approval"})
	talks, ids := map[side]*voicetest.Session{}, map[string]side{}
	for _, s := range sides {
		talks[s] = w.talk(up, s)
		ids[w.conversation(s)] = s
	}
	all := []string{}
	for _, tool := range w.must("GET", "/devices/"+string(w.live[inside])+"/tools", nil).items() {
		name, _ := tool["name"].(string)
		all = append(all, name)
	}
	if !slices.Contains(all, "self.reboot") || !slices.Contains(all, denied) || !slices.Contains(all, asked) {
		t.Fatalf("the device has the tools %v", all)
	}
	for _, s := range sides {
		listed := talks[s].Tools()
		for _, tool := range all {
			if slices.Contains(listed, tool) == userOnly[tool] {
				t.Errorf("%s is listed to the voice server of the device %s: %v", tool, s, userOnly[tool])
			}
		}
	}
	w.quiet()
	w.changes()
	w.settleDevices()
	// say calls a tool, and checks whether there was an answer and what ran where.
	say := func(s side, tool, arguments string, runs bool) {
		t.Helper()
		a, err := talks[s].Call(tool, arguments, time.Minute)
		if err != nil {
			t.Fatalf("%s on the device %s: %v", tool, s, err)
		}
		if ok := a.Error == nil && !strings.Contains(string(a.Result), `"isError":true`); ok != runs {
			t.Errorf("%s on the device %s is answered %s %+v, want it to run: %v", tool, s, a.Result, a.Error, runs)
		}
		for _, side := range sides {
			id, want := w.live[side], 0
			if runs && side == s {
				want = 1
			}
			calls := w.sims[id].Calls()
			if n := len(calls) - w.ran[id]; n != want || want == 1 && calls[len(calls)-1].Tool != tool {
				t.Errorf("%s on the device %s: %d calls ran on the device %s, want %d", tool, s, n, side, want)
			}
			w.ran[id] = len(calls)
		}
	}
	for _, s := range sides {
		say(s, "self.get_device_status", `{}`, true)
		say(s, denied, `{"volume":41}`, true)
	}
	w.must("POST", "/policies", obj{"name": "quiet", "enabled": true, "tools": []string{denied}, "decision": "deny"})
	for _, s := range sides {
		w.eventually("the policy to hold", func() bool {
			a := w.rest(w.root, "POST", "/policies/test", obj{"device": w.live[s], "tool": denied, "principal": obj{"kind": "voice", "role": "operator"}})
			return a.status != 200 || strings.Contains(a.text, "deny")
		})
		say(s, denied, `{"volume":42}`, false)
		for _, tool := range slices.Sorted(slices.Values(all)) {
			if userOnly[tool] {
				say(s, tool, `{}`, false)
			}
		}
		for _, tool := range []string{"call_device", "call_devices", "propose_campaign", "find_devices", "approve-call",
			string(w.live[inside]) + "/self.get_device_status"} {
			say(s, tool, fmt.Sprintf(`{"device":%q,"tool":"self.get_device_status","confirm":1}`, w.live[outside]), false)
		}
		say(s, asked, `{"theme":"dark"}`, false)
	}
	// An operator approves the request, which is a call of that device's model.
	approvals := w.must("GET", "/approvals", nil).items()
	if len(approvals) != len(sides) {
		t.Errorf("%d calls wait for an approval, want %d", len(approvals), len(sides))
	}
	for _, a := range approvals {
		id, _ := a["id"].(string)
		w.must("POST", "/approvals/"+id+"/approve", nil)
	}
	for _, s := range sides {
		id := w.live[s]
		w.eventually("the approved call to run", func() bool { return len(w.sims[id].Calls()) > w.ran[id] })
	}
	w.quiet()
	for _, c := range w.changes() {
		switch s := ids[c.get("actor_id")]; c.table {
		case "calls":
			if w.where[c.device()] != s || c.get("actor_kind") != string(fleet.KindVoice) {
				t.Errorf("%s by %s %q, on the device %s", c, c.get("actor_kind"), c.get("actor_id"), w.where[c.device()])
			}
			tool, state := c.get("tool"), c.get("state")
			if state != "refused" && state != "invalid" && (userOnly[tool] || !slices.Contains(all, tool)) {
				t.Errorf("%s: a call of %s, which is not for models", c, tool)
			}
		case "approvals", "audit_entries", "policies", "policy_version", "conversations":
		default:
			if !c.unasked() {
				t.Errorf("a voice server's model changed %s", c)
			}
		}
	}
	for id, n := range w.ran {
		if calls := w.sims[id].Calls(); w.live[w.where[id]] == id && (len(calls) != n+1 || calls[n].Tool != asked) {
			t.Errorf("on %s ran %+v, want one approved call", id, calls[n:])
		}
	}
}

// A call that waits for the end of a conversation does not run once its requester has
// lost the right to call.
func TestCallsThatWaitForAConversation(t *testing.T) {
	t.Parallel()
	w, up := talkingWorld(t)
	talk := w.talk(up, inside)
	before := len(w.sims[w.live[inside]].Calls())
	var held []uuid.UUID
	hold := func(actor fleet.Principal, name string) string {
		t.Helper()
		c, err := w.srv.Calls.Make(t.Context(), call.Request{Actor: actor, Device: w.live[inside], Tool: "self.reboot",
			Arguments: json.RawMessage(`{}`), Purpose: name})
		if err != nil || c.Waits.Code != call.ReasonInConversation {
			t.Fatalf("the call of %s does not wait: %+v, %v", name, c, err)
		}
		held = append(held, c.ID)
		return c.ID.String()
	}
	by, all := map[string]string{}, w.askers()
	for _, a := range all {
		if a.actor.Kind != fleet.KindModel { // a model may not call this tool at all
			by[hold(a.actor, a.name)] = a.name
		}
	}
	control := hold(w.people[1], "control")
	for _, a := range all {
		a.strike()
	}
	w.sims[w.live[inside]].EndTalk()
	w.eventually("the voice server's socket to close", talk.Closed)
	w.eventually("the calls to end", func() bool {
		var open int
		if err := w.db.QueryRow(t.Context(), `SELECT count(*) FROM calls WHERE id = ANY ($1) AND finished_at IS NULL`,
			held).Scan(&open); err != nil {
			t.Fatal(err)
		}
		return open == 0
	})
	for id, name := range by {
		if c := w.must("GET", "/calls/"+id, nil); c.str("state") != "refused" && c.str("state") != "canceled" {
			t.Errorf("the call of %s is %s", name, c.text)
		}
	}
	if c := w.must("GET", "/calls/"+control, nil); c.str("state") != "succeeded" {
		t.Errorf("the call of somebody who may is %s", c.text)
	}
	if calls := w.sims[w.live[inside]].Calls(); len(calls) != before+1 {
		t.Errorf("%d calls ran, want the one of somebody who may: %+v", len(calls)-before, calls[before:])
	}
}
