package fleet

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
)

// Limits of calls that wait until their devices are back.
const (
	DefaultCallOfflineWait = 24 * time.Hour // where a request asks to wait, and not how long
	MaxCallOfflineWait     = 7 * 24 * time.Hour
	MaxWaitingOfDevice     = 20
	MaxWaitingOfPrincipal  = 500
	MaxWaitingCalls        = 5000
)

// Pauses of calls that wait until their devices are back.
const (
	awayPause  = 5 * time.Second        // between two looks at a device of which nothing was seen
	soonPause  = 100 * time.Millisecond // between two looks at one that may be back
	soonFor    = 20 * time.Second       // how long a device takes to be introduced
	retryPause = time.Second            // before a call that could not be sent is tried again
)

// mayWaitForDevice reports whether who makes the call may have it wait until the
// device is back. A conversation ends with its device's connection, and campaigns
// and fan-outs wait on their own.
func (r CallRequest) mayWaitForDevice() bool {
	return r.Actor.Kind != KindVoice && r.Actor.Kind != KindCampaign && r.Actor.Kind != KindSystem && !r.isFanOut()
}

// waitUntil is rounded as the store keeps it.
func (r CallRequest) waitUntil() *time.Time {
	return new(r.now.Add(r.OfflineWait).Truncate(time.Millisecond))
}

// untilBack has the call wait until its device is back, or refuses it if too many
// wait. Its arguments are those of the request: a url argument is filled in when it
// is sent.
func (a *attempt) untilBack(r CallRequest, waits Reason) {
	if a.call.WaitUntil == nil {
		a.call.WaitUntil = r.waitUntil()
	}
	if waits.Is("") {
		waits = a.deviceAway()
	}
	a.call.State, a.call.Waits = CallPendingDevice, waits
	if r.Arguments != nil {
		a.call.Arguments = r.Arguments
	}
	held, no := a.calls.held.addAway(a.call, a.wasOn)
	if no != nil {
		a.call.Waits = Reason{}
		a.close(CallRefused, no)
		return
	}
	a.held, a.wasOn, a.revoke = held, true, nil // who made the call does not wait for it
}

func (a *attempt) deviceAway() Reason {
	return Because(ReasonDeviceAway, "until_at", *a.call.WaitUntil)
}

// storeWaiting puts on record that the call waits until its device is back.
func (a *attempt) storeWaiting() error {
	ctx, cancel := context.WithTimeout(context.Background(), recordTimeout)
	defer cancel()
	return a.calls.o.Store.WaitForDevice(ctx, a.call, CallWait{a.asked.interrupts(), a.asked.Picture})
}

// sendWhenBack waits until the device is back, then sends the call and stores its
// outcome. The record says that the call waits until the moment before its bytes
// are written, and is at any time what the next process needs to go on:
//
//	the device is back, its tools are listed,
//	  and no earlier call waits for it  judged again, and sent
//	nothing could be written to it      waits on
//	the database does not take a write  waits on
//	its time is over                    canceled
//	a person cancels it                 canceled
//	fleetd stops                        waits on in the next process
func (a *attempt) sendWhenBack() error {
	defer a.calls.held.remove(a.held)
	asked, arguments, evidence := a.asked, a.call.Arguments, slices.Clip(a.call.Evidence)
	for !a.call.State.Final() {
		a.asked, a.wire, a.call.Arguments, a.call.Evidence = asked, arguments, arguments, evidence
		switch a.outwaitAway() {
		case waitStopped:
			return nil
		case waitWithdrawn:
			a.close(CallCanceled, NewCallError(CodeWithdrawn+".by", "by", a.held.withdrawer.Name))
			continue
		case waitLong:
			a.close(CallCanceled, NewCallError(CodeWaitExpired, "until_at", *a.call.WaitUntil))
			continue
		}
		err := a.sendNow()
		if a.call.State.Final() {
			continue
		}
		a.giveBack()
		if err != nil {
			a.calls.o.Log.Warn("a call that waits for its device is not sent yet", "call", a.call.ID, "device", a.call.Device,
				"err", err)
		}
		if errors.Is(err, ErrConflict) || errors.Is(err, ErrNotFound) {
			return nil // something else ended it
		}
		outwait(a, (<-chan struct{})(nil), nil, a.notAfter(a.calls.o.Now().Add(retryPause)))
	}
	a.call.Waits = Reason{}
	err := a.finish()
	a.giveBack()
	a.calls.o.Observe(a.call)
	a.calls.announce(a.call)
	return err
}

// outwaitAway waits until the call has its turn: it is the first of its device, which
// is connected and in no conversation that the call would interrupt.
func (a *attempt) outwaitAway() waitEnd {
	if end := outwait(a, a.held.first, nil, *a.call.WaitUntil); end != waitCame {
		return end
	}
	seen, unwatch := a.calls.o.Watcher.Watch(a.call.Device)
	defer unwatch()
	var soon time.Time // until when something that was seen may be the device's return
	for {
		now := a.calls.o.Now()
		if !now.Before(*a.call.WaitUntil) {
			return waitLong
		}
		end := waitLost
		if a.calls.o.Link.Introduced(a.call.Device) {
			if end = a.outwaitConversation(now); end == waitCame || end == waitInterrupted || end == waitLong {
				end = a.joinLine()
			}
		} else {
			a.wasAway = true
			a.waitsFor(a.deviceAway())
		}
		if end != waitLost {
			return end
		}
		pause := awayPause
		if now.Before(soon) {
			pause = soonPause
		}
		switch end := outwait(a, seen, nil, a.notAfter(now.Add(pause))); end {
		case waitCame:
			soon = now.Add(soonFor)
		case waitWithdrawn, waitStopped:
			return end
		}
	}
}

// joinLine joins the device's line, and waits for the turn there; waitLost means that
// the call has none.
func (a *attempt) joinLine() waitEnd {
	turn, err := a.calls.o.Link.Queue(a.call.Device, a.call.Actor.Kind)
	if err != nil {
		return waitLost
	}
	a.turn = turn
	end := outwait(a, turn.Ready(), turn.Lost(), a.notAfter(a.calls.o.Now().Add(queueTimeout)))
	if end == waitCame {
		a.call.RPCID = turn.RPCID()
		return end
	}
	a.giveBack()
	if end == waitLong || end == waitInterrupted {
		end = waitLost // looks again, also whether its time is over
	}
	return end
}

// sendNow sends the call, in its turn, if it may be sent. It waits on if the call was
// canceled meanwhile, nothing could be written to the device, or after an error.
func (a *attempt) sendNow() error {
	if !a.calls.o.Held() { // another process may send it
		return Refuse(ErrUnavailable, "stopping")
	}
	a.calls.o.Targets.Forget(a.call.Device) // what it is now decides
	if err := a.judgeAgain(); err != nil || a.call.State.Final() {
		return err
	}
	if !a.calls.held.goes(a.held) {
		return nil
	}
	defer a.calls.held.stays(a.held)
	if a.wasAway {
		a.waited(Because(ReasonDeviceBack, "since_at", a.call.CreatedAt))
	}
	a.call.Waits = Reason{}
	a.markSent()
	if err := a.storeSent(); err != nil {
		a.unsend()
		return err
	}
	a.markSent() // however long that took
	a.calls.announce(a.call)
	a.deliver()
	if a.call.State != CallOffline || a.call.SentAt != nil {
		return nil
	}
	a.unsend()
	a.call.Arguments, a.call.Evidence = a.asked.Arguments, nil
	if err := a.storeWaiting(); err != nil { // it is on record as sent, which storeSent accepts
		return err
	}
	a.calls.announce(a.call)
	return nil
}

func (a *attempt) storeSent() error {
	ctx, cancel := context.WithTimeout(a.calls.life, 2*recordTimeout)
	defer cancel()
	return a.calls.o.Store.SendWaiting(ctx, a.call)
}

// unsend takes back that the call is sent: certainly nothing was written.
func (a *attempt) unsend() {
	a.call.State, a.call.SentAt, a.call.RPCID = CallPendingDevice, nil, 0
	a.call.Error, a.call.FinishedAt = nil, nil
	a.call.Waits = a.deviceAway()
	a.calls.held.setWaits(a.held, a.call.Waits)
}

func (a *attempt) giveBack() {
	if a.turn != nil {
		a.turn.Done()
		a.turn = nil
	}
}

// Cancel withdraws a call that waits for its device or for the end of a conversation.
// The principal must have made the call, or be an operator who may call its tool.
// Cancel returns the call with its outcome; [ErrConflict] means that the call does not
// wait, or was sent already.
func (s *Calls) Cancel(ctx context.Context, by Principal, id uuid.UUID) (Call, error) {
	c, err := s.mayEndWait(ctx, by, id, "cancel_call")
	if err != nil {
		return c, err
	}
	over := s.held.withdraw(id, by)
	if over != nil {
		select {
		case <-over:
		case <-ctx.Done():
			return c, ctx.Err()
		}
		if c, err = s.Get(ctx, id); err != nil {
			return c, err
		}
	}
	if over == nil || c.State != CallCanceled {
		return c, doesNotWait(c)
	}
	return c, nil
}

// mayEndWait reads a call that is to wait no longer, if the principal may do that.
func (s *Calls) mayEndWait(ctx context.Context, by Principal, id uuid.UUID, act string) (Call, error) {
	if err := by.MaySomewhere(RoleOperator, act); err != nil {
		return Call{}, err
	}
	c, err := s.Get(ctx, id)
	if err != nil {
		return c, err
	}
	t, err := s.o.Targets.Get(ctx, c.Device, s.o.Now())
	if err != nil {
		return c, err
	}
	return c, by.MayEndWait(c, t.device, act)
}

func doesNotWait(c Call) error {
	if c.State == CallPendingApproval {
		return Refuse(ErrConflict, "call_not_waiting.approval", "call", c.ID, "approval", c.Approval)
	}
	return Refuse(ErrConflict, "call_not_waiting", "call", c.ID, "state", Because("state."+string(c.State)))
}

// Resume goes on with the calls that waited for their devices in an earlier process.
// Call it before the first call is made.
func (s *Calls) Resume(ctx context.Context) error {
	waiting, err := s.o.Store.WaitingCalls(WithoutScope(ctx))
	if err != nil {
		return err
	}
	for _, w := range waiting {
		c := w.Call
		r := CallRequest{Actor: c.Actor, Device: c.Device, Tool: c.Tool, Arguments: c.Arguments, Timeout: c.Timeout,
			Interrupt: w.Interrupt, Picture: w.Picture, OfflineWait: c.WaitUntil.Sub(c.CreatedAt), now: c.CreatedAt}
		if c.Approval != uuid.Nil && s.o.Approvals != nil {
			approved, err := s.o.Approvals.Approval(WithoutScope(ctx), c.Approval)
			if err != nil {
				return err
			}
			r.grant = &grant{approved.PolicyVersion, approved.build(), approved.DecidedBy}
		}
		if err := s.enter(); err != nil {
			return err
		}
		a := &attempt{calls: s, asked: r, call: &c, wasOn: true, wasAway: true}
		a.untilBack(r, Reason{})
		go a.sendAlone()
	}
	return nil
}
