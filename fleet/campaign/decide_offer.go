package campaign

import (
	"fleetd/fleet"
	"fleetd/fleet/firmware"
	"slices"
)

// DecideOffer is the poll-reply policy: whether the answer to a boot poll
// offers firmware. The first rule that says no gives the reason.
func DecideOffer(s OfferSituation) OfferDecision {
	if reason := s.refusal(); reason != OfferMade {
		return OfferDecision{Reason: reason}
	}
	if isNewer(s.ImageVersion, s.DeviceVersion) {
		return OfferDecision{Offer: true}
	}
	switch {
	case !s.AllowOlder:
		return OfferDecision{Reason: OfferNotNewer}
	case s.ForcedBefore: // left on, force makes the device download at every second boot
		return OfferDecision{Reason: OfferForceUsed}
	}
	return OfferDecision{Offer: true, Force: true}
}

func (s OfferSituation) refusal() OfferReason {
	switch {
	case !s.Bound:
		return OfferUnbound
	case s.State == "" || s.State.Final():
		return OfferNone
	case s.State.Active():
		return OfferUnderWay
	case s.SameBuild:
		return OfferSameBuild
	case s.FirstBoot:
		return OfferFirstBoot
	case s.Held:
		return OfferHeld
	case s.Mode == firmware.ModePush:
		return OfferPushOnly
	case !s.Running:
		return OfferNotRunning
	case s.State == DeploymentPending:
		return OfferNotDue
	case !s.WindowOpen:
		return OfferWindowClosed
	case !s.Due:
		return OfferNotDue
	case !fleet.ComparableVersion(s.DeviceVersion) || !fleet.ComparableVersion(s.ImageVersion):
		return OfferVersion
	case s.Fits != firmware.SkipNone:
		return OfferUnfit
	case s.OffersInHour >= MaxOffersPerHour:
		return OfferTooOften
	}
	return OfferMade
}

// isNewer compares as the device does: part by part, and more parts are newer.
func isNewer(version, than string) bool {
	return slices.Compare(fleet.VersionKey(version), fleet.VersionKey(than)) > 0
}
