package campaign_test

import (
	"testing"

	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

// due returns a situation in which an offer is made.
func due() campaign.OfferSituation {
	return campaign.OfferSituation{Bound: true, Mode: firmware.ModeAuto, State: campaign.DeploymentQueued, Running: true,
		WindowOpen: true,
		Due:        true, DeviceVersion: "2.4.2", ImageVersion: "2.4.3"}
}

func TestDecideOffer(t *testing.T) {
	older := func(s *campaign.OfferSituation) { s.ImageVersion = "2.4.1" }
	tests := []struct {
		name   string
		change func(s *campaign.OfferSituation)
		offer  bool
		force  bool
		reason campaign.OfferReason
	}{
		{"all well", func(s *campaign.OfferSituation) {}, true, false, campaign.OfferMade},
		{"pull", func(s *campaign.OfferSituation) { s.Mode = firmware.ModePull }, true, false, campaign.OfferMade},
		{"push", func(s *campaign.OfferSituation) { s.Mode = firmware.ModePush }, false, false, campaign.OfferPushOnly},
		{"not enrolled", func(s *campaign.OfferSituation) { s.Bound = false }, false, false, campaign.OfferUnbound},
		{"held", func(s *campaign.OfferSituation) { s.Held = true }, false, false, campaign.OfferHeld},
		{"no deployment", func(s *campaign.OfferSituation) { s.State = "" }, false, false, campaign.OfferNone},
		{"wave not open", func(s *campaign.OfferSituation) { s.State = "pending" }, false, false, campaign.OfferNotDue},
		{"called already", func(s *campaign.OfferSituation) { s.State = "dispatching" }, false, false,
			campaign.OfferUnderWay},
		{"offered already", func(s *campaign.OfferSituation) { s.State = "offered" }, false, false, campaign.OfferUnderWay},
		{"rebooting", func(s *campaign.OfferSituation) { s.State = "rebooting" }, false, false, campaign.OfferUnderWay},
		{"done", func(s *campaign.OfferSituation) { s.State = "succeeded" }, false, false, campaign.OfferNone},
		{"rolled back", func(s *campaign.OfferSituation) { s.State = "rolled_back" }, false, false, campaign.OfferNone},
		{"paused", func(s *campaign.OfferSituation) { s.Running = false }, false, false, campaign.OfferNotRunning},
		{"window closed", func(s *campaign.OfferSituation) { s.WindowOpen = false }, false, false,
			campaign.OfferWindowClosed},
		{"backing off", func(s *campaign.OfferSituation) { s.Due = false }, false, false, campaign.OfferNotDue},
		{"does not fit", func(s *campaign.OfferSituation) { s.Fits = firmware.SkipTooLarge }, false, false,
			campaign.OfferUnfit},
		{"first boot", func(s *campaign.OfferSituation) { s.FirstBoot = true }, false, false, campaign.OfferFirstBoot},
		{"first boot of the image", func(s *campaign.OfferSituation) { s.FirstBoot, s.SameBuild = true, true }, false, false,
			campaign.OfferSameBuild},
		{"one offer", func(s *campaign.OfferSituation) { s.OffersInHour = 1 }, true, false, campaign.OfferMade},
		{"two offers", func(s *campaign.OfferSituation) { s.OffersInHour = 2 }, false, false, campaign.OfferTooOften},
		{"device version v2.4.2", func(s *campaign.OfferSituation) { s.DeviceVersion = "v2.4.2" }, false, false,
			campaign.OfferVersion},
		{"device version unknown", func(s *campaign.OfferSituation) { s.DeviceVersion = "" }, false, false,
			campaign.OfferVersion},
		{"image version 2.4.3-rc1", func(s *campaign.OfferSituation) { s.ImageVersion = "2.4.3-rc1" }, false, false,
			campaign.OfferVersion},
		{"image version of 20 digits", func(s *campaign.OfferSituation) { s.ImageVersion = "20260808120000123456" }, false,
			false, campaign.OfferVersion},
		{"odd version, downgrade approved", func(s *campaign.OfferSituation) {
			s.DeviceVersion, s.AllowOlder = "latest",
				true
		}, false, false, campaign.OfferVersion},
		{"more parts are newer", func(s *campaign.OfferSituation) { s.ImageVersion = "2.4.2.0" }, true, false,
			campaign.OfferMade},
		{"numbers, not text", func(s *campaign.OfferSituation) { s.ImageVersion = "2.4.10" }, true, false,
			campaign.OfferMade},
		{"same version", func(s *campaign.OfferSituation) { s.ImageVersion = "2.4.2" }, false, false, campaign.OfferNotNewer},
		{"older", older, false, false, campaign.OfferNotNewer},
		{"older, approved", func(s *campaign.OfferSituation) { older(s); s.AllowOlder = true }, true, true,
			campaign.OfferMade},
		{"older, approved, forced before", func(s *campaign.OfferSituation) {
			older(s)
			s.AllowOlder, s.ForcedBefore = true,
				true
		}, false, false, campaign.OfferForceUsed},
		{"newer needs no force", func(s *campaign.OfferSituation) { s.AllowOlder, s.ForcedBefore = true, true }, true, false,
			campaign.OfferMade},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := due()
			tt.change(&s)
			want := campaign.OfferDecision{Offer: tt.offer, Force: tt.force, Reason: tt.reason}
			if got := campaign.DecideOffer(s); got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
		})
	}
}

// TestDecideOfferAll checks, for every combination, the promises that must not depend on the
// order of the rules.
func TestDecideOfferAll(t *testing.T) {
	versions := []struct {
		device, image string
		sound, newer  bool
	}{{"2.4.2", "2.4.3", true, true}, {"2.4.3", "2.4.2", true, false}, {"2.4.2", "2.4.2", true, false},
		{"v2.4.2", "2.4.3", false, true}, {"2.4.2", "latest", false, true}}
	for bits := range 1 << 9 {
		bit := func(n int) bool { return bits>>n&1 == 1 }
		for _, mode := range []firmware.DispatchMode{firmware.ModeAuto, firmware.ModePush, firmware.ModePull} {
			for _, state := range append([]campaign.DeploymentState{""}, campaign.DeploymentStates...) {
				for _, v := range versions {
					for offers := range 3 {
						s := campaign.OfferSituation{Bound: bit(0), Held: bit(1), Running: bit(2), WindowOpen: bit(3), Due: bit(4),
							FirstBoot: bit(5), SameBuild: bit(6), AllowOlder: bit(7), ForcedBefore: bit(8), Mode: mode, State: state,
							OffersInHour: offers, DeviceVersion: v.device, ImageVersion: v.image}
						want := s.Bound && !s.Held && s.Running && s.WindowOpen && s.Due && !s.FirstBoot && !s.SameBuild &&
							mode != firmware.ModePush && state == campaign.DeploymentQueued && offers < 2 && v.sound &&
							(v.newer || s.AllowOlder && !s.ForcedBefore)
						got := campaign.DecideOffer(s)
						if got.Offer != want || got.Force != (want && !v.newer) || (got.Reason == campaign.OfferMade) != want {
							t.Fatalf("%+v: %+v, want offer %v", s, got, want)
						}
					}
				}
			}
		}
	}
}
