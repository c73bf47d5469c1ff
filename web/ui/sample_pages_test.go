package ui_test

import (
	"context"
	"encoding/json"
	"io"
	"strings"
	"time"

	"github.com/a-h/templ"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/history"
	"fleetd/web/forms"
	"fleetd/web/ui"
)

func schema(s string) json.RawMessage { return json.RawMessage(s) }

var tools = []fleet.Tool{
	{Name: "self.get_device_status",
		Description: "Provides the real-time information of the device, including the current status of the audio speaker, screen, battery and network.", InputSchema: schema(`{"type":"object","properties":{}}`)},
	{Name: "self.audio_speaker.set_volume",
		Description: "Set the volume of the audio speaker. If the current volume is unknown, call `self.get_device_status` first.", InputSchema: schema(`{"type":"object","properties":{"volume":{"type":"integer","minimum":0,"maximum":100}},"required":["volume"]}`)},
	{Name: "self.screen.set_theme", Description: "Set the theme of the screen. The theme can be `light` or `dark`.",
		InputSchema: schema(`{"type":"object","properties":{"theme":{"type":"string"}},"required":["theme"]}`)},
	{Name: "self.lamp.set", Description: "Made-up board tool. 灯光",
		InputSchema: schema(`{"type":"object","properties":{"on":{"type":"boolean","default":true},"level":{"type":"integer","default":10,"minimum":0,"maximum":255},"label":{"type":"string","default":"a"}}}`)},
	{Name: "self.demo." + strings.Repeat("x", 60), Description: hostile[0] + hostile[2],
		InputSchema: schema(`{"type":"object","properties":{"` + strings.Repeat("y", 50) + `":{"type":"string"}}}`)},
	{Name: fleet.ToolReboot, Description: "Reboot the system", InputSchema: schema(`{"type":"object","properties":{}}`),
		Audience: fleet.AudienceUser},
	{Name: fleet.ToolUpgradeFirmware, Description: "Upgrade firmware from a specific URL.",
		InputSchema: schema(`{"type":"object","properties":{"url":{"type":"string","default":"The URL of the firmware"}}}`),
		Audience:    fleet.AudienceUser},
	{Name: fleet.ToolSnapshot, Description: "Snapshot the screen and upload it to a specific URL",
		InputSchema: schema(`{"type":"object","properties":{"url":{"type":"string"},"quality":{"type":"integer","default":80,"minimum":1,"maximum":100}},"required":["url"]}`), Audience: fleet.AudienceUser},
	{Name: fleet.ToolPreviewImage, Description: "Preview an image on the screen",
		InputSchema: schema(`{"type":"object","properties":{"url":{"type":"string"}},"required":["url"]}`),
		Audience:    fleet.AudienceUser},
	{Name: fleet.ToolReconfigureWiFi,
		Description: "End this conversation and enter WiFi configuration mode.\n**CAUTION** You must ask the user to confirm this action.", InputSchema: schema(`{"type":"object","properties":{}}`)},
}

const status = `{"audio_speaker":{"volume":70},"screen":{"brightness":75,"theme":"light"},"battery":{"level":88,"charging":false},"network":{"type":"wifi","ssid":"<b>lab</b>","signal":"strong"},"chip":{"temperature":41.5}}`

func textResult(s string) json.RawMessage {
	b, err := json.Marshal(map[string]any{"content": []any{map[string]any{"type": "text", "text": s}}, "isError": false})
	if err != nil {
		panic(err)
	}
	return b
}

var picture = &ui.Snapshot{ID: "s1", URL: "/snapshots/s1.png", At: now.Add(-3 * time.Minute), Width: 320, Height: 240,
	Bytes: 18234, CallID: "c1", Actor: anna}

func callView(i int, result string) ui.CallView {
	c := sampleCall(i)
	if result != "" {
		c.State, c.Error, c.Result = fleet.CallSucceeded, nil, textResult(result)
	}
	return ui.CallView{Call: c, DeviceName: device(i).Name}
}

func rebootView() ui.CallView {
	c := sampleCall(0)
	sent := now.Add(-40 * time.Second)
	finished := now.Add(-22 * time.Second)
	c.Tool, c.Arguments, c.State, c.CreatedAt, c.SentAt, c.FinishedAt, c.Timeout = fleet.ToolReboot, schema("{}"),
		fleet.CallSucceeded, sent.Add(-2*time.Millisecond), &sent, &finished, 2*time.Minute
	c.FanOut = uuid.Max
	c.Evidence = []fleet.Evidence{
		{At: sent, Kind: fleet.EvidenceSent}, {At: sent.Add(1042 * time.Millisecond), Kind: fleet.EvidenceUpload,
			Detail: "core dump, 70000 bytes", Reason: fleet.Because(fleet.ReasonCoreDumpUploaded, "size_bytes", 70_000)},
		{At: sent.Add(1500 * time.Millisecond), Kind: fleet.EvidenceConnectionLost,
			Detail: "no sign of life within 1.5 times its keepalive", Reason: fleet.Because(fleet.CauseNoKeepalive)},
		{At: sent.Add(1600 * time.Millisecond), Kind: fleet.EvidenceConnectionLost, Detail: "of an older version"},
		{At: sent.Add(12 * time.Second), Kind: fleet.EvidenceBootPoll, Detail: "2.4.2, ota_0"},
		{At: finished, Kind: fleet.EvidenceConnect, Detail: "mqtt"},
	}
	c.Late = &fleet.LateAnswer{At: now.Add(-10 * time.Second), Result: textResult("true")}
	return ui.CallView{Call: c, DeviceName: "Front door"}
}

func keptNot() ui.CallView {
	v := callView(1, "")
	v.Call.State, v.Call.Result = fleet.CallSucceeded, nil
	v.Call.Error = &fleet.CallError{Code: fleet.CodeTooLarge, Message: "too large",
		Params: map[string]any{"bytes": 300_211, "limit": 262_144}}
	return v
}

func toolPage(tool int, last *ui.CallView, canAct bool) templ.Component {
	v := ui.ToolsPage{Head: ui.NewDeviceHead(device(0), "tools", now, canAct), Tools: tools, Last: last}
	if tool >= 0 {
		v.Form = ui.NewToolForm(tools[tool], nil)
	}
	if last != nil {
		last.Compact = true
	}
	return v.Page()
}

func head(tab string) ui.DeviceHead {
	h := ui.NewDeviceHead(device(0), tab, now, true)
	h.CanSnap = true
	return h
}

func firmwarePage() templ.Component {
	return ui.FirmwarePage{
		Head:    head("firmware"),
		Updates: deviceUpdates(),
		Firmware: []fleet.FirmwareRecord{
			{Version: "2.4.2", Slot: "ota_1", ELFSHA256: strings.Repeat("9f2c41", 10) + "01ab", IDFVersion: "v6.0.2",
				FirstSeen: now.AddDate(0, 0, -3), LastSeen: now},
			{Version: "2.4.1", Slot: "ota_0", ELFSHA256: strings.Repeat("77aa00", 10) + "01ab", IDFVersion: "v6.0.1",
				FirstSeen: now.AddDate(0, -2, 0), LastSeen: now.AddDate(0, 0, -3)},
		},
		States: []history.Device{
			{Name: "Kitchen", Board: "bread-compact-wifi", Version: "2.4.2", Tags: []string{"kitchen", "lab"}, ToolsCount: 11,
				Since: now.AddDate(0, 0, -3)},
			{Name: "Kitchen", Board: "bread-compact-wifi", Version: "2.4.1", Tags: []string{"lab"}, ToolsCount: 10,
				HoldSince: ptr(now.AddDate(0, 0, -6)), HoldReason: "repair", Since: now.AddDate(0, 0, -6)},
		},
		Inventories: []fleet.InventoryRecord{
			{InventoryID: strings.Repeat("ab12", 16), Version: "2.4.2", ToolsCount: 11, FirstSeen: now.AddDate(0, 0, -3),
				LastSeen: now},
			{InventoryID: strings.Repeat("cd34", 16), Version: "2.4.1", ToolsCount: 10, Partial: true, FirstSeen: now.AddDate(0,
				-2, 0), LastSeen: now.AddDate(0, 0, -3)},
		},
		Diff: &fleet.InventoryDiff{
			Added: tools[3:4], Removed: tools[4:5],
			Changed: []fleet.ToolChange{{Before: fleet.Tool{Name: tools[1].Name, Description: "Set the volume.",
				InputSchema: tools[0].InputSchema}, After: tools[1]}},
		},
	}.Page()
}

func overview(n int) templ.Component {
	v := ui.Overview{Fleet: n, First: n == 0, Setup: setup("code"), Step: time.Hour}
	if n > 0 {
		v.Adoption = adoptionChart(21)
	}
	if n == 0 {
		return v.Page()
	}
	v.From, v.To = now.Add(-24*time.Hour), now
	v.Now = ui.PresenceNow{Online: n - 6, Unresponsive: 2, Offline: 3, Pending: 1}
	for i := range 288 {
		at := now.Add(time.Duration(i-288) * 5 * time.Minute)
		v.Presence = append(v.Presence, fleet.PresenceSample{At: at, Online: n - 6 - i%17, Unresponsive: i % 5, Offline: 3 +
			i%13})
	}
	for i := range 24 {
		v.Calls = append(v.Calls, call.Bucket{At: now.Truncate(time.Hour).Add(time.Duration(i-24) * time.Hour),
			Succeeded: 40 + i*i%37, Failed: i * 7 % 11, ToolErrors: i * 7 % 11 / 2, NoAnswer: i * 7 % 11 / 3})
	}
	v.Versions = []fleet.DeviceCount{{Value: "2.4.2", Count: n - 60}, {Value: "2.4.1", Count: 41},
		{Value: "2.3.0", Count: 18}, {Value: "", Count: 1}}
	v.Needs = ui.Attention{Claims: 1, Approvals: 3, Holds: 2}
	v.UnderWay.FanOuts = []ui.FanOutRow{fanOutRow(call.FanOutRunning)}
	running, gated := sampleBoard(campaign.Running, "Echo fix for the lobby 🦊", 412), sampleBoard(campaign.Paused,
		hostile[2], 43)
	for _, b := range []ui.CampaignBoard{running, gated} {
		b.Campaign.ID = uuid.NewSHA1(uuid.Nil, []byte("campaign "+b.Campaign.State))
		v.UnderWay.Campaigns = append(v.UnderWay.Campaigns, ui.CampaignRow{Campaign: b.Campaign, Version: "2.4.3", Waves: 3,
			Tally: ui.NewCampaignTally(b.Progress.ByState)})
		if n, ok := ui.NewCampaignNeed(b.Campaign); ok {
			v.Needs.Campaigns = append(v.Needs.Campaigns, n)
		}
	}
	return v.Page()
}

func fanOut(state call.FanOutState) (call.FanOut, call.FanOutProgress) {
	f := call.FanOut{ID: uuid.NewSHA1(uuid.Nil, []byte(state)), Actor: anna, Query: "board:esp-box-3 -hold",
		Tool:      "self.audio_speaker.set_volume",
		Arguments: schema(`{"volume":40}`), MaxInFlight: 64, State: state, Targets: 4312, Skipped: 41,
		CreatedAt: now.Add(-75 * time.Second)}
	p := call.FanOutProgress{Waiting: 1206, ByState: map[fleet.CallState]int{fleet.CallSent: 64,
		fleet.CallSucceeded: 2941, fleet.CallTimedOut: 30, fleet.CallOffline: 71}}
	if state == call.FanOutRunning {
		f.OfflineWait, p.AwaitOnline = 6*time.Hour, 120
		p.Blocked = &call.FanOutBlock{Code: call.BlockDatabase, Since: now.Add(-20 * time.Second)}
	}
	if state == call.FanOutCanceled {
		f.FinishedAt, f.CanceledBy = &now, "anna"
	}
	return f, p
}

func fanOutRow(state call.FanOutState) ui.FanOutRow {
	f, p := fanOut(state)
	return ui.NewFanOutRow(f, p)
}

func fanOutPage(state call.FanOutState) templ.Component {
	f, p := fanOut(state)
	ids := []fleet.DeviceID{device(1).ID, device(2).ID, device(3).ID}
	calls := []uuid.UUID{uuid.Max, uuid.Max, uuid.Max}
	return ui.FanOutPage{FanOut: f, CanAct: true, Compare: comparison("succeeded"),
		Skipped: []fleet.DeviceCount{{Value: "device_held", Count: 38},
			{Value: "unknown_tool", Count: 3}},
		Progress: ui.FanOutProgress{FanOut: f, Counts: p, CanAct: true,
			By: call.AnswerGrouping{Limit: 20}, Answers: call.AnswerGroups{Total: 43, Fields: []string{"audio_speaker.volume"},
				Groups: []call.FanOutAnswer{{State: fleet.CallSucceeded, Text: "true", Count: 2941, Sample: ids, CallIDs: calls},
					{State: fleet.CallOffline, Text: "The device is not connected. Nothing was sent.", Count: 71, Sample: ids,
						CallIDs: calls},
					{State: fleet.CallToolError, Text: hostile[2], Count: 1, Sample: ids[:1], CallIDs: calls[:1]},
				}}}}.Page()
}

func bulkPage(act fleet.BulkAct, previewed bool) templ.Component {
	v := ui.BulkPage{Act: act, Query: "board:esp-box-3", Tags: "lab, shelf-2", Reason: "on the bench", Next: "/devices",
		Matched: 4353, Asking: !previewed}
	if previewed {
		v.Preview = &fleet.BulkResult{Matched: 4353, Targets: 4312, Skipped: []fleet.SkippedDevices{
			{Reason: fleet.LeftOutHeld, Count: 38, Sample: []fleet.DeviceID{device(1).ID, device(2).ID}}}}
		for i, code := range fleet.LeftOutCodes {
			v.Preview.Skipped = append(v.Preview.Skipped, fleet.SkippedDevices{Reason: code, Count: i})
		}
	}
	return v.Page()
}

func fanOutNew(step int) templ.Component {
	v := ui.FanOutNewPage{Query: "board:esp-box-3", ByQuery: true, Matched: 4353, Tools: tools, CanAct: true}
	if step > 0 {
		v.Form = ui.NewToolForm(tools[1], schema(`{"volume":40}`))
	}
	if step > 1 {
		v.Form = ui.NewToolForm(tools[5], nil)
		v.Arguments = schema(`{}`)
		v.Preview = &call.FanOutPreview{Matched: 4353, Targets: 4312, Offline: 120, UserOnly: true,
			Skipped: []fleet.SkippedDevices{
				{Reason: "device_held", Count: 38, Sample: []fleet.DeviceID{device(1).ID, device(2).ID}}, {Reason: "unknown_tool",
					Count: 3}}}
	}
	if step > 2 {
		v.Form = ui.NewToolForm(tools[9], nil)
		v.Preview.Effect, v.Preview.Skipped = fleet.EffectLeaves, nil
	}
	return v.Page()
}

func settingsPage() templ.Component {
	return ui.SettingsPage{
		Operators: []ui.OperatorRow{{ID: "1", Name: "anna", Role: fleet.RoleAdmin, Self: true},
			{ID: "2", Name: "李雷", Role: fleet.RoleOperator}, {ID: "3", Name: "guest", Role: fleet.RoleViewer, Disabled: true}},
		Tokens: []ui.TokenRow{{ID: "1", Name: "nightly-volume-check", Role: fleet.RoleOperator, Hint: "x7Qa", By: "anna",
			Created: now.AddDate(0, -1, 0), LastUsed: ago(2 * time.Hour)}, {ID: "2", Name: "old", Role: fleet.RoleViewer,
			Hint: "90Zz", By: "anna", Created: now.AddDate(0, -6, 0), Expires: ago(-24 * time.Hour), Revoked: true}},
		NewToken: "flt_4yTq0a8Zr1mX9cVb7Nn2Kp5Ls3Wd6Ef", Mode: "code", Admin: true, Fleet: true,
		Clients: ui.MCPClients("https://fleet.example.org", "flt_4yTq0a8Zr1mX9cVb7Nn2Kp5Ls3Wd6Ef"), ClientsLocal: true,
		System: []ui.SystemFact{{Key: "version", Value: "0.1.0"}, {Key: "node", Value: "fleet-1"},
			{Key: "started", Value: "21 Nov 2026"}, {Key: "ota", Value: "http://fleet.example.org:8080/xiaozhi/ota/"},
			{Key: "mqtt", Value: "fleet.example.org:1883"}, {Key: "database", Value: "PostgreSQL 15.14"},
			{Key: "data_dir", Value: "/var/lib/fleetd"}, {Key: "devices", Value: "4,306"}},
	}.Page()
}

func claimPage() templ.Component {
	return ui.ClaimPage{Mode: "approve", CanAct: true, Setup: setup("approve"), Waiting: []ui.WaitingDevice{
		{ID: device(5).ID, Board: boards[0], Version: "2.4.2", RemoteAddr: "192.168.4.31", LastPoll: ago(20 * time.Second)},
		{ID: device(6).ID, Board: hostile[2], Version: hostile[0], RemoteAddr: "192.168.4.32",
			LastPoll: ago(time.Minute), NewClient: true},
		{ID: device(7).ID, RemoteAddr: "192.168.4.33", LastPoll: ago(8 * time.Second), Code: "123456",
			Why: enrolment.WaitConnects},
	}}.Page()
}

// late renders a component that needs the page's language for its data.
func late(f func(ctx context.Context) templ.Component) templ.Component {
	return templ.ComponentFunc(func(ctx context.Context, w io.Writer) error { return f(ctx).Render(ctx, w) })
}

func apiPage(one bool) templ.Component {
	call := ui.APIOperation{ID: "make-call", Method: "POST", Path: "/calls", Summary: "Call a tool of a device",
		About: "Waits for the outcome and answers 200 with the call, whatever its state.\n\nNeeds the role operator.",
		Parameters: []ui.APIValue{{Name: "id", In: "path", Type: "string", About: "Device id", Required: true},
			{Name: "Prefer", In: "header", Type: "string", About: "respond-async does not wait for the outcome"}},
		Body: []ui.APIValue{{Name: "tool", Type: "string", Required: true},
			{Name: "arguments", Type: "object", About: "Arguments of the tool, at most 3 KiB; {} if left out"},
			{Name: "snapshot_id", Depth: 1, Type: "string, uuid"}},
		Errors: []string{"400", "401", "429"}, Example: forms.Equivalent{Method: "POST", Path: "/devices/ID/calls",
			Body: map[string]any{"tool": "self.audio_speaker.set_volume"}}}
	list := ui.APIOperation{ID: "list-devices", Method: "GET", Path: "/devices", Summary: "List devices"}
	v := ui.APIPage{Groups: []ui.APIGroup{{Tag: "devices", Operations: []ui.APIOperation{list, call}}}}
	if one {
		v.One, v.Whole = true, true
		v.Groups[0].Operations = v.Groups[0].Operations[1:]
	}
	return v.Page()
}

func firstBoard() templ.Component {
	s := setup("code")
	s.OTAURL, s.Local, s.NetworkOTAURL = "http://127.0.0.1:8080/xiaozhi/ota/", true, "http://192.168.1.5:8080/xiaozhi/ota/"
	s.CanFlash, s.CanCreate = true, true
	s.Waiting = []ui.WaitingDevice{{ID: "a085e3112233", Board: "bread-compact-wifi", Version: "2.4.2",
		RemoteAddr: "192.168.1.77", Since: now, LastPoll: ago(12 * time.Second)}}
	return ui.DevicesPage{List: list("/devices", ""), First: true, CanAct: true, Setup: s}.Page()
}
