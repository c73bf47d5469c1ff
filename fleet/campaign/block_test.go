package campaign_test

import (
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

// ready is a situation in which a device is called.
func ready() campaign.ReadySituation {
	return campaign.ReadySituation{Campaign: campaign.Running, Wave: 1,
		Deployment: campaign.Deployment{State: campaign.DeploymentQueued, Wave: 1},
		Mode:       firmware.ModeAuto, WindowOpen: true, Presence: fleet.PresenceOnline, OffersTool: true, Confirmed: true,
		InFlight: 3, MaxInFlight: 10, PaceLeft: true, Room: true, Now: noon}
}

func TestHinder(t *testing.T) {
	later := noon.Add(time.Second)
	type change = func(s *campaign.ReadySituation)
	tests := []struct {
		name   string
		change change
		want   campaign.Hindrance
		mode   firmware.DispatchMode
	}{
		{"nothing", func(s *campaign.ReadySituation) {}, campaign.HinderNone, "push"},
		{"draft", func(s *campaign.ReadySituation) { s.Campaign = "draft" }, campaign.HinderNotStarted, "push"},
		{"scheduled", func(s *campaign.ReadySituation) { s.Campaign = "scheduled" }, campaign.HinderNotStarted, "push"},
		{"paused", func(s *campaign.ReadySituation) { s.Campaign, s.Paused = "paused", campaign.PausedByOperator },
			campaign.HinderPaused, "push"},
		{"paused until the window", func(s *campaign.ReadySituation) {
			s.Campaign, s.Paused, s.WindowOpen = "paused", campaign.PausedByWindow, false
		}, campaign.HinderWindow, "push"},
		{"stopping", func(s *campaign.ReadySituation) { s.Campaign = "stopping" }, campaign.HinderOver, "push"},
		{"completed", func(s *campaign.ReadySituation) { s.Campaign = "completed" }, campaign.HinderOver, "push"},
		{"pending", func(s *campaign.ReadySituation) { s.Deployment.State = "pending" }, campaign.HinderWave, "push"},
		{"later wave", func(s *campaign.ReadySituation) { s.Deployment.Wave = 2 }, campaign.HinderWave, "push"},
		{"earlier wave", func(s *campaign.ReadySituation) { s.Deployment.Wave = 0 }, campaign.HinderNone, "push"},
		{"under way", func(s *campaign.ReadySituation) { s.Deployment.State = "sent" }, campaign.HinderUnderWay, "push"},
		{"done", func(s *campaign.ReadySituation) { s.Deployment.State = "succeeded" }, campaign.HinderOver, "push"},
		{"busy elsewhere", func(s *campaign.ReadySituation) { s.Busy = true }, campaign.HinderBusy, "push"},
		{"window", func(s *campaign.ReadySituation) { s.WindowOpen = false }, campaign.HinderWindow, "push"},
		{"back-off", func(s *campaign.ReadySituation) { s.Deployment.NotBefore = &later }, campaign.HinderBackoff, "push"},
		{"back-off over", func(s *campaign.ReadySituation) { s.Deployment.NotBefore = &s.Now }, campaign.HinderNone, "push"},
		{"presence unknown", func(s *campaign.ReadySituation) { s.Presence = "" }, campaign.HinderOldPresence, "push"},
		{"unresponsive", func(s *campaign.ReadySituation) { s.Presence = fleet.PresenceUnresponsive },
			campaign.HinderUnresponsive, "pull"},
		{"auto, offline", func(s *campaign.ReadySituation) { s.Presence = fleet.PresenceOffline }, campaign.HinderAwaitsPoll,
			"pull"},
		{"auto, never seen", func(s *campaign.ReadySituation) { s.Presence = fleet.PresencePending },
			campaign.HinderAwaitsPoll, "pull"},
		{"auto, no tool", func(s *campaign.ReadySituation) { s.OffersTool = false }, campaign.HinderAwaitsPoll, "pull"},
		{"push, offline", func(s *campaign.ReadySituation) { s.Mode, s.Presence = "push", fleet.PresenceOffline },
			campaign.HinderOffline, "push"},
		{"pull, online", func(s *campaign.ReadySituation) { s.Mode = "pull" }, campaign.HinderAwaitsPoll, "pull"},
		{"pull now", func(s *campaign.ReadySituation) { s.Mode, s.PullNow = "pull", true }, campaign.HinderNone, "pull"},
		{"pull now, offline", func(s *campaign.ReadySituation) {
			s.Mode, s.PullNow, s.Presence = "pull", true,
				fleet.PresenceOffline
		}, campaign.HinderAwaitsPoll, "pull"},
		{"pull now, unconfirmed", func(s *campaign.ReadySituation) { s.Mode, s.PullNow, s.Confirmed = "pull", true, false },
			campaign.HinderUnconfirmed, "pull"},
		{"unconfirmed", func(s *campaign.ReadySituation) { s.Confirmed = false }, campaign.HinderUnconfirmed, "push"},
		{"in flight", func(s *campaign.ReadySituation) { s.InFlight = 10 }, campaign.HinderInFlight, "push"},
		{"downloads", func(s *campaign.ReadySituation) { s.Room = false }, campaign.HinderDownloads, "push"},
		{"pace", func(s *campaign.ReadySituation) { s.PaceLeft = false }, campaign.HinderPace, "push"},
		{"offline weighs more than pace", func(s *campaign.ReadySituation) {
			s.Mode, s.Presence, s.PaceLeft, s.InFlight = "push", fleet.PresenceOffline, false, 10
		}, campaign.HinderOffline, "push"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := ready()
			tt.change(&s)
			if got, mode := campaign.Hinder(s); got != tt.want || mode != tt.mode {
				t.Errorf("%q by %s, want %q by %s", got, mode, tt.want, tt.mode)
			}
		})
	}
}

func TestHindranceStuck(t *testing.T) {
	for h, want := range map[campaign.Hindrance]bool{campaign.HinderOffline: true, campaign.HinderAwaitsPoll: true,
		campaign.HinderUnresponsive: true,
		campaign.HinderUnconfirmed:  true, campaign.HinderNone: false, campaign.HinderWindow: false,
		campaign.HinderPace: false, campaign.HinderOldPresence: false} {
		if h.Stuck() != want {
			t.Errorf("%q stuck: %v, want %v", h, h.Stuck(), want)
		}
	}
}
