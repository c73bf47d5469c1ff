package call

import (
	"context"
	"errors"
	"slices"
	"time"

	"fleetd/fleet"
)

// returnGrace is how long a device whose connection broke may take to reconnect before it
// counts as gone: esp-mqtt tries within 10 seconds.
const returnGrace = 15 * time.Second

// sendAway sends a tool that makes the device leave without an answer (protocol 4.7), and
// judges the call by evidence. An answer decides nothing, except a refusal.
func (a *attempt) sendAway(ctx context.Context, effect fleet.ToolEffect) {
	seen, stop := a.calls.o.Watcher.Watch(a.call.Device)
	defer stop()
	type reply struct {
		answer fleet.Answer
		err    error
	}
	replied := make(chan reply, 1)
	go func() {
		answer, err := a.turn.Send(ctx, a.invocation(), a.late)
		replied <- reply{answer, err}
	}()
	a.witness(fleet.EvidenceSent, "")
	var gone <-chan time.Time // the connection broke; nil while the device is connected
	for a.call.State == fleet.CallSent {
		select {
		case r := <-replied:
			a.departureReplied(r.answer, r.err)
		case e := <-seen:
			if len(a.call.Evidence) < maxEvidence {
				a.call.Evidence = append(a.call.Evidence, e)
			}
			switch e.Kind {
			case fleet.EvidenceConnectionLost:
				gone = time.After(returnGrace)
			case fleet.EvidenceConnect:
				gone = nil
			}
			if departed(effect, a.call.Evidence) {
				a.close(fleet.CallSucceeded, nil)
			}
		case <-gone:
			if gone = nil; effect == fleet.EffectLeaves {
				a.close(fleet.CallSucceeded, nil)
			}
		case <-ctx.Done():
			a.missingDeparture(effect)
		}
	}
}

// departureReplied handles the reply or the error of sending. Only a refusal and a failure to
// send end the call.
func (a *attempt) departureReplied(answer fleet.Answer, err error) {
	var refused *fleet.ToolError
	switch {
	case errors.As(err, &refused), errors.Is(err, fleet.ErrOffline), errors.Is(err, fleet.ErrInvalid):
		a.conclude(answer, err)
	case err != nil: // the connection ended, as expected
	case answer.Failed():
		a.answered(answer)
	default:
		a.call.Result = answer.Result
		a.witness(fleet.EvidenceAnswer, answer.Text)
	}
}

func (a *attempt) witness(kind fleet.EvidenceKind, detail string) {
	a.call.Evidence = append(a.call.Evidence, fleet.Evidence{At: a.calls.o.Now(), Kind: kind, Detail: detail})
}

// departed reports whether the evidence since the call proves its effect. A clean goodbye proves
// that a device leaves. A restart requires a boot poll, which devices send at no other time, or a
// new connection after a goodbye; a connection that merely broke and came back proves nothing.
func departed(effect fleet.ToolEffect, evidence []fleet.Evidence) bool {
	left := false
	for _, e := range evidence {
		switch {
		case e.Kind == fleet.EvidenceDisconnect:
			left = true
		case effect == fleet.EffectRestarts && (e.Kind == fleet.EvidenceBootPoll || e.Kind == fleet.EvidenceConnect && left):
			return true
		}
	}
	return left && effect == fleet.EffectLeaves
}

// missingDeparture closes a call whose evidence did not come in time.
func (a *attempt) missingDeparture(effect fleet.ToolEffect) {
	ended := slices.ContainsFunc(a.call.Evidence, endsConnection)
	back := slices.ContainsFunc(a.call.Evidence, func(e fleet.Evidence) bool { return e.Kind == fleet.EvidenceConnect })
	switch {
	case a.calls.life.Err() != nil:
		a.close(fleet.CallUnknown, fleet.NewCallError(fleet.CodeStopped+".departure"))
	case effect == fleet.EffectLeaves && ended && !back:
		a.close(fleet.CallUnknown, fleet.NewCallError(fleet.CodeLost+".departure"))
	case effect == fleet.EffectLeaves:
		a.close(fleet.CallTimedOut, fleet.NewCallError(fleet.CodeStayed, "timeout_ms", a.call.Timeout))
	case ended:
		a.close(fleet.CallUnknown, fleet.NewCallError("not_back"))
	default:
		a.close(fleet.CallTimedOut, fleet.NewCallError(fleet.CodeNoAnswer+".restart"))
	}
}
