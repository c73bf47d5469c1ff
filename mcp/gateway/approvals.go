package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/fleet"
	"fleetd/fleet/call"
)

// A call that needs an approval asks for it by way of the client, if the client can
// open an address for its user (elicitation in the mode url, 2025-11-25): the page
// of the approval, where a person decides. Whoever uses the client may well be the
// one who cannot decide, so that the answer to the elicitation decides nothing: it
// says whether to wait for the decision. Other clients get the call's id at once.
const (
	askApproval = "approval" // the input request
	// approvalWait is how long an answer waits for the decision: less than the 60 s
	// after which clients give up.
	approvalWait = 45 * time.Second
)

// opensAddresses reports whether the client of a request opens addresses for its
// user.
func opensAddresses(req *mcp.CallToolRequest) bool {
	c := elicitation(req)
	return c != nil && c.URL != nil
}

// elicitation is what the client of a request can ask its user, nil for nothing.
// Before 2026-07-28 the SDK asks once in a request.
func elicitation(req *mcp.CallToolRequest) *mcp.ElicitationCapabilities {
	if req == nil || req.Session == nil {
		return nil
	}
	p := req.Session.InitializeParams()
	if p == nil || p.Capabilities == nil || p.ProtocolVersion < firstStateless && len(req.Params.InputResponses) > 0 {
		return nil
	}
	return p.Capabilities.Elicitation
}

// asking turns the answer about a call or fan-out that waits for an approval into
// the question to the user. subject is its id, by which the client asks again.
func (g *Gateway) asking(req *mcp.CallToolRequest, a answer, approval, subject uuid.UUID) answer {
	if approval == uuid.Nil || !opensAddresses(req) {
		return a
	}
	return answer{state: subject.String(), asks: mcp.InputRequestMap{askApproval: &mcp.ElicitParams{Mode: "url",
		ElicitationID: approval.String(), URL: g.public.JoinPath("approvals", approval.String()).String(),
		Message: "Another person has to approve this in fleetd. The page shows the request: " +
			"approve it there, or send the address to someone who can."}}}
}

// asked returns the id of the call or fan-out whose approval the client was asked
// for before, and whether its user wants to wait for the decision.
func asked(req *mcp.CallToolRequest) (subject uuid.UUID, wait, ok bool) {
	if req == nil || len(req.Params.InputResponses) == 0 {
		return uuid.Nil, false, false
	}
	subject, err := uuid.Parse(req.Params.RequestState)
	answer, is := req.Params.InputResponses[askApproval].(*mcp.ElicitResult)
	return subject, is && answer.Action == "accept", err == nil
}

// askedCall is the answer about a call whose approval the client was asked for: what
// became of it, if its user wanted to wait.
func (g *Gateway) askedCall(ctx context.Context, by fleet.Principal, id uuid.UUID, wait bool) (answer, error) {
	var c fleet.Call
	waiting := func(ctx context.Context) (_ bool, err error) {
		c, err = g.o.Calls.Get(ctx, id)
		if errors.Is(err, fleet.ErrNotFound) || err == nil && !c.Actor.Same(by) {
			err = unknownCall(id.String())
		}
		return !c.State.Final(), err
	}
	_, err := waiting(ctx)
	if err == nil && wait {
		err = g.decided(ctx, id, waiting)
	}
	if err != nil {
		return answer{}, err
	}
	return g.outcome(ctx, c), nil
}

// askedFanOut returns a fan-out whose approval the client was asked for, decided if
// its user wanted to wait.
func (g *Gateway) askedFanOut(ctx context.Context, by fleet.Principal, id uuid.UUID, wait bool) (f call.FanOut,
	err error) {
	waiting := func(ctx context.Context) (_ bool, err error) {
		f, err = g.o.FanOuts.Get(ctx, id)
		if errors.Is(err, fleet.ErrNotFound) || err == nil && !f.Actor.Same(by) {
			err = unknownCall(id.String())
		}
		return f.State == call.FanOutPendingApproval, err
	}
	if _, err = waiting(ctx); err == nil && wait {
		err = g.decided(ctx, id, waiting)
	}
	return f, err
}

// decided waits until a call or fan-out waits no more, for at most approvalWait, or
// until the client does not want its answer any more.
func (g *Gateway) decided(ctx context.Context, subject uuid.UUID,
	waiting func(context.Context) (bool, error)) error {
	sub := g.o.Events.Subscribe(64, func(e *fleet.Event) bool {
		return e.Kind == fleet.EventApproval || e.Call.ID == subject
	}, fleet.EventApproval, fleet.EventCall)
	defer sub.Close()
	over := time.NewTimer(approvalWait)
	defer over.Stop()
	tick := time.NewTicker(time.Second) // events may be lost
	defer tick.Stop()
	for {
		if more, err := waiting(ctx); err != nil || !more {
			return err
		}
		select {
		case <-sub.C:
			select { // several events a second would be as many reads
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
		case <-tick.C:
		case <-over.C:
			return nil
		case <-g.life.Done():
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}
