package fleet

import (
	"context"
	"encoding/json"
)

// A Link delivers calls to connected devices. The broker implements it.
//
// A device executes one call at a time, so the link has a queue per device: Queue joins it,
// and the caller must give the returned Turn back with Done.
type Link interface {
	// Queue joins the device's queue for a principal of a kind. It fails with [ErrOffline] or
	// [ErrBusy]; it never blocks.
	Queue(id DeviceID, by PrincipalKind) (Turn, error)
	// Introduced reports whether the device is connected and has finished the first requests
	// on its connection, which list its tools.
	Introduced(id DeviceID) bool
}

// A Turn is one call's place in a device's queue.
type Turn interface {
	// Ready is closed when it is this turn's time to send. For an idle device it is closed
	// from the start.
	Ready() <-chan struct{}
	// Lost is closed when the connection has ended.
	Lost() <-chan struct{}
	// RPCID is the JSON-RPC id that Send will use.
	RPCID() int32
	// Send writes the call and waits for the answer until ctx ends. Call it at most once,
	// after Ready. Its errors are [ErrInvalid] if this kind of device cannot execute the call
	// and [ErrOffline] if nothing was written (both unsent), [ErrNoAnswer] at the deadline,
	// [ErrLost] if the connection ended, and [*ToolError] if the device refused. If an answer
	// arrives after Send has given up, even over a later connection of the device, late is
	// called at most once, from another goroutine.
	Send(ctx context.Context, inv Invocation, late func(Answer)) (Answer, error)
	// Done gives the turn back; the next call in the queue becomes ready. Idempotent.
	Done()
}

// An Invocation is what a [Turn] sends.
type Invocation struct {
	Tool      string
	Arguments json.RawMessage
	// ForOperator means that no language model makes the call. Firmware that guards its
	// user-only tools needs it.
	ForOperator bool
	// OnProgress, if not nil, receives what the unit reports while it works on the call. Boards
	// report none.
	OnProgress func(Progress)
	// OnWritten is called at most once, when Send has passed the call to the connection. A
	// link that cannot observe that moment never calls it. May be nil.
	OnWritten func()
}

// Progress is how far a unit has got with a call.
type Progress struct {
	Done, Total float64 // Total is 0 if unknown
	Message     string  // foreign text
}

// An Answer is what a device replied to a call.
type Answer struct {
	// Result is an MCP CallToolResult, normalised, cleaned and bounded.
	Result json.RawMessage
	// IsError is the flag of the result.
	IsError bool
	// Text is the first text content, bounded to what fits a table. Stock firmware reports
	// failure as the text "false" without the flag.
	Text string
	// Omitted is the reason why Result is nil although the device sent one: it exceeds a
	// limit of fleetd.
	Omitted *CallError
	// Err is set instead of the other fields if the device refused the call; only late
	// answers have it.
	Err *ToolError
}

// Failed reports whether the answer is a failure, by its flag or as stock firmware reports it
// (protocol 8, trap 5).
func (a Answer) Failed() bool { return a.IsError || a.Text == "false" }

// A ToolError is a refusal by the device itself: the call arrived, and the
// device reported failure. Repeating it is up to the operator.
type ToolError struct {
	Tool    string
	Code    int    // JSON-RPC code; -32000 if the device sent none
	Message string // text of the firmware; show it as text, never as HTML
}

func (e *ToolError) Error() string { return e.Message }
