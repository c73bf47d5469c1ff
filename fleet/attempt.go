package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// An attempt carries one call from its record to its outcome.
type attempt struct {
	calls *Calls
	call  *Call
	turn  Turn            // nil if the call is not to be sent
	wire  json.RawMessage // the arguments as they go to the device
	order *FirmwareOrder  // of an upgrade; else nil
	wrote bool            // the order was told that its call was sent

	stalled func(error) // see [CallRequest]; may be nil
}

// queue joins the device's line. A call that need not wait is put on record as
// sent straight away: the record must be there before the first byte leaves,
// and one commit does for both.
func (a *attempt) queue(unlessOffline bool) error {
	turn, err := a.calls.o.Link.Queue(a.call.Device)
	switch {
	case errors.Is(err, ErrOffline) && !unlessOffline:
		a.close(CallOffline, NewCallError(CodeOffline+".not_connected"))
	case errors.Is(err, ErrBusy):
		a.close(CallRefused, NewCallError(CodeBusy))
	case err != nil:
		return err
	default:
		a.turn = turn
		a.call.RPCID = turn.RPCID()
		if ready(turn) {
			a.markSent()
		}
	}
	return nil
}

func ready(t Turn) bool {
	select {
	case <-t.Ready():
		return true
	default:
		return false
	}
}

func (a *attempt) markSent() {
	now := a.calls.o.Now()
	a.call.State, a.call.SentAt = CallSent, &now
}

// run takes the call to its outcome and stores it.
func (a *attempt) run() error {
	defer a.tellNotSent()
	if a.turn == nil {
		a.calls.o.Observe(a.call)
		return nil
	}
	defer a.turn.Done()
	if a.call.State == CallPending {
		if err := a.await(); err != nil {
			return err
		}
	}
	if a.call.State == CallSent {
		a.send()
	}
	err := a.store()
	a.calls.o.Observe(a.call)
	a.calls.announce(a.call)
	return err
}

// await waits for the device's turn and marks the call sent.
func (a *attempt) await() error {
	wait := time.NewTimer(queueTimeout)
	defer wait.Stop()
	select {
	case <-a.turn.Ready():
		a.markSent()
		if err := a.calls.o.Store.MarkSent(context.Background(), a.call); err != nil {
			a.neverSent()
			return a.unsettled(fmt.Errorf("call %s was not sent: %w", a.call.ID, err))
		}
		a.calls.announce(a.call)
	case <-a.order.done():
		a.close(CallCanceled, NewCallError(codeAttemptOver+".turn"))
	case <-a.turn.Lost():
		a.close(CallCanceled, NewCallError(CodeOffline+".turn"))
	case <-wait.C:
		a.close(CallCanceled, NewCallError(CodeQueueTimeout, "timeout_ms", queueTimeout))
	case <-a.calls.life.Done():
		a.close(CallCanceled, NewCallError(CodeStopped+".turn"))
	}
	return nil
}

func (a *attempt) send() {
	ctx, cancel := context.WithTimeout(a.calls.life, a.call.Timeout)
	defer cancel()
	now := a.calls.o.Now()
	if waited := now.Sub(*a.call.SentAt); waited > recordTimeout {
		a.call.SentAt = nil
		a.close(CallCanceled, NewCallError(CodeRecordLate, "waited_ms", waited.Round(time.Second)))
		return
	}
	a.call.SentAt = &now
	known := knownTools[a.call.Tool]
	switch {
	case a.order != nil:
		a.sendUpgrade(ctx)
		return
	case known.silent:
		a.sendAway(ctx, known.effect)
		return
	}
	answer, err := a.turn.Send(ctx, a.invocation(), a.late)
	a.judge(answer, err)
}

func (a *attempt) invocation() Invocation {
	return Invocation{Tool: a.call.Tool, Arguments: a.wire, ForOperator: a.call.Actor.Kind != ActorLLM}
}

// judge turns what came back into an outcome.
func (a *attempt) judge(answer Answer, err error) {
	var refused *ToolError
	switch {
	case err == nil:
		a.answered(answer)
	case errors.As(err, &refused):
		a.close(CallToolError, deviceError(refused.Message))
	case errors.Is(err, ErrInvalid):
		a.call.SentAt = nil
		a.close(CallInvalid, NewCallError("unsendable.cause", "cause", CauseOf(err)))
	case errors.Is(err, ErrOffline):
		a.call.SentAt = nil
		a.close(CallOffline, NewCallError(CodeOffline+".disconnected"))
	case a.calls.life.Err() != nil:
		a.close(CallUnknown, NewCallError(CodeStopped+".answer"))
	case errors.Is(err, ErrNoAnswer), errors.Is(err, context.DeadlineExceeded):
		a.close(CallTimedOut, NewCallError(CodeNoAnswer+".answer", "timeout_ms", a.call.Timeout))
	case errors.Is(err, ErrLost):
		a.close(CallUnknown, NewCallError(CodeLost+".answer"))
	default:
		a.close(CallUnknown, NewCallError("send_failed", "detail", CleanText(err.Error(), 300)))
	}
}

// answered takes a result. Stock firmware reports a failure as the text
// "false" without the error flag (protocol 8, trap 5).
func (a *attempt) answered(answer Answer) {
	a.call.Result = answer.Result
	switch {
	case answer.Omitted != nil && answer.IsError:
		a.close(CallToolError, answer.Omitted)
	case answer.Omitted != nil:
		a.close(CallSucceeded, answer.Omitted)
	case answer.IsError:
		a.close(CallToolError, deviceError(answer.Text))
	case answer.Text == "false":
		a.close(CallToolError, NewCallError("answered_false"))
	default:
		a.close(CallSucceeded, nil)
	}
}

func (a *attempt) close(state CallState, err *CallError) {
	now := a.calls.o.Now()
	a.call.State, a.call.Error, a.call.FinishedAt = state, err, &now
}

// store keeps the outcome. The database may be away for a while; the outcome
// of a call that was made is worth waiting for.
func (a *attempt) store() error {
	const patience, longest = 5 * time.Minute, 5 * time.Second
	var err error
	stopping := a.calls.life.Done()
	for wait, waited := 100*time.Millisecond, time.Duration(0); waited < patience; wait = min(2*wait, longest) {
		if err = a.calls.o.Store.FinishCall(context.Background(), a.call); err == nil || errors.Is(err, ErrInvalid) {
			break
		}
		if a.stalled != nil {
			a.stalled(err)
		}
		select {
		case <-time.After(wait):
			waited += wait
		case <-stopping:
			waited, stopping = patience-longest, nil // one try more, or two
		}
	}
	if err != nil {
		return a.unsettled(fmt.Errorf("call %s ended %s, which could not be stored: %w", a.call.ID, a.call.State, err))
	}
	return nil
}

// notInserted ends a call whose record the database did not confirm. The record
// may come to be all the same: then it is brought to this end.
func (a *attempt) notInserted(err error) error {
	if errors.Is(err, ErrNotStored) || errors.Is(err, ErrInvalid) {
		return err
	}
	if !a.call.State.Final() {
		a.neverSent()
	}
	return a.unsettled(err)
}

// neverSent closes a call that is not sent for want of its record.
func (a *attempt) neverSent() {
	a.call.SentAt = nil
	a.close(CallCanceled, NewCallError(CodeNotRecorded))
}

// unsettled has the call's outcome stored as soon as the database allows.
func (a *attempt) unsettled(err error) error {
	if errors.Is(err, ErrInvalid) {
		return err // no database would take it
	}
	why := Refuse(ErrUnavailable, "outcome_not_recorded")
	if a.call.SentAt == nil {
		why = Refuse(ErrUnavailable, "not_recorded")
	}
	return &unsettledError{err: fmt.Errorf("%w: %w", why, err), settled: a.calls.settler.add(a.call)}
}

// late keeps an answer that came after the call was given up.
func (a *attempt) late(answer Answer) {
	a.tellLate(answer)
	l := LateAnswer{At: a.calls.o.Now(), Result: answer.Result, Error: answer.Omitted}
	if answer.Err != nil {
		l.Error = deviceError(answer.Err.Message)
	}
	ctx, cancel := context.WithTimeout(a.calls.life, DefaultCallTimeout)
	defer cancel()
	id, device := a.call.ID, a.call.Device
	if err := a.calls.o.Store.AddLateAnswer(ctx, id, l); err != nil {
		a.calls.o.Log.Warn("late answer not stored", "call", id, "device", device, "err", err)
		return
	}
	if c, err := a.calls.o.Store.Call(ctx, id); err == nil {
		a.calls.announce(&c)
	}
}

// fillURL gives the call its one-time address. The record shows the address
// without its token, which is a secret while the call runs.
func (a *attempt) fillURL(ctx context.Context, r CallRequest) error {
	var url string
	var err error
	switch urls, ttl := a.calls.o.URLs, a.call.Timeout+queueTimeout; knownTools[r.Tool].url {
	case LinkPreview:
		url, err = urls.PreviewURL(ctx, r.Device, a.call.ID, r.Picture, ttl)
	case LinkCoreDump:
		url, err = urls.CoreDumpURL(ctx, r.Device, a.call.ID, ttl)
	default:
		url, err = urls.UploadURL(ctx, r.Device, a.call.ID, ttl)
	}
	if err != nil {
		return err
	}
	if a.wire, err = withURL(r.Arguments, url); err != nil {
		return err
	}
	a.call.Arguments, err = withURL(r.Arguments, redactToken(url))
	return err
}

func withURL(arguments json.RawMessage, url string) (json.RawMessage, error) {
	args, err := decodeObject(arguments)
	if err != nil {
		return nil, err
	}
	args["url"] = url
	return json.Marshal(args)
}

// redactToken shortens the token of ".../u/TOKEN" or ".../d/TOKEN/name".
func redactToken(url string) string {
	for _, marker := range []string{"/u/", "/d/"} {
		if i := strings.Index(url, marker); i >= 0 {
			_, name, _ := strings.Cut(url[i+len(marker):], "/")
			return strings.TrimSuffix(url[:i+len(marker)]+"…/"+name, "/")
		}
	}
	return url
}
