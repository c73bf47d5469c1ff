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

// If a call needs an approval and the client can open an address for its user
// (elicitation in the mode url, 2025-11-25), the gateway sends the client to the
// approval's page, where a person decides. The client's user may not be allowed to
// decide, so the reply to the elicitation decides nothing: it only chooses whether to
// wait for the decision. Other clients get the call's id at once.
const (
	askApproval = "approval" // name of the input request
	// approvalWait is how long a request waits for the decision: less than the 60 s after
	// which clients give up.
	approvalWait = 45 * time.Second
)

// opensAddresses reports whether the client of a request can open addresses for its user.
func opensAddresses(req *mcp.CallToolRequest) bool {
	c := elicitation(req)
	return c != nil && c.URL != nil
}

// elicitation returns what the client of a request can ask its user, nil for nothing.
// Before 2026-07-28 the SDK asks once within a request.
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

// asking replaces the answer about a call or fan-out that waits for an approval with the
// question to the user. The client repeats its request with subject, the id of the call
// or fan-out.
func (g *Gateway) asking(req *mcp.CallToolRequest, a answer, approval, subject uuid.UUID) answer {
	if approval == uuid.Nil || !opensAddresses(req) {
		return a
	}
	return answer{state: subject.String(), asks: mcp.InputRequestMap{askApproval: &mcp.ElicitParams{Mode: "url",
		ElicitationID: approval.String(), URL: g.public.JoinPath("approvals", approval.String()).String(),
		Message: "Another person has to approve this in fleetd. The page shows the request: " +
			"approve it there, or send the address to someone who can."}}}
}

// asked returns the id of the call or fan-out that an earlier request asked the user
// about, and whether the user wants to wait for the decision.
func asked(req *mcp.CallToolRequest) (subject uuid.UUID, wait, ok bool) {
	if req == nil || len(req.Params.InputResponses) == 0 {
		return uuid.Nil, false, false
	}
	subject, err := uuid.Parse(req.Params.RequestState)
	answer, is := req.Params.InputResponses[askApproval].(*mcp.ElicitResult)
	return subject, is && answer.Action == "accept", err == nil
}

// askedCall returns the answer about a call that an earlier request asked the user about:
// with its outcome, if the user wanted to wait.
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

// askedFanOut returns a fan-out that an earlier request asked the user about, after the
// decision if the user wanted to wait.
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

// decided waits until the call or fan-out no longer waits for an approval, the client
// cancels its request, or approvalWait has passed.
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
			select { // at most one read a second, even if there are more events
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
