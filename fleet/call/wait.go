package call

import (
	"errors"
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

// waitForApproval has the call wait for a person. Its arguments are those of the
// request: what fleetd fills in comes once it is approved.
func (a *attempt) waitForApproval(v Verdict) {
	r := a.asked
	ask := newApproval(v, r.Actor, r.Purpose, r.now)
	ask.Subject, ask.SubjectID, ask.Device, ask.Targets = ApprovalOfCall, a.call.ID, r.Device, 1
	ask.Tool, ask.Arguments, ask.Picture = r.Tool, a.call.Arguments, r.Picture
	ask.Interrupt = r.interrupts()
	if r.OfflineWait > 0 {
		a.call.WaitUntil = r.waitUntil()
		ask.WaitUntil = a.call.WaitUntil
	}
	named := []ApprovalTarget{{r.Device, a.calls.gate.build(a.target, r.Tool)}}
	ask.Builds = countBuilds(named)
	ask.Digest = ApprovalDigest(r.Actor, named, r.Tool, a.call.Arguments, r.Picture, ask.Interrupt, ask.WaitUntil,
		v.Version)
	a.call.State, a.call.Approval = fleet.CallPendingApproval, ask.ID
	a.wait = wait{kind: approvalWait, approval: ask}
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
