package call

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// A Wait holds what fleetd needs besides the record to send a call that waits for its device.
type Wait struct {
	Interrupt bool
	Picture   string // blob key; "" for most
}

// A WaitingCall is a call in the state [fleet.CallPendingDevice] with its wait, as stored.
type WaitingCall struct {
	fleet.Call
	Wait
}

// A Filter narrows a list of calls. Zero fields do not filter.
type Filter struct {
	Device fleet.DeviceID
	Tool   string
	Actor  string // name
	// Conversation in which the voice server's model made the calls.
	Conversation uuid.UUID
	States       []fleet.CallState
	FanOut       uuid.UUID
	Digest       string    // of a value in the arguments; see package redaction
	Since        time.Time // inclusive
	Until        time.Time // exclusive
	Limit        int
	Cursor       string
}

// Store stores call records. InsertCall, MarkSent and FinishCall return only after the change
// is durable.
type Store interface {
	InsertCall(ctx context.Context, c *fleet.Call) error
	// MarkSent changes a pending call to sent, before its bytes are written.
	MarkSent(ctx context.Context, c *fleet.Call) error
	// FinishCall stores the outcome (state, result, error, evidence, rpc id, times). A final
	// call stays unchanged.
	FinishCall(ctx context.Context, c *fleet.Call) error
	// AddLateAnswer stores an answer that came after fleetd gave up the call.
	AddLateAnswer(ctx context.Context, id uuid.UUID, late fleet.LateAnswer) error
	// UnansweredCall returns the latest call to the device with the JSON-RPC id, if it was sent, has
	// ended without an answer, and has no late one; otherwise [fleet.ErrNotFound].
	UnansweredCall(ctx context.Context, id fleet.DeviceID, rpcID int32) (fleet.Call, error)
	Call(ctx context.Context, id uuid.UUID) (fleet.Call, error)
	Calls(ctx context.Context, f Filter) (fleet.Page[fleet.Call], error) // newest first
	// SettleCalls stores outcomes of calls that may or may not have a record, and inserts
	// missing records. A final call stays unchanged. An earlier write of the same calls that
	// the database executes late then changes nothing.
	SettleCalls(ctx context.Context, calls []*fleet.Call) error
	// WaitForDevice records that the call waits for its device: a new call, or a recorded call
	// that was certainly not sent.
	WaitForDevice(ctx context.Context, c *fleet.Call, w Wait) error
	// SendWaiting changes a call that waits for its device to sent, with its arguments and
	// evidence, before its bytes are written. A record that already says sent is no conflict:
	// its owner knows better.
	SendWaiting(ctx context.Context, c *fleet.Call) error
	// WaitingCalls returns the calls that wait for their devices, oldest first, and deletes the
	// waits of calls that have ended.
	WaitingCalls(ctx context.Context) ([]WaitingCall, error)
	// RecoverCalls closes the calls that an earlier process left open: pending calls become
	// canceled, sent calls unknown. Call it before this process makes a call.
	RecoverCalls(ctx context.Context, lost *fleet.CallError) (canceled, unknown int64, err error)
	// LastArguments returns the arguments this actor last used for the tool on any device, or nil.
	LastArguments(ctx context.Context, actor fleet.Principal, tool string) (json.RawMessage, error)
}

// A Bucket counts the calls of one period.
type Bucket struct {
	At                time.Time // start of the period
	Succeeded, Failed int       // of the calls with an outcome
	// Failed contains these; the others were never executed.
	ToolErrors, NoAnswer int
}

// StatsStore provides the figures of the overview.
type StatsStore interface {
	// CallBuckets counts calls since a time, of one device or, with "", of all.
	CallBuckets(ctx context.Context, device fleet.DeviceID, since time.Time, step time.Duration) ([]Bucket, error)
}
