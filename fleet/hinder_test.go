package fleet_test

import (
	"testing"
	"time"

	"fleetd/fleet"
)

// ready is a situation in which a device is called.
func ready() fleet.ReadySituation {
	return fleet.ReadySituation{Campaign: fleet.CampaignRunning, Wave: 1, Deployment: fleet.Deployment{State: fleet.DeploymentQueued, Wave: 1},
		Mode: fleet.ModeAuto, WindowOpen: true, Presence: fleet.PresenceOnline, OffersTool: true, Confirmed: true,
		InFlight: 3, MaxInFlight: 10, PaceLeft: true, Room: true, Now: noon}
}

func TestHinder(t *testing.T) {
	later := noon.Add(time.Second)
	type change = func(s *fleet.ReadySituation)
	tests := []struct {
		name   string
		change change
		want   fleet.Hindrance
		mode   fleet.DispatchMode
	}{
		{"nothing", func(s *fleet.ReadySituation) {}, fleet.HinderNone, "push"},
		{"draft", func(s *fleet.ReadySituation) { s.Campaign = "draft" }, fleet.HinderNotStarted, "push"},
		{"scheduled", func(s *fleet.ReadySituation) { s.Campaign = "scheduled" }, fleet.HinderNotStarted, "push"},
		{"paused", func(s *fleet.ReadySituation) { s.Campaign, s.Paused = "paused", fleet.PausedByOperator }, fleet.HinderPaused, "push"},
		{"paused until the window", func(s *fleet.ReadySituation) {
			s.Campaign, s.Paused, s.WindowOpen = "paused", fleet.PausedByWindow, false
		}, fleet.HinderWindow, "push"},
		{"stopping", func(s *fleet.ReadySituation) { s.Campaign = "stopping" }, fleet.HinderOver, "push"},
		{"completed", func(s *fleet.ReadySituation) { s.Campaign = "completed" }, fleet.HinderOver, "push"},
		{"pending", func(s *fleet.ReadySituation) { s.Deployment.State = "pending" }, fleet.HinderWave, "push"},
		{"later wave", func(s *fleet.ReadySituation) { s.Deployment.Wave = 2 }, fleet.HinderWave, "push"},
		{"earlier wave", func(s *fleet.ReadySituation) { s.Deployment.Wave = 0 }, fleet.HinderNone, "push"},
		{"under way", func(s *fleet.ReadySituation) { s.Deployment.State = "sent" }, fleet.HinderUnderWay, "push"},
		{"done", func(s *fleet.ReadySituation) { s.Deployment.State = "succeeded" }, fleet.HinderOver, "push"},
		{"busy elsewhere", func(s *fleet.ReadySituation) { s.Busy = true }, fleet.HinderBusy, "push"},
		{"window", func(s *fleet.ReadySituation) { s.WindowOpen = false }, fleet.HinderWindow, "push"},
		{"back-off", func(s *fleet.ReadySituation) { s.Deployment.NotBefore = &later }, fleet.HinderBackoff, "push"},
		{"back-off over", func(s *fleet.ReadySituation) { s.Deployment.NotBefore = &s.Now }, fleet.HinderNone, "push"},
		{"presence unknown", func(s *fleet.ReadySituation) { s.Presence = "" }, fleet.HinderOldPresence, "push"},
		{"unresponsive", func(s *fleet.ReadySituation) { s.Presence = fleet.PresenceUnresponsive }, fleet.HinderUnresponsive, "pull"},
		{"auto, offline", func(s *fleet.ReadySituation) { s.Presence = fleet.PresenceOffline }, fleet.HinderAwaitsPoll, "pull"},
		{"auto, never seen", func(s *fleet.ReadySituation) { s.Presence = fleet.PresencePending }, fleet.HinderAwaitsPoll, "pull"},
		{"auto, no tool", func(s *fleet.ReadySituation) { s.OffersTool = false }, fleet.HinderAwaitsPoll, "pull"},
		{"push, offline", func(s *fleet.ReadySituation) { s.Mode, s.Presence = "push", fleet.PresenceOffline }, fleet.HinderOffline, "push"},
		{"pull, online", func(s *fleet.ReadySituation) { s.Mode = "pull" }, fleet.HinderAwaitsPoll, "pull"},
		{"pull now", func(s *fleet.ReadySituation) { s.Mode, s.PullNow = "pull", true }, fleet.HinderNone, "pull"},
		{"pull now, offline", func(s *fleet.ReadySituation) { s.Mode, s.PullNow, s.Presence = "pull", true, fleet.PresenceOffline }, fleet.HinderAwaitsPoll, "pull"},
		{"pull now, unconfirmed", func(s *fleet.ReadySituation) { s.Mode, s.PullNow, s.Confirmed = "pull", true, false }, fleet.HinderUnconfirmed, "pull"},
		{"unconfirmed", func(s *fleet.ReadySituation) { s.Confirmed = false }, fleet.HinderUnconfirmed, "push"},
		{"in flight", func(s *fleet.ReadySituation) { s.InFlight = 10 }, fleet.HinderInFlight, "push"},
		{"downloads", func(s *fleet.ReadySituation) { s.Room = false }, fleet.HinderDownloads, "push"},
		{"pace", func(s *fleet.ReadySituation) { s.PaceLeft = false }, fleet.HinderPace, "push"},
		{"offline weighs more than pace", func(s *fleet.ReadySituation) {
			s.Mode, s.Presence, s.PaceLeft, s.InFlight = "push", fleet.PresenceOffline, false, 10
		}, fleet.HinderOffline, "push"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := ready()
			tt.change(&s)
			if got, mode := fleet.Hinder(s); got != tt.want || mode != tt.mode {
				t.Errorf("%q by %s, want %q by %s", got, mode, tt.want, tt.mode)
			}
		})
	}
}

func TestHindranceStuck(t *testing.T) {
	for h, want := range map[fleet.Hindrance]bool{fleet.HinderOffline: true, fleet.HinderAwaitsPoll: true, fleet.HinderUnresponsive: true,
		fleet.HinderUnconfirmed: true, fleet.HinderNone: false, fleet.HinderWindow: false, fleet.HinderPace: false, fleet.HinderOldPresence: false} {
		if h.Stuck() != want {
			t.Errorf("%q stuck: %v, want %v", h, h.Stuck(), want)
		}
	}
}
