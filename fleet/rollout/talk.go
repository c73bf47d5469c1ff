package rollout

import (
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
)

// A device in conversation is not notified, nor restarted so that it polls, until the
// conversation ends or the maximum wait has passed. Only memory has the duration of the wait:
// no conversation outlives the process. A boot poll is answered regardless of any conversation:
// a device that polls has just started.

// conversation returns the device's current conversation, and whether the deployment must wait
// for its end. Each new conversation gets the full wait.
func (l *loop) conversation(d *deployment) (call.ConversationWait, bool) {
	if l.o.Conversations == nil {
		return call.ConversationWait{}, false
	}
	w, waits := l.o.Conversations.Wait(d.Device, d.talk, l.now)
	if d.talk.IsZero() || w.ID != d.talkID {
		d.talk, d.talkID = l.now, w.ID
		if w.Since.After(d.talk) { // it began during this turn, which may be long
			d.talk = w.Since
		}
		w, waits = l.o.Conversations.Wait(d.Device, d.talk, l.now)
	}
	return w, waits && w.ID == d.talkID
}

// letTalk makes a deployment wait for the end of a conversation, and records that it does.
// [Engine.ConversationEnded] ends the wait, or the maximum wait does.
func (l *loop) letTalk(d *deployment) {
	w, ok := l.conversation(d)
	if !ok { // it has ended since the rules were applied
		d.waitIn(&d.camp.ready, true)
		l.again = true
		return
	}
	if why := w.Reason(); !d.Reason.Equal(why) && !d.Reason.Is(campaign.ReasonAwaitsPollAfter) {
		d.Reason = why
		l.mark(d)
	}
	d.talking = true
	l.timers.set(d, w.Until)
}

// conversationEnded resumes the deployments of a device that waited for its conversation.
func (l *loop) conversationEnded(id fleet.DeviceID) {
	for _, d := range l.byDevice[id] {
		if d.talking {
			l.unplace(d)
			l.talked(d)
			d.waitIn(&d.camp.ready, true)
			l.again = true
		}
	}
}

// talked removes the wait for the end of a conversation from the record.
func (l *loop) talked(d *deployment) {
	if d.Reason.Is(call.ReasonInConversation) {
		d.Reason = fleet.Reason{}
		l.mark(d)
	}
}

// outwaited returns the conversation that the deployment may interrupt because it has waited
// long enough.
func (l *loop) outwaited(d *deployment) uuid.UUID {
	if l.o.Conversations == nil || d.talkID == uuid.Nil {
		return uuid.Nil
	}
	if w, waits := l.o.Conversations.Wait(d.Device, d.talk, l.now); waits || w.ID != d.talkID {
		return uuid.Nil
	}
	return d.talkID
}
