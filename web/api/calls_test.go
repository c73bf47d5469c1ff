package api

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

const (
	callPath = "/devices/a085e3112233/calls"
	volume50 = `{"tool":"self.audio_speaker.set_volume","arguments":{"volume":50}}`
)

func TestCall(t *testing.T) {
	w := newWorld(t)
	for _, id := range []string{"a085e3112233", "A0:85:E3:11:22:33", "a0-85-e3-11-22-33", "a0%3A85%3Ae3%3A11%3A22%3A33"} {
		r := w.as(t, fleet.RoleOperator, http.MethodPost, "/devices/"+id+"/calls", volume50)
		c := decode[callView](t, r, http.StatusOK)
		if c.State != fleet.CallSucceeded || c.DeviceID != unit || c.Actor.Kind != fleet.KindProgram ||
			c.Actor.Name != "operator-script" ||
			c.DurationMs == nil || c.SentAt == nil || string(c.Arguments) != `{"volume":50}` {
			t.Errorf("%s: answered %s", id, r.body)
		}
		if stored := w.get(t, "/calls/"+c.ID.String()); string(stored.body) != string(r.body) {
			t.Errorf("the record is\n%s, the answer was\n%s", stored.body, r.body)
		}
	}
}

// A call that does not succeed still gets a response.
func TestCallOutcomes(t *testing.T) {
	w := newWorld(t)
	w.link.Connect(unit, func(ctx context.Context, tool string, _ json.RawMessage) (fleet.Answer, error) {
		if tool == "self.get_device_status" {
			<-ctx.Done()
			return fleet.Answer{}, ctx.Err()
		}
		return fleet.Answer{}, &fleet.ToolError{Tool: tool, Message: "<b>no</b>"}
	})
	held := `{"reason":"on the bench"}`
	decode[deviceView](t, w.post(t, "/devices/"+string(other)+"/hold", held), http.StatusOK)
	tests := []struct {
		device, body string
		state        fleet.CallState
		code         string
	}{
		{string(unit), volume50, fleet.CallToolError, "tool_error"},
		{string(unit), `{"tool":"self.get_device_status","timeout_ms":30}`, fleet.CallTimedOut, "no_answer"},
		{string(unit), `{"tool":"self.fly"}`, fleet.CallInvalid, "unknown_tool"},
		{string(unit), `{"tool":"self.audio_speaker.set_volume","arguments":{"volume":101}}`, fleet.CallInvalid,
			"invalid_arguments"},
		{string(unit), `{"tool":"self.audio_speaker.set_volume","arguments":{}}`, fleet.CallInvalid, "invalid_arguments"},
		{string(unit), `{"tool":"self.audio_speaker.set_volume","arguments":{"volume":5,"loud":true}}`, fleet.CallInvalid,
			"invalid_arguments"},
		{string(unit), `{"tool":"self.screen.snapshot","arguments":{"url":"http://evil/"}}`, fleet.CallInvalid,
			"url_is_ours"},
		{string(other), volume50, fleet.CallRefused, "device_held"},
		{string(waiting), volume50, fleet.CallRefused, "device_not_enrolled"},
	}
	for _, tt := range tests {
		r := w.as(t, fleet.RoleOperator, http.MethodPost, "/devices/"+tt.device+"/calls", tt.body)
		c := decode[callView](t, r, http.StatusOK)
		if c.State != tt.state || c.Error == nil || c.Error.Code != tt.code {
			t.Errorf("%s %s: answered %s, want %s (%s)", tt.device, tt.body, r.body, tt.state, tt.code)
		}
	}
	w.link.Disconnect(unit)
	if c := decode[callView](t, w.post(t, callPath, volume50), http.StatusOK); c.State != fleet.CallOffline {
		t.Errorf("without a connection the call is %s", c.State)
	}
}

// A tool can be called as soon as its listing is stored, before any cache knows of it.
func TestCallOfAddedTool(t *testing.T) {
	w := newWorld(t)
	decode[callView](t, w.post(t, callPath, volume50), http.StatusOK)
	inv := fleet.Inventory{ID: strings.Repeat("a", 64), CreatedAt: time.Now().UTC(), Tools: append(slices.Clone(tools),
		fleet.Tool{Name: "self.new", InputSchema: tools[0].InputSchema})}
	if err := w.store.SaveListing(t.Context(), fleet.ToolListing{Device: unit, Inventory: inv, Version: "2.0.3",
		At: time.Now().UTC()}); err != nil {
		t.Fatal(err)
	}
	c := decode[callView](t, w.post(t, callPath, `{"tool":"self.new"}`), http.StatusOK)
	if c.State != fleet.CallSucceeded {
		t.Errorf("the call is %s, error %+v", c.State, c.Error)
	}
}

// The record of a call whose answer is not stored shows this, also when read later.
func TestCallWhoseAnswerIsNotKept(t *testing.T) {
	w := newWorld(t)
	w.link.Connect(unit, func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
		return fleet.Answer{Omitted: fleet.NewCallError(fleet.CodeTooLarge, "bytes", 300_000, "limit", 262_144)}, nil
	})
	r := w.post(t, callPath, volume50)
	c := decode[callView](t, r, http.StatusOK)
	if c.State != fleet.CallSucceeded || string(c.Result) != "null" || c.Error == nil ||
		c.Error.Params["bytes"] != int64(300_000) {
		t.Errorf("answered %s", r.body)
	}
	if stored := w.get(t, "/calls/"+c.ID.String()); string(stored.body) != string(r.body) {
		t.Errorf("the record is\n%s, the answer was\n%s", stored.body, r.body)
	}
}

func TestCallAsync(t *testing.T) {
	w := newWorld(t)
	answer := make(chan struct{})
	w.link.Connect(unit, func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
		<-answer
		return fleet.Answer{Result: json.RawMessage(`{"content":[]}`)}, nil
	})
	r := w.post(t, callPath, volume50, "Prefer", "foo=1, Respond-Async; wait=3")
	c := decode[callView](t, r, http.StatusAccepted)
	at := r.header.Get("Location")
	if c.State.Final() || at != prefix+"/calls/"+c.ID.String() || r.header.Get("Preference-Applied") != "respond-async" {
		t.Fatalf("answered %v %s", r.header, r.body)
	}
	close(answer)
	fleettest.Eventually(t, "the call ended", func() bool {
		c = decode[callView](t, w.get(t, strings.TrimPrefix(at, prefix)), http.StatusOK)
		return c.State.Final()
	})
	if c.State != fleet.CallSucceeded {
		t.Errorf("the call ended %s", c.State)
	}
}

func TestListCalls(t *testing.T) {
	w := newWorld(t)
	start := time.Now().UTC()
	for range 3 {
		decode[callView](t, w.as(t, fleet.RoleOperator, http.MethodPost, callPath, volume50), http.StatusOK)
	}
	decode[callView](t, w.post(t, callPath, `{"tool":"self.get_device_status"}`), http.StatusOK)
	decode[callView](t, w.post(t, "/devices/"+string(other)+"/calls", volume50), http.StatusOK)
	end := time.Now().UTC().Add(time.Second)
	tests := []struct {
		path string
		want int
	}{
		{"/calls", 5},
		{"/calls?device=A0:85:E3:11:22:33", 4},
		{callPath, 4},
		{callPath + "?tool=self.get_device_status", 1},
		{"/calls?state=offline", 1},
		{"/calls?state=offline,succeeded", 5},
		{"/calls?actor=operator-script", 3},
		{"/calls?actor=operator-script&tool=self.get_device_status", 0},
		{"/calls?since=" + end.Format(time.RFC3339), 0},
		{"/calls?until=" + end.Format(time.RFC3339Nano), 5},
		{"/calls?since=" + start.Format(time.RFC3339Nano) + "&until=" + start.Format(time.RFC3339Nano), 0},
		{"/calls?device=000000000000", 0},
	}
	for _, tt := range tests {
		r := w.get(t, tt.path)
		if got := decode[list[callView]](t, r, http.StatusOK); len(got.Items) != tt.want || got.Items == nil ||
			got.Next != nil {
			t.Errorf("%s: %d calls, want %d: %s", tt.path, len(got.Items), tt.want, r.body)
		}
	}
	walk(t, w, "/calls?limit=2", 5)
	walk(t, w, callPath+"?limit=3", 4)
}

// walk follows the cursors of a list and counts its items.
func walk(t *testing.T, w *world, path string, want int) {
	t.Helper()
	seen := map[string]bool{}
	for next := ""; ; {
		page := decode[list[map[string]any]](t, w.get(t, path+"&cursor="+next), http.StatusOK)
		for _, item := range page.Items {
			seen[item["id"].(string)] = true
		}
		if page.Next == nil {
			break
		}
		next = *page.Next
	}
	if len(seen) != want {
		t.Errorf("%s: the pages have %d items, want %d", path, len(seen), want)
	}
}
