package ui_test

import (
	"time"

	"github.com/a-h/templ"

	"fleetd/fleet"
	"fleetd/fleet/changes"
	"fleetd/fleet/history"
	"fleetd/web/ui"
)

// changesPage is an hour in which everything happened, or nothing.
func changesPage(busy bool) templ.Component {
	v := ui.ChangesPage{Summary: changes.Summary{Span: "1h", Since: now.Add(-time.Hour), Compare: now.Add(-time.Hour), Now: now}}
	if !busy {
		return v.Page()
	}
	v.Compare = now.Add(-time.Minute)
	v.Crashed, v.Away, v.Fields = 4, 12, map[history.Field]int{}
	for _, f := range history.Fields {
		v.Fields[f] = 1
	}
	v.Versions = []changes.Version{{Version: "2.4.0", Before: 3000, Now: 4312},
		{Version: "2.3.0-rc.1+a-very-long-suffix-of-a-build", Before: 1312}}
	v.Events = changes.Events{Offline: 40, Online: 28, Rebuilt: 1312, Configured: []fleet.DeviceID{"a085e3112233"}, Updated: 1300,
		NotUpdated: 12, Calls: 91234, FailedCalls: 1, AlertsBegan: 2, AlertsEnd: 1, ActCount: 31, Acts: []changes.Act{
			{Action: "device.update", Count: 30, Names: []string{"anna", "<b>bob</b>", "程序"}}, {Action: "campaign.start", Count: 1}}}
	return v.Page()
}
