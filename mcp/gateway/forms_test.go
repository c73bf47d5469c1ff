package gateway_test

import (
	"context"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/fleet"
	"fleetd/fleet/operator"
)

// If a tool is for people, the user of a client with forms enters the number of devices.
// The number is checked, and neither it nor the form counts as an approval.
func TestNumberOfDevicesAskedOfTheUser(t *testing.T) {
	w := newWorld(t)
	w.listSiren(t, unit, other)
	token := w.token(t, operator.TokenRequest{})
	siren := map[string]any{"q": "presence:online", "tool": "self.siren"}
	fanOuts := func() int {
		page, err := w.fanOuts.List(t.Context(), 100, "")
		if err != nil {
			t.Fatal(err)
		}
		return len(page.Items)
	}
	form, url := &mcp.FormElicitationCapabilities{}, &mcp.URLElicitationCapabilities{}
	for _, version := range []string{"2026-07-28", "2025-11-25"} {
		for _, tt := range []struct {
			name   string
			can    *mcp.ElicitationCapabilities
			action string
			number any
			args   map[string]any
			asked  int
			want   string // part of the text
			made   int
		}{
			{"the right number", &mcp.ElicitationCapabilities{Form: form}, "accept", 2, siren, 1, "2 of 2 devices done", 1},
			{"a client that does not say which kind", &mcp.ElicitationCapabilities{}, "accept", 2, siren, 1,
				"2 of 2 devices done", 1},
			{"another number", &mcp.ElicitationCapabilities{Form: form}, "accept", 3, siren, 1, "mcp_not_confirmed", 0},
			{"declined", &mcp.ElicitationCapabilities{Form: form}, "decline", nil, siren, 1, "mcp_not_confirmed", 0},
			{"a client without forms", &mcp.ElicitationCapabilities{URL: url}, "", nil, siren, 0, "2 of 2 devices done", 1},
			{"a dry run", &mcp.ElicitationCapabilities{Form: form}, "", nil, map[string]any{"q": "presence:online",
				"tool": "self.siren", "dry_run": true}, 0, "Dry run", 0},
			{"a tool for models", &mcp.ElicitationCapabilities{Form: form}, "", nil, map[string]any{"q": "presence:online",
				"tool": "self.get_device_status"}, 0, "2 of 2 devices done", 1},
			{"no devices", &mcp.ElicitationCapabilities{Form: form}, "", nil, map[string]any{"q": "tag:none",
				"tool": "self.siren"}, 0, "empty_audience", 0},
		} {
			asked, before := 0, fanOuts()
			s := w.client(t, token, "/mcp", &mcp.ClientOptions{
				Capabilities: &mcp.ClientCapabilities{Elicitation: tt.can},
				ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
					if asked++; r.Params.Mode != "form" || !strings.HasPrefix(r.Params.Message, "self.siren on 2 devices. Enter") {
						t.Errorf("%s: asked in the mode %q: %s", tt.name, r.Params.Mode, r.Params.Message)
					}
					return &mcp.ElicitResult{Action: tt.action, Content: map[string]any{"devices": tt.number}}, nil
				}}, version)
			r := invoke(t, s, "call_devices", tt.args)
			if made := fanOuts() - before; !strings.Contains(r.text, tt.want) || asked != tt.asked || made != tt.made {
				t.Errorf("%s, %s: %q after %d questions, %d fan-outs; want %q, %d, %d", version, tt.name, r.text, asked, made,
					tt.want, tt.asked, tt.made)
			}
		}
	}
}

func TestFormIsNoApproval(t *testing.T) {
	w := newWorld(t)
	w.listSiren(t, unit)
	token := w.token(t, operator.TokenRequest{})
	for version, want := range map[string][]string{"2026-07-28": {"form", "url"}, "2025-11-25": {"form"}} {
		var asked []string
		s := w.client(t, token, "/mcp", &mcp.ClientOptions{
			Capabilities: &mcp.ClientCapabilities{Elicitation: &mcp.ElicitationCapabilities{
				Form: &mcp.FormElicitationCapabilities{}, URL: &mcp.URLElicitationCapabilities{}}},
			ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				asked = append(asked, r.Params.Mode)
				if r.Params.Mode == "url" {
					return &mcp.ElicitResult{Action: "decline"}, nil
				}
				return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"devices": 1}}, nil
			}}, version)
		r := invoke(t, s, "call_devices", map[string]any{"devices": []any{unit}, "tool": "self.siren",
			"arguments": map[string]any{"volume": 99}})
		if r.IsError || !strings.Contains(r.text, "waiting for approval") || strings.Join(asked, " ") != strings.Join(want, " ") {
			t.Errorf("%s: asked %q, want %q: %s", version, asked, want, r.text)
		}
	}
}

// listSiren gives the devices a tool for people that answers at once.
func (w *world) listSiren(t *testing.T, ids ...fleet.DeviceID) {
	for _, id := range ids {
		w.listing(t, id, "5d", append([]fleet.Tool{{Name: "self.siren", Audience: fleet.AudienceUser,
			InputSchema: []byte(`{"type":"object","properties":{"volume":{"type":"integer"}}}`)}}, tools...))
	}
}
