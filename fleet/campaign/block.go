package campaign

import (
	"time"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

// A BlockReason is the reason why a queued deployment is not dispatched now.
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
	BlockAwaitsPoll BlockReason = "awaits_poll" // pull: the device gets the offer at its next boot
	// No boot poll has confirmed its build yet: the device would refuse the image.
	BlockUnconfirmed  BlockReason = "unconfirmed"
	BlockUnderWay     BlockReason = "under_way"        // an attempt is under way
	BlockUnresponsive BlockReason = "unresponsive"     // connected, but does not answer
	BlockSilentEdge   BlockReason = "unknown_edge"     // its edge is silent
	BlockOldPresence  BlockReason = "presence_unknown" // fleetd has just started
	// In a conversation that must not be interrupted yet; see [call.Interruptions].
	BlockConversation BlockReason = "in_conversation"
)

// A ReadySituation is the input of [Block].
type ReadySituation struct {
	Campaign    State
	Paused      PauseReason
	Wave        int // open wave
	Deployment  Deployment
	Mode        firmware.DispatchMode
	PullNow     bool
	WindowOpen  bool
	Presence    fleet.Presence // "" if unknown
	OffersTool  bool
	Confirmed   bool // a boot poll named the running build and was answered
	Talking     bool // in a conversation that must end first
	Busy        bool
	InFlight    int
	MaxInFlight int
	PaceLeft    bool // the rate limiter has a token
	Room        bool // for another download
	Now         time.Time
}

// Block returns the reason why a queued deployment is not dispatched now, the longest-lasting
// reason first, and the mode by which it is or would be dispatched.
//
// [BlockNone] with [firmware.ModePush] means: call the tool. With [firmware.ModePull] it means
// that the plan pulls now: reboot the device, which then polls. The caller ensures that the
// device is not rebooted again before it can poll.
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

// mode returns push if the device can be called and offers the tool, and otherwise pull, unless
// the plan prescribes a mode.
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
	case s.Presence == fleet.PresenceUnknownEdge:
		return BlockSilentEdge
	case mode == firmware.ModePull && (!s.PullNow || s.Presence != fleet.PresenceOnline):
		return BlockAwaitsPoll
	case s.Presence != fleet.PresenceOnline:
		return BlockOffline
	case !s.Confirmed: // it would silently refuse an image, and a reboot would roll its build back
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

// Stuck reports whether the device itself causes the block, for an unknown time. Such a device
// does not delay the judgement of its wave.
func (h BlockReason) Stuck() bool {
	switch h {
	case BlockOffline, BlockAwaitsPoll, BlockUnresponsive, BlockUnconfirmed:
		return true
	}
	return false
}
