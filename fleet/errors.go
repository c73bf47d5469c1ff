package fleet

import (
	"errors"
	"syscall"
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

// An Error is a failure with a stable code for programs. It holds no text: the
// message catalogue makes that from the code and its parameters, where it is
// shown. One code can have several texts; then the parameter "case" says which.
type Error struct {
	Kind   error  // one of the Err values above
	Code   string // stable, snake_case: "unknown_tool", "device_held", ...
	Field  string // the argument or form field at fault; "" if none
	Params Params // of the code; nil for most
}

// Refuse makes an [Error]. The code is one of the catalogue, followed by a dot
// and the case if it has several texts: "invalid_tag.form". params alternates
// names and values, as in [Because].
func Refuse(kind error, code string, params ...any) *Error {
	r := Because(code, params...)
	return &Error{Kind: kind, Code: r.Code, Params: r.Params}
}

// At names the argument or form field at fault, and returns the error.
func (e *Error) At(field string) *Error {
	e.Field = field
	return e
}

// Reason is the error as a parameter of another code.
func (e *Error) Reason() Reason { return Reason{Code: e.Code, Params: e.Params} }

// Error is for logs: the code, and what belongs to it.
func (e *Error) Error() string {
	if e.Field == "" {
		return e.Reason().String()
	}
	return e.Reason().String() + " in " + e.Field
}

func (e *Error) Unwrap() error { return e.Kind }

// SystemCause is what the operating system said, without the server's paths, which
// are for its log alone; "" if it said nothing.
func SystemCause(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	return ""
}

// CauseOf is a refusal as a parameter of another one.
func CauseOf(err error) Reason {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason()
	}
	return Because("detail", "detail", err.Error())
}
