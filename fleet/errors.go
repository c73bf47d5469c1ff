package fleet

import (
	"errors"
	"fmt"
	"syscall"
)

// Kinds of failure that callers branch on. Adapters map them to a status (web) or an exit
// code (cmd/fleetd). errors.Is finds them through [Error].
var (
	ErrNotFound    = errors.New("not found")
	ErrInvalid     = errors.New("invalid")
	ErrForbidden   = errors.New("forbidden")
	ErrConflict    = errors.New("conflict")
	ErrTooMany     = errors.New("too many attempts") // wait before the next one
	ErrUnavailable = errors.New("unavailable")       // try again later: overload, database down, shutting down

	// ErrNotStored means that a write certainly changed nothing. Without it, a failed write
	// may have happened or may still happen: a hanging database may complete it later.
	ErrNotStored = errors.New("not stored")

	// ErrOffline means that the device has no connection. Nothing was sent.
	ErrOffline = errors.New("device offline")
	// ErrEdgeSilent is ErrOffline for the reason that the edge which may hold the connection is silent.
	ErrEdgeSilent = fmt.Errorf("%w: the edge is silent", ErrOffline)
	// ErrBusy means that the device's queue of waiting calls is full. Nothing was sent.
	ErrBusy = errors.New("device busy")
	// ErrLost means that the connection ended after the call was written: the
	// device may or may not have run it.
	ErrLost = errors.New("connection lost after sending")
	// ErrEdgeLost is ErrLost for the reason that the edge failed which held the connection.
	ErrEdgeLost = fmt.Errorf("%w: the edge failed", ErrLost)
	// ErrNoAnswer means that the deadline passed after the call was written.
	ErrNoAnswer = errors.New("no answer in time")
)

// An Error is a failure with a stable code for programs. It contains no text: the message
// catalogue makes the text from the code and its parameters. If a code has several texts, the
// parameter "case" selects one.
type Error struct {
	Kind   error  // one of the Err values above
	Code   string // stable, snake_case: "unknown_tool", "device_held", ...
	Field  string // the invalid argument or form field; "" if none
	Params Params // parameters of the code; nil for most codes
}

// Refuse returns an [Error]. code is a code of the catalogue, followed by a dot and the case
// if it has several texts: "invalid_tag.form". params alternates names and values, as in
// [Because].
func Refuse(kind error, code string, params ...any) *Error {
	r := Because(code, params...)
	return &Error{Kind: kind, Code: r.Code, Params: r.Params}
}

// At sets the invalid argument or form field and returns the error.
func (e *Error) At(field string) *Error {
	e.Field = field
	return e
}

// Reason returns the error as a parameter of another code.
func (e *Error) Reason() Reason { return Reason{Code: e.Code, Params: e.Params} }

// Error returns the code and its parameters, for logs.
func (e *Error) Error() string {
	if e.Field == "" {
		return e.Reason().String()
	}
	return e.Reason().String() + " in " + e.Field
}

func (e *Error) Unwrap() error { return e.Kind }

// SystemCause returns the operating system's message without the server's paths, which belong
// only in the log; "" if there is no message.
func SystemCause(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	return ""
}

// CauseOf returns an error as a parameter of a refusal.
func CauseOf(err error) Reason {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason()
	}
	return Because("detail", "detail", err.Error())
}
