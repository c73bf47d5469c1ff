package server

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/broker/sim"
	"fleetd/fleet"
	"fleetd/fleet/operator"
)

// bearerTransport adds a token to requests.
type bearerTransport string

func (t bearerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(t))
	return http.DefaultTransport.RoundTrip(r)
}

// A model reaches simulated devices through a complete server, with a session and
// without.
func TestModelThroughMCP(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer // its handler has a lock, and writes nothing after Close
	d := startTestServer(t, func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))
	})
	d.simulate(sim.Options{Devices: 2, Boards: []string{"esp-box-3"}, Seed: 7, TimeScale: 0.1})
	device := d.listed(2)[0].ID
	_, model, err := d.Operators.NewToken(t.Context(), testOperator, operator.TokenRequest{Name: "model",
		Kind: fleet.KindModel, Role: fleet.RoleOperator, Tools: []string{"*"}})
	if err != nil {
		t.Fatal(err)
	}
	connect := func(token, version string) *mcp.ClientSession {
		s, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(),
			&mcp.StreamableClientTransport{Endpoint: d.URL() + "/mcp", HTTPClient: &http.Client{
				Transport: bearerTransport(token)}}, &mcp.ClientSessionOptions{ProtocolVersion: version})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	call := func(s *mcp.ClientSession, tool string, args map[string]any) *mcp.CallToolResult {
		r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
		if err != nil {
			t.Fatalf("%s: %v", tool, err)
		}
		return r
	}
	text := func(r *mcp.CallToolResult) string { return r.Content[0].(*mcp.TextContent).Text }
	for _, version := range []string{"2026-07-28", "2025-11-25"} {
		s := connect(model, version)
		if got := text(call(s, "find_devices", map[string]any{"q": "presence:online"})); !strings.Contains(got, device) {
			t.Errorf("find_devices: %s", got)
		}
		r := call(s, "call_device", map[string]any{"device": device, "tool": "self.audio_speaker.set_volume",
			"arguments": map[string]any{"volume": 37}})
		if r.IsError || !strings.Contains(text(r), "succeeded") {
			t.Errorf("call_device: %s", text(r))
		}
		if r := call(s, "call_device", map[string]any{"device": device, "tool": "self.reboot"}); !r.IsError ||
			!strings.Contains(text(r), "user_only") {
			t.Errorf("a model reboots: %s", text(r))
		}
		if r := call(s, "get_snapshot", map[string]any{"device": device, "take": true}); !r.IsError {
			t.Errorf("a model takes a picture with a user-only tool: %s", text(r))
		}
	}
	program := connect(d.token, "")
	r := call(program, "get_snapshot", map[string]any{"device": device, "take": true})
	if r.IsError || len(r.Content) != 2 {
		t.Fatalf("get_snapshot: %s", text(r))
	}
	if picture, ok := r.Content[1].(*mcp.ImageContent); !ok || len(picture.Data) < 100 ||
		!strings.HasPrefix(picture.MIMEType, "image/") {
		t.Errorf("get_snapshot: %v", r.Content[1])
	}
	var calls list[callJSON]
	d.rest("GET", "/calls?actor=model", nil, &calls)
	if len(calls.Items) != 6 || calls.Items[0].Actor.Kind != "model" {
		t.Errorf("on record: %+v", calls.Items)
	}
	s := connect(model, "2025-11-25") // its stream is open while the server stops
	_ = s.Ping(context.Background(), nil)
	d.Close()
	if text := log.String(); strings.Contains(text, "did not stop in time") {
		t.Errorf("with an open stream, the server says when it stops: %s", text)
	}
}
