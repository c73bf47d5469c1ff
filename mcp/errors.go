package mcp

import (
	"errors"
	"fmt"
)

// Callers branch on these with [errors.Is]. An answer of the device itself is
// an [*Error] instead.
var (
	// ErrNotSent means that no byte of the request reached the transport, so
	// the device cannot have acted on it. A Transport wraps it to say the same.
	ErrNotSent = errors.New("not sent")

	// ErrInvalid means that the request was refused because a stock device would
	// drop it silently or answer it unreadably. It implies ErrNotSent.
	ErrInvalid = fmt.Errorf("invalid request, %w", ErrNotSent)

	// ErrTimeout means that no answer came in time. Unless the error also wraps
	// ErrNotSent, the device may have acted, or may still; a late answer goes to
	// [SessionOptions.OnUnmatched].
	ErrTimeout = errors.New("no answer in time")

	// ErrClosed means that the session ended before the answer came. Unless the
	// error also wraps ErrNotSent, the device may have acted.
	ErrClosed = errors.New("session closed")

	// ErrTooLarge means that a message, a list or a request passed its limit. Of
	// the answer to a call it is a [*LimitError].
	ErrTooLarge = errors.New("too large")

	// ErrMalformed means that the device answered with something that is not
	// MCP. The tool has most likely run.
	ErrMalformed = errors.New("malformed answer")
)

// A LimitError says that the device answered with a result that passes a limit
// of this package and is not read: the tool has run. It is an [ErrTooLarge].
type LimitError struct {
	Limit   Limit
	Max     int  // what is read
	Size    int  // of the answer; 0 if that was not counted
	IsError bool // the result says that the tool failed
}

// A Limit is what a [LimitError] is about.
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

// CodeUnspecified is the code of an [Error] whose device sent none, as stock
// firmware never does: the first of JSON-RPC's server-defined codes.
const CodeUnspecified = -32000

// maxErrorText bounds Error.Message; stock texts stay below 200 bytes plus a
// name or URL.
const maxErrorText = 2048

// An Error is an error that the device answered: the request arrived, and was
// refused or failed.
type Error struct {
	Code     int    // CodeUnspecified unless HasCode
	HasCode  bool   // the device sent a code, which stock firmware never does
	Message  string // written by the firmware
	Salvaged bool   // read out of an answer that was not valid JSON
}

func (e *Error) Error() string {
	if e.HasCode {
		return fmt.Sprintf("device error %d: %s", e.Code, e.Message)
	}
	return "device error: " + e.Message
}
