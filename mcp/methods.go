package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"fleetd/internal/jsonscan"
)

// maxServerText bounds the strings of an InitializeResult.
const maxServerText = 128

// InitializeParams identifies the client, and sets the address to which the
// device's camera uploads pictures. The device forgets that address when it
// restarts.
type InitializeParams struct {
	ClientName, ClientVersion string
	ProtocolVersion           string // to request; "" is that of stock firmware, 2024-11-05
	VisionURL, VisionToken    string // no vision if VisionURL is empty
}

// An InitializeResult identifies the device and its firmware.
type InitializeResult struct {
	ProtocolVersion string
	ServerName      string // stock: the board's name
	ServerVersion   string // stock: the firmware's version
}

// Initialize opens the conversation. Stock firmware does not require it, and
// allows it at any time and more than once. If only the closing notification
// cannot be sent, Initialize returns the result with the error; stock firmware
// ignores that notification.
func (s *Session) Initialize(ctx context.Context, p InitializeParams) (*InitializeResult, error) {
	if err := checkEchoed("the vision URL or token", p.VisionURL+p.VisionToken); err != nil {
		return nil, fmt.Errorf("initialize: %w", err)
	}
	id := s.NextID()
	a, err := s.exchange(ctx, request{
		id: id, method: methodInitialize, raw: true, timeout: s.o.ListTimeout,
		msg: appendInitialize(nil, id, p),
	})
	if err != nil {
		return nil, err
	}
	r, err := parseInitialize(a.raw)
	if err != nil {
		return nil, fmt.Errorf("initialize: %w: %w", ErrMalformed, err)
	}
	return r, s.sendInitialized(ctx)
}

func (s *Session) sendInitialized(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.o.ListTimeout)
	defer cancel()
	if err := s.transport.Send(ctx, []byte(initialized), ScopeNone); err != nil {
		return fmt.Errorf("notifications/initialized: sending: %w", sendError(ctx, err))
	}
	return nil
}

func parseInitialize(result []byte) (*InitializeResult, error) {
	r := new(InitializeResult)
	err := jsonscan.Members(result, func(key, value []byte) error {
		switch string(key) {
		case "protocolVersion":
			r.ProtocolVersion = serverText(value)
		case "serverInfo":
			return r.setServer(value)
		}
		return nil
	})
	return r, err
}

func (r *InitializeResult) setServer(value []byte) error {
	return jsonscan.Members(value, func(key, value []byte) error {
		switch string(key) {
		case "name":
			r.ServerName = serverText(value)
		case "version":
			r.ServerVersion = serverText(value)
		}
		return nil
	})
}

func serverText(value []byte) string {
	if !jsonscan.IsString(value) {
		return ""
	}
	return cleanLine(value, maxServerText)
}

// CallToolParams is one call of a tool.
type CallToolParams struct {
	// ID is the JSON-RPC id, from NextID or the device's IDs. The caller can
	// store it before the session sends anything, and so recognise a late
	// answer. 0: the session uses the next id.
	ID int32

	Name      string
	Arguments json.RawMessage // an object; nil and null are sent as {}
	Scope     Scope
	Timeout   time.Duration // 0: until the context's deadline, or else SessionOptions.CallTimeout

	// OnSent is called once the transport has accepted the request, on the
	// goroutine of Call: from then on the tool may run. The answer can arrive
	// before OnSent is called. May be nil.
	OnSent func()
}

// CallTool calls a tool and waits for its answer. See [Session.Call].
func (s *Session) CallTool(ctx context.Context, name string, arguments json.RawMessage) (*CallToolResult, error) {
	return s.Call(ctx, CallToolParams{Name: name, Arguments: arguments})
}

// Call calls a tool once and waits for its answer. By design some tools never
// answer (self.reboot, a successful self.upgrade_firmware).
//
// The error is an [*Error] if the device refused the call. Otherwise it wraps
// [ErrTimeout] (the timeout, or ctx's deadline), context.Canceled, [ErrClosed],
// [ErrTooLarge], [ErrMalformed], or the transport's error. The tool may have
// run unless the error is an *Error or also wraps [ErrNotSent], as [ErrInvalid]
// always does.
func (s *Session) Call(ctx context.Context, p CallToolParams) (*CallToolResult, error) {
	r, err := s.callRequest(p)
	if err != nil {
		return nil, fmt.Errorf("tools/call: %w", err)
	}
	if _, hasDeadline := ctx.Deadline(); r.timeout <= 0 && !hasDeadline {
		r.timeout = s.o.CallTimeout
	}
	a, err := s.exchange(ctx, r)
	if err != nil {
		return nil, err
	}
	return a.Result, nil
}

func (s *Session) callRequest(p CallToolParams) (request, error) {
	if p.ID < 0 {
		return request{}, fmt.Errorf("%w: id %d is not positive", ErrInvalid, p.ID)
	}
	if err := checkName(p.Name); err != nil {
		return request{}, err
	}
	arguments, err := checkArguments(p.Arguments)
	if err != nil {
		return request{}, err
	}
	r := request{id: p.ID, method: methodToolsCall, scope: p.Scope, timeout: p.Timeout, onSent: p.OnSent}
	if r.id == 0 {
		r.id = s.NextID()
	}
	r.msg = appendCall(make([]byte, 0, len(p.Name)+len(arguments)+96), r.id, p.Name, arguments)
	if len(r.msg) > s.o.MaxRequest {
		return request{}, fmt.Errorf("%w: request of %d bytes, a device accepts %d: %w", ErrInvalid, len(r.msg), s.o.MaxRequest,
			ErrTooLarge)
	}
	return r, nil
}

// EncodeCall returns the request that [Session.Call] would send for p. p needs
// an ID. If Call would refuse p, the error wraps [ErrInvalid].
func EncodeCall(p CallToolParams) (request []byte, err error) {
	s := Session{o: SessionOptions{MaxRequest: defaultMaxRequest}}
	r, err := s.callRequest(p)
	if err != nil {
		return nil, err
	}
	return r.msg, nil
}

// Ping checks that the device's tasks for messages and calls are alive. A stock
// device answers that it does not know ping, which proves as much as a pong. A
// device that runs a slow tool answers late, so a timeout proves little then.
func (s *Session) Ping(ctx context.Context) error {
	id := s.NextID()
	_, err := s.exchange(ctx, request{
		id: id, method: methodPing, raw: true, timeout: s.o.ListTimeout,
		msg: appendPing(nil, id),
	})
	if _, refused := errors.AsType[*Error](err); refused || errors.Is(err, ErrMalformed) {
		return nil
	}
	return err
}
