package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// A Transport carries messages to one device.
type Transport interface {
	// Send transmits msg, one bare JSON-RPC message, and adds scope in the form that the
	// link needs. The transport may retain msg. It should give up when ctx ends. If the
	// error wraps [ErrNotSent], the device cannot have received any of msg. A nil error
	// does not prove that the device received it: only its answer does.
	Send(ctx context.Context, msg []byte, scope Scope) error
}

// SessionOptions configures a [Session]. The zero value is ready to use.
type SessionOptions struct {
	// IDs issues request ids; share it between all sessions of a device.
	// Default: a new counter.
	IDs *IDs

	// CallTimeout bounds one tool call, sending included, if its context has no deadline
	// and CallToolParams.Timeout is not set. Default: 10s. Tools that use the camera or
	// the network need 45s to 75s.
	CallTimeout time.Duration

	// ListTimeout bounds initialize, ping and each page of tools/list.
	// Default: 10s.
	ListTimeout time.Duration

	MaxMessage   int // longest answer that is read. Default: 256 KiB
	MaxRequest   int // longest tools/call that is sent, without envelope. Default: 4000
	MaxPages     int // pages of one tools/list. Default: 64
	MaxTools     int // tools of one tools/list. Default: 512
	MaxListBytes int // all pages of one tools/list. Default: 512 KiB

	// OnNotification is called with each notification from the device. params is cleaned
	// JSON, nil if the notification had none; the callee may retain it. It runs within
	// Receive: it must not block.
	OnNotification func(method string, params json.RawMessage)

	// OnUnmatched is called with each answer that no call waits for. It runs within
	// Receive or ReceiveBroken: it must not block.
	OnUnmatched func(Answer)

	// Logger logs dropped messages. Default: none.
	Logger *slog.Logger
}

const defaultMaxRequest = 4000 // bytes

func (o *SessionOptions) setDefaults() {
	if o.IDs == nil {
		o.IDs = new(IDs)
	}
	if o.Logger == nil {
		o.Logger = discard
	}
	positive(&o.CallTimeout, 10*time.Second)
	positive(&o.ListTimeout, 10*time.Second)
	positive(&o.MaxMessage, 256<<10)
	positive(&o.MaxRequest, defaultMaxRequest)
	positive(&o.MaxPages, 64)
	positive(&o.MaxTools, 512)
	positive(&o.MaxListBytes, 512<<10)
}

var discard = slog.New(slog.DiscardHandler)

func positive[T int | time.Duration](v *T, otherwise T) {
	if *v <= 0 {
		*v = otherwise
	}
}

// An Answer is an answer that no call waits for. Either it is late, because its caller
// gave up or its session ended, or no request had its id. The session does not store past
// ids: only the store of the calls can distinguish the two.
type Answer struct {
	ID     int64           // as the device sent it; 0 if that was not a number
	Result *CallToolResult // nil if Err is set; empty when it answers no tools/call
	Err    error           // an *Error, or wraps ErrMalformed or ErrTooLarge

	raw json.RawMessage // the result, if the waiter has raw set
}

// A Session is one MCP conversation with a device. It starts no goroutine and needs some
// 200 bytes while idle. It is safe for concurrent use, though a device works on one call
// at a time.
type Session struct {
	transport Transport
	o         SessionOptions

	mu      sync.Mutex
	waiting *waiter // a linked list: it rarely has two entries
	closed  error   // wraps ErrClosed
}

// A waiter is a request in flight. The goroutine that removes it from the list must send
// it exactly one answer.
type waiter struct {
	id   int32
	raw  bool        // receives the bytes of the result, not a CallToolResult
	done chan Answer // buffers one answer, so Receive never blocks
	next *waiter
}

// NewSession returns a session that sends through t.
func NewSession(t Transport, o SessionOptions) *Session {
	o.setDefaults()
	return &Session{transport: t, o: o}
}

// NextID issues an id for [CallToolParams.ID].
func (s *Session) NextID() int32 { return s.o.IDs.Next() }

// Close ends the session: requests in flight and all later ones fail with an error that
// wraps [ErrClosed] and err, which may be nil. Only the first Close has an effect. Later
// answers go to OnUnmatched.
func (s *Session) Close(err error) {
	closed := ErrClosed
	if err != nil {
		closed = fmt.Errorf("%w: %w", ErrClosed, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed != nil {
		return
	}
	s.closed = closed
	for w := s.waiting; w != nil; w = w.next {
		w.done <- Answer{ID: int64(w.id), Err: closed}
	}
	s.waiting = nil
}

func (s *Session) add(w *waiter) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed != nil {
		return fmt.Errorf("%w: %w", ErrNotSent, s.closed)
	}
	for other := s.waiting; other != nil; other = other.next {
		if other.id == w.id {
			return fmt.Errorf("%w: id %d is in flight already", ErrInvalid, w.id)
		}
	}
	w.next, s.waiting = s.waiting, w
	return nil
}

// take removes and returns the waiter for id, or nil if no call waits for it.
func (s *Session) take(id int64) *waiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at := &s.waiting; *at != nil; at = &(*at).next {
		if w := *at; int64(w.id) == id {
			*at = w.next
			return w
		}
	}
	return nil
}

// A request is a message to send and what to do with its answer.
type request struct {
	id      int32
	method  string
	msg     []byte
	scope   Scope
	timeout time.Duration // 0: until the context's deadline
	raw     bool
	onSent  func() // may be nil
}

// exchange sends r and waits for its answer. Every error except the device's own names
// the method.
func (s *Session) exchange(ctx context.Context, r request) (Answer, error) {
	if ctx.Err() != nil {
		return Answer{}, fmt.Errorf("%s: %w: %w", r.method, ErrNotSent, ended(ctx))
	}
	if r.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.timeout)
		defer cancel()
	}
	w := &waiter{id: r.id, raw: r.raw, done: make(chan Answer, 1)}
	if err := s.add(w); err != nil {
		return Answer{}, fmt.Errorf("%s: %w", r.method, err)
	}
	if err := s.transport.Send(ctx, r.msg, r.scope); err != nil {
		return s.giveUp(w, r.method, fmt.Errorf("sending: %w", sendError(ctx, err)))
	}
	if r.onSent != nil {
		r.onSent()
	}
	select {
	case a := <-w.done:
		return a, named(r.method, a.Err)
	case <-ctx.Done():
		return s.giveUp(w, r.method, ended(ctx))
	}
}

// giveUp stops waiting, unless the answer arrived at the same moment. If the session
// closed at that moment, err still reports whether anything was sent.
func (s *Session) giveUp(w *waiter, method string, err error) (Answer, error) {
	if s.take(int64(w.id)) != nil {
		return Answer{}, named(method, err)
	}
	a := <-w.done
	if errors.Is(a.Err, ErrClosed) {
		return Answer{}, named(method, fmt.Errorf("%w: %w", a.Err, err))
	}
	return a, named(method, a.Err)
}

// named prefixes an error with the method, but leaves the device's own error
// message unchanged.
func named(method string, err error) error {
	if _, ok := err.(*Error); ok || err == nil {
		return err
	}
	return fmt.Errorf("%s: %w", method, err)
}

// ended returns the reason for which ctx ended. A deadline, of the caller or of the
// session, is ErrTimeout; a cancellation wraps context.Canceled and its cause.
func ended(ctx context.Context) error {
	if ctx.Err() == context.DeadlineExceeded {
		return fmt.Errorf("%w: %w", ErrTimeout, ctx.Err())
	}
	if cause := context.Cause(ctx); cause != ctx.Err() {
		return fmt.Errorf("%w: %w", ctx.Err(), cause)
	}
	return ctx.Err()
}

func sendError(ctx context.Context, err error) error {
	if ctx.Err() == context.DeadlineExceeded {
		return fmt.Errorf("%w: %w", ErrTimeout, err)
	}
	return err
}
