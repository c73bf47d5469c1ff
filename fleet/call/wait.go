package call

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// ErrTalking means that the call would have to wait for the end of a conversation of its
// device. The call has no record.
var ErrTalking = errors.New("device in conversation")

// A waitKind is the kind of event that a call waits for.
type waitKind int

const (
	noWait waitKind = iota
	approvalWait
	conversationWait
	deviceWait
)

// A wait keeps a recorded call out of its device's line, where it would delay other calls.
//
//	for              | on record as     | ends with                    | fleetd stops
//	an approval      | pending_approval | a decision                   | waits on
//	a conversation   | pending          | its end, or [Interruptions]' | canceled
//	                 |                  | bound; [Service.Interrupt]     |
//	                 |                  | or [Service.Cancel]            |
//	the device       | pending_device   | its return, or the end of    | waits on in the
//	                 |                  | [fleet.Call.WaitUntil]; as above   | next process
//
// The zero value belongs to a call that does not wait.
type wait struct {
	kind     waitKind      // the latest, also after its end
	approval *Approval     // the approval that the call needs; nil for other waits
	call     *fleet.Call   // set while the call waits; always nil for an approval
	first    chan struct{} // closed when no earlier call waits for the device
	over     chan struct{} // closed when the wait ends
	withdraw chan struct{} // closed by a cancellation

	interrupt   chan string // names of people who ask to interrupt; has room for one
	interrupter string      // the one whose request was accepted
	wasAway     bool        // the device was disconnected during the wait

	// Under the mutex of waitingCalls.
	reason      fleet.Reason // what the call waits for now
	withdrawnBy string
	going       bool // the call is being sent and can no longer be canceled
}

func (w *wait) withdrawn() bool {
	select {
	case <-w.withdraw:
		return true
	default:
		return false
	}
}

// waitFor makes the call wait for a conversation or its device, or refuses it if too many calls
// wait for devices. Until the device is back, the call keeps the arguments of the request.
func (a *attempt) waitFor(kind waitKind, why fleet.Reason) {
	if kind == deviceWait {
		if a.call.WaitUntil == nil {
			a.call.WaitUntil = a.asked.waitUntil()
		}
		if why.Is("") {
			why = a.deviceAway()
		}
		a.call.State, a.call.Arguments = fleet.CallPendingDevice, a.shown
	}
	a.call.Waits = why
	if no := a.calls.waiting.add(&a.wait, kind, a.call); no != nil {
		a.close(fleet.CallRefused, no)
		return
	}
	a.asked.Withdraw = nil // the caller does not wait for it
}

// outwait waits until the call may go on, and reports whether it does: the call is in its
// device's line, or has ended. Otherwise it goes on from its record: after an approval by
// [Service.resume], in the next process by [Service.Resume].
//
// A call that goes on is judged again, because things may have changed; see [attempt.judgeAgain].
func (a *attempt) outwait() (goes bool) {
	var end waitEnd
	switch a.wait.kind {
	case conversationWait:
		end = a.outwaitConversation(a.asked.now)
		a.call.Waits = fleet.Reason{}
		if end != waitStopped && !a.calls.waiting.goes(&a.wait) {
			end = waitWithdrawn
		}
	case deviceWait:
		end = a.outwaitAway()
	default:
		return false
	}
	switch {
	case end == waitWithdrawn:
		a.close(fleet.CallCanceled, fleet.NewCallError(fleet.CodeWithdrawn+".by", "by", a.wait.withdrawnBy))
	case a.wait.kind == deviceWait && end == waitStopped:
		return false
	case a.wait.kind == deviceWait && end == waitLong:
		a.close(fleet.CallCanceled, fleet.NewCallError(fleet.CodeWaitExpired, "until_at", *a.call.WaitUntil))
	case a.wait.kind == deviceWait: // judged when its turn comes
	case end == waitStopped:
		a.close(fleet.CallCanceled, fleet.NewCallError(fleet.CodeStopped+".turn"))
	default:
		if err := a.judgeAgain(); err != nil {
			a.close(fleet.CallCanceled, fleet.NewCallError("send_failed", "detail", err.Error()))
		}
		_ = a.queue(nil) // the call has a record: an error is its outcome
		if a.turn != nil {
			a.calls.waiting.remove(&a.wait)
		}
	}
	return true
}

// outwaitConversation waits until the call would interrupt no conversation, or may interrupt
// it. The call's evidence shows which. The bound of the wait counts from began.
//
//	the conversation ends       another one began: waits on, to the same bound; else goes
//	the bound passes            goes
//	a person asks to interrupt  goes
func (a *attempt) outwaitConversation(began time.Time) waitEnd {
	for waited := false; ; waited = true {
		talk := a.calls.o.Interruptions.talk(a.asked, began, a.calls.o.Now())
		end := waitCame
		if talk != nil {
			a.waitsFor(talk.Reason())
			if end = outwait(a, talk.Ended, nil, a.notAfter(talk.Until)); end == waitCame {
				continue // another one may have begun
			}
			if end == waitLong && a.calls.o.Now().Before(talk.Until) {
				return end // the conversation goes on, but the wait reached its bound
			}
			a.asked.Outwaited = talk.ID
		} else if !waited && a.wait.kind == deviceWait {
			return waitCame // there was no conversation
		}
		switch end {
		case waitCame:
			a.waited(fleet.Because(ReasonConversationEnded))
		case waitLong:
			a.waited(fleet.Because(ReasonConversationLong))
		case waitInterrupted:
			a.waited(fleet.Because(ReasonInterruptedBy, "name", a.wait.interrupter))
		}
		return end
	}
}

// A waitEnd is how a wait ended.
type waitEnd int

const (
	waitCame        waitEnd = iota // the awaited event happened
	waitLong                       // the wait reached its bound
	waitInterrupted                // a person asked to interrupt
	waitLost                       // the turn was lost with the connection
	waitWithdrawn                  // the call was canceled
	waitOverruled                  // other evidence decided the attempt at an upgrade
	waitStopped                    // fleetd stops
)

// outwait waits until came delivers something, at most until the given time. The wait also ends
// if lost, which may be nil, is closed, and on everything that ends any wait of a call.
func outwait[T any](a *attempt, came <-chan T, lost <-chan struct{}, until time.Time) waitEnd {
	stop := a.calls.life.Done()
	if a.wait.kind == deviceWait {
		stop = a.calls.quit // nothing is lost: the call waits on in the next process
	}
	bound := time.NewTimer(until.Sub(a.calls.o.Now()))
	defer bound.Stop()
	select {
	case <-a.wait.withdraw:
		return waitWithdrawn
	case <-stop:
		return waitStopped
	default:
	}
	select {
	case <-came:
		return waitCame
	case <-bound.C:
		return waitLong
	case <-lost:
		return waitLost
	case a.wait.interrupter = <-a.wait.interrupt:
		return waitInterrupted
	case <-a.wait.withdraw:
		return waitWithdrawn
	case <-a.asked.Withdraw:
		return waitWithdrawn
	case <-a.asked.Firmware.done():
		return waitOverruled
	case <-stop:
		return waitStopped
	}
}

// notAfter limits a wait to the time that the call has until its device must be back.
func (a *attempt) notAfter(until time.Time) time.Time {
	if a.wait.kind == deviceWait && a.call.WaitUntil.Before(until) {
		return *a.call.WaitUntil
	}
	return until
}

// waitsFor publishes what the call waits for.
func (a *attempt) waitsFor(what fleet.Reason) {
	if a.call.Waits.Equal(what) {
		return
	}
	a.call.Waits = what
	a.calls.waiting.setReason(&a.wait, what)
	a.calls.announce(a.call)
}

// waited records what the call waited for as evidence.
func (a *attempt) waited(what fleet.Reason) {
	a.call.Evidence = append(a.call.Evidence, fleet.Evidence{At: a.calls.o.Now(), Kind: fleet.EvidenceWaited,
		Detail: what.String(),
		Reason: what})
}

// waitingCalls are the calls of this process that wait for conversations and devices. Calls
// that wait for the same device keep the order in which they were made.
type waitingCalls struct {
	mu     sync.Mutex
	byID   map[uuid.UUID]*wait
	away   map[fleet.DeviceID][]*wait // calls that wait for devices, oldest first
	count  int                        // of calls in away
	actors map[actorKey]int           // number of calls in away
}

type actorKey struct {
	kind fleet.PrincipalKind
	id   string
}

// add begins the wait of a call. It fails if too many calls wait for devices; that limit does
// not apply to a call that already has a record.
func (c *waitingCalls) add(w *wait, kind waitKind, call *fleet.Call) *fleet.CallError {
	c.mu.Lock()
	defer c.mu.Unlock()
	actor := actorKey{call.Actor.Kind, call.Actor.ID}
	switch {
	case w.kind != noWait, kind != deviceWait:
	case len(c.away[call.Device]) >= MaxWaitingOfDevice:
		return fleet.NewCallError(fleet.CodeTooManyWaiting+".device", "limit", MaxWaitingOfDevice)
	case c.actors[actor] >= MaxWaitingOfPrincipal:
		return fleet.NewCallError(fleet.CodeTooManyWaiting+".actor", "limit", MaxWaitingOfPrincipal)
	case c.count >= MaxWaitingCalls:
		return fleet.NewCallError(fleet.CodeTooManyWaiting+".fleet", "limit", MaxWaitingCalls)
	}
	w.kind, w.call, w.reason = kind, call, call.Waits
	w.over, w.withdraw, w.interrupt = make(chan struct{}), make(chan struct{}), make(chan string, 1)
	if c.byID == nil {
		c.byID, c.away = make(map[uuid.UUID]*wait), make(map[fleet.DeviceID][]*wait)
		c.actors = make(map[actorKey]int)
	}
	c.byID[call.ID] = w
	if kind != deviceWait {
		return nil
	}
	w.first = make(chan struct{})
	c.actors[actor]++
	c.count++
	line := append(c.away[call.Device], w)
	if c.away[call.Device] = line; len(line) == 1 {
		close(w.first)
	}
	return nil
}

// anyAway reports whether calls wait for the return of the device.
func (c *waitingCalls) anyAway(id fleet.DeviceID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.away[id]) > 0
}

// remove ends the wait of a call; the next call of its device becomes the first.
func (c *waitingCalls) remove(w *wait) {
	c.mu.Lock()
	defer c.mu.Unlock()
	call := w.call
	if c.byID[call.ID] == w {
		delete(c.byID, call.ID)
	}
	close(w.over)
	w.call, w.withdraw, w.interrupt = nil, nil, nil
	if w.kind != deviceWait {
		return
	}
	c.count--
	actor := actorKey{call.Actor.Kind, call.Actor.ID}
	if c.actors[actor]--; c.actors[actor] == 0 {
		delete(c.actors, actor)
	}
	line := c.away[call.Device]
	wasFirst := line[0] == w
	line = slices.DeleteFunc(line, func(other *wait) bool { return other == w })
	if c.away[call.Device] = line; len(line) == 0 {
		delete(c.away, call.Device)
	} else if wasFirst {
		close(line[0].first)
	}
}

func (c *waitingCalls) setReason(w *wait, why fleet.Reason) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w.reason = why
}

// show sets what a recorded call waits for.
func (c *waitingCalls) show(call *fleet.Call) {
	if call.State != fleet.CallPending && call.State != fleet.CallPendingDevice {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.byID[call.ID]; w != nil {
		call.Waits = w.reason
	}
}

// interrupt ends a call's wait for a conversation. It returns false if the call does not wait
// for one.
func (c *waitingCalls) interrupt(id uuid.UUID, by fleet.Principal) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.byID[id]
	if w == nil || !w.reason.Is(ReasonInConversation) {
		return false
	}
	select {
	case w.interrupt <- by.Name:
	default: // somebody else was faster
	}
	return true
}

// withdraw cancels a call; over is closed when its outcome is known. It returns nil if the call
// does not wait (any more).
func (c *waitingCalls) withdraw(id uuid.UUID, by fleet.Principal) (over <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.byID[id]
	if w == nil || w.going {
		return nil
	}
	if !w.withdrawn() {
		w.withdrawnBy = by.Name
		close(w.withdraw)
	}
	return w.over
}

// goes reports whether the call may be sent now: it was not canceled. From then on it cannot be
// canceled.
func (c *waitingCalls) goes(w *wait) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	w.going = !w.withdrawn()
	return w.going
}

// stays reverts [waitingCalls.goes]: the call was not sent.
func (c *waitingCalls) stays(w *wait) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w.going = false
}

// queue joins the device's line, unless the call waits outside of it. If the call's turn comes
// at once, it is recorded as sent: the record must exist before the first byte leaves, and one
// commit does both.
func (a *attempt) queue(talk *ConversationWait) error {
	r := a.asked
	switch {
	case a.call.State != fleet.CallPending:
		return nil
	case r.OfflineWait > 0 && talk != nil:
		a.waitFor(deviceWait, talk.Reason())
		return nil
	case r.OfflineWait > 0 && a.calls.waiting.anyAway(r.Device):
		a.waitFor(deviceWait, fleet.Reason{})
		return nil
	case talk != nil:
		a.waitFor(conversationWait, talk.Reason())
		return nil
	}
	turn, err := a.calls.o.Link.Queue(r.Device, r.Actor.Kind)
	onRecord := a.wait.kind != noWait
	switch {
	case err == nil:
		a.turn = turn
		a.call.RPCID = turn.RPCID()
		select {
		case <-turn.Ready():
			if !onRecord {
				a.markSent()
			}
		default:
		}
	case errors.Is(err, fleet.ErrOffline) && r.OfflineWait > 0:
		a.wait.wasAway = true
		a.waitFor(deviceWait, fleet.Reason{})
	case errors.Is(err, fleet.ErrOffline) && r.UnlessOffline && !onRecord:
		return err
	case errors.Is(err, fleet.ErrOffline) && a.target.Device.ConnectsForConversations():
		a.close(fleet.CallOffline, fleet.NewCallError(fleet.CodeOffline+".conversations"))
	case errors.Is(err, fleet.ErrOffline) && a.target.Device.Presence == fleet.PresenceUnknownEdge:
		a.close(fleet.CallOffline, fleet.NewCallError(fleet.CodeOffline+".edge_silent"))
	case errors.Is(err, fleet.ErrOffline):
		a.close(fleet.CallOffline, fleet.NewCallError(fleet.CodeOffline+".not_connected"))
	case errors.Is(err, fleet.ErrBusy):
		a.close(fleet.CallRefused, fleet.NewCallError(fleet.CodeBusy))
	case onRecord:
		a.close(fleet.CallCanceled, fleet.NewCallError("send_failed", "detail", err.Error()))
	default:
		return err
	}
	return nil
}

// await waits for the device's turn and marks the call sent.
func (a *attempt) await() error {
	end := outwait(a, a.turn.Ready(), a.turn.Lost(), a.notAfter(a.calls.o.Now().Add(queueTimeout)))
	switch {
	case a.wait.kind == deviceWait && end == waitCame:
		return a.takeTurn()
	case a.wait.kind == deviceWait: // the call waits on
	case end == waitCame:
		err := a.judgeAgain()
		if err == nil && !a.call.State.Final() {
			a.markSent()
			err = a.calls.o.Store.MarkSent(context.Background(), a.call)
		}
		if err != nil {
			a.neverSent()
			return a.unsettled(fmt.Errorf("call %s was not sent: %w", a.call.ID, err))
		}
		if a.call.State == fleet.CallSent {
			a.calls.announce(a.call)
		}
	case end == waitOverruled:
		a.close(fleet.CallCanceled, fleet.NewCallError(codeAttemptOver+".turn"))
	case end == waitLost:
		a.close(fleet.CallCanceled, fleet.NewCallError(fleet.CodeOffline+".turn"))
	case end == waitWithdrawn:
		a.close(fleet.CallCanceled, fleet.NewCallError(fleet.CodeWithdrawn))
	case end == waitLong:
		a.close(fleet.CallCanceled, fleet.NewCallError(fleet.CodeQueueTimeout, "timeout_ms", queueTimeout))
	case end == waitStopped:
		a.close(fleet.CallCanceled, fleet.NewCallError(fleet.CodeStopped+".turn"))
	}
	return nil
}

func (a *attempt) deviceAway() fleet.Reason {
	return fleet.Because(ReasonDeviceAway, "until_at", *a.call.WaitUntil)
}

// storeWaiting records that the call waits for its device. The record says so until just before
// the call's bytes are written, and always holds what the next process needs to go on.
func (a *attempt) storeWaiting() error {
	ctx, cancel := context.WithTimeout(context.Background(), recordTimeout)
	defer cancel()
	return a.calls.o.Store.WaitForDevice(ctx, a.call, Wait{a.asked.interrupts(), a.asked.Picture})
}

// outwaitAway waits until the call may join the line of its device: no earlier call waits for
// the device, the device is connected, its tools are listed, and it is in no conversation that
// the call would interrupt.
func (a *attempt) outwaitAway() waitEnd {
	if end := outwait(a, a.wait.first, nil, *a.call.WaitUntil); end != waitCame {
		return end
	}
	seen, unwatch := a.calls.o.Watcher.Watch(a.call.Device)
	defer unwatch()
	var soon time.Time // until when an observed event may mean that the device returns
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

// takeTurn marks a call that waited for its device as sent, if it may be sent. After a
// cancellation or an error the call waits on; see [attempt.waitOn].
func (a *attempt) takeTurn() error {
	if !a.calls.o.Held() { // another process may send it
		return fleet.Refuse(fleet.ErrUnavailable, "stopping")
	}
	a.call.RPCID = a.turn.RPCID()
	a.calls.o.Targets.Forget(a.call.Device) // the device's current state decides
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
	a.markSent() // however long storing took
	a.calls.announce(a.call)
	return nil
}

// waitOn lets a call wait on for its device if certainly nothing was written: the call had no
// turn, err came before the write, or the device was already gone. It returns any other error,
// and an error that says that something else ended the call.
func (a *attempt) waitOn(err error) error {
	gone := a.call.State == fleet.CallOffline && a.call.SentAt == nil
	if a.call.State.Final() && !gone {
		return err
	}
	if err != nil || gone {
		a.unsend()
	}
	if gone {
		if err = a.storeWaiting(); err == nil { // the record says sent
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

// unsend removes from the record all that an attempt at sending the call added.
func (a *attempt) unsend() {
	a.asked.Outwaited = uuid.Nil
	a.call.State, a.call.SentAt, a.call.RPCID = fleet.CallPendingDevice, nil, 0
	a.call.Error, a.call.FinishedAt, a.call.Evidence = nil, nil, nil
	a.call.Arguments = a.shown
	a.call.Waits = a.deviceAway()
	a.calls.waiting.setReason(&a.wait, a.call.Waits)
}

// Limits of calls that wait until their devices are back.
const (
	DefaultCallOfflineWait = 24 * time.Hour // if a request wants to wait but gives no duration
	MaxCallOfflineWait     = 7 * 24 * time.Hour
	MaxWaitingOfDevice     = 20
	MaxWaitingOfPrincipal  = 500
	MaxWaitingCalls        = 5000
)

// Pauses of calls that wait until their devices are back.
const (
	awayPause  = 5 * time.Second        // between two checks of a device without any sign of life
	soonPause  = 100 * time.Millisecond // between two checks of a device that may be back
	soonFor    = 20 * time.Second       // how long the introduction of a device takes
	retryPause = time.Second            // before sending is tried again
)
