package call

import (
	"time"

	"fleetd/fleet"
)

// DefaultConversationWait is how long what would interrupt a conversation waits
// for its end, unless an operator sets another bound.
const DefaultConversationWait = 10 * time.Minute

// Codes of what calls wait for, and waited for.
const (
	ReasonDeviceAway = "device_away" // the device is not connected; waited for until until_at
	ReasonDeviceBack = "device_back" // it is; waited for since since_at

	ReasonInConversation    = "in_conversation"     // begun at since_at; waited for until until_at at the latest
	ReasonConversationEnded = "conversation_waited" // it was waited for
	ReasonConversationLong  = "conversation_bound"  // it went on for longer than is waited
	ReasonInterruptedBy     = "interrupted_by"      // a person did not want to wait
)

// WaitReasons are the codes of waits with the names of their parameters.
var WaitReasons = map[string][]string{
	ReasonInConversation: {"since_at", "until_at"}, ReasonConversationEnded: {}, ReasonConversationLong: {},
	ReasonInterruptedBy: {"name"}, ReasonDeviceAway: {"until_at"}, ReasonDeviceBack: {"since_at"},
}

// Interrupts reports whether a device that runs the tool cannot go on with a
// conversation: it restarts, leaves the network, or works with other settings.
func Interrupts(tool string) bool {
	return fleet.EffectOf(tool) != fleet.EffectNone || tool == fleet.ToolConfigSet
}

// Interruptions decides how long what would interrupt a conversation waits for its
// end. With a nil Interruptions nothing waits.
type Interruptions struct {
	Open  *fleet.OpenConversations
	Bound time.Duration // 0 takes DefaultConversationWait
}

// A ConversationWait is the wait for the end of a conversation.
type ConversationWait struct {
	fleet.OpenConversation
	Until time.Time // at the latest
}

// Reason is the wait as a code.
func (w ConversationWait) Reason() fleet.Reason {
	return fleet.Because(ReasonInConversation, "since_at", w.Since, "until_at", w.Until)
}

// Wait returns the conversation that the device is in, zero without one, and whether
// something has to wait for its end that began to wait at the given time.
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

// talk returns the conversation whose end the call has to wait for, or nil. A call of
// the conversation itself does not wait for its end, and a language model cannot ask to
// interrupt one.
//
//	tool interrupts | in conversation | asked to interrupt | of the conversation | waited for long enough |
//	no              |                 |                    |                     |                        | goes
//	                | no              |                    |                     |                        | goes
//	                |                 | by no model        |                     |                        | goes
//	                |                 |                    | yes                 |                        | goes
//	                |                 |                    |                     | yes                    | goes
//	yes             | yes             | no, or by a model  | no                  | no                     | waits
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
