package call

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
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

// mayWaitForDevice reports whether the call of this actor may wait until its device is
// back. A conversation ends with its device's connection, and campaigns
// and fan-outs wait on their own.
func (r Request) mayWaitForDevice() bool {
	return r.Actor.Kind != fleet.KindVoice && r.Actor.Kind != fleet.KindCampaign && r.Actor.Kind != fleet.KindSystem &&
		!r.isFanOut()
}

// waitUntil is rounded as the store keeps it.
func (r Request) waitUntil() *time.Time {
	return new(r.now.Add(r.OfflineWait).Truncate(time.Millisecond))
}

func (a *attempt) deviceAway() fleet.Reason {
	return fleet.Because(ReasonDeviceAway, "until_at", *a.call.WaitUntil)
}

// storeWaiting puts on record that the call waits until its device is back. The record
// says so until the moment before the call's bytes are written, and is at any time what
// the next process needs to go on.
func (a *attempt) storeWaiting() error {
	ctx, cancel := context.WithTimeout(context.Background(), recordTimeout)
	defer cancel()
	return a.calls.o.Store.WaitForDevice(ctx, a.call, Wait{a.asked.interrupts(), a.asked.Picture})
}

// outwaitAway waits until the call may join the line of its device: no earlier call
// waits for that, it is connected, its tools are listed, and it is in no conversation
// that the call would interrupt.
func (a *attempt) outwaitAway() waitEnd {
	if end := outwait(a, a.wait.first, nil, *a.call.WaitUntil); end != waitCame {
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
		if a.calls.o.Link.Introduced(a.call.Device) {
			end := a.outwaitConversation(now)
			if end == waitWithdrawn || end == waitStopped {
				return end
			}
			if turn, err := a.calls.o.Link.Queue(a.call.Device, a.call.Actor.Kind); err == nil {
				a.turn = turn
				return waitCame
			}
		} else {
			a.wait.wasAway = true
			a.waitsFor(a.deviceAway())
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

// takeTurn marks a call sent that waited for its device, if it may be sent. It waits on
// if it was canceled meanwhile, or after an error; see [attempt.waitOn].
func (a *attempt) takeTurn() error {
	if !a.calls.o.Held() { // another process may send it
		return fleet.Refuse(fleet.ErrUnavailable, "stopping")
	}
	a.call.RPCID = a.turn.RPCID()
	a.calls.o.Targets.Forget(a.call.Device) // what it is now decides
	if err := a.judgeAgain(); err != nil || a.call.State.Final() {
		return err
	}
	if !a.calls.waiting.goes(&a.wait) {
		return nil
	}
	if a.wait.wasAway {
		a.waited(fleet.Because(ReasonDeviceBack, "since_at", a.call.CreatedAt))
	}
	a.call.Waits = fleet.Reason{}
	a.markSent()
	ctx, cancel := context.WithTimeout(a.calls.life, 2*recordTimeout)
	defer cancel()
	if err := a.calls.o.Store.SendWaiting(ctx, a.call); err != nil {
		return err
	}
	a.markSent() // however long that took
	a.calls.announce(a.call)
	return nil
}

// waitOn keeps a call waiting for its device if certainly nothing was written: it had no
// turn, err came before, or the device was gone by then. Another error is returned, and
// so is one that says that something else ended the call.
func (a *attempt) waitOn(err error) error {
	gone := a.call.State == fleet.CallOffline && a.call.SentAt == nil
	if a.call.State.Final() && !gone {
		return err
	}
	if err != nil || gone {
		a.unsend()
	}
	if gone {
		if err = a.storeWaiting(); err == nil { // which is on record as sent
			a.calls.announce(a.call)
		}
	}
	a.calls.waiting.stays(&a.wait)
	a.turn.Done()
	a.turn = nil
	if errors.Is(err, fleet.ErrConflict) || errors.Is(err, fleet.ErrNotFound) {
		return err
	}
	if err != nil {
		a.calls.o.Log.Warn("a call that waits for its device is not sent yet", "call", a.call.ID,
			"device", a.call.Device, "err", err)
	}
	if err != nil || gone {
		outwait(a, (<-chan struct{})(nil), nil, a.notAfter(a.calls.o.Now().Add(retryPause)))
	}
	return nil
}

// unsend takes back all that an attempt at sending the call put into its record.
func (a *attempt) unsend() {
	a.asked.Outwaited = uuid.Nil
	a.call.State, a.call.SentAt, a.call.RPCID = fleet.CallPendingDevice, nil, 0
	a.call.Error, a.call.FinishedAt, a.call.Evidence = nil, nil, nil
	a.call.Arguments = recorded(a.asked.Arguments)
	a.call.Waits = a.deviceAway()
	a.calls.waiting.setReason(&a.wait, a.call.Waits)
}

// Cancel withdraws a call that waits for its device or for the end of a conversation.
// The principal must have made the call, or be an operator who may call its tool.
// Cancel returns the call with its outcome; [fleet.ErrConflict] means that the call does not
// wait, or was sent already.
func (s *Service) Cancel(ctx context.Context, by fleet.Principal, id uuid.UUID) (fleet.Call, error) {
	c, err := s.mayEndWait(ctx, by, id, "cancel_call")
	if err != nil {
		return c, err
	}
	over := s.waiting.withdraw(id, by)
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
	if over == nil || c.State != fleet.CallCanceled {
		return c, doesNotWait(c)
	}
	return c, nil
}

// mayEndWait reads a call that is to wait no longer, if the principal may do that.
func (s *Service) mayEndWait(ctx context.Context, by fleet.Principal, id uuid.UUID, act string) (fleet.Call, error) {
	if err := by.MaySomewhere(fleet.RoleOperator, act); err != nil {
		return fleet.Call{}, err
	}
	c, err := s.Get(ctx, id)
	if err != nil {
		return c, err
	}
	t, err := s.o.Targets.Get(ctx, c.Device, s.o.Now())
	if err != nil {
		return c, err
	}
	return c, by.MayEndWait(c, t.Device, act)
}

func doesNotWait(c fleet.Call) error {
	if c.State == fleet.CallPendingApproval {
		return fleet.Refuse(fleet.ErrConflict, "call_not_waiting.approval", "call", c.ID, "approval", c.Approval)
	}
	return fleet.Refuse(fleet.ErrConflict, "call_not_waiting", "call", c.ID, "state", fleet.Because("state."+string(c.State)))
}

// Resume goes on with the calls that waited for their devices in an earlier process.
// Call it before the first call is made.
func (s *Service) Resume(ctx context.Context) error {
	waiting, err := s.o.Store.WaitingCalls(fleet.WithoutScope(ctx))
	if err != nil {
		return err
	}
	for _, w := range waiting {
		c := w.Call
		r := Request{Actor: c.Actor, Device: c.Device, Tool: c.Tool, Arguments: c.Arguments, Timeout: c.Timeout,
			Interrupt: w.Interrupt, Picture: w.Picture, OfflineWait: c.WaitUntil.Sub(c.CreatedAt), now: c.CreatedAt}
		if c.Approval != uuid.Nil && s.o.Approvals != nil {
			approved, err := s.o.Approvals.Approval(fleet.WithoutScope(ctx), c.Approval)
			if err != nil {
				return err
			}
			r.grant = &grant{approved.PolicyVersion, approved.build(), approved.DecidedBy}
		}
		if err := s.enter(); err != nil {
			return err
		}
		a := &attempt{calls: s, asked: r, call: &c, wire: c.Arguments, wait: wait{kind: deviceWait, wasAway: true}}
		a.waitFor(deviceWait, fleet.Reason{})
		go a.sendAlone()
	}
	return nil
}
