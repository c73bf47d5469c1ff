package call

import (
	"context"
	"errors"
	"slices"

	"fleetd/fleet"
)

// Codes of [fleet.CallError] for upgrades.
const (
	codeNotInstalled = "not_installed" // the device came back without the new build
	codeAttemptOver  = "attempt_over"  // the campaign judged the attempt by other evidence
	// The device answered "false", as stock firmware reports a failure. Other calls have it, too.
	codeAnsweredFalse = "answered_false"
)

// maxEvidence limits the evidence in the record of a call to a device that reconnects again and
// again.
const maxEvidence = 64

// maxOrderDetail limits the detail of evidence for an order, in bytes.
const maxOrderDetail = 200

// sendUpgrade sends self.upgrade_firmware and judges it by evidence: a device that upgrades
// restarts without a reply, and a reply of true may come before the download, or after a failed
// one (protocol 4.7).
func (a *attempt) sendUpgrade(ctx context.Context) {
	seen, stop := a.calls.o.Watcher.Watch(a.call.Device)
	defer stop()
	written := make(chan struct{}, 1)
	inv := a.invocation()
	inv.OnWritten = func() { written <- struct{}{} }
	replied := make(chan upgradeReply, 1)
	go func() {
		answer, err := a.turn.Send(ctx, inv, a.late)
		replied <- upgradeReply{answer, err}
	}()
	for a.call.State == fleet.CallSent {
		select {
		case <-written:
			a.notifySent()
		case r := <-replied:
			a.upgradeReplied(r)
		case e := <-seen:
			a.upgradeSaw(e)
		case <-a.asked.Firmware.done():
			a.close(fleet.CallUnknown, fleet.NewCallError(codeAttemptOver+".judged"))
		case <-ctx.Done():
			a.missingUpgrade()
		}
	}
}

type upgradeReply struct {
	answer fleet.Answer
	err    error
}

// upgradeReplied handles the reply or the error of sending. Only a refusal and a failure to
// send end the call.
func (a *attempt) upgradeReplied(r upgradeReply) {
	if errors.Is(r.err, fleet.ErrInvalid) || errors.Is(r.err, fleet.ErrOffline) {
		a.conclude(r.answer, r.err) // whatever the link reported before
		return
	}
	a.notifySent()
	var refused *fleet.ToolError
	switch {
	case errors.As(r.err, &refused):
		a.conclude(r.answer, r.err)
		a.notifyRefused()
	case r.err != nil: // the connection ended, as expected
	case r.answer.Failed():
		a.answered(r.answer)
		a.notifyRefused()
	case a.asked.Firmware.accepts(r.answer.Text): // the upgrade has begun, but is not done
		a.call.Result = r.answer.Result
		a.observed(fleet.EvidenceJob, string(fleet.JobAccepted))
	default:
		a.call.Result = r.answer.Result
		a.observed(fleet.EvidenceAnswer, r.answer.Text)
	}
}

// upgradeSaw handles evidence about the device. Another build proves a failure only if the
// connection ended too: polls alone can be forged.
func (a *attempt) upgradeSaw(e fleet.Evidence) {
	if len(a.call.Evidence) < maxEvidence {
		a.call.Evidence = append(a.call.Evidence, e)
	}
	polled := func(e fleet.Evidence) bool { return e.Kind == fleet.EvidenceBootPoll && e.ELF != "" }
	switch {
	case polled(e) && e.ELF == a.asked.Firmware.ELFSHA256:
		a.notifySent() // even if the link has not confirmed it
		a.close(fleet.CallSucceeded, nil)
	case slices.ContainsFunc(a.call.Evidence, polled) && slices.ContainsFunc(a.call.Evidence, endsConnection):
		a.notifySent()
		a.close(fleet.CallToolError, fleet.NewCallError(codeNotInstalled))
	}
}

func endsConnection(e fleet.Evidence) bool {
	return e.Kind == fleet.EvidenceDisconnect || e.Kind == fleet.EvidenceConnectionLost
}

// missingUpgrade closes an upgrade whose evidence did not come in time.
func (a *attempt) missingUpgrade() {
	if a.calls.life.Err() != nil {
		a.close(fleet.CallUnknown, fleet.NewCallError(fleet.CodeStopped+".upgrade"))
		return
	}
	a.close(fleet.CallTimedOut, fleet.NewCallError(fleet.CodeNoAnswer+".upgrade", "timeout_ms", a.call.Timeout))
}

// observed adds evidence to the call's record and notifies the order.
func (a *attempt) observed(kind fleet.EvidenceKind, detail string) {
	a.witness(kind, detail)
	a.asked.Firmware.notify(fleet.Evidence{At: a.calls.o.Now(), Kind: kind, Detail: detail})
}

// notifySent notifies the order, once, that its call was sent.
func (a *attempt) notifySent() {
	if !a.wrote() {
		a.observed(fleet.EvidenceSent, "")
	}
}

// wrote reports whether the order was notified that its call was sent, and the call's record
// still says so.
func (a *attempt) wrote() bool {
	sent := func(e fleet.Evidence) bool { return e.Kind == fleet.EvidenceSent }
	return a.call.SentAt != nil && slices.ContainsFunc(a.call.Evidence, sent)
}

func (a *attempt) notifyRefused() {
	a.asked.Firmware.notify(a.callError(fleet.EvidenceRefused))
}

// notifyNotSent notifies the order that its call ended before it was sent.
func (a *attempt) notifyNotSent() {
	if !a.wrote() {
		a.asked.Firmware.notify(a.callError(fleet.EvidenceNotSent))
	}
}

func (a *attempt) notifyLate(answer fleet.Answer) {
	order := a.asked.Firmware
	detail := answer.Text
	if answer.Err != nil {
		detail = answer.Err.Message
	}
	if answer.Err == nil && !answer.IsError && order != nil && order.accepts(answer.Text) {
		order.notify(fleet.Evidence{At: a.calls.o.Now(), Kind: fleet.EvidenceJob, Detail: string(fleet.JobAccepted)})
		return
	}
	order.notify(fleet.Evidence{At: a.calls.o.Now(), Kind: fleet.EvidenceLateAnswer, Detail: fleet.CleanText(detail,
		maxOrderDetail)})
}

// callError returns evidence with the error that ended the call. A call without an error was
// not recorded.
func (a *attempt) callError(kind fleet.EvidenceKind) fleet.Evidence {
	e := fleet.Evidence{At: a.calls.o.Now(), Kind: kind, Code: fleet.CodeNotRecorded, Detail: "the database did not take the record"}
	if a.call.Error != nil {
		e.Code, e.Detail = a.call.Error.Code, fleet.CleanText(a.call.Error.Message, maxOrderDetail)
	}
	return e
}
