package ui_test

import (
	"fmt"
	"time"

	"github.com/a-h/templ"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
	"fleetd/web/ui"
)

// timelineEntries returns one entry of each code, some with a device's text.
func timelineEntries() (all []fleet.TimelineEntry) {
	add := func(kind fleet.TimelineKind, code string, params ...any) {
		n := len(all)
		e := fleet.TimelineEntry{At: now.Add(-time.Duration(n*n*20) * time.Minute), Kind: kind, Code: code,
			Ref:    uuid.NewSHA1(uuid.Nil, fmt.Append(nil, n)).String(),
			Key:    uuid.NewSHA1(uuid.Nil, fmt.Append(nil, n, "k")).String(),
			Params: fleet.Because(code, params...).Params}
		if kind == fleet.TimelineCall || kind == fleet.TimelineEdit || kind == fleet.TimelineHold {
			e.Actor = &[]fleet.Principal{anna, script, model}[n%3]
		}
		all = append(all, e)
	}
	add(fleet.TimelinePresence, "online", "evidence", fleet.Because(fleet.PresenceConnected, "address", "192.0.2.7"))
	add(fleet.TimelinePresence, "offline", "evidence",
		fleet.Because(fleet.PresenceBroke, "detail", fleet.Because(fleet.CauseSocketClosed)))
	add(fleet.TimelineCall, "succeeded", "tool", "self.audio_speaker.set_volume", "arguments", `{"volume":40}`,
		"duration_ms", 84)
	add(fleet.TimelineCall, "tool_error", "tool", "self.demo."+hostile[0], "arguments", hostile[1], "error",
		fleet.CodeToolError, "detail", hostile[2])
	add(fleet.TimelineCall, "succeeded", "tool", fleet.ToolReboot, "duration_ms", 9100)
	add(fleet.TimelineEdit, "device.update", "name", hostile[0], "tags", "lab, kitchen", "notes", "", "time_zone", "UTC")
	add(fleet.TimelineHold, "device.hold", "reason", hostile[1], "until_at", now.Format(time.RFC3339))
	add(fleet.TimelineHold, "device.release")
	for _, state := range []string{"succeeded", "failed", "downloading"} {
		add(fleet.TimelineDeployment, state, "name", "spring "+hostile[0], "campaign", uuid.Nil.String(), "from", "2.4.1", "to",
			"2.4.2", "reason", fleet.Because("rolled_back"))
	}
	add(fleet.TimelineDeployment, "skipped", "name", "spring", "campaign", uuid.Nil.String(), "from", "2.4.1", "to", "2.4.2",
		"skip", "held")
	add(fleet.TimelineFirmware, fleet.TimelineFirmwareChanged, "version", hostile[2], "before", "2.4.1", "slot", "ota_1")
	add(fleet.TimelineFirmware, fleet.TimelineFirstFirmware, "version", "2.4.1", "slot", "ota_0")
	add(fleet.TimelineCrash, fleet.TimelineRestarted, "reset_reason", "panic", "boots", 41, "crashes", 2, "safe_mode", 1)
	add(fleet.TimelineCrash, fleet.TimelineRestarted, "reset_reason", hostile[0], "boots", 40)
	add(fleet.TimelineCrash, fleet.TimelineRestarted, "proof", string(fleet.EvidenceBootPoll), "version", "2.4.1")
	add(fleet.TimelineCrash, fleet.TimelineCoreDump, "summary", hostile[0])
	add(fleet.TimelineInventory, fleet.TimelineFirstTools, "tools", 1)
	add(fleet.TimelineInventory, fleet.TimelineToolsChanged, "tools", 12, "before", "aa", "inventory", "bb")
	add(fleet.TimelineConfiguration, fleet.TimelineConfigured, "version", 7, "on_trial", 1)
	add(fleet.TimelineConfiguration, fleet.TimelineConfigured, "version", 6, "reverted", 7)
	add(fleet.TimelineConversation, fleet.TimelineTalked, "upstream", hostile[0], "calls", 2, "duration_ms", 42000,
		"ended", "upstream_lost")
	add(fleet.TimelinePicture, fleet.TimelineScreen, "call", uuid.Nil.String())
	add(fleet.TimelinePicture, fleet.TimelineCamera, "question", hostile[1])
	add(fleet.TimelineAudit, "device.approve")
	add(fleet.TimelineAudit, "device.unheard_of")
	return all
}

// hub returns a device's first page with everything on it.
func hub(d fleet.Device) ui.DevicePage {
	health := healthView("24h")
	release := firmware.Release{ID: uuid.NewSHA1(uuid.Nil, []byte("r")), Version: "2.9.0"}
	last := callView(0, status)
	return ui.DevicePage{
		Head: ui.NewDeviceHead(d, "", now, true), Latest: picture, Vitals: health.Vitals, Sparks: health.Trends,
		Acts: ui.DeviceActs{Device: d.ID, Title: d.Title(), Offline: true, Snap: true, Reboot: true, Log: true, Update: true,
			Newer: &release, Battery: new(int64(80)), Volume: &ui.VolumeAct{Value: new(int64(40)), At: now, Max: 100},
			Last: &last},
		Line: ui.Timeline{Device: d.ID, List: list(ui.DevicePath(d.ID), "show=calls"), Subject: []string{"calls"},
			Entries: timelineEntries(), Next: "next"},
	}
}

// bareHub returns the page of a device about which almost nothing is known.
func bareHub() templ.Component {
	d := device(0)
	return ui.DevicePage{Head: ui.NewDeviceHead(d, "", now, false), Acts: ui.DeviceActs{Device: d.ID},
		Line: ui.Timeline{Device: d.ID, List: list(ui.DevicePath(d.ID), "day=2026-01-02")}}.Page()
}
