package ui

import (
	"slices"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/alert"
)

// Alerts of one kind fold at the position of the first; alerts of the whole fleet, and different
// ones, remain separate.
func TestAlertsOfOneKindFold(t *testing.T) {
	at := time.Date(2026, 11, 23, 15, 0, 0, 0, time.UTC)
	card := func(kind alert.Kind, severity alert.Severity, state alert.Status, name string, minute int) AlertCard {
		return AlertCard{Alert: alert.Alert{Kind: kind, Severity: severity, State: state, Params: fleet.Params{"name": name},
			Began: at.Add(time.Duration(minute) * time.Minute)}}
	}
	v := AlertsNow{Cards: []AlertCard{
		card(alert.OnlineDropped, alert.Bad, alert.Open, "", 9),
		card(alert.CampaignStopped, alert.Bad, alert.Open, "spring", 5),
		card(alert.UpstreamDown, alert.Bad, alert.Open, "north", 1),
		card(alert.CampaignStopped, alert.Bad, alert.Open, "autumn", 3),
		card(alert.CampaignStopped, alert.Bad, alert.Acknowledged, "winter", 2),
		card(alert.OnlineDropped, alert.Bad, alert.Open, "", 1),
	}}
	var sizes []int
	groups := v.groups()
	for _, g := range groups {
		sizes = append(sizes, len(g))
	}
	if want := []int{1, 2, 1, 1, 1}; !slices.Equal(sizes, want) {
		t.Fatalf("groups of %v, want %v", sizes, want)
	}
	if g := groups[1]; g.names() != "spring · autumn" || !g.began().Equal(at.Add(3*time.Minute)) {
		t.Errorf("the stopped campaigns are %q since %v", g.names(), g.began())
	}
}
