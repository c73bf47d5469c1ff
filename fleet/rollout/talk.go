package rollout

import (
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
)

// A device in conversation is not notified, nor restarted so that it polls, before
// the conversation has ended or the bound has passed. How long is known to memory
// alone: no conversation outlives the process. A boot poll is answered whatever
// was known of a conversation: a device that polls has just started.

// conversation returns the conversation that the device of a deployment is in, and
// whether its end has to be waited for. A conversation that follows another one is
// waited for as long.
func (l *loop) conversation(d *deployment) (call.ConversationWait, bool) {
	if l.o.Conversations == nil {
		return call.ConversationWait{}, false
	}
	w, waits := l.o.Conversations.Wait(d.Device, d.talk, l.now)
	if d.talk.IsZero() || w.ID != d.talkID {
		d.talk, d.talkID = l.now, w.ID
		if w.Since.After(d.talk) { // it began during this turn of the loop, which may be a long one
			d.talk = w.Since
		}
		w, waits = l.o.Conversations.Wait(d.Device, d.talk, l.now)
	}
	return w, waits && w.ID == d.talkID
}

// letTalk has a deployment wait for the end of a conversation, and puts on record
// that it does. [Engine.ConversationEnded] ends the wait, or the bound.
func (l *loop) letTalk(d *deployment) {
	w, ok := l.conversation(d)
	if !ok { // it ended since the rules were asked
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

// conversationEnded lets the deployments of a device go on that waited for it.
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

// talked removes from the record that the end of a conversation is waited for.
func (l *loop) talked(d *deployment) {
	if d.Reason.Is(call.ReasonInConversation) {
		d.Reason = fleet.Reason{}
		l.mark(d)
	}
}

// outwaited is the conversation that the deployment may interrupt, since it was
// waited for long enough.
func (l *loop) outwaited(d *deployment) uuid.UUID {
	if l.o.Conversations == nil || d.talkID == uuid.Nil {
		return uuid.Nil
	}
	if w, waits := l.o.Conversations.Wait(d.Device, d.talk, l.now); waits || w.ID != d.talkID {
		return uuid.Nil
	}
	return d.talkID
}
