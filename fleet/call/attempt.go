package call

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// An attempt is one call on its path from the request to the outcome.
type attempt struct {
	calls  *Service
	asked  Request         // what the caller requested
	target target          // its device and tool, as of the latest judgement
	call   *fleet.Call     // its record
	wire   json.RawMessage // the arguments as sent to the device
	shown  json.RawMessage // the arguments as records store them, without a url of fleetd
	wait   wait            // outside of the device's line
	turn   fleet.Turn      // its place in that line; nil while it has none
}

// carry moves a call along its path. Operators, programs, models and campaigns share it:
//
//	check  the request is worth a record, and names a device
//	judge  the actor may make this call to this device, with these arguments,
//	       or the call waits for the approval of a person
//	queue  the call has its place in the device's line, or waits: for the end of a
//	       conversation that it would interrupt, or until its device is back
//	store  its record is durable: nothing is sent without one
//	send   its wait is over and its turn comes, its bytes are written, and its
//	       outcome is durable
//
// An error before send means that the call has no record, or none that the database confirmed.
// A refusal and an offline device are no errors: judge and queue make them the outcome, store
// records it, and send has nothing left to do.
//
// The caller waits for send only if wait is true and the call itself does not wait.
func (s *Service) carry(ctx context.Context, r Request, wait bool) (fleet.Call, error) {
	r.now = s.o.Now()
	a := &attempt{calls: s, asked: r}
	if err := s.enter(); err != nil {
		a.abandon(err)
		return fleet.Call{}, err
	}
	if s.o.Settled != nil {
		s.o.Settled(ctx, r.Device)
	}
	talk := s.o.Interruptions.talk(r, r.now, r.now)
	err := a.check(ctx, talk)
	if err == nil {
		err = a.judge(ctx)
	}
	if err == nil {
		err = a.queue(talk)
	}
	if err == nil {
		err = a.store(ctx)
	}
	if err != nil {
		a.abandon(err)
		s.running.Done()
		return fleet.Call{}, err
	}
	if wait && a.wait.kind == noWait {
		err = a.send()
		return *a.call, err
	}
	record := *a.call
	go a.send()
	return record, nil
}

// abandon ends a call that has no record.
func (a *attempt) abandon(err error) {
	a.leave()
	why := &fleet.CallError{Code: fleet.CodeNotRecorded}
	if errors.Is(err, ErrTalking) {
		why = fleet.NewCallError(fleet.CodeTalking)
	}
	a.asked.Firmware.notify(fleet.Evidence{At: a.calls.o.Now(), Kind: fleet.EvidenceNotSent, Code: why.Code,
		Detail: fleet.CleanText(err.Error(), maxOrderDetail)})
}

// leave gives up the call's place in the device's line and among the waiting calls.
func (a *attempt) leave() {
	if a.turn != nil {
		a.turn.Done()
		a.turn = nil
	}
	if a.wait.call != nil {
		a.calls.waiting.remove(&a.wait)
	}
}

func (a *attempt) markSent() {
	now := a.calls.o.Now()
	a.call.State, a.call.SentAt = fleet.CallSent, &now
}

// store records the call: as final if it cannot be made, as sent if the device is idle,
// otherwise as pending, with what it waits for. The insert may succeed although it returns an
// error; the settler then stores that the call was not sent.
func (a *attempt) store(ctx context.Context) (err error) {
	ctx = context.WithoutCancel(ctx)
	switch ask := a.wait.approval; a.call.State {
	case fleet.CallPendingApproval:
		approvals := a.calls.o.Approvals
		if ask.AskedLine, ask.Person, err = approvals.PrincipalLine(ctx, ask.AskedBy); err != nil {
			return err
		}
		if err = approvals.AskForCall(ctx, a.call, ask); err == nil {
			a.calls.announce(a.call)
			a.calls.announceApproval(ask)
			return nil
		}
	case fleet.CallPendingDevice:
		err = a.storeWaiting()
	default:
		err = a.calls.o.Store.InsertCall(ctx, a.call)
	}
	switch {
	case err == nil:
		a.calls.announce(a.call)
		return nil
	case errors.Is(err, fleet.ErrNotStored), errors.Is(err, fleet.ErrInvalid):
		return err
	case !a.call.State.Final():
		a.neverSent()
	}
	return a.unsettled(err)
}

// send sends a recorded call, waits for its outcome and stores it. Only a call that waits for
// its device can take more than one turn: if nothing could be written to the device. An error is
// also logged, as not every call has a caller that waits.
func (a *attempt) send() (err error) {
	defer func() {
		if err != nil {
			a.calls.o.Log.Error("outcome of a call not stored", "call", a.call.ID, "device", a.call.Device, "err", err)
		}
		a.calls.running.Done()
	}()
	if a.asked.Firmware != nil {
		defer a.notifyNotSent()
	}
	if a.call.State.Final() { // refused, invalid or offline
		a.calls.o.Observe(a.call)
		return nil
	}
	defer a.leave()
	for !a.call.State.Final() {
		if a.turn == nil && !a.outwait() {
			return nil // the call goes on from its record
		}
		if !a.call.State.Final() && a.call.State != fleet.CallSent {
			err = a.await()
		}
		if err == nil && a.call.State == fleet.CallSent {
			a.deliver()
		}
		if a.wait.kind == deviceWait {
			err = a.waitOn(err)
		}
		if err != nil {
			return err
		}
	}
	return a.finish()
}

// deliver writes the call and waits for its answer, or for evidence of its effect.
func (a *attempt) deliver() {
	now := a.calls.o.Now()
	if waited := now.Sub(*a.call.SentAt); waited > recordTimeout {
		a.call.SentAt = nil
		a.close(fleet.CallCanceled, fleet.NewCallError(fleet.CodeRecordLate, "waited_ms", waited.Round(time.Second)))
		return
	}
	if !a.calls.o.Held() {
		a.call.SentAt = nil
		a.close(fleet.CallCanceled, fleet.NewCallError(fleet.CodeNotRecorded+".lease"))
		return
	}
	a.call.SentAt = &now
	a.calls.inFlight.begin(a.call.Device, fleet.RunningCall{ID: a.call.ID, Tool: a.call.Tool, Actor: a.call.Actor,
		Arguments: a.wire})
	defer a.calls.inFlight.end(a.call.Device, a.call.ID)
	order := a.asked.Firmware
	if a.call.Device.IsProgram() {
		a.deliverToProgram()
		return
	}
	if order == nil && !(a.target.Device.IsBoard() && fleet.ByEvidence(a.call.Tool)) {
		answer, err := a.turn.Send(a.calls.deadlines.after(a.call.Timeout), a.invocation(), a.late)
		a.conclude(answer, err)
		return
	}
	ctx, cancel := context.WithTimeout(a.calls.life, a.call.Timeout)
	defer cancel()
	if order != nil {
		a.sendUpgrade(ctx)
	} else {
		a.sendAway(ctx, fleet.EffectOf(a.call.Tool))
	}
}

// deliverToProgram writes the call to a plug-in or an endpoint and waits for its answer, or for
// the caller to cancel it.
func (a *attempt) deliverToProgram() {
	ctx, cancel := context.WithCancel(a.calls.deadlines.after(a.call.Timeout))
	defer cancel()
	var withdrawn atomic.Bool
	if withdraw := a.asked.Withdraw; withdraw != nil {
		go func() {
			select {
			case <-withdraw:
				withdrawn.Store(true)
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	inv := a.invocation()
	inv.OnProgress = a.asked.OnProgress
	answer, err := a.turn.Send(ctx, inv, a.late)
	if withdrawn.Load() && errors.Is(err, context.Canceled) && a.calls.life.Err() == nil {
		a.close(fleet.CallUnknown, fleet.NewCallError(fleet.CodeWithdrawn+".sent"))
		return
	}
	a.conclude(answer, err)
}

func (a *attempt) invocation() fleet.Invocation {
	return fleet.Invocation{Tool: a.call.Tool, Arguments: a.wire, ForOperator: !a.call.Actor.Kind.IsModel()}
}

// conclude turns the link's answer or error into an outcome.
func (a *attempt) conclude(answer fleet.Answer, err error) {
	var refused *fleet.ToolError
	switch {
	case err == nil:
		a.answered(answer)
	case errors.As(err, &refused):
		a.close(fleet.CallToolError, fleet.DeviceError(refused.Message))
	case errors.Is(err, fleet.ErrInvalid):
		a.call.SentAt = nil
		a.close(fleet.CallInvalid, fleet.NewCallError("unsendable.cause", "cause", fleet.CauseOf(err)))
	case errors.Is(err, fleet.ErrEdgeSilent):
		a.call.SentAt = nil
		a.close(fleet.CallOffline, fleet.NewCallError(fleet.CodeOffline+".edge_silent"))
	case errors.Is(err, fleet.ErrOffline):
		a.call.SentAt = nil
		a.close(fleet.CallOffline, fleet.NewCallError(fleet.CodeOffline+".disconnected"))
	case a.calls.life.Err() != nil:
		a.close(fleet.CallUnknown, fleet.NewCallError(fleet.CodeStopped+".answer"))
	case errors.Is(err, fleet.ErrNoAnswer), errors.Is(err, context.DeadlineExceeded):
		a.close(fleet.CallTimedOut, fleet.NewCallError(fleet.CodeNoAnswer+".answer", "timeout_ms", a.call.Timeout))
	case errors.Is(err, fleet.ErrEdgeLost):
		a.close(fleet.CallUnknown, fleet.NewCallError(fleet.CodeEdgeLost))
	case errors.Is(err, fleet.ErrLost):
		a.close(fleet.CallUnknown, fleet.NewCallError(fleet.CodeLost+".answer"))
	default:
		a.close(fleet.CallUnknown, fleet.NewCallError("send_failed", "detail", err.Error()))
	}
}

// answered records the device's result. Stock firmware reports a failure as the text
// "false" without the error flag (protocol 8, trap 5).
func (a *attempt) answered(answer fleet.Answer) {
	a.call.Result = answer.Result
	switch {
	case answer.Omitted != nil && answer.IsError:
		a.close(fleet.CallToolError, answer.Omitted)
	case answer.Omitted != nil:
		a.close(fleet.CallSucceeded, answer.Omitted)
	case answer.IsError:
		a.close(fleet.CallToolError, fleet.DeviceError(answer.Text))
	case answer.Text == "false" && a.target.Device.IsBoard():
		a.close(fleet.CallToolError, fleet.NewCallError(codeAnsweredFalse))
	default:
		a.close(fleet.CallSucceeded, nil)
	}
}

func (a *attempt) close(state fleet.CallState, err *fleet.CallError) {
	now := a.calls.o.Now()
	if state == fleet.CallInvalid && a.call.Sealed != nil {
		err = withoutValues(err, a.shown)
	}
	a.call.State, a.call.Error, a.call.FinishedAt, a.call.Waits = state, err, &now, fleet.Reason{}
}

// finish stores the outcome and announces it. If the database is unavailable, finish retries
// for a moment and leaves the outcome to the settler then, which keeps trying: the caller, and
// those whose calls wait for the same device, get an answer soon.
func (a *attempt) finish() (err error) {
	const timeout, longest = recordTimeout, time.Second
	stopping := a.calls.life.Done()
	for wait, waited := 100*time.Millisecond, time.Duration(0); waited < timeout; wait = min(2*wait, longest) {
		if err = a.calls.o.Store.FinishCall(context.Background(), a.call); err == nil || errors.Is(err, fleet.ErrInvalid) {
			break
		}
		if a.asked.stalled != nil {
			a.asked.stalled(err)
		}
		select {
		case <-time.After(wait):
			waited += wait
		case <-stopping:
			waited, stopping = timeout-longest, nil // one or two more tries
		}
	}
	if err != nil {
		err = a.unsettled(fmt.Errorf("call %s ended %s, which could not be stored: %w", a.call.ID, a.call.State, err))
	}
	a.calls.o.Observe(a.call)
	a.calls.announce(a.call)
	return err
}

// neverSent closes a call that was not sent because its record could not be written.
func (a *attempt) neverSent() {
	a.call.SentAt = nil
	a.close(fleet.CallCanceled, fleet.NewCallError(fleet.CodeNotRecorded))
}

// unsettled stores the call's outcome as soon as the database is available.
func (a *attempt) unsettled(err error) error {
	if errors.Is(err, fleet.ErrInvalid) {
		return err // no retry can succeed
	}
	why := fleet.Refuse(fleet.ErrUnavailable, "outcome_not_recorded")
	if a.call.SentAt == nil {
		why = fleet.Refuse(fleet.ErrUnavailable, "not_recorded")
	}
	return &unsettledError{err: fmt.Errorf("%w: %w", why, err), settled: a.calls.settler.add(a.call)}
}

// late stores an answer that came after fleetd gave up the call.
func (a *attempt) late(answer fleet.Answer) {
	a.notifyLate(answer)
	ctx, cancel := context.WithTimeout(a.calls.life, fleet.DefaultCallTimeout)
	defer cancel()
	a.calls.storeLate(ctx, a.call.ID, a.call.Device, answer)
}

// AnsweredLate stores an answer to a call that an earlier process made and that got none from its
// device. It returns false if there is no such call. as converts the answer, given the call's tool.
func (s *Service) AnsweredLate(id fleet.DeviceID, rpcID int32, as func(tool string) fleet.Answer) bool {
	ctx, cancel := context.WithTimeout(s.life, fleet.DefaultCallTimeout)
	defer cancel()
	c, err := s.o.Store.UnansweredCall(ctx, id, rpcID)
	if err != nil {
		if !errors.Is(err, fleet.ErrNotFound) {
			s.o.Log.Warn("late answer not stored", "device", id, "err", err)
		}
		return false
	}
	answer := as(c.Tool)
	if s.o.OrderAnswered != nil && c.Tool == fleet.ToolUpgradeFirmware && c.Actor.Kind == fleet.KindCampaign {
		s.o.OrderAnswered(ctx, c, answer)
	}
	s.storeLate(ctx, c.ID, id, answer)
	return true
}

func (s *Service) storeLate(ctx context.Context, id uuid.UUID, device fleet.DeviceID, answer fleet.Answer) {
	l := fleet.LateAnswer{At: s.o.Now(), Result: answer.Result, Error: answer.Omitted}
	if answer.Err != nil {
		l.Error = fleet.DeviceError(answer.Err.Message)
	}
	if err := s.o.Store.AddLateAnswer(ctx, id, l); err != nil {
		s.o.Log.Warn("late answer not stored", "call", id, "device", device, "err", err)
		return
	}
	if c, err := s.o.Store.Call(ctx, id); err == nil {
		s.announce(&c)
	}
}
