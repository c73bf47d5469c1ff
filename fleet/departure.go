package fleet

import (
	"context"
	"errors"
	"slices"
	"time"
)

// returnGrace is how long a device whose connection broke may take to connect
// again before it counts as gone: esp-mqtt tries within 10 seconds.
const returnGrace = 15 * time.Second

// sendAway sends a tool that takes the device away without an answer (protocol
// 4.7), and judges it by evidence. An answer is no verdict, except a refusal.
func (a *attempt) sendAway(ctx context.Context, effect ToolEffect) {
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
	var gone <-chan time.Time // the connection broke; nil while there is one
	for a.call.State == CallSent {
		select {
		case r := <-replied:
			a.departureReplied(r.answer, r.err)
		case e := <-seen:
			if len(a.call.Evidence) < maxEvidence {
				a.call.Evidence = append(a.call.Evidence, e)
			}
			switch e.Kind {
			case EvidenceConnectionLost:
				gone = time.After(returnGrace)
			case EvidenceConnect:
				gone = nil
			}
			if departed(effect, a.call.Evidence) {
				a.close(CallSucceeded, nil)
			}
		case <-gone:
			if gone = nil; effect == EffectLeaves {
				a.close(CallSucceeded, nil)
			}
		case <-ctx.Done():
			a.missingDeparture(effect)
		}
	}
}

// departureReplied handles the reply, or what became of the sending. Only a
// refusal, and a call that was not sent, end the call.
func (a *attempt) departureReplied(answer Answer, err error) {
	var refused *ToolError
	switch {
	case errors.As(err, &refused), errors.Is(err, ErrOffline), errors.Is(err, ErrInvalid):
		a.conclude(answer, err)
	case err != nil: // the connection ended, as it should
	case answer.Failed():
		a.answered(answer)
	default:
		a.call.Result = answer.Result
		a.witness(EvidenceAnswer, answer.Text)
	}
}

func (a *attempt) witness(kind EvidenceKind, detail string) {
	a.call.Evidence = append(a.call.Evidence, Evidence{At: a.calls.o.Now(), Kind: kind, Detail: detail})
}

// departed reports whether the evidence since the call proves its effect. A
// clean goodbye proves that a device leaves. A restart takes a boot poll, which
// devices send at no other time, or a new connection after a goodbye: one that
// merely broke and came back proves nothing.
func departed(effect ToolEffect, evidence []Evidence) bool {
	left := false
	for _, e := range evidence {
		switch {
		case e.Kind == EvidenceDisconnect:
			left = true
		case effect == EffectRestarts && (e.Kind == EvidenceBootPoll || e.Kind == EvidenceConnect && left):
			return true
		}
	}
	return left && effect == EffectLeaves
}

// missingDeparture closes a call for which the evidence did not come in time.
func (a *attempt) missingDeparture(effect ToolEffect) {
	ended := slices.ContainsFunc(a.call.Evidence, endsConnection)
	back := slices.ContainsFunc(a.call.Evidence, func(e Evidence) bool { return e.Kind == EvidenceConnect })
	switch {
	case a.calls.life.Err() != nil:
		a.close(CallUnknown, NewCallError(CodeStopped+".departure"))
	case effect == EffectLeaves && ended && !back:
		a.close(CallUnknown, NewCallError(CodeLost+".departure"))
	case effect == EffectLeaves:
		a.close(CallTimedOut, NewCallError(CodeStayed, "timeout_ms", a.call.Timeout))
	case ended:
		a.close(CallUnknown, NewCallError("not_back"))
	default:
		a.close(CallTimedOut, NewCallError(CodeNoAnswer+".restart"))
	}
}
