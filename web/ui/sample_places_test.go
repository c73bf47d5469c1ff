package ui_test

import (
	"fmt"

	"github.com/a-h/templ"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/alert"
	"fleetd/fleet/campaign"
	"fleetd/fleet/place"
	"fleetd/web/ui"
)

// samplePlaces are two sites with rooms, one of them with a name that takes all the room there is, and other tags.
func samplePlaces() place.Tree {
	one := []uuid.UUID{uuid.New()}
	tree := place.Tree{Places: []place.Place{
		{Path: "berlin", Devices: 4312, Joined: 4300, Online: 4102, Crashed: 12, Reporting: 4300, Versions: 4,
			Version: "2.4.0", OnVersion: 3900, Alerts: append(one, uuid.New()), Campaigns: one},
		{Path: "berlin/hall-1", Devices: 312, Joined: 312, Online: 100, Reporting: 312, Versions: 1, Version: "2.4.0", OnVersion: 312,
			Alerts: one},
		{Path: "berlin/hall-1/a-desk-with-a-name-of-forty-signs", Devices: 1, Joined: 1, Crashed: 1, Versions: 1, Reporting: 1,
			Version: "2.3.0-rc.1+a-very-long-suffix-of-a-build", OnVersion: 1},
		{Path: "berlin/hall-2", Devices: 4000, Joined: 3988, Online: 3988, Reporting: 3988, Versions: 4, Version: "2.4.0",
			OnVersion: 3500, Campaigns: one},
		{Path: "北京", Devices: 40, Joined: 40, Online: 40, Reporting: 40, Versions: 2, Version: "2.4.0", OnVersion: 30},
		{Path: "北京/<script>alert(1)</script>", Devices: 40, Joined: 40, Online: 40, Reporting: 40, Versions: 2, Version: "2.4.0",
			OnVersion: 30},
		{Path: "lab", Devices: 7},
		{Path: "second-floor", Devices: 90, Joined: 90, Online: 80, Reporting: 90, Versions: 1, Version: "2.4.0", OnVersion: 90},
	}}
	return tree
}

func placesPage(tree place.Tree) templ.Component { return ui.PlacesPage{Tree: tree}.Page() }

// manyPlaces is a tree that is cut.
func manyPlaces() place.Tree {
	tree := place.Tree{More: true}
	for i := range 20 {
		site := fmt.Sprintf("site-%02d", i)
		tree.Places = append(tree.Places, place.Place{Path: place.Path(site), Devices: 200, Joined: 200, Online: 190})
		for room := range 20 {
			tree.Places = append(tree.Places, place.Place{Path: place.Path(fmt.Sprintf("%s/room-%02d", site, room)), Devices: 10,
				Joined: 10, Online: 9, Crashed: room % 3, Reporting: 10, Versions: 2, Version: "2.4.0", OnVersion: 9})
		}
	}
	return tree
}

// placePage is the page of berlin, or of a place without anything but devices.
func placePage(bare bool) templ.Component {
	tree := samplePlaces()
	page := ui.PlacePage{Tree: place.Tree{Places: tree.Places[6:7]},
		Now:      ui.PresenceNow{Pending: 7, Within: "tag:lab,lab/*"},
		Concerns: make([]int, len(ui.PlaceConcerns))}
	if bare {
		return page.Page()
	}
	page.Tree.Places, page.CanAct = tree.Places[:4], true
	page.Now = ui.PresenceNow{Online: 4102, Offline: 180, Unresponsive: 18, Pending: 12, Within: "tag:berlin,berlin/*"}
	page.Concerns = []int{12, 3, 4, 1, 30}
	page.Versions = []fleet.DeviceCount{{Value: "2.4.0", Count: 3900}, {Value: "2.3.0-rc.1+a-very-long-suffix-of-a-build", Count: 400}}
	page.Boards = []fleet.DeviceCount{{Value: "bread-compact-wifi", Count: 4312}}
	page.Alerts = []ui.AlertCard{{Alert: alert.Alert{ID: uuid.New(), Kind: alert.CrashLoop, Severity: alert.Bad,
		State: alert.Open, Began: now, Params: fleet.Params{"n": int64(5), "restarts": int64(5), "span_ms": int64(3600_000)}}, MayAct: true}}
	c := sampleCampaign(campaign.Running, "spring", 400)
	page.Campaigns = []ui.CampaignRow{{Campaign: c, Version: "2.4.3", Waves: 3, Tally: ui.NewCampaignTally(sampleTally(400, 9, true))}}
	return page.Page()
}
