package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"fleetd/broker/link"
	"fleetd/fleet"
	"fleetd/fleet/answer"
	"fleetd/mcp"
)

// forever is the timeout of calls whose context has no deadline: mcp requires one.
const forever = 24 * time.Hour

// Send sends the call and waits for its answer until ctx ends.
func (t *turn) Send(ctx context.Context, inv fleet.Invocation, late func(fleet.Answer)) (fleet.Answer, error) {
	if t.used {
		return fleet.Answer{}, errors.New("turn used twice")
	}
	t.used = true
	c := t.c
	params, err := c.dialect.Call(inv)
	if err != nil {
		return c.outcome(inv.Tool, nil, err)
	}
	params.ID, params.OnSent = t.id, inv.OnWritten
	call := &sentCall{id: t.id, tool: inv.Tool, late: late}
	c.device.remember(call)
	if _, bounded := ctx.Deadline(); !bounded {
		params.Timeout = forever
	}
	result, err := c.session.Call(ctx, params)
	if !gaveUp(err) {
		c.device.settle(call)
		return c.outcome(inv.Tool, result, err)
	}
	if answer, came := c.device.giveUp(call); came {
		return c.outcome(inv.Tool, answer.Result, answer.Err)
	}
	if errors.Is(err, mcp.ErrTimeout) {
		c.unanswered(inv.Tool)
		return fleet.Answer{}, fmt.Errorf("%w: %w", fleet.ErrNoAnswer, err)
	}
	if cause, ok := errors.AsType[link.CauseError](err); ok && cause.Reason.Is(fleet.CauseEdgeLost) {
		return fleet.Answer{}, fmt.Errorf("%w: %w", fleet.ErrEdgeLost, err)
	}
	if errors.Is(err, mcp.ErrClosed) {
		return fleet.Answer{}, fmt.Errorf("%w: %w", fleet.ErrLost, err)
	}
	return fleet.Answer{}, err // the caller cancelled the call
}

// gaveUp reports whether the call may have been sent but got no answer.
func gaveUp(err error) bool {
	if err == nil || errors.Is(err, mcp.ErrNotSent) {
		return false
	}
	if _, refused := errors.AsType[*mcp.Error](err); refused {
		return false
	}
	return !errors.Is(err, mcp.ErrMalformed) && !errors.Is(err, mcp.ErrTooLarge)
}

// outcome translates the session's result for a call that was answered or never sent.
func (c *connection) outcome(tool string, result *mcp.CallToolResult, err error) (fleet.Answer, error) {
	refused, typed := errors.AsType[*fleet.Error](err)
	switch {
	case typed && errors.Is(refused, fleet.ErrInvalid):
		return fleet.Answer{}, refused
	case errors.Is(err, mcp.ErrInvalid):
		return fleet.Answer{}, fleet.Refuse(fleet.ErrInvalid, "invalid_call", "tool", tool,
			"detail", err.Error())
	case errors.Is(err, link.ErrEdgeSilent):
		return fleet.Answer{}, fmt.Errorf("%w: %w", fleet.ErrEdgeSilent, err)
	case errors.Is(err, mcp.ErrNotSent):
		return fleet.Answer{}, fmt.Errorf("%w: %w", fleet.ErrOffline, err)
	}
	c.answered()
	a := answer.Of(tool, result, err)
	if a.Err != nil {
		return fleet.Answer{}, a.Err
	}
	return a, nil
}
