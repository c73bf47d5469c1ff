package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// An attempt is one call on its path from the request to the outcome.
type attempt struct {
	calls       *Calls
	target      *target
	asked       CallRequest     // what the call was made for
	call        *Call           // its record
	wire        json.RawMessage // the arguments as they go to the device
	turn        Turn            // nil if the call is not to be sent
	order       *FirmwareOrder  // of an upgrade; else nil
	revoke      <-chan struct{} // see [CallRequest.Withdraw]; may be nil
	asks        *Approval       // the call waits for it; else nil
	wasOn       bool            // on record before: it waited for its approval, or for the end of a conversation
	held        *heldCall       // the call waits outside of its device's line; else nil
	wasAway     bool            // its device was not connected while it was held
	interrupter Principal       // who did not want to wait for the end of a conversation
	wrote       bool            // the order was notified that its call was sent

	stalled func(error) // see [CallRequest]; may be nil
}

// carry moves a call along its path, which is the same for operators, programs,
// models and campaigns:
//
//	check  the request is worth a record, and names a device
//	judge  the actor may make this call to this device, with these arguments,
//	       or may ask a person for it: then it is put on record, and waits
//	hold   it waits for the end of a conversation, if it would interrupt one, or
//	       until its device is back, if it may
//	queue  the call has its place in the device's line
//	store  its record is durable: nothing is sent without one
//	send   its turn comes, its bytes are written, and its outcome is durable
//
// An error before send means that there is no record, or none that the database
// confirmed. Neither a refusal nor a device that is offline is an error: judge
// and queue make it the outcome, store puts it on record, and send has nothing
// left to do.
//
// The caller waits for send only if it asks to.
func (s *Calls) carry(ctx context.Context, r CallRequest, wait bool) (Call, error) {
	r.now = s.o.Now()
	a := &attempt{calls: s, asked: r, order: r.Firmware, stalled: r.stalled, revoke: r.Withdraw}
	if err := s.enter(); err != nil {
		a.abandon(err)
		return Call{}, err
	}
	err := a.check(ctx, r)
	if err == nil && r.UnlessTalking {
		if _, waits := s.o.Interruptions.waits(r, r.now, r.now); waits {
			err = ErrTalking
		}
	}
	if err == nil {
		a.judge(ctx, r)
		if !a.hold(r) {
			err = a.queue(r.UnlessOffline)
		}
	}
	if err == nil {
		err = a.store(ctx)
	}
	if err != nil {
		a.abandon(err)
		s.running.Done()
		return Call{}, err
	}
	if wait && a.held == nil {
		defer s.running.Done()
		err := a.send()
		return *a.call, err
	}
	record := *a.call
	go a.sendAlone()
	return record, nil
}

// sendAlone is [attempt.send] with no one to return to.
func (a *attempt) sendAlone() {
	defer a.calls.running.Done()
	if err := a.send(); err != nil {
		a.calls.o.Log.Error("outcome of a call not stored", "call", a.call.ID, "device", a.call.Device, "err", err)
	}
}

// abandon ends a call that has no record.
func (a *attempt) abandon(err error) {
	if a.held != nil {
		a.calls.held.remove(a.held)
	}
	if a.turn != nil {
		a.turn.Done()
	}
	why := &CallError{Code: CodeNotRecorded}
	if errors.Is(err, ErrTalking) {
		why = NewCallError(CodeTalking)
	}
	a.order.notify(Evidence{At: a.calls.o.Now(), Kind: EvidenceNotSent, Code: why.Code,
		Detail: CleanText(err.Error(), maxOrderDetail)})
}

// check begins the record of a call, in memory, if the request is worth one.
func (a *attempt) check(ctx context.Context, r CallRequest) (err error) {
	if err := checkRequest(r); err != nil {
		return err
	}
	if a.target, err = a.calls.o.Targets.Get(ctx, r.Device, r.now); err != nil {
		return err
	}
	if !r.Actor.Sees(a.target.device) {
		return fmt.Errorf("device %s: %w", r.Device, ErrNotFound)
	}
	a.call, a.wire = a.calls.newCall(r), r.Arguments
	a.call.Evidence = r.Mandate.evidence(r.now)
	return a.checkApprover(ctx, r)
}

// checkRequest refuses what is not worth a record: it cannot be stored.
func checkRequest(r CallRequest) error {
	switch {
	case r.Tool == "" || len(r.Tool) > 200:
		return Refuse(ErrInvalid, "invalid_tool.length", "limit", 200)
	case len(r.Arguments) > MaxArgumentBytes:
		return Refuse(ErrInvalid, "arguments_too_large", "size", len(r.Arguments), "limit", MaxArgumentBytes)
	case len(r.Arguments) > 0 && !json.Valid(r.Arguments):
		return Refuse(ErrInvalid, "invalid_arguments.not_json")
	case r.Firmware != nil && (r.Tool != ToolUpgradeFirmware || r.Firmware.URL == "" || r.Firmware.Timeout <= 0):
		return Refuse(ErrInvalid, "invalid_order", "tool", ToolUpgradeFirmware)
	case r.OfflineWait < 0 || r.OfflineWait > MaxCallOfflineWait:
		return Refuse(ErrInvalid, "invalid_offline_wait", "limit", MaxCallOfflineWait.Milliseconds(),
			"limit_ms", MaxCallOfflineWait).At("offline_wait_ms")
	case r.OfflineWait > 0 && !r.mayWaitForDevice():
		return Refuse(ErrForbidden, "wait_not_for_actor", "actor", r.Actor.Name)
	case r.Timeout < 0 || r.Timeout > MaxCallTimeout:
		return Refuse(ErrInvalid, "invalid_timeout", "limit_ms", MaxCallTimeout)
	}
	return checkPurpose(r.Purpose)
}

func (s *Calls) newCall(r CallRequest) *Call {
	c := &Call{ID: newCallID(r.now), Device: r.Device, Tool: r.Tool, Arguments: r.Arguments, Actor: r.Actor,
		FanOut: r.FanOut, Approval: r.approval, State: CallPending, Timeout: r.Timeout, CreatedAt: r.now}
	if len(c.Arguments) == 0 {
		c.Arguments = json.RawMessage("{}")
	}
	if r.Firmware != nil {
		c.Timeout = r.Firmware.Timeout
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout(r.Tool)
	}
	return c
}

// judge closes the call if the gate refuses it, and has it wait if a person can
// approve it.
func (a *attempt) judge(ctx context.Context, r CallRequest) {
	if a.call.State.Final() {
		return
	}
	switch no := a.admit(ctx, r); {
	case no == nil:
	case no.ask != nil && a.calls.o.Approvals != nil:
		a.ask(*no.ask, r)
	default:
		a.close(no.state, &no.err)
	}
}

// ask has the call wait for an approval. Its arguments are those of the request:
// a url argument is filled in once it is approved.
func (a *attempt) ask(v Verdict, r CallRequest) {
	a.asks = newApproval(v, r.Actor, r.Purpose, r.now)
	a.asks.Subject, a.asks.SubjectID, a.asks.Device, a.asks.Targets = ApprovalOfCall, a.call.ID, r.Device, 1
	a.asks.Tool, a.asks.Arguments, a.asks.Picture = r.Tool, a.call.Arguments, r.Picture
	a.asks.Interrupt = r.interrupts()
	if r.OfflineWait > 0 {
		a.call.WaitUntil = r.waitUntil()
		a.asks.WaitUntil = a.call.WaitUntil
	}
	named := []ApprovalTarget{{r.Device, a.calls.gate.build(a.target, r.Tool)}}
	a.asks.Builds = countBuilds(named)
	a.asks.Digest = ApprovalDigest(r.Actor, named, r.Tool, a.call.Arguments, r.Picture, a.asks.Interrupt,
		a.asks.WaitUntil, v.Version)
	a.call.State, a.call.Approval = CallPendingApproval, a.asks.ID
}

// admit fills in the url argument that fleetd owns and asks the gate.
func (a *attempt) admit(ctx context.Context, r CallRequest) *refusal {
	tool, offered := a.target.inventory.Tool(r.Tool)
	if a.order != nil {
		r.Arguments = a.fillOrder(tool.InputSchema)
	}
	if no := r.placeURL(offered); no != nil {
		return no
	}
	if no := a.calls.gate.check(a.target, r); no != nil {
		return no
	}
	if !OwnsURL(r.Tool) {
		return nil
	}
	if err := a.fillURL(ctx, r); err != nil {
		a.calls.o.Log.Error("no one-time link", "device", r.Device, "tool", r.Tool, "err", err)
		return refuse(NewCallError("link_failed"))
	}
	return nil
}

// placeURL puts an address that leads nowhere where the one-time address will
// be, if the tool has one: the gate judges the arguments with it.
func (r *CallRequest) placeURL(offered bool) *refusal {
	if !offered || !OwnsURL(r.Tool) {
		return nil
	}
	given, err := decodeObject(r.Arguments)
	if err != nil {
		return invalid(notAnObject(err))
	}
	if _, set := given["url"]; set {
		return invalid(NewCallError("url_is_ours"))
	}
	given["url"] = noURL
	r.Arguments, _ = json.Marshal(given)
	return nil
}

// noURL leads nowhere.
const noURL = "http://fleetd.invalid/"

// fillURL gives the call its one-time address. The record shows the address
// without its token, which is a secret while the call runs.
func (a *attempt) fillURL(ctx context.Context, r CallRequest) error {
	var url string
	var err error
	switch urls, ttl := a.calls.o.URLs, a.call.Timeout+queueTimeout; LinkOf(r.Tool) {
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

// queue joins the device's line. A call that need not wait is put on record as
// sent straight away: the record must be there before the first byte leaves,
// and one commit does for both.
func (a *attempt) queue(unlessOffline bool) error {
	if a.call.State != CallPending {
		return nil
	}
	turn, err := a.calls.o.Link.Queue(a.call.Device, a.call.Actor.Kind)
	switch {
	case errors.Is(err, ErrOffline) && a.asked.OfflineWait > 0:
		a.wasAway = true
		a.untilBack(a.asked, Reason{})
	case errors.Is(err, ErrOffline) && !unlessOffline && a.target.device.ConnectsForConversations():
		a.close(CallOffline, NewCallError(CodeOffline+".conversations"))
	case errors.Is(err, ErrOffline) && !unlessOffline:
		a.close(CallOffline, NewCallError(CodeOffline+".not_connected"))
	case errors.Is(err, ErrBusy):
		a.close(CallRefused, NewCallError(CodeBusy))
	case err != nil:
		return err
	default:
		a.turn = turn
		a.call.RPCID = turn.RPCID()
		if !a.wasOn && ready(turn) {
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

// store puts the call on record: final if it cannot be made, sent if the device
// is idle, else pending; or with the approval that it waits for.
func (a *attempt) store(ctx context.Context) error {
	if a.asks != nil {
		return a.storeAsked(context.WithoutCancel(ctx))
	}
	insert := func() error { return a.calls.o.Store.InsertCall(context.WithoutCancel(ctx), a.call) }
	if a.call.State == CallPendingDevice {
		insert = a.storeWaiting
	}
	if err := insert(); err != nil {
		return a.notInserted(err)
	}
	a.calls.announce(a.call)
	return nil
}

func (a *attempt) storeAsked(ctx context.Context) (err error) {
	approvals := a.calls.o.Approvals
	if a.asks.AskedLine, a.asks.Person, err = approvals.PrincipalLine(ctx, a.asks.AskedBy); err != nil {
		return err
	}
	if err := approvals.AskForCall(ctx, a.call, a.asks); err != nil {
		return a.notInserted(err)
	}
	a.calls.announce(a.call)
	a.calls.announceApproval(a.asks)
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

// send sends a call on record, waits for its outcome and stores that.
func (a *attempt) send() error {
	if a.held != nil && a.held.durable() {
		return a.sendWhenBack()
	}
	if a.held != nil {
		if done, err := a.awaitConversation(); done {
			return err
		}
	}
	defer a.notifyNotSent()
	if a.call.State == CallPendingApproval {
		return nil
	}
	if a.turn == nil { // refused, invalid or offline
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
		a.deliver()
	}
	err := a.finish()
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
		if err := a.judgeAgain(); err != nil {
			a.neverSent()
			return a.unsettled(fmt.Errorf("call %s was not sent: %w", a.call.ID, err))
		}
		if a.call.State.Final() {
			return nil
		}
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
	case <-a.revoke:
		a.close(CallCanceled, NewCallError(CodeWithdrawn))
	case <-wait.C:
		a.close(CallCanceled, NewCallError(CodeQueueTimeout, "timeout_ms", queueTimeout))
	case <-a.calls.life.Done():
		a.close(CallCanceled, NewCallError(CodeStopped+".turn"))
	}
	return nil
}

// judgeAgain closes a call that has waited if it may not be made any more: it reads
// the rights of who asked and the device again, and the gate judges the call once
// more. After an error it is not known whether the call may be made.
//
//	who asked is gone            canceled
//	the device left their scope  canceled
//	who approved it may not      refused
//	the gate refuses             refused, as it would be now
//
// The engine judges the calls of campaigns; of these only the device is looked at.
func (a *attempt) judgeAgain() (err error) {
	ctx, cancel := context.WithTimeout(a.calls.life, recordTimeout)
	defer cancel()
	r := a.asked
	r.now, r.again = a.calls.o.Now(), true
	r.Actor, err = a.calls.principalNow(ctx, r.Actor)
	if errors.Is(err, ErrActorGone) {
		a.close(CallCanceled, NewCallError(CodeActorGone, "actor", a.asked.Actor.Name))
		return nil
	}
	if err != nil {
		return err
	}
	if m := r.Mandate; m != nil && m.Author != nil { // a health check is its author's call
		author, err := a.calls.principalNow(ctx, *m.Author)
		if errors.Is(err, ErrActorGone) {
			a.close(CallCanceled, NewCallError(CodeActorGone, "actor", m.Author.Name))
			return nil
		}
		if err != nil {
			return err
		}
		r.Mandate = &Mandate{Askers: m.Askers, Author: &author}
	}
	if a.target, err = a.calls.o.Targets.Get(ctx, r.Device, r.now); err != nil {
		return err
	}
	if !r.Actor.Sees(a.target.device) {
		a.close(CallCanceled, NewCallError(CodeOutOfScope, "actor", r.Actor.Name, "device", a.target.device.Title()))
		return nil
	}
	if err := a.checkApprover(ctx, r); err != nil || a.call.State.Final() {
		return err
	}
	var no *refusal
	if a.order != nil {
		no = checkStanding(a.target, r)
	} else if a.held != nil && a.held.durable() {
		no = a.admit(ctx, r)
	} else {
		_, offered := a.target.inventory.Tool(r.Tool)
		if no = r.placeURL(offered); no == nil {
			no = a.calls.gate.check(a.target, r)
		}
	}
	if no != nil {
		a.close(no.state, &no.err)
	}
	return nil
}

// checkApprover closes the call if whoever approved it may not approve it any more.
func (a *attempt) checkApprover(ctx context.Context, r CallRequest) error {
	if r.grant == nil || r.grant.by.Kind == "" {
		return nil
	}
	by, err := a.calls.principalNow(ctx, r.grant.by)
	gone := errors.Is(err, ErrActorGone)
	if err != nil && !gone {
		return err
	}
	if gone || !by.Scope.AllowsTool(r.Tool) || !by.RoleOn(a.target.device).Allows(RoleOperator) {
		a.close(CallRefused, NewCallError(CodeApprovalStale+".approver", "tool", CleanText(r.Tool, 80),
			"by", r.grant.by.Name))
	}
	return nil
}

// deliver writes the call and waits for its answer, or for what proves its effect.
func (a *attempt) deliver() {
	now := a.calls.o.Now()
	if waited := now.Sub(*a.call.SentAt); waited > recordTimeout {
		a.call.SentAt = nil
		a.close(CallCanceled, NewCallError(CodeRecordLate, "waited_ms", waited.Round(time.Second)))
		return
	}
	if !a.calls.o.Held() {
		a.call.SentAt = nil
		a.close(CallCanceled, NewCallError(CodeNotRecorded+".lease"))
		return
	}
	a.call.SentAt = &now
	a.calls.inFlight.begin(a.call.Device, RunningCall{ID: a.call.ID, Tool: a.call.Tool, Actor: a.call.Actor,
		Arguments: a.wire})
	defer a.calls.inFlight.end(a.call.Device, a.call.ID)
	if a.order == nil && !ByEvidence(a.call.Tool) {
		answer, err := a.turn.Send(a.calls.deadlines.after(a.call.Timeout), a.invocation(), a.late)
		a.conclude(answer, err)
		return
	}
	ctx, cancel := context.WithTimeout(a.calls.life, a.call.Timeout)
	defer cancel()
	if a.order != nil {
		a.sendUpgrade(ctx)
	} else {
		a.sendAway(ctx, EffectOf(a.call.Tool))
	}
}

func (a *attempt) invocation() Invocation {
	return Invocation{Tool: a.call.Tool, Arguments: a.wire, ForOperator: !a.call.Actor.Kind.IsModel()}
}

// conclude turns what came back into an outcome.
func (a *attempt) conclude(answer Answer, err error) {
	var refused *ToolError
	switch {
	case err == nil:
		a.answered(answer)
	case errors.As(err, &refused):
		a.close(CallToolError, DeviceError(refused.Message))
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

// answered records the device's result. Stock firmware reports a failure as the text
// "false" without the error flag (protocol 8, trap 5).
func (a *attempt) answered(answer Answer) {
	a.call.Result = answer.Result
	switch {
	case answer.Omitted != nil && answer.IsError:
		a.close(CallToolError, answer.Omitted)
	case answer.Omitted != nil:
		a.close(CallSucceeded, answer.Omitted)
	case answer.IsError:
		a.close(CallToolError, DeviceError(answer.Text))
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

// finish keeps the outcome. The database may be away for a while; the outcome
// of a call that was made is worth waiting for.
func (a *attempt) finish() error {
	const timeout, longest = 5 * time.Minute, 5 * time.Second
	var err error
	stopping := a.calls.life.Done()
	for wait, waited := 100*time.Millisecond, time.Duration(0); waited < timeout; wait = min(2*wait, longest) {
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
			waited, stopping = timeout-longest, nil // one try more, or two
		}
	}
	if err != nil {
		return a.unsettled(fmt.Errorf("call %s ended %s, which could not be stored: %w", a.call.ID, a.call.State, err))
	}
	return nil
}

// neverSent closes a call that is not sent for want of its record.
func (a *attempt) neverSent() {
	a.call.SentAt = nil
	a.close(CallCanceled, NewCallError(CodeNotRecorded))
}

// unsettled has the call's outcome stored as soon as the database allows.
func (a *attempt) unsettled(err error) error {
	if errors.Is(err, ErrInvalid) {
		return err // no database would accept it
	}
	why := Refuse(ErrUnavailable, "outcome_not_recorded")
	if a.call.SentAt == nil {
		why = Refuse(ErrUnavailable, "not_recorded")
	}
	return &unsettledError{err: fmt.Errorf("%w: %w", why, err), settled: a.calls.settler.add(a.call)}
}

// late keeps an answer that came after the call was given up.
func (a *attempt) late(answer Answer) {
	a.notifyLate(answer)
	l := LateAnswer{At: a.calls.o.Now(), Result: answer.Result, Error: answer.Omitted}
	if answer.Err != nil {
		l.Error = DeviceError(answer.Err.Message)
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
