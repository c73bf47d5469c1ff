package gateway_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/operator"
)

// The principal that made a call, and any that could make it, can cancel the call while
// it waits for its device; others cannot. A call that was not canceled is sent when the
// device is back.
func TestCancelWaitingCall(t *testing.T) {
	w := newWorld(t)
	model := w.client(t, w.token(t, operator.TokenRequest{Name: "model", Kind: fleet.KindModel}), "/mcp", nil, "")
	wait := func(volume int) string {
		r := invoke(t, model, "call_device", map[string]any{"device": away, "tool": "self.audio_speaker.set_volume",
			"arguments": map[string]any{"volume": volume}, "offline": "wait"})
		c := into[struct {
			ID, State, Waits string
			Until            time.Time `json:"wait_until"`
		}](t, r)
		if r.IsError || c.State != "pending_device" || c.Waits != "device_away" || c.Until.Before(time.Now()) ||
			!strings.Contains(r.text, "cancel_call") {
			t.Fatalf("%s %s", r.text, r.data)
		}
		return c.ID
	}
	stays, own, others := wait(11), wait(12), wait(13)
	for name, tt := range map[string]struct {
		token operator.TokenRequest
		code  string
	}{
		"another model":    {operator.TokenRequest{Kind: fleet.KindModel}, "person_needed"},
		"a viewer":         {operator.TokenRequest{Role: fleet.RoleViewer}, "forbidden"},
		"other devices":    {operator.TokenRequest{Scope: "tag:lab"}, "unknown_call"},
		"other tools":      {operator.TokenRequest{Tools: []string{"self.get_*"}}, "tool_not_allowed"},
		"model, no tool":   {operator.TokenRequest{Kind: fleet.KindModel, Tools: []string{"self.get_*"}}, "unknown_call"},
		"viewer elsewhere": {operator.TokenRequest{Scope: "tag:lab", Role: fleet.RoleViewer}, "forbidden"},
	} {
		tt.token.Name = name
		s := w.client(t, w.token(t, tt.token), "/mcp", nil, "")
		if r := invoke(t, s, "cancel_call", map[string]any{"id": stays}); !r.IsError || !strings.HasPrefix(r.text, tt.code) {
			t.Errorf("%s: %s, want %s", name, r.text, tt.code)
		}
	}
	program := w.client(t, w.token(t, operator.TokenRequest{Name: "program"}), "/mcp", nil, "")
	r := invoke(t, program, "cancel_call", map[string]any{"id": others})
	if r.IsError || !strings.Contains(r.text, "canceled by program before it was sent") {
		t.Errorf("a program: %s", r.text)
	}
	r = invoke(t, model, "cancel_call", map[string]any{"id": own})
	if c := into[struct{ Call struct{ ID, State string } }](t, r).Call; r.IsError || c.ID != own || c.State != "canceled" {
		t.Errorf("whoever made it: %s %s", r.text, r.data)
	}
	if r := invoke(t, model, "cancel_call", map[string]any{"id": own}); !r.IsError ||
		!strings.HasPrefix(r.text, "call_not_waiting") {
		t.Errorf("a second time: %s", r.text)
	}

	sent := make(chan string, 9)
	w.link.Connect(away, func(_ context.Context, _ string, arguments json.RawMessage) (fleet.Answer, error) {
		sent <- string(arguments)
		return fleettest.Text("true"), nil
	})
	w.presence.Connected(fleet.Connection{Device: away, Node: "test", Epoch: 1, Transport: "mqtt", At: time.Now().UTC()})
	fleettest.Eventually(t, "the call that stays succeeded", func() bool {
		return strings.Contains(invoke(t, model, "get_call", map[string]any{"id": stays}).text, "succeeded")
	})
	invoke(t, model, "call_device", map[string]any{"device": away, "tool": "self.audio_speaker.set_volume",
		"arguments": map[string]any{"volume": 14}}) // no waiting call follows it
	for _, want := range []string{`{"volume":11}`, `{"volume":14}`} {
		if got := <-sent; got != want {
			t.Errorf("sent %s, want %s", got, want)
		}
	}
}

// A client cancels a fan-out by the id that get_call returns.
func TestCancelFanOut(t *testing.T) {
	w := newWorld(t)
	model := w.client(t, w.token(t, operator.TokenRequest{Name: "model", Kind: fleet.KindModel}), "/mcp", nil, "")
	other := w.client(t, w.token(t, operator.TokenRequest{Name: "other", Kind: fleet.KindModel}), "/mcp", nil, "")
	r := invoke(t, model, "call_devices", map[string]any{"q": "presence:online", "tool": "self.audio_speaker.set_volume",
		"arguments": map[string]any{"volume": 99}}) // waits for an approval
	id := map[string]any{"id": into[struct{ FanOut struct{ ID string } }](t, r).FanOut.ID}
	if r := invoke(t, other, "cancel_call", id); !r.IsError || !strings.HasPrefix(r.text, "person_needed") {
		t.Errorf("another model: %s", r.text)
	}
	if r := invoke(t, other, "get_call", id); !strings.Contains(r.text, "pending_approval") {
		t.Errorf("after another model: %s", r.text)
	}
	if r := invoke(t, model, "cancel_call", id); r.IsError || !strings.Contains(r.text, ": canceled, 0 of 2 devices done") {
		t.Errorf("whoever made it: %s", r.text)
	}
}
