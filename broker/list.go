package broker

import (
	"context"
	"errors"

	"fleetd/fleet"
	"fleetd/mcp"
)

// listTools lists all tools of the device, with the audience of each. partial
// means that the device could not list them all.
func (c *connection) listTools(ctx context.Context) (tools []fleet.Tool, partial bool, err error) {
	if c.dialect.Opening().Standard {
		all, partial, err := c.list(ctx, false)
		return toTools(all, nil), partial, err
	}
	all, partial, err := c.list(ctx, true)
	if err != nil {
		return nil, false, err
	}
	if anyUserOnly(all) || len(all) == 0 {
		return toTools(all, nil), partial, nil
	}
	// Older firmware does not state the audience: it leaves user-only tools out of the public
	// list.
	public, publicPartial, err := c.list(ctx, false)
	if err != nil {
		return nil, false, err
	}
	return toTools(all, names(public)), partial || publicPartial, nil
}

func (c *connection) list(ctx context.Context, withUserTools bool) (tools []mcp.Tool, partial bool, err error) {
	err = c.inTurn(ctx, func(ctx context.Context) (err error) {
		tools, err = c.session.ListTools(ctx, mcp.ListToolsParams{WithUserTools: withUserTools})
		return c.judge("tools/list", err)
	})
	tools = c.dialect.Listed(tools)
	if incomplete(err, len(tools)) {
		return tools, true, nil
	}
	return tools, false, err
}

// incomplete reports whether err leaves the list permanently partial: another request would
// return the same. Stock firmware answers with an error when a tool is too large for a page, and
// when it has no tool to list.
func incomplete(err error, listed int) bool {
	_, refused := errors.AsType[*mcp.Error](err)
	limit := errors.Is(err, mcp.ErrTooLarge) || errors.Is(err, mcp.ErrMalformed)
	return refused || limit && listed > 0
}

func anyUserOnly(tools []mcp.Tool) bool {
	for _, t := range tools {
		if t.UserOnly() {
			return true
		}
	}
	return false
}

func names(tools []mcp.Tool) map[string]bool {
	m := make(map[string]bool, len(tools))
	for _, t := range tools {
		m[t.Name] = true
	}
	return m
}

// toTools translates tools. If public is not nil, tools that are missing in it are for people
// only.
func toTools(tools []mcp.Tool, public map[string]bool) []fleet.Tool {
	out := make([]fleet.Tool, len(tools))
	for i, t := range tools {
		out[i] = fleet.Tool{Name: t.Name, Description: t.Description, InputSchema: t.InputSchema,
			Audience: fleet.AudienceModel}
		if t.UserOnly() || public != nil && !public[t.Name] {
			out[i].Audience = fleet.AudienceUser
		}
	}
	return out
}
