package fleet

import (
	"context"
	"encoding/json"
)

// A Link delivers calls to connected devices. The broker implements it.
//
// A device executes one call at a time, so the link keeps a line per device:
// Queue joins it, and the returned Turn must be given back with Done.
type Link interface {
	// Queue joins the device's line for a caller of a kind. It fails with
	// [ErrOffline] or [ErrBusy]; it never blocks.
	Queue(id DeviceID, by PrincipalKind) (Turn, error)
	// Introduced reports whether the device is connected, and the first requests on
	// its connection, which list its tools, are over.
	Introduced(id DeviceID) bool
}

// A Turn is one call's place in a device's line.
type Turn interface {
	// Ready is closed when the line has come to this turn. For an idle device
	// it is closed from the start.
	Ready() <-chan struct{}
	// Lost is closed when the connection has ended.
	Lost() <-chan struct{}
	// RPCID is the JSON-RPC id that Send will use.
	RPCID() int32
	// Send writes the call and waits for the answer until ctx ends. Errors:
	// [ErrInvalid] if the call cannot be put to this kind of device, [ErrOffline]
	// if nothing was written, both unsent; [ErrNoAnswer] at the deadline,
	// [ErrLost] if the connection ended, [*ToolError] if the device refused.
	// Call it at most once, after Ready. late is called (from another
	// goroutine, at most once) if an answer comes after Send has given up,
	// also over a later connection of the device.
	Send(ctx context.Context, inv Invocation, late func(Answer)) (Answer, error)
	// Done gives the turn back; the next call in line gets ready. Idempotent.
	Done()
}

// An Invocation is what a [Turn] sends.
type Invocation struct {
	Tool      string
	Arguments json.RawMessage
	// ForOperator: not for a language model. Firmware that guards its user-only
	// tools needs to know.
	ForOperator bool
	// OnWritten is called at most once, when Send has handed the call over to the
	// connection. A link that does not know that moment never calls it. May be nil.
	OnWritten func()
}

// An Answer is what a device replied to a call.
type Answer struct {
	// Result is an MCP CallToolResult, normalised, cleaned and bounded.
	Result json.RawMessage
	// IsError is the result's own flag.
	IsError bool
	// Text is the first text content, bounded to what fits a table; stock
	// firmware reports failure as the text "false" without the flag.
	Text string
	// Omitted says why Result is nil although the device answered with one: it
	// passes a limit of fleetd.
	Omitted *CallError
	// Err is set instead of the rest when the device refused the call; only
	// late answers carry it here.
	Err *ToolError
}

// failed reports whether the answer is a failure: by its flag, or as stock
// firmware says it (protocol 8, trap 5).
func (a Answer) Failed() bool { return a.IsError || a.Text == "false" }

// A ToolError is a refusal by the device itself: the call arrived, and the
// device reported failure. Repeating it is up to the operator.
type ToolError struct {
	Tool    string
	Code    int    // JSON-RPC code; -32000 where the device sent none
	Message string // as written by the firmware; show it as text, never as HTML
}

func (e *ToolError) Error() string { return e.Message }
