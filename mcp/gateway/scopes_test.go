package gateway_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/operator"
)

func names(t testing.TB, s *mcp.ClientSession) []string {
	t.Helper()
	var list []string
	for tool, err := range s.Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, tool.Name)
	}
	return list
}

// pushVersions are the protocol versions with pushes, each of another kind.
var pushVersions = []string{"2026-07-28", "2025-11-25"}

// A device's server lists the device's tools for models under their own names, and
// follows changes of its inventory.
func TestDeviceScope(t *testing.T) {
	w := newWorld(t)
	token := w.token(t, operator.TokenRequest{Kind: fleet.KindModel})
	before := []string{"self.audio_speaker.set_volume", "self.get_device_status"}
	type listener struct {
		s       *mcp.ClientSession
		changed chan struct{}
	}
	var listeners []listener
	for _, version := range pushVersions {
		l := listener{changed: make(chan struct{}, 10)}
		l.s = w.client(t, token, "/mcp/devices/"+string(unit), &mcp.ClientOptions{
			ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { l.changed <- struct{}{} }}, version)
		listeners = append(listeners, l)
		if got := names(t, l.s); !slices.Equal(got, before) {
			t.Errorf("%s: tools %v", version, got)
		}
		r := invoke(t, l.s, "self.audio_speaker.set_volume", map[string]any{"volume": 8})
		if r.IsError || !strings.Contains(r.text, `got {"volume":8}`) {
			t.Errorf("%s: %s", version, r.text)
		}
		if r := invoke(t, l.s, "self.audio_speaker.set_volume", map[string]any{"volume": 800}); !r.IsError ||
			!strings.Contains(r.text, "from 0 to 100") {
			t.Errorf("%s: out of range: %s", version, r.text)
		}
		if _, err := l.s.CallTool(t.Context(), &mcp.CallToolParams{Name: fleet.ToolReboot}); err == nil {
			t.Errorf("%s: a user-only tool is there", version)
		}
	}
	hostile := []fleet.Tool{
		{Name: "self.größe ändern", Description: injection, InputSchema: json.RawMessage(`{"type":"string"}`)},
		{Name: strings.Repeat("long.", 40), InputSchema: json.RawMessage(`not JSON`)},
		{Name: "self.header", InputSchema: json.RawMessage(
			`{"type":"object","properties":{"a":{"type":"object","x-mcp-header":"Bad Header\r\n"}}}`)},
	}
	for i := range hostile {
		hostile[i].Audience = fleet.AudienceModel
		if !json.Valid(hostile[i].InputSchema) {
			hostile[i].InputSchema = nil
		}
	}
	w.listing(t, unit, "bb", append(slices.Clone(tools[:1]), hostile...))
	for i, l := range listeners {
		fleettest.Eventually(t, "the list of tools changed", func() bool {
			select {
			case <-l.changed:
				return true
			default:
				return false
			}
		})
		var got []string
		fleettest.Eventually(t, "four tools are listed", func() bool { got = names(t, l.s); return len(got) == 4 })
		for _, name := range got {
			if strings.ContainsFunc(name, func(r rune) bool {
				return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-", r)
			}) || len(name) > 128 {
				t.Errorf("a name that clients do not accept: %q", name)
			}
		}
		r := invoke(t, l.s, "self.gr_xC3_xB6_xC3_x9Fe_x20_xC3_xA4ndern", nil)
		if !strings.Contains(r.text, "self.größe ändern") {
			t.Errorf("%s: a mapped name calls %s", pushVersions[i], r.text)
		}
	}
	lab := w.token(t, operator.TokenRequest{Name: "lab", Scope: "tag:lab", Tools: []string{"self.get_*"}})
	if got := names(t, w.client(t, lab, "/mcp/devices/"+string(unit), nil, "")); !slices.Equal(got, before[1:]) {
		t.Errorf("tools of a token with few: %v", got)
	}
	for path, want := range map[string]int{"/mcp/devices/" + string(other): 404, "/mcp/devices/a085e3110000": 404,
		"/mcp/devices/x%20y": 422} {
		if resp := w.post(t, lab, path, listTools); resp.StatusCode != want {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
}

func TestGroupScope(t *testing.T) {
	w := newWorld(t)
	w.listing(t, other, "cc", []fleet.Tool{tools[0], {Name: tools[1].Name, Description: "Other", Audience: fleet.AudienceModel,
		InputSchema: tools[1].InputSchema}, {Name: "self.only_here", Audience: fleet.AudienceModel,
		InputSchema: json.RawMessage(`{"type":"object"}`)}, {Name: "self.move", Audience: fleet.AudienceModel,
		InputSchema: json.RawMessage(`{"type":"object","properties":{"device":{"type":"string"}}}`)}})
	for name, q := range map[string]string{"boards": "board:bread*", "away": "presence:pending", "one": "id:" + string(other),
		"lab-boards": "board:bread* tag:lab"} {
		if _, err := w.filters.Create(t.Context(), root, fleet.Filter{Name: name, Query: q}); err != nil {
			t.Fatal(err)
		}
	}
	token := w.token(t, operator.TokenRequest{Kind: fleet.KindModel})
	s := w.client(t, token, "/mcp/groups/boards", nil, "2025-11-25")
	if got := names(t, s); !slices.Equal(got, []string{"self.audio_speaker.set_volume", "self.get_device_status"}) {
		t.Errorf("shared tools: %v", got)
	}
	r := invoke(t, s, "self.audio_speaker.set_volume", map[string]any{"device": other, "volume": 4})
	if r.IsError || !strings.Contains(r.text, `of a085e3112244 got {"volume":4}`) {
		t.Errorf("a call to a member: %s", r.text)
	}
	for args, code := range map[string]string{`{"volume":4}`: "mcp_device_missing", `{"device":"a085e3110000","volume":4}`: "mcp_unknown_device"} {
		if r := invoke(t, s, "self.audio_speaker.set_volume", json.RawMessage(args)); !r.IsError ||
			!strings.HasPrefix(r.text, code) {
			t.Errorf("%s: %s, want %s", args, r.text, code)
		}
	}
	s = w.client(t, token, "/mcp/groups/one", nil, "")
	if r := invoke(t, s, "self.get_device_status", map[string]any{"device": unit}); !r.IsError ||
		!strings.HasPrefix(r.text, "mcp_not_in_group") {
		t.Errorf("a device that is not in the group: %s", r.text)
	}
	if r := invoke(t, s, "self.move", map[string]any{"fleet_device": other, "device": "left"}); !strings.Contains(r.text,
		`got {"device":"left"}`) {
		t.Errorf("a tool with an argument device: %s", r.text)
	}
	lab := w.token(t, operator.TokenRequest{Name: "lab", Scope: "tag:lab"})
	if resp := w.post(t, lab, "/mcp/groups/one", listTools); resp.StatusCode != 404 {
		t.Errorf("a group that names devices outside of the scope: %s", resp.Status)
	}
	if resp := w.post(t, lab, "/mcp/groups/lab-boards", listTools); resp.StatusCode != 200 {
		t.Errorf("a group whose query repeats the scope: %s", resp.Status)
	}
	if resp := w.post(t, token, "/mcp/groups/none", listTools); resp.StatusCode != 404 {
		t.Errorf("no such group: %s", resp.Status)
	}
}

func TestResources(t *testing.T) {
	w := newWorld(t)
	lab := w.token(t, operator.TokenRequest{Name: "lab", Kind: fleet.KindModel, Scope: "tag:lab"})
	for _, version := range pushVersions {
		updated := make(chan string, 10)
		o := &mcp.ClientOptions{ResourceUpdatedHandler: func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) {
			updated <- r.Params.URI
		}}
		s := w.client(t, lab, "/mcp", o, version)
		list, err := s.ListResourceTemplates(t.Context(), nil)
		if err != nil || len(list.ResourceTemplates) != 4 {
			t.Fatalf("%v, %v", list, err)
		}
		for _, what := range []string{"status", "tools", "calls"} {
			r, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "device://" + string(unit) + "/" + what})
			if err != nil || !json.Valid([]byte(r.Contents[0].Text)) || strings.Contains(r.Contents[0].Text, `"self.reboot"`) {
				t.Errorf("%s %s: %v, %v", version, what, r, err)
			}
			for _, uri := range []string{"device://" + string(other) + "/" + what, "device://x/" + what, "device://../" + what} {
				if _, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri}); err == nil {
					t.Errorf("%s %s is there", version, uri)
				}
			}
		}
		if _, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "device://" + string(unit) + "/snapshot/latest"}); err == nil {
			t.Error("there is a picture")
		}
		uri := "device://" + string(unit) + "/calls"
		if version == "2026-07-28" {
			continue // the client has no Subscribe yet: see TestListen
		}
		if err := s.Subscribe(t.Context(), &mcp.SubscribeParams{URI: uri}); err != nil {
			t.Fatal(err)
		}
		if err := s.Subscribe(t.Context(), &mcp.SubscribeParams{URI: "device://" + string(other) + "/calls"}); err == nil {
			t.Error("subscribed to a device outside of the scope")
		}
		fleettest.Eventually(t, "the resource was updated", func() bool {
			invoke(t, s, "read_device", map[string]any{"device": unit, "tool": "self.get_device_status"})
			select {
			case got := <-updated:
				return got == uri
			default:
				return false
			}
		})
		// Once the device has left the scope, the token gets no more of its
		// updates.
		tags := []string{}
		if _, err := w.devices.Update(t.Context(), root, unit, fleet.DevicePatch{Tags: &tags}); err != nil {
			t.Fatal(err)
		}
		all := w.client(t, w.token(t, operator.TokenRequest{Name: "all"}), "/mcp", o, version)
		if err := all.Subscribe(t.Context(), &mcp.SubscribeParams{URI: "device://" + string(other) + "/calls"}); err != nil {
			t.Fatal(err)
		}
		invoke(t, all, "read_device", map[string]any{"device": unit, "tool": "self.get_device_status"})
		for len(updated) > 0 {
			<-updated
		}
		invoke(t, all, "read_device", map[string]any{"device": unit, "tool": "self.get_device_status"})
		invoke(t, all, "read_device", map[string]any{"device": other, "tool": "self.get_device_status"})
		if got := <-updated; got != "device://"+string(other)+"/calls" {
			t.Errorf("an update of %s for a token that does not see it", got)
		}
	}
}

func TestPromptsAndCompletion(t *testing.T) {
	w := newWorld(t)
	s := w.client(t, w.token(t, operator.TokenRequest{Kind: fleet.KindModel, Scope: "tag:lab"}), "/mcp", nil, "2025-11-25")
	list, err := s.ListPrompts(t.Context(), nil)
	if err != nil || len(list.Prompts) != 3 {
		t.Fatalf("%v, %v", list, err)
	}
	p, err := s.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "diagnose_device",
		Arguments: map[string]string{"device": string(unit)}})
	if err != nil || !strings.Contains(p.Messages[0].Content.(*mcp.TextContent).Text, string(unit)) {
		t.Errorf("%v, %v", p, err)
	}
	if _, err := s.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "diagnose_device"}); err == nil {
		t.Error("a prompt without its argument")
	}
	for _, tt := range []struct{ argument, value, want string }{
		{"device", "a085", string(unit)}, {"device", "A0:85", string(unit)}, {"board", "bread", "bread-compact-wifi"},
		{"tool", "self.", "self.audio_speaker.set_volume,self.get_device_status"}, {"device", "zz", ""},
	} {
		ref := &mcp.CompleteReference{Type: "ref/resource", URI: "device://{id}/status"}
		r, err := s.Complete(t.Context(), &mcp.CompleteParams{Ref: ref, Argument: mcp.CompleteParamsArgument{
			Name: tt.argument, Value: tt.value}})
		if err != nil || strings.Join(r.Completion.Values, ",") != tt.want {
			t.Errorf("%s %q: %v, %v; want %s", tt.argument, tt.value, r, err, tt.want)
		}
	}
}
