package fleet_test

import (
	"testing"

	"fleetd/fleet"
)

// due is a situation in which an offer is made.
func due() fleet.OfferSituation {
	return fleet.OfferSituation{Bound: true, Mode: fleet.ModeAuto, State: fleet.DeploymentQueued, Running: true, WindowOpen: true,
		Due: true, DeviceVersion: "2.4.2", ImageVersion: "2.4.3"}
}

func TestDecideOffer(t *testing.T) {
	older := func(s *fleet.OfferSituation) { s.ImageVersion = "2.4.1" }
	tests := []struct {
		name   string
		change func(s *fleet.OfferSituation)
		offer  bool
		force  bool
		reason fleet.OfferReason
	}{
		{"all well", func(s *fleet.OfferSituation) {}, true, false, fleet.OfferMade},
		{"pull", func(s *fleet.OfferSituation) { s.Mode = fleet.ModePull }, true, false, fleet.OfferMade},
		{"push", func(s *fleet.OfferSituation) { s.Mode = fleet.ModePush }, false, false, fleet.OfferPushOnly},
		{"not enrolled", func(s *fleet.OfferSituation) { s.Bound = false }, false, false, fleet.OfferUnbound},
		{"held", func(s *fleet.OfferSituation) { s.Held = true }, false, false, fleet.OfferHeld},
		{"no deployment", func(s *fleet.OfferSituation) { s.State = "" }, false, false, fleet.OfferNone},
		{"wave not open", func(s *fleet.OfferSituation) { s.State = "pending" }, false, false, fleet.OfferNotDue},
		{"called already", func(s *fleet.OfferSituation) { s.State = "dispatching" }, false, false, fleet.OfferUnderWay},
		{"offered already", func(s *fleet.OfferSituation) { s.State = "offered" }, false, false, fleet.OfferUnderWay},
		{"rebooting", func(s *fleet.OfferSituation) { s.State = "rebooting" }, false, false, fleet.OfferUnderWay},
		{"done", func(s *fleet.OfferSituation) { s.State = "succeeded" }, false, false, fleet.OfferNone},
		{"rolled back", func(s *fleet.OfferSituation) { s.State = "rolled_back" }, false, false, fleet.OfferNone},
		{"paused", func(s *fleet.OfferSituation) { s.Running = false }, false, false, fleet.OfferNotRunning},
		{"window closed", func(s *fleet.OfferSituation) { s.WindowOpen = false }, false, false, fleet.OfferWindowClosed},
		{"backing off", func(s *fleet.OfferSituation) { s.Due = false }, false, false, fleet.OfferNotDue},
		{"does not fit", func(s *fleet.OfferSituation) { s.Fits = fleet.SkipTooLarge }, false, false, fleet.OfferUnfit},
		{"first boot", func(s *fleet.OfferSituation) { s.FirstBoot = true }, false, false, fleet.OfferFirstBoot},
		{"first boot of the image", func(s *fleet.OfferSituation) { s.FirstBoot, s.SameBuild = true, true }, false, false, fleet.OfferSameBuild},
		{"one offer", func(s *fleet.OfferSituation) { s.OffersInHour = 1 }, true, false, fleet.OfferMade},
		{"two offers", func(s *fleet.OfferSituation) { s.OffersInHour = 2 }, false, false, fleet.OfferTooOften},
		{"device version v2.4.2", func(s *fleet.OfferSituation) { s.DeviceVersion = "v2.4.2" }, false, false, fleet.OfferVersion},
		{"device version unknown", func(s *fleet.OfferSituation) { s.DeviceVersion = "" }, false, false, fleet.OfferVersion},
		{"image version 2.4.3-rc1", func(s *fleet.OfferSituation) { s.ImageVersion = "2.4.3-rc1" }, false, false, fleet.OfferVersion},
		{"image version of 20 digits", func(s *fleet.OfferSituation) { s.ImageVersion = "20260808120000123456" }, false, false, fleet.OfferVersion},
		{"odd version, downgrade approved", func(s *fleet.OfferSituation) { s.DeviceVersion, s.AllowOlder = "latest", true }, false, false, fleet.OfferVersion},
		{"more parts are newer", func(s *fleet.OfferSituation) { s.ImageVersion = "2.4.2.0" }, true, false, fleet.OfferMade},
		{"numbers, not text", func(s *fleet.OfferSituation) { s.ImageVersion = "2.4.10" }, true, false, fleet.OfferMade},
		{"same version", func(s *fleet.OfferSituation) { s.ImageVersion = "2.4.2" }, false, false, fleet.OfferNotNewer},
		{"older", older, false, false, fleet.OfferNotNewer},
		{"older, approved", func(s *fleet.OfferSituation) { older(s); s.AllowOlder = true }, true, true, fleet.OfferMade},
		{"older, approved, forced before", func(s *fleet.OfferSituation) { older(s); s.AllowOlder, s.ForcedBefore = true, true }, false, false, fleet.OfferForceUsed},
		{"newer needs no force", func(s *fleet.OfferSituation) { s.AllowOlder, s.ForcedBefore = true, true }, true, false, fleet.OfferMade},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := due()
			tt.change(&s)
			want := fleet.OfferDecision{Offer: tt.offer, Force: tt.force, Reason: tt.reason}
			if got := fleet.DecideOffer(s); got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
		})
	}
}

// TestDecideOfferAll goes through every combination and holds the promises
// that must not depend on the order of the rules.
func TestDecideOfferAll(t *testing.T) {
	versions := []struct {
		device, image string
		sound, newer  bool
	}{{"2.4.2", "2.4.3", true, true}, {"2.4.3", "2.4.2", true, false}, {"2.4.2", "2.4.2", true, false},
		{"v2.4.2", "2.4.3", false, true}, {"2.4.2", "latest", false, true}}
	for bits := range 1 << 9 {
		bit := func(n int) bool { return bits>>n&1 == 1 }
		for _, mode := range []fleet.DispatchMode{fleet.ModeAuto, fleet.ModePush, fleet.ModePull} {
			for _, state := range append([]fleet.DeploymentState{""}, fleet.DeploymentStates...) {
				for _, v := range versions {
					for offers := range 3 {
						s := fleet.OfferSituation{Bound: bit(0), Held: bit(1), Running: bit(2), WindowOpen: bit(3), Due: bit(4),
							FirstBoot: bit(5), SameBuild: bit(6), AllowOlder: bit(7), ForcedBefore: bit(8), Mode: mode, State: state,
							OffersInHour: offers, DeviceVersion: v.device, ImageVersion: v.image}
						want := s.Bound && !s.Held && s.Running && s.WindowOpen && s.Due && !s.FirstBoot && !s.SameBuild &&
							mode != fleet.ModePush && state == fleet.DeploymentQueued && offers < 2 && v.sound &&
							(v.newer || s.AllowOlder && !s.ForcedBefore)
						got := fleet.DecideOffer(s)
						if got.Offer != want || got.Force != (want && !v.newer) || (got.Reason == fleet.OfferMade) != want {
							t.Fatalf("%+v: %+v, want offer %v", s, got, want)
						}
					}
				}
			}
		}
	}
}
