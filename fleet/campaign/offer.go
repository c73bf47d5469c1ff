package campaign

import (
	"slices"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

// An OfferSituation is the input of [DecideOffer].
type OfferSituation struct {
	Bound      bool // enrolled, and polls with the Client-Id on record
	Held       bool
	Mode       firmware.DispatchMode // of the campaign
	State      DeploymentState       // of the device's deployment; "" if it has none
	Running    bool                  // the campaign is neither paused nor over
	WindowOpen bool                  // in the device's time zone, long enough for the download
	Due        bool                  // back-off, jitter and pace allow it now
	Fits       firmware.SkipReason   // [firmware.SkipNone] if the image still fits
	// This poll names a different build than the previous one: the image is not confirmed yet.
	FirstBoot     bool
	OffersInHour  int // made to the device in the last hour
	DeviceVersion string
	ImageVersion  string
	SameBuild     bool // the device already runs the image
	AllowOlder    bool // the plan was made, and approved if required, for a downgrade
	ForcedBefore  bool // this deployment was already offered with force
}

// OfferReason is the reason why a boot poll offers no firmware.
type OfferReason string

const (
	OfferMade         OfferReason = ""
	OfferNone         OfferReason = "no_deployment"
	OfferUnbound      OfferReason = "not_bound"
	OfferHeld         OfferReason = "held"
	OfferPushOnly     OfferReason = "push_only"
	OfferUnderWay     OfferReason = "under_way" // an attempt is under way: its evidence decides
	OfferNotRunning   OfferReason = "campaign_not_running"
	OfferWindowClosed OfferReason = "window_closed"
	OfferNotDue       OfferReason = "not_due"
	OfferUnfit        OfferReason = "does_not_fit"
	OfferFirstBoot    OfferReason = "first_boot" // an offer would leave the new build unconfirmed
	OfferTooOften     OfferReason = "too_often"  // two in an hour
	OfferSameBuild    OfferReason = "same_build"
	OfferVersion      OfferReason = "unparsable_version" // of device or image: comparing it would crash the device
	OfferNotNewer     OfferReason = "not_newer"          // and no downgrade was approved
	OfferForceUsed    OfferReason = "force_used"         // force is for one recorded boot only
)

// MaxOffersPerHour bounds the offers to one device.
const MaxOffersPerHour = 2

// OfferDecision is the decision of the poll-reply policy.
type OfferDecision struct {
	Offer  bool
	Force  bool
	Reason OfferReason
}

// DecideOffer implements the poll-reply policy: whether the answer to a boot poll offers
// firmware. The first rule that refuses gives the reason.
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
	case s.ForcedBefore: // if force stays set, the device downloads at every second boot
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

// isNewer compares versions like the device: part by part, and more parts are newer.
func isNewer(version, than string) bool {
	return slices.Compare(fleet.VersionKey(version), fleet.VersionKey(than)) > 0
}
