package fleet

import (
	"context"
	"errors"
	"slices"
)

// sendReboot sends self.reboot and judges it by evidence: since 2.1.0 a device
// that reboots never answers (protocol 4.7). An answer is no verdict either
// way, except a refusal.
func (a *attempt) sendReboot(ctx context.Context) {
	seen, stop := a.calls.o.Watcher.Watch(a.call.Device)
	defer stop()
	type reply struct {
		answer Answer
		err    error
	}
	replied := make(chan reply, 1)
	go func() {
		answer, err := a.turn.Send(ctx, a.invocation(), a.late)
		replied <- reply{answer, err}
	}()
	a.witness(EvidenceSent, "")
	for {
		select {
		case r := <-replied:
			if a.refusedReboot(r.answer, r.err) {
				return
			}
		case e := <-seen:
			a.call.Evidence = append(a.call.Evidence, e)
			if rebooted(a.call.Evidence) {
				a.close(CallSucceeded, nil)
				return
			}
		case <-ctx.Done():
			a.missingReboot()
			return
		}
	}
}

// refusedReboot takes the reply to a reboot and reports whether it ends the call.
func (a *attempt) refusedReboot(answer Answer, err error) bool {
	var refused *ToolError
	switch {
	case errors.As(err, &refused), errors.Is(err, ErrOffline), errors.Is(err, ErrInvalid):
		a.judge(answer, err)
		return true
	case err == nil:
		a.call.Result = answer.Result
		a.witness(EvidenceAnswer, answer.Text)
	}
	return false
}

func (a *attempt) witness(kind EvidenceKind, detail string) {
	a.call.Evidence = append(a.call.Evidence, Evidence{At: a.calls.o.Now(), Kind: kind, Detail: detail})
}

// rebooted reports whether the evidence since the call proves a restart: a
// boot poll, which devices send at no other time, or a new connection after a
// clean goodbye. A connection that merely broke and came back proves nothing.
func rebooted(evidence []Evidence) bool {
	left := false
	for _, e := range evidence {
		switch e.Kind {
		case EvidenceBootPoll:
			return true
		case EvidenceDisconnect:
			left = true
		case EvidenceConnect:
			if left {
				return true
			}
		}
	}
	return false
}

// missingReboot closes a reboot for which the evidence did not come in time.
func (a *attempt) missingReboot() {
	left := slices.ContainsFunc(a.call.Evidence, func(e Evidence) bool {
		return e.Kind == EvidenceDisconnect || e.Kind == EvidenceConnectionLost
	})
	switch {
	case a.calls.life.Err() != nil:
		a.close(CallUnknown, &CallError{CodeStopped, "fleetd stopped before the device was seen to restart"})
	case left:
		a.close(CallUnknown, &CallError{"not_back", "the device disconnected and was not seen to start again in time"})
	default:
		a.close(CallTimedOut, &CallError{CodeNoAnswer, "the device stayed connected: it did not restart"})
	}
}
