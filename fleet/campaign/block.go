package campaign

import (
	"time"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

// A BlockReason is why a queued deployment is not dispatched now.
type BlockReason string

const (
	BlockNone       BlockReason = ""
	BlockNotStarted BlockReason = "campaign_not_started"
	BlockPaused     BlockReason = "campaign_paused"
	BlockOver       BlockReason = "campaign_over"
	BlockWave       BlockReason = "wave_not_open"
	BlockWindow     BlockReason = "window_closed"
	BlockBackoff    BlockReason = "back_off"
	BlockBusy       BlockReason = "busy" // active in another campaign
	BlockInFlight   BlockReason = "max_in_flight"
	BlockPace       BlockReason = "max_per_minute"
	BlockDownloads  BlockReason = "downloads_full"
	BlockOffline    BlockReason = "offline"     // push only
	BlockAwaitsPoll BlockReason = "awaits_poll" // pull: the next boot brings it
	// its build was not confirmed by a boot poll yet: the device would refuse
	BlockUnconfirmed  BlockReason = "unconfirmed"
	BlockUnderWay     BlockReason = "under_way"        // an attempt is
	BlockUnresponsive BlockReason = "unresponsive"     // connected, and does not answer
	BlockOldPresence  BlockReason = "presence_unknown" // fleetd has just started
	// in one that is not to be interrupted yet; see [call.Interruptions]
	BlockConversation BlockReason = "in_conversation"
)

// A ReadySituation is all that [Block] looks at.
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
	Talking     bool // in a conversation whose end is waited for
	Busy        bool
	InFlight    int
	MaxInFlight int
	PaceLeft    bool // the rate limiter has a token
	Room        bool // for another download
	Now         time.Time
}

// Block returns what keeps a queued deployment from being dispatched now, the
// most lasting reason first, and by which mode it goes or would go.
//
// [BlockNone] with [firmware.ModePush] means: call the tool. With [firmware.ModePull] it means
// that the plan is to pull now: reboot the device, which then polls; the
// caller keeps it from being rebooted again before it could.
func Block(s ReadySituation) (BlockReason, firmware.DispatchMode) {
	mode := s.mode()
	if h := s.byCampaign(); h != BlockNone {
		return h, mode
	}
	if h := s.byDeployment(); h != BlockNone {
		return h, mode
	}
	if h := s.byDevice(mode); h != BlockNone {
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

func (s ReadySituation) byCampaign() BlockReason {
	switch s.Campaign {
	case Running:
		return BlockNone
	case Paused:
		if s.Paused == PausedByWindow && !s.WindowOpen {
			return BlockWindow
		}
		return BlockPaused
	case Draft, AwaitingApproval, Denied, Scheduled:
		return BlockNotStarted
	}
	return BlockOver
}

func (s ReadySituation) byDeployment() BlockReason {
	switch d := s.Deployment; {
	case d.State.Active():
		return BlockUnderWay
	case d.State.Final():
		return BlockOver
	case d.State == DeploymentPending || d.Wave > s.Wave:
		return BlockWave
	case s.Busy:
		return BlockBusy
	case !s.WindowOpen:
		return BlockWindow
	case d.NotBefore != nil && s.Now.Before(*d.NotBefore):
		return BlockBackoff
	}
	return BlockNone
}

func (s ReadySituation) byDevice(mode firmware.DispatchMode) BlockReason {
	switch {
	case s.Presence == "":
		return BlockOldPresence
	case s.Presence == fleet.PresenceUnresponsive:
		return BlockUnresponsive
	case mode == firmware.ModePull && (!s.PullNow || s.Presence != fleet.PresenceOnline):
		return BlockAwaitsPoll
	case s.Presence != fleet.PresenceOnline:
		return BlockOffline
	case !s.Confirmed: // it would refuse an image silently, and a reboot would roll it back
		return BlockUnconfirmed
	case s.Talking:
		return BlockConversation
	}
	return BlockNone
}

func (s ReadySituation) byPace() BlockReason {
	switch {
	case s.InFlight >= s.MaxInFlight:
		return BlockInFlight
	case !s.Room:
		return BlockDownloads
	case !s.PaceLeft:
		return BlockPace
	}
	return BlockNone
}

// Stuck reports whether the reason lies with the device, for an
// unknown time: such a device does not hold up the judgement of its wave.
func (h BlockReason) Stuck() bool {
	switch h {
	case BlockOffline, BlockAwaitsPoll, BlockUnresponsive, BlockUnconfirmed:
		return true
	}
	return false
}
