package fleet

import (
	"errors"
	"time"
)

// ErrTalking means that a device is in a conversation that the call would have to
// wait for. There is no record of the call.
var ErrTalking = errors.New("device in conversation")

// A conversationHold is what a call waits for before it joins its device's line:
// it would hold up others there.
type conversationHold struct {
	*heldCall
	began time.Time
	wait  ConversationWait
}

// hold has a call wait that would interrupt a conversation, and reports whether it
// does.
func (a *attempt) hold(r CallRequest) bool {
	if a.call.State != CallPending {
		return false
	}
	w, waits := a.calls.o.Interruptions.waits(r, r.now, r.now)
	if !waits {
		return false
	}
	a.call.Waits = w.Reason()
	a.talk = &conversationHold{heldCall: a.calls.held.add(a.call.ID, a.call.Waits), began: r.now, wait: w}
	a.wasOn, a.revoke = true, nil // who made the call does not wait for it
	return true
}

// awaitConversation waits for the end of the conversation, or for one of the other
// ends of the wait, then joins the device's line. It reports true if the call has
// come to its end.
//
//	the conversation ends       another one began: waits on, to the same bound; else goes
//	the bound passes            goes
//	a person asks to interrupt  goes
//	fleetd stops                canceled
//
// A call that goes is held against what may have changed meanwhile; see
// [attempt.judgeAgain].
func (a *attempt) awaitConversation() (done bool, err error) {
	goes := a.endOfWait()
	a.calls.held.remove(a.call.ID)
	a.call.Waits = Reason{}
	now := a.calls.o.Now()
	if goes.Is("") {
		a.close(CallCanceled, NewCallError(CodeStopped+".turn"))
	} else {
		a.call.Evidence = append(a.call.Evidence, Evidence{At: now, Kind: EvidenceWaited, Detail: goes.String(),
			Reason: goes})
		if err := a.judgeAgain(); err != nil {
			a.close(CallCanceled, NewCallError("send_failed", "detail", CleanText(err.Error(), 300)))
		}
	}
	if a.call.State == CallPending {
		if err := a.queue(false); err != nil {
			a.close(CallCanceled, NewCallError("send_failed", "detail", CleanText(err.Error(), 300)))
		}
	}
	if a.turn != nil {
		return false, nil
	}
	err = a.finish()
	a.calls.o.Observe(a.call)
	a.calls.announce(a.call)
	return true, err
}

// endOfWait returns why the call goes on; zero if it does not, since fleetd stops.
func (a *attempt) endOfWait() Reason {
	t := a.talk
	bound := time.NewTimer(t.wait.Until.Sub(a.calls.o.Now()))
	defer bound.Stop()
	for {
		select {
		case <-t.wait.Ended:
			next, waits := a.calls.o.Interruptions.waits(a.asked, t.began, a.calls.o.Now())
			if !waits {
				return Because(ReasonConversationEnded)
			}
			t.wait, a.call.Waits = next, next.Reason()
			a.calls.held.setWaits(t.heldCall, a.call.Waits)
			a.calls.announce(a.call)
		case <-bound.C:
			return Because(ReasonConversationLong)
		case by := <-t.interrupt:
			return Because(ReasonInterruptedBy, "name", by.Name)
		case <-a.calls.life.Done():
			return Reason{}
		}
	}
}
