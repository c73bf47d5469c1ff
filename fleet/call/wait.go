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

// ErrTalking means that a device is in a conversation that the call would have to
// wait for. There is no record of the call.
var ErrTalking = errors.New("device in conversation")

// A waitKind says what a call waits for.
type waitKind int

const (
	noWait waitKind = iota
	approvalWait
	conversationWait
	deviceWait
)

// A wait keeps a call that is on record out of its device's line, where it would hold
// up others.
//
//	for              | on record as     | ends with                    | fleetd stops
//	an approval      | pending_approval | a decision                   | waits on
//	a conversation   | pending          | its end, or [Interruptions]' | canceled
//	                 |                  | bound; [Service.Interrupt]     |
//	                 |                  | or [Service.Cancel]            |
//	the device       | pending_device   | its return, or the end of    | waits on in the
//	                 |                  | [fleet.Call.WaitUntil]; as above   | next process
//
// The zero value is that of a call that does not wait.
type wait struct {
	kind     waitKind      // the latest, also once it is over
	approval *Approval     // that a person is asked for; nil for other waits
	call     *fleet.Call   // nil before, and once it is over; not for an approval
	first    chan struct{} // closed when no earlier call waits for the device to be back
	over     chan struct{} // closed when the wait is
	withdraw chan struct{} // closed by a cancellation

	interrupt   chan string // names of people who do not want to wait; has room for one
	interrupter string      // who of them was heard
	wasAway     bool        // its device was not connected meanwhile

	// Under the mutex of waitingCalls.
	reason      fleet.Reason // what is waited for now
	withdrawnBy string
	going       bool // the call is being sent: too late for a cancellation
}

func (w *wait) withdrawn() bool {
	select {
	case <-w.withdraw:
		return true
	default:
		return false
	}
}

// waitFor has the call wait for a conversation or its device, or refuses it if too many
// wait for devices. Its arguments are those of the request until its device is back.
func (a *attempt) waitFor(kind waitKind, why fleet.Reason) {
	if kind == deviceWait {
		if a.call.WaitUntil == nil {
			a.call.WaitUntil = a.asked.waitUntil()
		}
		if why.Is("") {
			why = a.deviceAway()
		}
		a.call.State, a.call.Arguments = fleet.CallPendingDevice, recorded(a.asked.Arguments)
	}
	a.call.Waits = why
	if no := a.calls.waiting.add(&a.wait, kind, a.call); no != nil {
		a.close(fleet.CallRefused, no)
		return
	}
	a.asked.Withdraw = nil // who made the call does not wait for it
}

// outwait waits until the call may go on, and reports whether it does: it is in its
// device's line, or has come to its end. Else it goes on from its record: by
// [Service.resume] once it is approved, or by [Service.Resume] in the next process.
//
// A call that goes on is held against what may have changed meanwhile; see
// [attempt.judgeAgain].
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
	case a.wait.kind == deviceWait: // judged when its turn has come
	case end == waitStopped:
		a.close(fleet.CallCanceled, fleet.NewCallError(fleet.CodeStopped+".turn"))
	default:
		if err := a.judgeAgain(); err != nil {
			a.close(fleet.CallCanceled, fleet.NewCallError("send_failed", "detail", err.Error()))
		}
		_ = a.queue(nil) // the call is on record: an error is its outcome
		if a.turn != nil {
			a.calls.waiting.remove(&a.wait)
		}
	}
	return true
}

// outwaitConversation waits until the call, which began to wait at a time, interrupts
// no conversation, or may interrupt it. The call's evidence says which.
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
				return end // not the conversation, but the call has had its time
			}
			a.asked.Outwaited = talk.ID
		} else if !waited && a.wait.kind == deviceWait {
			return waitCame // there was none
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

// waitEnd is how a wait ended.
type waitEnd int

const (
	waitCame        waitEnd = iota // what was waited for
	waitLong                       // it took as long as it may
	waitInterrupted                // a person did not want to wait
	waitLost                       // the turn, with the connection
	waitWithdrawn                  // the call was canceled
	waitOverruled                  // the attempt at an upgrade was judged by other evidence
	waitStopped                    // fleetd stops
)

// outwait waits for something from came, until a time at the latest. It ends as well
// when lost is closed, which may be nil, and with all that ends any wait of a call.
func outwait[T any](a *attempt, came <-chan T, lost <-chan struct{}, until time.Time) waitEnd {
	stop := a.calls.life.Done()
	if a.wait.kind == deviceWait {
		stop = a.calls.quit // nothing is lost: it waits on in the next process
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

// notAfter bounds a wait by the time that the call has until its device is back.
func (a *attempt) notAfter(until time.Time) time.Time {
	if a.wait.kind == deviceWait && a.call.WaitUntil.Before(until) {
		return *a.call.WaitUntil
	}
	return until
}

// waitsFor shows what the call waits for.
func (a *attempt) waitsFor(what fleet.Reason) {
	if a.call.Waits.Equal(what) {
		return
	}
	a.call.Waits = what
	a.calls.waiting.setReason(&a.wait, what)
	a.calls.announce(a.call)
}

// waited notes as evidence what the call waited for.
func (a *attempt) waited(what fleet.Reason) {
	a.call.Evidence = append(a.call.Evidence, fleet.Evidence{At: a.calls.o.Now(), Kind: fleet.EvidenceWaited,
		Detail: what.String(),
		Reason: what})
}

// waitingCalls are the calls that wait for conversations and devices in this process.
// Those that wait for the same device keep the order in which they were made.
type waitingCalls struct {
	mu     sync.Mutex
	byID   map[uuid.UUID]*wait
	away   map[fleet.DeviceID][]*wait // for devices, oldest first
	count  int                        // of them
	actors map[actorKey]int           // of them
}

type actorKey struct {
	kind fleet.PrincipalKind
	id   string
}

// add begins the wait of a call. Too many may wait for devices already; a call that was
// on record before is not bounded.
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

// anyAway reports whether calls wait for the device to be back.
func (c *waitingCalls) anyAway(id fleet.DeviceID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.away[id]) > 0
}

// remove ends the wait of a call; the next one of its device is the first then.
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

// show adds to a call on record what it waits for.
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

// interrupt ends a call's wait for a conversation. It reports false if the call does
// not wait for one.
func (c *waitingCalls) interrupt(id uuid.UUID, by fleet.Principal) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.byID[id]
	if w == nil || !w.reason.Is(ReasonInConversation) {
		return false
	}
	select {
	case w.interrupt <- by.Name:
	default: // another was faster
	}
	return true
}

// withdraw cancels a call; over is closed when its outcome is known. It is nil if
// the call does not wait, or not any more.
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

// goes reports whether the call may be sent now: it was not canceled, and cannot be
// from here on.
func (c *waitingCalls) goes(w *wait) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	w.going = !w.withdrawn()
	return w.going
}

// stays takes [waitingCalls.goes] back: the call was not sent.
func (c *waitingCalls) stays(w *wait) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w.going = false
}

// queue joins the device's line, unless the call waits outside of it. A call whose
// turn it is straight away is put on record as sent: the record must be there before
// the first byte leaves, and one commit does for both.
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
	case a.wait.kind == deviceWait: // waits on
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
