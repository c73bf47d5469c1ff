package campaign

import (
	"fleetd/fleet"
	"time"
)

// told is for devices that may know of the image and have not fetched it:
// dispatching, sent, offered, ambiguous.
func (a *advance) told() {
	switch {
	case a.fetches():
	case a.o.Kind == fleet.EvidenceSent:
		a.sent()
	case a.o.Kind == fleet.EvidenceNotSent && a.d.State != DeploymentOffered:
		a.notSent()
	case a.o.Kind == fleet.EvidenceRefused && a.d.State != DeploymentOffered:
		a.saysNo()
	case a.o.Kind == fleet.EvidenceTimer:
		a.toldTimer()
	case a.o.Kind == fleet.EvidenceProbe && a.build() == buildTarget:
		a.enter(DeploymentRebooting, a.timers.BootPoll)
		a.explainUnpolled()
	case a.tells(buildTarget): // an inventory of it, yet no poll: ask
		a.probe()
	case a.livesOn():
		a.failAttempt(FailureTimeout, a.notFetched())
	default:
		a.connectivity()
	}
}

// What to say of a device that runs the image without having polled with it.
// Stock firmware confirms its image by the poll (protocol 7.4); a device that
// reports on its upgrade does not need it.
func (a *advance) explainUnpolled() {
	if a.d.Percent != nil {
		a.explain(fleet.Because(ReasonPollUnseen))
		return
	}
	a.explain(fleet.Because(ReasonUnconfirmed))
}

func (a *advance) unpolled() bool {
	return a.d.Reason.Is(ReasonUnconfirmed) || a.d.Reason.Is(ReasonPollUnseen)
}

func (a *advance) sent() {
	if a.d.State != DeploymentDispatching {
		return // the answer, or fleetd's restart, was faster
	}
	a.enter(DeploymentSent, a.timers.Get)
	at := a.o.At
	a.d.SentAt = &at
}

func (a *advance) toldTimer() {
	switch {
	case !a.timeUp():
	case a.d.State == DeploymentDispatching, a.d.State == DeploymentSent:
		a.enter(DeploymentAmbiguous, a.resendPatience())
		a.d.Reason = fleet.Because(ReasonMayStillFetch)
		if a.d.SentAt == nil {
			told := a.d.UpdatedAt
			a.d.SentAt = &told
		}
	default:
		a.failAttempt(FailureTimeout, a.notFetched())
	}
}

// livesOn reports that the device was seen with its old build after it was
// told: it restarted or reconnected instead of fetching.
func (a *advance) livesOn() bool {
	if a.d.SentAt == nil || !a.o.At.After(*a.d.SentAt) || a.build() != buildOld && a.build() != buildOther {
		return false
	}
	switch a.o.Kind {
	case fleet.EvidenceBootPoll:
		return true
	case fleet.EvidenceInitialize, fleet.EvidenceProbe:
		return a.d.State != DeploymentSent // it may not have begun yet
	}
	return false
}

func (a *advance) notFetched() fleet.Reason {
	if a.d.State == DeploymentOffered {
		return fleet.Because(ReasonOfferIgnored)
	}
	return fleet.Because(ReasonNotFetched)
}

// resendPatience is how long a call that may have been heard is left alone.
func (a *advance) resendPatience() time.Duration {
	return max(a.timers.Resend, a.timers.atSlowest(a.d.ImageSize))
}

// atSlowest is how long the slowest download of so many bytes takes.
func (t DeploymentTimers) atSlowest(size int64) time.Duration {
	if t.SlowestRate <= 0 {
		return 0
	}
	return time.Duration(size) * time.Second / time.Duration(t.SlowestRate)
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
