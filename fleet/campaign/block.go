package campaign

import (
	"time"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

// A Hindrance is why a queued deployment is not dispatched now.
type Hindrance string

const (
	HinderNone       Hindrance = ""
	HinderNotStarted Hindrance = "campaign_not_started"
	HinderPaused     Hindrance = "campaign_paused"
	HinderOver       Hindrance = "campaign_over"
	HinderWave       Hindrance = "wave_not_open"
	HinderWindow     Hindrance = "window_closed"
	HinderBackoff    Hindrance = "back_off"
	HinderBusy       Hindrance = "busy" // active in another campaign
	HinderInFlight   Hindrance = "max_in_flight"
	HinderPace       Hindrance = "max_per_minute"
	HinderDownloads  Hindrance = "downloads_full"
	HinderOffline    Hindrance = "offline"     // push only
	HinderAwaitsPoll Hindrance = "awaits_poll" // pull: the next boot brings it
	// its build was not confirmed by a boot poll yet: the device would refuse
	HinderUnconfirmed  Hindrance = "unconfirmed"
	HinderUnderWay     Hindrance = "under_way"        // an attempt is
	HinderUnresponsive Hindrance = "unresponsive"     // connected, and does not answer
	HinderOldPresence  Hindrance = "presence_unknown" // fleetd has just started
)

// A ReadySituation is all that [Hinder] looks at.
type ReadySituation struct {
	Campaign    State
	Paused      PauseReason
	Wave        int // open wave
	Deployment  Deployment
	Mode        firmware.DispatchMode
	PullNow     bool
	WindowOpen  bool
	Presence    fleet.Presence // "" if not known yet
	OffersTool  bool
	Confirmed   bool // a boot poll named the running build and was answered
	Busy        bool
	InFlight    int
	MaxInFlight int
	PaceLeft    bool // the rate limiter has a token
	Room        bool // for another download
	Now         time.Time
}

// Hinder says what keeps a queued deployment from being dispatched now, the
// most lasting hindrance first, and by which mode it goes or would go.
//
// [HinderNone] with [firmware.ModePush] means: call the tool. With [firmware.ModePull] it means
// that the plan is to pull now: reboot the device, which then polls; the
// caller keeps it from being rebooted again before it could.
func Hinder(s ReadySituation) (Hindrance, firmware.DispatchMode) {
	mode := s.mode()
	if h := s.byCampaign(); h != HinderNone {
		return h, mode
	}
	if h := s.byDeployment(); h != HinderNone {
		return h, mode
	}
	if h := s.byDevice(mode); h != HinderNone {
		return h, mode
	}
	return s.byPace(), mode
}

// mode is push if the device can be called and offers the tool, else pull,
// unless the plan leaves no choice.
func (s ReadySituation) mode() firmware.DispatchMode {
	if s.Mode == firmware.ModePush || s.Mode == firmware.ModePull {
		return s.Mode
	}
	if s.OffersTool && (s.Presence == fleet.PresenceOnline || s.Presence == "") {
		return firmware.ModePush
	}
	return firmware.ModePull
}

func (s ReadySituation) byCampaign() Hindrance {
	switch s.Campaign {
	case Running:
		return HinderNone
	case Paused:
		if s.Paused == PausedByWindow && !s.WindowOpen {
			return HinderWindow
		}
		return HinderPaused
	case Draft, AwaitingApproval, Denied, Scheduled:
		return HinderNotStarted
	}
	return HinderOver
}

func (s ReadySituation) byDeployment() Hindrance {
	switch d := s.Deployment; {
	case d.State.Active():
		return HinderUnderWay
	case d.State.Final():
		return HinderOver
	case d.State == DeploymentPending || d.Wave > s.Wave:
		return HinderWave
	case s.Busy:
		return HinderBusy
	case !s.WindowOpen:
		return HinderWindow
	case d.NotBefore != nil && s.Now.Before(*d.NotBefore):
		return HinderBackoff
	}
	return HinderNone
}

func (s ReadySituation) byDevice(mode firmware.DispatchMode) Hindrance {
	switch {
	case s.Presence == "":
		return HinderOldPresence
	case s.Presence == fleet.PresenceUnresponsive:
		return HinderUnresponsive
	case mode == firmware.ModePull && (!s.PullNow || s.Presence != fleet.PresenceOnline):
		return HinderAwaitsPoll
	case s.Presence != fleet.PresenceOnline:
		return HinderOffline
	case !s.Confirmed: // it would refuse an image silently, and a reboot would roll it back
		return HinderUnconfirmed
	}
	return HinderNone
}

func (s ReadySituation) byPace() Hindrance {
	switch {
	case s.InFlight >= s.MaxInFlight:
		return HinderInFlight
	case !s.Room:
		return HinderDownloads
	case !s.PaceLeft:
		return HinderPace
	}
	return HinderNone
}

// Stuck reports whether the hindrance lies with the device, and nobody knows
// until when: such a device does not hold up the judgement of its wave.
func (h Hindrance) Stuck() bool {
	switch h {
	case HinderOffline, HinderAwaitsPoll, HinderUnresponsive, HinderUnconfirmed:
		return true
	}
	return false
}
