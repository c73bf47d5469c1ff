package console_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/fleettest"
	"fleetd/web/ui"
)

// A conversation has a page with its calls. A device in a conversation is marked, and a call that
// waits for its end can be sent at once.
func TestConversationPages(t *testing.T) {
	c := newConsole(t)
	const id = fleet.DeviceID("a085e3112233")
	c.enrol(id)
	c.connect(id, func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
		return fleettest.Text("true"), nil
	})
	b := c.as(fleet.RoleOperator)
	end := time.Now().UTC()
	over := fleet.Conversation{ID: uuid.Must(uuid.NewV7()), Device: id, Upstream: "lab <b>", Begin: end.Add(-time.Minute),
		End: &end, Ended: fleet.EndedLost, Calls: 1, HelloIn: 42 * time.Millisecond,
		Audio: fleet.AudioCounts{Received: 90, Lost: 10, Jitter: 3 * time.Millisecond}}
	now := fleet.Conversation{ID: uuid.Must(uuid.NewV7()), Device: id, Upstream: "lab", Begin: end}
	if err := c.store.SaveConversations(t.Context(), []fleet.Conversation{over, now}); err != nil {
		t.Fatal(err)
	}
	made := fleet.Call{ID: uuid.Must(uuid.NewV7()), Device: id, Tool: "self.say", State: fleet.CallOffline,
		Arguments: []byte(`{}`), CreatedAt: end, FinishedAt: &end,
		Actor: fleet.Principal{Kind: fleet.KindVoice, ID: over.ID.String(), Name: "lab", Role: fleet.RoleOperator}}
	if err := c.store.InsertCall(t.Context(), &made); err != nil {
		t.Fatal(err)
	}
	c.open.Begin(now)

	b.get("/conversations").wantStatus(200).wantText("#conversation-"+over.ID.String(), "connection to the voice server broke").
		wantText("#conversation-"+now.ID.String(), "in progress")
	b.get("/conversations?end=failed").wantStatus(200).wantText("#list", "lab <b>")
	b.get("/conversations?end=device_goodbye").wantStatus(200).wantText("#list", "No conversations")
	b.get("/conversations/"+over.ID.String()).wantStatus(200).wantText("article", "42 ms").wantText("article", "10%").
		wantText("article", "self.say")
	b.get("/calls/"+made.ID.String()).wantStatus(200).wantText("dl", over.ID.String()[:8])
	b.get("/conversations/" + uuid.NewString()).wantStatus(404)
	b.get("/devices").wantText("#device-"+string(id), "in conversation")
	b.get("/devices/"+string(id)).wantText("#main", "in conversation")

	waits, err := c.calls.Make(t.Context(), call.Request{Actor: anna, Device: id, Tool: fleet.ToolReboot})
	if err != nil || waits.State != fleet.CallPending {
		t.Fatalf("%s %v, %v", waits.State, waits.Error, err)
	}
	at := "/calls/" + waits.ID.String()
	b.get(at).wantStatus(200).wantText("article", "waits for its end").wantText("article", "Interrupt the conversation")
	if p := c.as(fleet.RoleViewer).get(at); len(p.find("article form")) > 0 {
		t.Error("a viewer may interrupt")
	}
	b.post(at+"/interrupt", nil).wantRedirect(at)
	fleettest.Eventually(t, "the call is sent", func() bool {
		got, err := c.calls.Get(t.Context(), waits.ID)
		return err == nil && got.SentAt != nil
	})

	// A bulk call waits for the conversation, unless the form requests an interruption.
	plan := ui.PathFanOutNew + "?step=preview&tool=" + fleet.ToolReboot + "&d=" + string(id)
	b.get(ui.PathFanOutNew+"?tool="+fleet.ToolReboot+"&d="+string(id)).wantText("main", "Interrupt conversations")
	b.get(plan).wantStatus(200).wantText("main", "1 of them is in a conversation and will be called after it")
	asks := b.get(plan+"&interrupt=on").wantStatus(200).wantText("main", "will be interrupted")
	form := url.Values{"confirm": {"1"}}
	for _, n := range asks.find("input[type=hidden]") {
		form.Add(attribute(n, "name"), attribute(n, "value"))
	}
	to := b.post(ui.PathFanOuts, form).wantStatus(http.StatusSeeOther).header.Get("Location")
	b.get(to).wantText("main", "interrupted")
	if made, err := c.fanOuts.List(t.Context(), 1, ""); err != nil || !made.Items[0].Interrupt {
		t.Fatalf("the bulk call is %+v, %v", made.Items, err)
	}
}
