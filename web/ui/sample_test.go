package ui_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/web/ui"
)

// now is the time of all samples.
var now = time.Date(2026, 11, 21, 9, 41, 7, 0, time.UTC)

// hostile is text as an attacker would choose it for a device.
var hostile = []string{
	`<script>alert(1)</script>`,
	"Invoice \u202egnp.exe\u202c now",
	strings.Repeat("Donaudampfschifffahrtsgesellschaft", 6),
	`"><img src=x onerror=alert(1)>`,
	"javascript:alert(1)",
}

var names = append([]string{
	"Front door", "Kitchen speaker", "实验室 3 号", "🦊🚀 lobby 👩‍👩‍👧", "", "Reception desk",
	"A name of exactly sixty characters for the long corridor, 2F", "",
}, hostile...)

var boards = []string{"bread-compact-wifi", "esp-box-3", "m5stack-core-s3", "atoms3r-echo-base", "lichuang-dev"}

var presences = []fleet.Presence{fleet.PresenceOnline, fleet.PresenceOnline, fleet.PresenceOnline,
	fleet.PresenceOffline, fleet.PresenceUnresponsive, fleet.PresencePending}

func ago(d time.Duration) *time.Time {
	t := now.Add(-d)
	return &t
}

func device(i int) fleet.Device {
	d := fleet.Device{
		ID: fleet.DeviceID(fmt.Sprintf("a085e3%06x", 0x112233+i)), Name: names[i%len(names)],
		Board: boards[i%len(boards)], Chip: "esp32s3", Version: []string{"2.4.2", "2.4.1", "2.3.0"}[i%3],
		ELFSHA256: strings.Repeat("9f2c41", 10) + "01ab", Slot: "ota_0", Language: "zh-CN",
		Presence: presences[i%len(presences)], PresenceSince: now.Add(-time.Duration(i+1) * 37 * time.Minute),
		PresenceEvidence: legacy("answered a probe"), LastSeen: ago(time.Duration(i*i+3) * time.Second),
		LastPoll:  ago(26 * time.Hour),
		Transport: "mqtt", RemoteAddr: "192.168.4.27", Enrolment: fleet.EnrolmentEnrolled, EnrolledAt: ago(900 * time.Hour),
		Tags: []string{"lab", "2F", "厨房"}[:i%4%3], ToolsCount: 11, InventoryAt: ago(26 * time.Hour), CreatedAt: now.AddDate(0,
			-2, -i),
	}
	switch i % len(presences) {
	case 5:
		d.LastSeen, d.Enrolment, d.Version = nil, fleet.EnrolmentWaiting, ""
	case 3:
		d.Hold = &fleet.Hold{Reason: "waits for a new microphone", By: anna, Since: now.Add(-time.Hour)}
	}
	return d
}

var (
	anna   = fleet.Principal{Kind: fleet.KindOperator, Name: "anna", Role: fleet.RoleOperator}
	script = fleet.Principal{Kind: fleet.KindProgram, Name: "nightly-volume-check", Role: fleet.RoleOperator}
	model  = fleet.Principal{Kind: fleet.KindModel, Name: "assistant"}
)

func sampleCall(i int) fleet.Call {
	tools := []string{"self.audio_speaker.set_volume", "self.get_device_status", "self.screen.set_theme", "self.reboot",
		"self.demo." + hostile[i%len(hostile)]}
	args := []string{`{"volume":60}`, `{}`, `{"theme":"dark"}`, `{}`, `{"text":"` + strings.Repeat("long ", 40) + `"}`}
	sent := now.Add(-time.Duration(i*i*7+12) * time.Second)
	finished := sent.Add(time.Duration(i*131+84) * time.Millisecond)
	c := fleet.Call{
		ID: uuid.NewSHA1(uuid.Nil, fmt.Append(nil, i)), Device: device(i).ID, Tool: tools[i%len(tools)],
		Arguments: json.RawMessage(args[i%len(args)]), Actor: []fleet.Principal{anna, script, model}[i%3],
		State: fleet.CallStates[(i+2)%len(fleet.CallStates)], RPCID: int32(1200 + i), Timeout: 10 * time.Second,
		CreatedAt: sent.Add(-3 * time.Millisecond),
	}
	switch c.State {
	case fleet.CallRefused, fleet.CallInvalid, fleet.CallOffline, fleet.CallCanceled:
		c.FinishedAt = &c.CreatedAt
		c.Error = &fleet.CallError{Code: "device_offline", Message: "The device is not connected. Nothing was sent."}
	case fleet.CallToolError, fleet.CallTimedOut, fleet.CallUnknown:
		c.SentAt, c.FinishedAt = &sent, &finished
		c.Error = &fleet.CallError{Code: "tool_error", Message: hostile[i%len(hostile)]}
	case fleet.CallSent:
		c.SentAt = &sent
	case fleet.CallSucceeded:
		c.SentAt, c.FinishedAt = &sent, &finished
	}
	return c
}

func deviceRows(n int) []ui.DeviceRow {
	rows := make([]ui.DeviceRow, n)
	for i := range rows {
		rows[i] = ui.NewDeviceRow(device(i), now, true)
	}
	return rows
}

func callRows(n int) []ui.CallRow {
	rows := make([]ui.CallRow, n)
	for i := range rows {
		rows[i] = ui.NewCallRow(sampleCall(i), device(i).Name, "")
	}
	return rows
}

func list(path, query string) ui.ListURL {
	v, err := url.ParseQuery(query)
	if err != nil {
		panic(err)
	}
	return ui.ListURL{Path: path, Values: v}
}

func setup(mode string) ui.Setup {
	return ui.Setup{OTAURL: "http://fleet.example.org:8080/xiaozhi/ota/", Mode: mode, CanClaim: true}
}

// legacy returns text from before there were codes; none if it is empty.
func legacy(text string) fleet.Reason {
	if text == "" {
		return fleet.Reason{}
	}
	return fleet.Because("legacy", "detail", text)
}
