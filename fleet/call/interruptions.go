package call

import (
	"time"

	"fleetd/fleet"
)

// DefaultConversationWait is how long an action that would interrupt a conversation waits for
// its end, unless an operator sets another bound.
const DefaultConversationWait = 10 * time.Minute

// Codes of the events that calls wait or waited for.
const (
	ReasonDeviceAway = "device_away" // the device is not connected; the call waits until until_at
	ReasonDeviceBack = "device_back" // the device is back; the call had waited since since_at

	ReasonInConversation    = "in_conversation"     // begun at since_at; the call waits until until_at at the latest
	ReasonConversationEnded = "conversation_waited" // the conversation ended
	ReasonConversationLong  = "conversation_bound"  // the conversation lasted longer than the wait
	ReasonInterruptedBy     = "interrupted_by"      // a person asked to interrupt
)

// WaitReasons maps the codes of waits to the names of their parameters.
var WaitReasons = map[string][]string{
	ReasonInConversation: {"since_at", "until_at"}, ReasonConversationEnded: {}, ReasonConversationLong: {},
	ReasonInterruptedBy: {"name"}, ReasonDeviceAway: {"until_at"}, ReasonDeviceBack: {"since_at"},
}

// Interrupts reports whether the tool ends a conversation of its device: the device restarts,
// leaves the network, or applies other settings.
func Interrupts(tool string) bool {
	return fleet.EffectOf(tool) != fleet.EffectNone || tool == fleet.ToolConfigSet
}

// Interruptions decides how long actions that would interrupt a conversation wait for its end.
// With a nil Interruptions nothing waits.
type Interruptions struct {
	Open  *fleet.OpenConversations
	Bound time.Duration // 0: DefaultConversationWait
}

// A ConversationWait is the wait for the end of a conversation.
type ConversationWait struct {
	fleet.OpenConversation
	Until time.Time // at the latest
}

// Reason returns the wait as a reason code.
func (w ConversationWait) Reason() fleet.Reason {
	return fleet.Because(ReasonInConversation, "since_at", w.Since, "until_at", w.Until)
}

// Wait returns the device's conversation, or zero, and whether an action that began to wait at
// the given time has to wait for the conversation's end.
func (i *Interruptions) Wait(device fleet.DeviceID, began, now time.Time) (ConversationWait, bool) {
	if i == nil {
		return ConversationWait{}, false
	}
	until := began.Add(i.bound())
	c, in := i.Open.Of(device)
	return ConversationWait{c, until}, in && now.Before(until)
}

func (i *Interruptions) bound() time.Duration {
	if i.Bound > 0 {
		return i.Bound
	}
	return DefaultConversationWait
}

// talk returns the conversation whose end the call has to wait for, or nil. A call made by the
// conversation does not wait for its end. A language model cannot request an interruption.
//
//	interrupting tool | talking | interrupts     | part of it | waited enough |
//	no                |         |                |            |               | goes
//	                  | no      |                |            |               | goes
//	                  |         | yes, no model  |            |               | goes
//	                  |         |                | yes        |               | goes
//	                  |         |                |            | yes           | goes
//	yes               | yes     | no, or a model | no         | no            | waits
func (i *Interruptions) talk(r Request, began, now time.Time) *ConversationWait {
	if !Interrupts(r.Tool) || r.interrupts() {
		return nil
	}
	w, waits := i.Wait(r.Device, began, now)
	if !waits || w.ID == r.Outwaited || r.Actor.Kind == fleet.KindVoice && r.Actor.ID == w.ID.String() {
		return nil
	}
	return &w
}
