package ui_test

import (
	"time"

	"github.com/a-h/templ"

	"fleetd/fleet"
	"fleetd/fleet/history"
	"fleetd/web/ui"
)

// pastDevice is a device of long names and every mark.
func pastDevice(version string, presence fleet.Presence) *history.Device {
	return &history.Device{ID: "a085e3112233", Kind: fleet.DeviceESP32, Name: "Front door of the annexe, second floor, left",
		Board: "bread-compact-wifi", Version: version, Tags: []string{"lab", "floor-2"}, Enrolment: fleet.EnrolmentEnrolled,
		HoldSince: &now, HoldReason: "under repair", Retired: true, ToolsCount: 12, Presence: presence, Since: now}
}

func historyPage() templ.Component {
	with := now.Add(-24 * time.Hour)
	before, after := pastDevice("2.3.0", fleet.PresenceOffline), pastDevice("2.4.0", fleet.PresenceOnline)
	counts := []fleet.DeviceCount{{Value: "2.4.0", Count: 4312}, {Value: "", Count: 41}}
	p := ui.HistoryPage{List: list("/history", ""), Begin: now.Add(-90 * 24 * time.Hour), Now: now, At: now, With: &with,
		DiffFrom: with, DiffTo: now, AtText: "2026-11-21T12:00:00", Query: "tag:lab", Field: history.FieldVersion,
		Adoption: adoptionChart(31), Rows: []history.Device{*before, *after}, Next: "x",
		Counts: history.Counts{Total: 4353, Held: 3, Versions: counts, Boards: counts, Tags: counts[:1],
			Presence: []fleet.DeviceCount{{Value: "online", Count: 4000}, {Value: "offline", Count: 300},
				{Value: "unresponsive", Count: 3}, {Value: "unknown_edge", Count: 10}, {Value: "pending", Count: 40}}},
		Diff: history.Diff{Devices: 3, Counts: map[history.Field]int{}, Page: fleet.Page[history.Change]{Next: "x",
			Items: []history.Change{{Device: before.ID, Fields: history.Fields[2:], Before: before, After: after,
				ToolsAdded: []string{"self.light.set"}, ToolsRemoved: []string{"self.lamp.set"}},
				{Device: after.ID, Fields: history.Fields[:1], After: after},
				{Device: before.ID, Fields: history.Fields[1:2], Before: before}}}}}
	for _, f := range history.Fields {
		p.Diff.Counts[f] = 1
	}
	return p.Page()
}

// adoption is the chart of a release that replaces another one.
func adoptionChart(points int) ui.AdoptionChart {
	c := ui.AdoptionChart{ID: "adoption-chart", Title: "Versions over time"}
	for i, version := range []string{"2.4.0", "2.3.1", "2.3.0", "2.2", "2.1", "2.0", "1.9", "1.8", ""} {
		s := history.Series{Version: version}
		for n := range points {
			s.Counts = append(s.Counts, max(0, 100-20*i+n*(8-i)-(n*n*i)/20))
		}
		c.Series = append(c.Series, s)
	}
	for n := range points {
		c.Times = append(c.Times, now.Add(time.Duration(n+1-points)*24*time.Hour))
	}
	return c
}
