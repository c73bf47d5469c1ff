package call_test

import (
	"encoding/json"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/call"
)

// The first refusal of a preview is the refusal that the call ends with. A preview leaves no
// record.
func TestPreviewSaysWhatTheCallWillSay(t *testing.T) {
	bot := fleet.Principal{Kind: fleet.KindModel, ID: "9", Name: "bot", Role: fleet.RoleOperator}
	bound := bot
	bound.Scope = &fleet.Scope{Tools: []string{"self.audio_*"}}
	viewer := fleet.Principal{Kind: fleet.KindProgram, ID: "8", Name: "eye", Role: fleet.RoleViewer}
	held := func(d *fleet.Device) { d.Hold = &fleet.Hold{Reason: "bench", By: bob} }
	tests := []struct {
		name   string
		change func(*fleet.Device)
		r      call.Request
		want   []string // codes of the preview
	}{
		{"allowed", nil, call.Request{Tool: "self.audio_speaker.set_volume", Arguments: json.RawMessage(`{"volume":5}`)}, nil},
		{"with an address of ours", nil, call.Request{Tool: fleet.ToolSnapshot}, nil},
		{"url given", nil, call.Request{Tool: fleet.ToolSnapshot, Arguments: json.RawMessage(`{"url":"http://x/"}`)},
			[]string{"url_is_ours"}},
		{"held, and wrong arguments", held, call.Request{Tool: "self.audio_speaker.set_volume",
			Arguments: json.RawMessage(`{"volume":500}`)}, []string{"device_held", "invalid_arguments"}},
		{"unknown tool", nil, call.Request{Tool: "self.fly"}, []string{"unknown_tool"}},
		{"a viewer", nil, call.Request{Actor: viewer, Tool: "self.get_device_status"}, []string{"forbidden"}},
		{"a model and a user-only tool", nil, call.Request{Actor: bot, Tool: fleet.ToolReboot}, []string{"user_only"}},
		{"a model's tools", nil, call.Request{Actor: bound, Tool: fleet.ToolReboot}, []string{"tool_not_allowed", "user_only"}},
		{"an upgrade", nil, call.Request{Tool: fleet.ToolUpgradeFirmware, Arguments: json.RawMessage(`{}`)},
			[]string{"use_campaign"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			if tt.change != nil {
				b.put(tt.change)
			}
			b.link.Connect(unit, answer("true"))
			if tt.r.Actor.Name == "" {
				tt.r.Actor = ann
			}
			got, err := b.Preview(t.Context(), tt.r, []fleet.DeviceID{unit, "ffffffffffff"})
			if err != nil || len(got) != 1 {
				t.Fatalf("%d previews, %v", len(got), err)
			}
			if calls, err := b.List(t.Context(), call.Filter{}); err != nil || len(calls.Items) != 0 {
				t.Errorf("a preview left %d calls, %v", len(calls.Items), err)
			}
			call := b.call(t, tt.r)
			code := ""
			if len(got[0].Refusals) > 0 {
				code = got[0].Refusals[0].Code
			}
			if (call.Error == nil) != (code == "") || call.Error != nil && call.Error.Code != code {
				t.Errorf("the preview says %q, the call %v", code, call.Error)
			}
			if len(got[0].Refusals) != len(tt.want) {
				t.Fatalf("refusals %v, want %v", got[0].Refusals, tt.want)
			}
			for i, e := range got[0].Refusals {
				if e.Code != tt.want[i] {
					t.Errorf("refusal %s, want %s", e.Code, tt.want[i])
				}
			}
		})
	}
}
