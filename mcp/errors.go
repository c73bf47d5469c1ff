package mcp

import (
	"errors"
	"fmt"
)

// Callers branch on these with [errors.Is]. An error that the device sends is an
// [*Error] instead.
var (
	// ErrNotSent means that no byte of the request reached the transport, so the
	// device cannot have acted on it. A Transport wraps it in that case.
	ErrNotSent = errors.New("not sent")

	// ErrInvalid means that the request was refused because a stock device would
	// drop it silently or answer it unreadably. It implies ErrNotSent.
	ErrInvalid = fmt.Errorf("invalid request, %w", ErrNotSent)

	// ErrTimeout means that no answer came in time. Unless the error also wraps
	// ErrNotSent, the device may have acted or may still act. A late answer goes
	// to [SessionOptions.OnUnmatched].
	ErrTimeout = errors.New("no answer in time")

	// ErrClosed means that the session ended before the answer came. Unless the
	// error also wraps ErrNotSent, the device may have acted.
	ErrClosed = errors.New("session closed")

	// ErrTooLarge means that a message, a list or a request exceeded its limit.
	// If the answer to a call is too large, the error is a [*LimitError].
	ErrTooLarge = errors.New("too large")

	// ErrMalformed means that the device's answer is not MCP. The tool has most
	// likely run.
	ErrMalformed = errors.New("malformed answer")
)

// A LimitError reports a result that exceeds a limit of this package and is not
// read: the tool has run. It is an [ErrTooLarge].
type LimitError struct {
	Limit   Limit
	Max     int  // the limit
	Size    int  // of the answer; 0 if it was not counted
	IsError bool // the result reports a failure of the tool
}

// A Limit names the limit that a result exceeded.
type Limit string

const (
	LimitBytes  Limit = "bytes"  // of the whole answer
	LimitLevels Limit = "levels" // of nested JSON
	LimitItems  Limit = "items"  // of content
)

func (e *LimitError) Error() string {
	if e.Size > 0 {
		return fmt.Sprintf("an answer of %d %s, at most %d are read", e.Size, e.Limit, e.Max)
	}
	return fmt.Sprintf("an answer of more than %d %s, which is not read", e.Max, e.Limit)
}

func (e *LimitError) Unwrap() error { return ErrTooLarge }

// CodeUnspecified is the code of an [Error] without a code of the device. Stock
// firmware never sends one. It is the first of JSON-RPC's server-defined codes.
const CodeUnspecified = -32000

// maxErrorText bounds Error.Message; stock texts stay below 200 bytes plus a
// name or URL.
const maxErrorText = 2048

// An Error is an error that the device sent: the request arrived, and was
// refused or failed.
type Error struct {
	Code     int    // CodeUnspecified unless HasCode
	HasCode  bool   // the device sent a code, which stock firmware never does
	Message  string // written by the firmware
	Salvaged bool   // recovered from an answer that was not valid JSON
	// Supported is the revision of MCP that the device offers in place of the requested one; ""
	// for other errors.
	Supported string
}

func (e *Error) Error() string {
	if e.HasCode {
		return fmt.Sprintf("device error %d: %s", e.Code, e.Message)
	}
	return "device error: " + e.Message
}
