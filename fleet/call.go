package fleet

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// CallState is where a tool call stands.
//
//	pending_approval -> pending | pending_device | refused  (a person decides)
//	pending_device -> sent | refused | canceled  (its device is back, or its time is over)
//	pending -> sent -> succeeded | tool_error | timed_out | unknown
//	pending -> canceled
//	refused | invalid | offline           (never sent)
type CallState string

const (
	// on record, waits for a person's decision (see [call.Approval]); certainly not sent
	CallPendingApproval CallState = "pending_approval"

	// on record, waits until its device is back (see [Call.WaitUntil]); certainly not sent
	CallPendingDevice CallState = "pending_device"

	CallPending   CallState = "pending"    // on record, waits for the device's turn; certainly not sent
	CallSent      CallState = "sent"       // may have been written to the device
	CallSucceeded CallState = "succeeded"  // the device answered, or evidence proves it
	CallToolError CallState = "tool_error" // the device answered with an error
	CallTimedOut  CallState = "timed_out"  // no answer before the deadline; it may have run
	CallUnknown   CallState = "unknown"    // the connection, or fleetd, died after sending; it may have run
	CallRefused   CallState = "refused"    // the gate said no
	CallInvalid   CallState = "invalid"    // no such tool, or arguments against its schema
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

// A Call is one tools/call to one device, with its outcome: who asked for what,
// with which arguments, when, and what came of it.
type Call struct {
	ID        uuid.UUID // version 7: ordered by creation, and carries CreatedAt to the millisecond
	Device    DeviceID
	Tool      string
	Arguments json.RawMessage // as sent, with the link of a url argument shortened (see [Links])
	Actor     Principal
	FanOut    uuid.UUID // zero if the call stands alone
	Approval  uuid.UUID // that the call, or its fan-out, needs or needed; zero if none
	State     CallState
	Result    json.RawMessage // MCP CallToolResult, normalised; nil without an answer, or with one that is too large
	Error     *CallError
	Evidence  []Evidence // for calls judged by evidence, oldest first
	Late      *LateAnswer
	RPCID     int32 // JSON-RPC id on the wire; 0 if never sent
	Timeout   time.Duration
	// WaitUntil is when a call that may wait until its device is back has had its time;
	// nil for others. It is on record if the call had to wait, or to be approved.
	WaitUntil *time.Time
	// Waits says what a pending call waits for other than its turn, a code of
	// [call.WaitReasons]; zero for nothing. It is not on record.
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

// Asks reports whether a question that the device passes on can be this call's:
// a call with another one is not where it came from.
func (c RunningCall) Asks(question string) bool {
	var args struct{ Question *string }
	return json.Unmarshal(c.Arguments, &args) != nil || args.Question == nil || *args.Question == question
}

// A CallError says why a call did not succeed or, of a call that did, why its
// answer is not on record. What fleetd says is a code with parameters, as in
// [Error]; its text comes from the message catalogue.
type CallError struct {
	Code string `json:"code"` // stable, snake_case
	// Message is foreign text: what the device wrote, with the code "tool_error".
	// Records of older versions have their English text here too.
	Message string `json:"message"`
	Params  Params `json:"params,omitempty"` // of the code; nil for most
}

// Reason is the error as a parameter of a code.
func (e *CallError) Reason() Reason { return Reason{Code: e.Code, Params: e.Params} }

// String is for logs and evidence: the code, and what belongs to it.
func (e *CallError) String() string {
	if e.Message == "" {
		return e.Reason().String()
	}
	return e.Code + ": " + e.Message
}

// NewCallError makes the error of a code as [Because] does.
func NewCallError(code string, params ...any) *CallError {
	r := Because(code, params...)
	return &CallError{Code: r.Code, Params: r.Params}
}

// DeviceError is an error with the text that the device sent.
func DeviceError(message string) *CallError { return &CallError{Code: CodeToolError, Message: message} }

// Codes of [CallError]. Those of refusals and invalid calls name the rule.
const (
	CodeToolError      = "tool_error"       // the device answered with an error; the message is its own
	CodeNoAnswer       = "no_answer"        // timed_out
	CodeStayed         = "stayed_connected" // timed_out: the device did not leave the network; timeout_ms
	CodeLost           = "connection_lost"  // unknown: the connection ended after sending
	CodeOffline        = "device_offline"
	CodeTalking        = "in_conversation"       // not sent, without a record: see [call.ErrTalking]
	CodeBusy           = "device_busy"           // refused: the device's line is full
	CodeTooManyWaiting = "too_many_calls_wait"   // refused: as many as may wait until devices are back do; limit
	CodeQueueTimeout   = "queue_timeout"         // canceled: the device's turn did not come in time
	CodeStopped        = "fleetd_stopped"        // canceled or unknown: fleetd ended before the outcome
	CodeRecordLate     = "record_late"           // canceled: the record that must precede the sending took too long
	CodeTooLarge       = "result_too_large"      // the device ran the call; of its answer were bytes, fleetd keeps limit
	CodeTooDeep        = "result_too_deep"       // the same, nested deeper than limit levels
	CodeTooManyItems   = "result_too_many_items" // the same, of more than limit items of content
	CodeWithdrawn      = "withdrawn"             // canceled: withdrawn before it was sent, by an operator or by who made it
	CodeWaitExpired    = "wait_expired"          // canceled: it was not sent until until_at
	CodeNotRecorded    = "not_recorded"          // canceled: the database did not confirm the record
)

// A LateAnswer came after the call had been given up.
type LateAnswer struct {
	At     time.Time       `json:"at"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *CallError      `json:"error,omitempty"`
}
