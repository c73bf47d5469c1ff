package campaign

import (
	"fleetd/fleet"
	"fleetd/fleet/firmware"
	"time"
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
