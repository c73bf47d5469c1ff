package fleet

import (
	"errors"
	"fmt"
)

// The kinds of failure that callers branch on. Adapters map them to a status
// (web) or an exit code (cmd/fleetd); errors.Is finds them through [Error].
var (
	ErrNotFound    = errors.New("not found")
	ErrInvalid     = errors.New("invalid")
	ErrForbidden   = errors.New("forbidden")
	ErrConflict    = errors.New("conflict")
	ErrTooMany     = errors.New("too many attempts") // wait before the next one
	ErrUnavailable = errors.New("unavailable")       // try again later: overload, database down, shutting down

	// ErrNotStored means that a write certainly left no trace. A failure without
	// it leaves open whether the write happened, or will yet: a database that
	// hangs may carry it out when it goes on.
	ErrNotStored = errors.New("not stored")

	// ErrOffline means that the device has no connection. Nothing was sent.
	ErrOffline = errors.New("device offline")
	// ErrBusy means that the device's queue of waiting calls is full. Nothing was sent.
	ErrBusy = errors.New("device busy")
	// ErrLost means that the connection ended after the call was written: the
	// device may or may not have run it.
	ErrLost = errors.New("connection lost after sending")
	// ErrNoAnswer means that the deadline passed after the call was written.
	ErrNoAnswer = errors.New("no answer in time")
)

// An Error is a failure with a stable code for programs and a sentence for
// people: what happened, to what, and what to do about it.
type Error struct {
	Kind    error  // one of the Err values above
	Code    string // stable, snake_case: "unknown_tool", "device_held", ...
	Message string
	Field   string // the argument or form field at fault; "" if none
	Params  Params // of the code: text and whole numbers; nil for most
}

// With adds a parameter of the code, and returns the error.
func (e *Error) With(name string, value any) *Error {
	if e.Params == nil {
		e.Params = make(Params)
	}
	e.Params[name] = value
	return e
}

func (e *Error) Error() string { return e.Message }
func (e *Error) Unwrap() error { return e.Kind }

// Errorf makes an [Error] of the given kind and code.
func Errorf(kind error, code, format string, args ...any) *Error {
	return &Error{Kind: kind, Code: code, Message: fmt.Sprintf(format, args...)}
}
