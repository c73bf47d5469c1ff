package fleet

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet/origin"
)

// CallState is the state of a tool call.
//
//	pending_approval -> pending | pending_device | refused  (a person decides)
//	pending_device -> sent | refused | canceled  (its device is back, or its time is over)
//	pending -> sent -> succeeded | tool_error | timed_out | unknown
//	pending -> canceled
//	refused | invalid | offline           (never sent)
type CallState string

const (
	// on record, waits for a person to decide (see [call.Approval]); certainly not sent
	CallPendingApproval CallState = "pending_approval"

	// on record, waits until its device reconnects (see [Call.WaitUntil]); certainly not sent
	CallPendingDevice CallState = "pending_device"

	CallPending   CallState = "pending"    // on record, waits for the device's turn; certainly not sent
	CallSent      CallState = "sent"       // may have been written to the device
	CallSucceeded CallState = "succeeded"  // the device answered, or evidence proves it
	CallToolError CallState = "tool_error" // the device answered with an error
	CallTimedOut  CallState = "timed_out"  // no answer before the deadline; it may have run
	CallUnknown   CallState = "unknown"    // the connection, or fleetd, died after sending; it may have run
	CallRefused   CallState = "refused"    // the gate refused it
	CallInvalid   CallState = "invalid"    // the tool does not exist, or the arguments violate its schema
	CallOffline   CallState = "offline"    // the device was not connected
	CallCanceled  CallState = "canceled"   // withdrawn before it was sent
)

// CallStates lists every state, in the order they are shown.
var CallStates = []CallState{CallPendingApproval, CallPendingDevice, CallPending, CallSent, CallSucceeded,
	CallToolError, CallTimedOut, CallUnknown, CallRefused, CallInvalid, CallOffline, CallCanceled}

// Final reports whether the state is an outcome.
func (s CallState) Final() bool {
	return s != CallPendingApproval && s != CallPendingDevice && s != CallPending && s != CallSent
}

// Failed reports whether the state is an outcome other than success.
func (s CallState) Failed() bool { return s.Final() && s != CallSucceeded }

// A Call is one tools/call to one device, with its outcome: the principal, the arguments, the
// times and the result.
type Call struct {
	ID     uuid.UUID // version 7: ordered by creation, and carries CreatedAt to the millisecond
	Device DeviceID
	Tool   string
	// Arguments are the arguments as sent, with the link of a url argument shortened (see [Links]), and
	// with values under redaction rules replaced by their digests.
	Arguments json.RawMessage
	Digests   []string // of a new call: those in Arguments
	Sealed    []byte   // the true arguments, encrypted; nil without digests, and once the call has ended
	Actor     Principal
	FanOut    uuid.UUID // zero if the call belongs to no fan-out
	Approval  uuid.UUID // approval that the call or its fan-out needs or needed; zero if none
	State     CallState
	Result    json.RawMessage // MCP CallToolResult, normalised; nil if there is no answer or it is too large
	Error     *CallError
	Evidence  []Evidence // of calls whose outcome comes from evidence, oldest first
	Late      *LateAnswer
	Origin    origin.Origin // of the request; zero if no request asked for it
	RPCID     int32         // JSON-RPC id on the wire; 0 if never sent
	Timeout   time.Duration
	// WaitUntil is the time until which the call may wait for its device to reconnect; nil if
	// the call may not wait. It is on record if the call had to wait or needed approval.
	WaitUntil *time.Time
	// Waits is the reason, a code of [call.WaitReasons], why a pending call waits for
	// something other than its turn; zero if it does not. It is not on record.
	Waits Reason

	CreatedAt  time.Time
	SentAt     *time.Time
	FinishedAt *time.Time
}

// Duration is the time from sending to the outcome, 0 before that.
func (c Call) Duration() time.Duration {
	if c.SentAt == nil || c.FinishedAt == nil {
		return 0
	}
	return c.FinishedAt.Sub(*c.SentAt)
}

// A RunningCall is a call that was sent to a device, which has not answered yet.
type RunningCall struct {
	ID        uuid.UUID
	Tool      string
	Actor     Principal
	Arguments json.RawMessage // as sent
}

// Asks reports whether a question that the device passes on may belong to this call. It does
// not if the call has another question.
func (c RunningCall) Asks(question string) bool {
	var args struct{ Question *string }
	return json.Unmarshal(c.Arguments, &args) != nil || args.Question == nil || *args.Question == question
}

// A CallError is the reason why a call failed or, if the call succeeded, why its answer is
// not on record. Messages of fleetd are a code with parameters, as in [Error]; the message
// catalogue makes their text.
type CallError struct {
	Code string `json:"code"` // stable, snake_case
	// Message is foreign text: the device's message, with the code "tool_error". In records
	// of older versions it is also fleetd's English text.
	Message string `json:"message"`
	Params  Params `json:"params,omitempty"` // parameters of the code; nil for most codes
}

// Reason returns the error as a parameter of another code.
func (e *CallError) Reason() Reason { return Reason{Code: e.Code, Params: e.Params} }

// String returns the code and its parameters, for logs and evidence.
func (e *CallError) String() string {
	if e.Message == "" {
		return e.Reason().String()
	}
	return e.Code + ": " + e.Message
}

// NewCallError returns the error with a code and parameters, which it reads like [Because].
func NewCallError(code string, params ...any) *CallError {
	r := Because(code, params...)
	return &CallError{Code: r.Code, Params: r.Params}
}

// DeviceError returns an error with the text that the device sent.
func DeviceError(message string) *CallError { return &CallError{Code: CodeToolError, Message: message} }

// Codes of [CallError]. The codes of refused and invalid calls name the rule.
const (
	CodeToolError      = "tool_error"       // the device answered with an error; Message is the device's text
	CodeNoAnswer       = "no_answer"        // timed_out
	CodeStayed         = "stayed_connected" // timed_out: the device did not leave the network; timeout_ms
	CodeLost           = "connection_lost"  // unknown: the connection ended after sending
	CodeEdgeLost       = "edge_lost"        // unknown: the edge of a cluster that held the connection failed after sending
	CodeCoreLost       = "core_lost"        // unknown: the core that made the call failed before the outcome
	CodeOffline        = "device_offline"
	CodeTalking        = "in_conversation"       // not sent, without a record: see [call.ErrTalking]
	CodeBusy           = "device_busy"           // refused: the device's queue is full
	CodeTooManyWaiting = "too_many_calls_wait"   // refused: limit calls already wait for devices to reconnect
	CodeQueueTimeout   = "queue_timeout"         // canceled: the device's turn did not come in time
	CodeStopped        = "fleetd_stopped"        // canceled or unknown: fleetd ended before the outcome
	CodeRecordLate     = "record_late"           // canceled: storing the record, which precedes sending, took too long
	CodeTooLarge       = "result_too_large"      // the device ran the call; its answer had bytes, over limit
	CodeTooDeep        = "result_too_deep"       // the same, nested deeper than limit levels
	CodeTooManyItems   = "result_too_many_items" // the same, with more than limit content items
	CodeWithdrawn      = "withdrawn"             // canceled: an operator or its maker withdrew it before it was sent; unknown: its caller cancelled it later (case sent)
	CodeWaitExpired    = "wait_expired"          // canceled: it could not be sent before until_at
	CodeNotRecorded    = "not_recorded"          // canceled: the database did not confirm the record
)

// A LateAnswer is an answer that arrived after fleetd had given up the call.
type LateAnswer struct {
	At     time.Time       `json:"at"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *CallError      `json:"error,omitempty"`
}
