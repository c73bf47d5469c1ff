package api

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/fleettest"
)

func TestConversations(t *testing.T) {
	w := newWorld(t)
	begin := time.Date(2026, 8, 8, 8, 0, 0, 0, time.UTC)
	end := begin.Add(90 * time.Second)
	id := func(ms int64) (id uuid.UUID) { // as created at the beginning
		id = uuid.Must(uuid.NewV7())
		binary.BigEndian.PutUint64(id[:8], uint64(begin.UnixMilli()+ms)<<16|0x7000)
		return id
	}
	c := fleet.Conversation{ID: id(0), Device: unit, Upstream: "lab", Begin: begin, End: &end,
		Ended: fleet.EndedLost, Calls: 2, HelloIn: 30 * time.Millisecond,
		Audio: fleet.AudioCounts{Received: 9, Lost: 1, Jitter: 2500 * time.Microsecond}}
	open := fleet.Conversation{ID: id(1), Device: unit, Upstream: "lab", Begin: begin}
	if err := w.store.SaveConversations(t.Context(), []fleet.Conversation{c, open}); err != nil {
		t.Fatal(err)
	}
	found := decode[list[conversationView]](t, w.get(t, "/conversations?device="+unit.MAC()), 200).Items
	if len(found) != 2 || found[0].EndAt != nil || found[0].Ended != "" || found[0].DurationMs != nil {
		t.Fatalf("%+v", found)
	}
	if v := found[1]; v.ID != c.ID || v.DeviceID != unit || v.Ended != fleet.EndedLost || *v.DurationMs != 90_000 ||
		v.HelloMs != 30 || v.Calls != 2 || v.Audio.Received != 9 || v.Audio.JitterMs != 2.5 {
		t.Errorf("%+v", v)
	}
	if none := decode[list[conversationView]](t, w.get(t, "/conversations?device=a085e3112244"), 200); none.Items == nil ||
		len(none.Items) != 0 {
		t.Errorf("%+v", none)
	}
	for query, want := range map[string][]uuid.UUID{
		"upstream=lab": {open.ID, c.ID}, "upstream=other": nil, "end=open": {open.ID}, "end=failed": {c.ID},
		"end=upstream_lost": {c.ID}, "end=device_goodbye": nil, "since=2026-08-08T08:00:00Z": {open.ID, c.ID},
		"since=2026-08-08T08:00:01Z": nil, "until=2026-08-08T08:00:00Z": nil, "until=2026-08-08T08:00:01Z&end=open": {open.ID},
	} {
		var ids []uuid.UUID
		for _, v := range decode[list[conversationView]](t, w.get(t, "/conversations?"+query), 200).Items {
			ids = append(ids, v.ID)
		}
		if !slices.Equal(ids, want) {
			t.Errorf("%s: %v, want %v", query, ids, want)
		}
	}
	if p := w.get(t, "/conversations?end=tomorrow").problem(t); p.Status != 422 || p.Code != "invalid_end" {
		t.Errorf("%+v", p)
	}
	if v := decode[conversationView](t, w.get(t, "/conversations/"+c.ID.String()), 200); v.ID != c.ID || v.Calls != 2 {
		t.Errorf("%+v", v)
	}
	if p := w.get(t, "/conversations/"+uuid.NewString()).problem(t); p.Status != 404 {
		t.Errorf("%+v", p)
	}
	if p := w.get(t, "/conversations?device=%20x%20y").problem(t); p.Status != 422 && p.Status != 400 {
		t.Errorf("%+v", p)
	}
}

// The response for a call that would interrupt a conversation is immediate and names the reason for
// the wait. The call is sent when an operator requests it, or at once with interrupt.
func TestCallsWaitForConversations(t *testing.T) {
	w := newWorld(t)
	w.listing(t, unit, []fleet.Tool{{Name: fleet.ToolConfigSet, InputSchema: []byte(`{"type":"object"}`)}})
	w.link.Connect(unit, func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
		return fleettest.Text("true"), nil
	})
	talk := fleet.Conversation{ID: uuid.Must(uuid.NewV7()), Device: unit, Begin: time.Now().UTC().Truncate(time.Second)}
	w.open.Begin(talk)
	at := "/devices/" + string(unit) + "/calls"
	body := `{"tool":"` + fleet.ToolConfigSet + `"}`

	c := decode[callView](t, w.post(t, at, body), 200)
	if c.State != fleet.CallPending || c.Waits == nil || c.Waits.Code != "in_conversation" ||
		!c.Waits.SinceAt.Equal(talk.Begin) || c.Waits.UntilAt.Sub(c.CreatedAt).Round(time.Minute) != 10*time.Minute {
		t.Fatalf("%+v, waits %+v", c, c.Waits)
	}
	if listed := decode[list[callView]](t, w.get(t, "/calls"), 200).Items; len(listed) != 1 || listed[0].Waits == nil {
		t.Errorf("%+v", listed)
	}
	now := decode[callView](t, w.post(t, at, `{"tool":"`+fleet.ToolConfigSet+`","interrupt":true}`), 200)
	if now.State != fleet.CallSucceeded || now.Waits != nil {
		t.Errorf("%+v", now)
	}
	p := decode[previewView](t, w.post(t, "/fanouts", `{"q":"","tool":"`+fleet.ToolConfigSet+`","dry_run":true}`), 200)
	if p.Talking != 1 || p.Targets != 1 {
		t.Errorf("%+v", p)
	}
	decode[callView](t, w.post(t, "/calls/"+c.ID.String()+"/interrupt", ""), 200)
	fleettest.Eventually(t, "the call ended", func() bool {
		c = decode[callView](t, w.get(t, "/calls/"+c.ID.String()), 200)
		return c.State.Final()
	})
	if c.State != fleet.CallSucceeded || c.Waits != nil || len(c.Evidence) != 1 ||
		c.Evidence[0].DetailCode != call.ReasonInterruptedBy {
		t.Errorf("%+v", c)
	}
	if p := w.post(t, "/calls/"+c.ID.String()+"/interrupt", "").problem(t); p.Status != 409 || p.Code != "call_not_waiting" {
		t.Errorf("%+v", p)
	}
}

// The calls of a conversation can be listed by its id.
func TestCallsOfAConversation(t *testing.T) {
	w := newWorld(t)
	id := uuid.MustParse(w.conversation(t, unit, "lab"))
	for _, by := range []string{id.String(), uuid.NewString()} {
		call := fleet.Call{ID: uuid.Must(uuid.NewV7()), Device: unit, Tool: "self.say", State: fleet.CallOffline,
			Arguments: []byte(`{}`), CreatedAt: time.Now().UTC(), FinishedAt: ptr(time.Now().UTC()),
			Actor: fleet.Principal{Kind: fleet.KindVoice, ID: by, Name: "lab", Role: fleet.RoleOperator}}
		if err := w.store.InsertCall(t.Context(), &call); err != nil {
			t.Fatal(err)
		}
	}
	if found := decode[list[callView]](t, w.get(t, "/calls?conversation="+id.String()), 200).Items; len(found) != 1 {
		t.Errorf("%+v", found)
	}
}
