// Package answer translates what MCP servers answer to a call: devices of the broker, plug-ins
// and endpoints alike. It knows no connection and stores nothing. Its functions have no state, no
// lock and no goroutine.
package answer

import (
	"errors"

	"fleetd/fleet"
	"fleetd/mcp"
)

// maxAnswerText is the longest text that fits a table.
const maxAnswerText = 256

// Of translates the result of a call, or the error with which the device refused it.
func Of(tool string, result *mcp.CallToolResult, err error) fleet.Answer {
	if limit, ok := errors.AsType[*mcp.LimitError](err); ok {
		return fleet.Answer{IsError: limit.IsError, Omitted: omitted(limit)}
	}
	switch {
	case err != nil:
		return fleet.Answer{Err: toToolError(tool, err)}
	case result == nil: // an answer to a request other than tools/call
		result = new(mcp.CallToolResult)
	}
	a := fleet.Answer{Result: result.AppendJSON(nil), IsError: result.IsError}
	for _, content := range result.Content {
		if content.Type == "text" {
			a.Text = fleet.CleanText(content.Text, maxAnswerText)
			break
		}
	}
	return a
}

// omitted returns the error that explains why a result was not stored.
func omitted(e *mcp.LimitError) *fleet.CallError {
	switch e.Limit {
	case mcp.LimitBytes:
		return fleet.NewCallError(fleet.CodeTooLarge, "bytes", e.Size, "limit", e.Max)
	case mcp.LimitLevels:
		return fleet.NewCallError(fleet.CodeTooDeep, "limit", e.Max)
	}
	return fleet.NewCallError(fleet.CodeTooManyItems, "limit", e.Max)
}

// toToolError preserves the device's code and message. An unreadable answer also counts as a
// refusal, because the device has finished the call.
func toToolError(tool string, err error) *fleet.ToolError {
	if e, ok := errors.AsType[*mcp.Error](err); ok {
		return &fleet.ToolError{Tool: tool, Code: e.Code, Message: e.Message}
	}
	return &fleet.ToolError{Tool: tool, Code: mcp.CodeUnspecified, Message: "the answer cannot be read: " + err.Error()}
}
