package gateway_test

//lint:file-ignore SA1019 logging is deprecated since 2026-07-28, and what clients have

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/operator"
)

// logged returns a client whose log messages go to a channel.
func (w *world) logged(t *testing.T, token, version, level string) (*mcp.ClientSession, <-chan string) {
	t.Helper()
	lines := make(chan string, 1000)
	s := w.client(t, token, "/mcp", &mcp.ClientOptions{
		LoggingMessageHandler: func(_ context.Context, r *mcp.LoggingMessageRequest) {
			line, _ := json.Marshal(r.Params.Data)
			lines <- string(r.Params.Level) + " " + string(line)
		}}, version)
	if level != "" {
		if err := s.SetLoggingLevel(t.Context(), &mcp.SetLoggingLevelParams{Level: mcp.LoggingLevel(level)}); err != nil {
			t.Fatal(err)
		}
	}
	return s, lines
}

// wantLine reads log messages until one contains all the parts.
func wantLine(t *testing.T, lines <-chan string, parts ...string) {
	t.Helper()
	var seen []string
	for {
		select {
		case line := <-lines:
			seen = append(seen, line)
			found := true
			for _, part := range parts {
				found = found && strings.Contains(line, part)
			}
			if found {
				return
			}
		case <-t.Context().Done():
			t.Fatalf("no line with %q; there were %q", parts, seen)
		}
	}
}

// A session gets log messages of its level, about devices in its scope and approvals that
// its own token requested.
func TestLogging(t *testing.T) {
	w := newWorld(t)
	model := operator.TokenRequest{Name: "m", Kind: fleet.KindModel}
	token := w.token(t, model)
	s, lines := w.logged(t, token, "2025-11-25", "info")
	lab, labLines := w.logged(t, w.token(t, operator.TokenRequest{Name: "lab", Kind: fleet.KindModel, Scope: "tag:lab"}),
		"2025-11-25", "debug")
	warned, warnings := w.logged(t, token, "2025-11-25", "warning")
	silent, none := w.logged(t, token, "2025-11-25", "")

	// A client opens its stream after its session, and messages before that are lost.
	fleettest.Eventually(t, "four streams are open", func() bool { return w.gateway.Streams() == 4 })

	many := map[string]any{"q": "presence:online", "tool": "self.audio_speaker.set_volume",
		"arguments": map[string]any{"volume": 5}}
	for _, one := range []*mcp.ClientSession{s, warned, silent} {
		invoke(t, one, "call_devices", many)
	}
	wantLine(t, lines, "info ", `"event":"fanout"`, `"done":2`, `"state":"completed"`)

	for _, id := range []fleet.DeviceID{other, unit} { // the last one is in both scopes
		if _, err := w.devices.Hold(t.Context(), root, id, "on the bench", nil); err != nil {
			t.Fatal(err)
		}
	}
	wantLine(t, lines, "notice ", `"event":"device_held"`, string(other), "on the bench", "command line")
	wantLine(t, lines, "notice ", `"event":"device_held"`, string(unit))
	if first := <-labLines; !strings.Contains(first, string(unit)) {
		t.Errorf("the scope tag:lab gets %s", first)
	}
	if _, err := w.devices.Bulk(t.Context(), fleet.BulkRequest{Actor: root, Act: fleet.BulkRelease, Query: "",
		Confirm: 0}); err != nil {
		t.Fatal(err)
	}
	wantLine(t, lines, "notice ", `"event":"device_released"`, string(unit))
	wantLine(t, labLines, "notice ", `"event":"device_released"`, string(unit))

	asked := invoke(t, s, "call_device", map[string]any{"device": unit, "tool": "self.audio_speaker.set_volume",
		"arguments": map[string]any{"volume": 99}})
	c := into[struct{ ID, Approval string }](t, asked)
	wantLine(t, lines, "notice ", `"event":"approval"`, c.ID, `"state":"waiting"`)
	person := fleet.Principal{Kind: fleet.KindOperator, ID: "ada", Name: "ada", Role: fleet.RoleAdmin}
	if _, err := w.approvals.Deny(t.Context(), person, uuid.MustParse(c.Approval), "too loud"); err != nil {
		t.Fatal(err)
	}
	wantLine(t, lines, "notice ", c.Approval, `"state":"denied"`, `"by":"ada"`, "too loud")
	invoke(t, lab, "find_devices", nil) // earlier messages to the others have arrived
	for what, lines := range map[string]<-chan string{"of another token": labLines, "of the level warning": warnings,
		"without a level": none} {
		select {
		case line := <-lines:
			t.Errorf("a session %s gets %s", what, line)
		default:
		}
	}
}

// Since 2026-07-28 a request sets the level of the messages that are sent with its
// answer.
func TestLoggingOfARequest(t *testing.T) {
	w := newWorld(t)
	s, lines := w.logged(t, w.token(t, operator.TokenRequest{}), "2026-07-28", "")
	for _, level := range []string{"warning", "info"} {
		p := &mcp.CallToolParams{Name: "call_devices", Arguments: map[string]any{"q": "presence:online",
			"tool": "self.get_device_status"}, Meta: mcp.Meta{mcp.MetaKeyLogLevel: level}}
		if r, err := s.CallTool(t.Context(), p); err != nil || r.IsError {
			t.Fatalf("%v, %v", r, err)
		}
		if level == "warning" && len(lines) > 0 {
			t.Errorf("above the level: %s", <-lines)
		}
	}
	wantLine(t, lines, "info ", `"event":"fanout"`, `"done":2`)
}

func TestDeviceServersDoNotAdvertiseLogging(t *testing.T) {
	w := newWorld(t)
	token := w.token(t, operator.TokenRequest{})
	for path, want := range map[string]bool{"/mcp": true, "/mcp/devices/" + string(unit): false} {
		s := w.client(t, token, path, nil, "2025-11-25")
		if got := s.InitializeResult().Capabilities.Logging != nil; got != want {
			t.Errorf("%s advertises logging: %t", path, got)
		}
	}
}
