package campaign_test

import (
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

// ready returns a situation in which a device is called.
func ready() campaign.ReadySituation {
	return campaign.ReadySituation{Campaign: campaign.Running, Wave: 1,
		Deployment: campaign.Deployment{State: campaign.DeploymentQueued, Wave: 1},
		Mode:       firmware.ModeAuto, WindowOpen: true, Presence: fleet.PresenceOnline, OffersTool: true, Confirmed: true,
		InFlight: 3, MaxInFlight: 10, PaceLeft: true, Room: true, Now: noon}
}

func TestBlock(t *testing.T) {
	later := noon.Add(time.Second)
	type change = func(s *campaign.ReadySituation)
	tests := []struct {
		name   string
		change change
		want   campaign.BlockReason
		mode   firmware.DispatchMode
	}{
		{"nothing", func(s *campaign.ReadySituation) {}, campaign.BlockNone, "push"},
		{"draft", func(s *campaign.ReadySituation) { s.Campaign = "draft" }, campaign.BlockNotStarted, "push"},
		{"scheduled", func(s *campaign.ReadySituation) { s.Campaign = "scheduled" }, campaign.BlockNotStarted, "push"},
		{"paused", func(s *campaign.ReadySituation) { s.Campaign, s.Paused = "paused", campaign.PausedByOperator },
			campaign.BlockPaused, "push"},
		{"paused until the window", func(s *campaign.ReadySituation) {
			s.Campaign, s.Paused, s.WindowOpen = "paused", campaign.PausedByWindow, false
		}, campaign.BlockWindow, "push"},
		{"stopping", func(s *campaign.ReadySituation) { s.Campaign = "stopping" }, campaign.BlockOver, "push"},
		{"completed", func(s *campaign.ReadySituation) { s.Campaign = "completed" }, campaign.BlockOver, "push"},
		{"pending", func(s *campaign.ReadySituation) { s.Deployment.State = "pending" }, campaign.BlockWave, "push"},
		{"later wave", func(s *campaign.ReadySituation) { s.Deployment.Wave = 2 }, campaign.BlockWave, "push"},
		{"earlier wave", func(s *campaign.ReadySituation) { s.Deployment.Wave = 0 }, campaign.BlockNone, "push"},
		{"under way", func(s *campaign.ReadySituation) { s.Deployment.State = "sent" }, campaign.BlockUnderWay, "push"},
		{"done", func(s *campaign.ReadySituation) { s.Deployment.State = "succeeded" }, campaign.BlockOver, "push"},
		{"busy elsewhere", func(s *campaign.ReadySituation) { s.Busy = true }, campaign.BlockBusy, "push"},
		{"window", func(s *campaign.ReadySituation) { s.WindowOpen = false }, campaign.BlockWindow, "push"},
		{"back-off", func(s *campaign.ReadySituation) { s.Deployment.NotBefore = &later }, campaign.BlockBackoff, "push"},
		{"back-off over", func(s *campaign.ReadySituation) { s.Deployment.NotBefore = &s.Now }, campaign.BlockNone, "push"},
		{"presence unknown", func(s *campaign.ReadySituation) { s.Presence = "" }, campaign.BlockOldPresence, "push"},
		{"unresponsive", func(s *campaign.ReadySituation) { s.Presence = fleet.PresenceUnresponsive },
			campaign.BlockUnresponsive, "pull"},
		{"auto, offline", func(s *campaign.ReadySituation) { s.Presence = fleet.PresenceOffline }, campaign.BlockAwaitsPoll,
			"pull"},
		{"auto, never seen", func(s *campaign.ReadySituation) { s.Presence = fleet.PresencePending },
			campaign.BlockAwaitsPoll, "pull"},
		{"auto, no tool", func(s *campaign.ReadySituation) { s.OffersTool = false }, campaign.BlockAwaitsPoll, "pull"},
		{"push, offline", func(s *campaign.ReadySituation) { s.Mode, s.Presence = "push", fleet.PresenceOffline },
			campaign.BlockOffline, "push"},
		{"pull, online", func(s *campaign.ReadySituation) { s.Mode = "pull" }, campaign.BlockAwaitsPoll, "pull"},
		{"pull now", func(s *campaign.ReadySituation) { s.Mode, s.PullNow = "pull", true }, campaign.BlockNone, "pull"},
		{"pull now, offline", func(s *campaign.ReadySituation) {
			s.Mode, s.PullNow, s.Presence = "pull", true,
				fleet.PresenceOffline
		}, campaign.BlockAwaitsPoll, "pull"},
		{"pull now, unconfirmed", func(s *campaign.ReadySituation) { s.Mode, s.PullNow, s.Confirmed = "pull", true, false },
			campaign.BlockUnconfirmed, "pull"},
		{"unconfirmed", func(s *campaign.ReadySituation) { s.Confirmed = false }, campaign.BlockUnconfirmed, "push"},
		{"in conversation", func(s *campaign.ReadySituation) { s.Talking = true }, campaign.BlockConversation, "push"},
		{"pull now, in conversation", func(s *campaign.ReadySituation) { s.Mode, s.PullNow, s.Talking = "pull", true, true },
			campaign.BlockConversation, "pull"},
		{"pull, in conversation", func(s *campaign.ReadySituation) { s.Mode, s.Talking = "pull", true },
			campaign.BlockAwaitsPoll, "pull"},
		{"unresponsive in conversation", func(s *campaign.ReadySituation) {
			s.Talking, s.Presence = true, fleet.PresenceUnresponsive
		}, campaign.BlockUnresponsive, "pull"},
		{"in flight", func(s *campaign.ReadySituation) { s.InFlight = 10 }, campaign.BlockInFlight, "push"},
		{"downloads", func(s *campaign.ReadySituation) { s.Room = false }, campaign.BlockDownloads, "push"},
		{"pace", func(s *campaign.ReadySituation) { s.PaceLeft = false }, campaign.BlockPace, "push"},
		{"offline weighs more than pace", func(s *campaign.ReadySituation) {
			s.Mode, s.Presence, s.PaceLeft, s.InFlight = "push", fleet.PresenceOffline, false, 10
		}, campaign.BlockOffline, "push"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := ready()
			tt.change(&s)
			if got, mode := campaign.Block(s); got != tt.want || mode != tt.mode {
				t.Errorf("%q by %s, want %q by %s", got, mode, tt.want, tt.mode)
			}
		})
	}
}

func TestBlockReasonStuck(t *testing.T) {
	for h, want := range map[campaign.BlockReason]bool{campaign.BlockOffline: true, campaign.BlockAwaitsPoll: true,
		campaign.BlockUnresponsive: true,
		campaign.BlockUnconfirmed:  true, campaign.BlockNone: false, campaign.BlockWindow: false,
		campaign.BlockPace: false, campaign.BlockOldPresence: false, campaign.BlockConversation: false} {
		if h.Stuck() != want {
			t.Errorf("%q stuck: %v, want %v", h, h.Stuck(), want)
		}
	}
}
