package fleet

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

// ErrTalking means that a device is in a conversation that the call would have to
// wait for. There is no record of the call.
var ErrTalking = errors.New("device in conversation")

// A heldCall is a call on record that waits outside of its device's line, where it
// would hold up others: for the end of a conversation, or until its device is back.
type heldCall struct {
	id     uuid.UUID
	device DeviceID
	by     Principal
	// first is closed when no earlier call waits for the device to be back; nil if the
	// call waits for a conversation alone.
	first     chan struct{}
	interrupt chan Principal // has room for one
	withdraw  chan struct{}  // closed by a cancellation
	over      chan struct{}  // closed when the call is held no longer

	// Under the mutex of heldCalls.
	waits      Reason
	withdrawer Principal
	going      bool // it is being sent: too late for a cancellation
}

// durable reports whether the wait outlives the process.
func (h *heldCall) durable() bool { return h.first != nil }

func (h *heldCall) withdrawn() bool {
	select {
	case <-h.withdraw:
		return true
	default:
		return false
	}
}

// heldCalls are the calls that are held. Calls that wait for the same device keep
// the order in which they were made.
type heldCalls struct {
	mu     sync.Mutex
	byID   map[uuid.UUID]*heldCall
	away   map[DeviceID][]*heldCall // durable ones, oldest first
	count  int                      // of them
	actors map[actorKey]int         // of them
}

type actorKey struct {
	kind PrincipalKind
	id   string
}

// add holds a call for a conversation.
func (h *heldCalls) add(c *Call) *heldCall {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.put(c)
}

func (h *heldCalls) put(c *Call) *heldCall {
	held := &heldCall{id: c.ID, device: c.Device, by: c.Actor, waits: c.Waits, interrupt: make(chan Principal, 1),
		withdraw: make(chan struct{}), over: make(chan struct{})}
	if h.byID == nil {
		h.byID, h.away = make(map[uuid.UUID]*heldCall), make(map[DeviceID][]*heldCall)
		h.actors = make(map[actorKey]int)
	}
	h.byID[c.ID] = held
	return held
}

// addAway holds a call until its device is back, unless too many wait already. A
// call that was on record before is not bounded.
func (h *heldCalls) addAway(c *Call, onRecord bool) (*heldCall, *CallError) {
	h.mu.Lock()
	defer h.mu.Unlock()
	actor := actorKey{c.Actor.Kind, c.Actor.ID}
	switch {
	case onRecord:
	case len(h.away[c.Device]) >= MaxWaitingOfDevice:
		return nil, NewCallError(CodeTooManyWaiting+".device", "limit", MaxWaitingOfDevice)
	case h.actors[actor] >= MaxWaitingOfPrincipal:
		return nil, NewCallError(CodeTooManyWaiting+".actor", "limit", MaxWaitingOfPrincipal)
	case h.count >= MaxWaitingCalls:
		return nil, NewCallError(CodeTooManyWaiting+".fleet", "limit", MaxWaitingCalls)
	}
	held := h.put(c)
	held.first = make(chan struct{})
	h.actors[actor]++
	h.count++
	line := append(h.away[c.Device], held)
	if h.away[c.Device] = line; len(line) == 1 {
		close(held.first)
	}
	return held, nil
}

// anyAway reports whether calls wait for the device to be back.
func (h *heldCalls) anyAway(id DeviceID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.away[id]) > 0
}

// remove ends the holding of a call; the next one of its device is the first then.
func (h *heldCalls) remove(held *heldCall) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byID[held.id] != held {
		return
	}
	delete(h.byID, held.id)
	close(held.over)
	if !held.durable() {
		return
	}
	h.count--
	actor := actorKey{held.by.Kind, held.by.ID}
	if h.actors[actor]--; h.actors[actor] == 0 {
		delete(h.actors, actor)
	}
	line := h.away[held.device]
	wasFirst := line[0] == held
	line = slices.DeleteFunc(line, func(c *heldCall) bool { return c == held })
	if h.away[held.device] = line; len(line) == 0 {
		delete(h.away, held.device)
	} else if wasFirst {
		close(line[0].first)
	}
}

func (h *heldCalls) setWaits(held *heldCall, waits Reason) {
	h.mu.Lock()
	defer h.mu.Unlock()
	held.waits = waits
}

// show adds to a call on record what it waits for.
func (h *heldCalls) show(c *Call) {
	if c.State != CallPending && c.State != CallPendingDevice {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if held := h.byID[c.ID]; held != nil {
		c.Waits = held.waits
	}
}

// interrupt ends a call's wait for a conversation. It reports false if the call does
// not wait for one.
func (h *heldCalls) interrupt(id uuid.UUID, by Principal) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	held := h.byID[id]
	if held == nil || !held.waits.Is(ReasonInConversation) {
		return false
	}
	select {
	case held.interrupt <- by:
	default: // another was faster
	}
	return true
}

// withdraw cancels a call; over is closed when its outcome is known. It is nil if
// the call is not held, or not any more.
func (h *heldCalls) withdraw(id uuid.UUID, by Principal) (over <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	held := h.byID[id]
	if held == nil || held.going {
		return nil
	}
	if !held.withdrawn() {
		held.withdrawer = by
		close(held.withdraw)
	}
	return held.over
}

// goes reports whether the call may be sent now: it was not canceled, and cannot be
// from here on.
func (h *heldCalls) goes(held *heldCall) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	held.going = !held.withdrawn()
	return held.going
}

// stays takes [heldCalls.goes] back: the call was not sent.
func (h *heldCalls) stays(held *heldCall) {
	h.mu.Lock()
	defer h.mu.Unlock()
	held.going = false
}

// waitEnd is how a wait ended.
type waitEnd int

const (
	waitCame        waitEnd = iota // what was waited for
	waitLong                       // it took as long as it may
	waitInterrupted                // a person did not want to wait
	waitLost                       // the turn, with the connection
	waitWithdrawn                  // the call was canceled
	waitStopped                    // fleetd stops
)

// outwait waits for what a held call waits for: something from came, until a time at
// the latest. It ends as well when lost is closed, which may be nil.
func outwait[T any](a *attempt, came <-chan T, lost <-chan struct{}, until time.Time) waitEnd {
	stop := a.calls.life.Done()
	if a.held.durable() {
		stop = a.calls.quit // nothing is lost: it waits on in the next process
	}
	bound := time.NewTimer(until.Sub(a.calls.o.Now()))
	defer bound.Stop()
	select {
	case <-a.held.withdraw:
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
	case a.interrupter = <-a.held.interrupt:
		return waitInterrupted
	case <-a.held.withdraw:
		return waitWithdrawn
	case <-stop:
		return waitStopped
	}
}

// waitsFor shows what the call waits for.
func (a *attempt) waitsFor(what Reason) {
	if a.call.Waits.Equal(what) {
		return
	}
	a.call.Waits = what
	a.calls.held.setWaits(a.held, what)
	a.calls.announce(a.call)
}

// hold has a call wait that would interrupt a conversation, or whose device is
// waited for by others, and reports whether it does.
func (a *attempt) hold(r CallRequest) bool {
	if a.call.State != CallPending {
		return false
	}
	w, talks := a.calls.o.Interruptions.waits(r, r.now, r.now)
	switch {
	case r.OfflineWait > 0 && talks:
		a.untilBack(r, w.Reason())
	case r.OfflineWait > 0 && a.calls.held.anyAway(r.Device):
		a.untilBack(r, Reason{})
	case !talks:
		return false
	default:
		a.call.Waits = w.Reason()
		a.held = a.calls.held.add(a.call)
		a.wasOn, a.revoke = true, nil // who made the call does not wait for it
	}
	return true
}

// awaitConversation waits for the end of the conversation, or for one of the other
// ends of the wait, then joins the device's line. It reports true if the call has
// come to its end.
//
//	the conversation ends       another one began: waits on, to the same bound; else goes
//	the bound passes            goes
//	a person asks to interrupt  goes
//	a person cancels it         canceled
//	fleetd stops                canceled
//
// A call that goes is held against what may have changed meanwhile; see
// [attempt.judgeAgain].
func (a *attempt) awaitConversation() (done bool, err error) {
	defer a.calls.held.remove(a.held)
	end := a.outwaitConversation(a.asked.now)
	a.call.Waits = Reason{}
	switch {
	case end == waitStopped:
		a.close(CallCanceled, NewCallError(CodeStopped+".turn"))
	case end == waitWithdrawn || !a.calls.held.goes(a.held):
		a.close(CallCanceled, NewCallError(CodeWithdrawn+".by", "by", a.held.withdrawer.Name))
	default:
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

// outwaitConversation waits until the call, which began to wait at a time, interrupts
// no conversation, or may interrupt it. The call's evidence says which.
func (a *attempt) outwaitConversation(began time.Time) waitEnd {
	for waited := false; ; waited = true {
		w, waits := a.calls.o.Interruptions.waits(a.asked, began, a.calls.o.Now())
		end := waitCame
		if waits {
			a.waitsFor(w.Reason())
			if end = outwait(a, w.Ended, nil, a.notAfter(w.Until)); end == waitCame {
				continue // another one may have begun
			}
			if end == waitLong && a.calls.o.Now().Before(w.Until) {
				return end // not the conversation, but the call has had its time
			}
			a.asked.Outwaited = w.ID
		} else if !waited && a.held.durable() {
			return waitCame // there was none
		}
		switch end {
		case waitCame:
			a.waited(Because(ReasonConversationEnded))
		case waitLong:
			a.waited(Because(ReasonConversationLong))
		case waitInterrupted:
			a.waited(Because(ReasonInterruptedBy, "name", a.interrupter.Name))
		}
		return end
	}
}

// notAfter bounds a wait by the time that the call has until its device is back.
func (a *attempt) notAfter(until time.Time) time.Time {
	if a.held.durable() && a.call.WaitUntil.Before(until) {
		return *a.call.WaitUntil
	}
	return until
}

// waited notes as evidence what the call waited for.
func (a *attempt) waited(what Reason) {
	a.call.Evidence = append(a.call.Evidence, Evidence{At: a.calls.o.Now(), Kind: EvidenceWaited, Detail: what.String(),
		Reason: what})
}
