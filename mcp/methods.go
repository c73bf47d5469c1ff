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

// InitializeParams says who calls. Vision is where the device's camera uploads
// to; the device forgets it at a reboot.
type InitializeParams struct {
	ClientName, ClientVersion string
	VisionURL, VisionToken    string // no vision if the URL is empty
}

// An InitializeResult identifies the device and its firmware.
type InitializeResult struct {
	ProtocolVersion string
	ServerName      string // stock: the board's name
	ServerVersion   string // stock: the firmware's version
}

// Initialize opens the conversation. Stock firmware does not require it and
// allows it at any time, also again. If only the closing notification, which
// stock firmware ignores, could not be sent, the result comes with the error.
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
	// ID is the JSON-RPC id, from NextID or the device's IDs. It lets the caller
	// store it before anything is sent, to recognise a late answer. 0: the
	// session takes the next.
	ID int32

	Name      string
	Arguments json.RawMessage // an object; none and null are sent as {}
	Scope     Scope
	Timeout   time.Duration // 0: until the context's deadline, or else SessionOptions.CallTimeout

	// OnSent is called once the transport has accepted the request, from the
	// goroutine of Call: from then on the tool may run. The answer can come
	// before. nil: no call.
	OnSent func()
}

// CallTool calls a tool and waits for its answer. See [Session.Call].
func (s *Session) CallTool(ctx context.Context, name string, arguments json.RawMessage) (*CallToolResult, error) {
	return s.Call(ctx, CallToolParams{Name: name, Arguments: arguments})
}

// Call calls a tool once and waits for its answer. Some tools never answer by
// design (self.reboot, a successful self.upgrade_firmware).
//
// The error is an [*Error] if the device refused; it wraps [ErrTimeout] (the
// timeout, or ctx's deadline), context.Canceled, [ErrClosed], [ErrTooLarge],
// [ErrMalformed], or the transport's error. Unless it also wraps [ErrNotSent],
// as [ErrInvalid] always does, or is an *Error, the tool may have run.
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
		return request{}, fmt.Errorf("%w: request of %d bytes, a device takes %d: %w", ErrInvalid, len(r.msg), s.o.MaxRequest,
			ErrTooLarge)
	}
	return r, nil
}

// EncodeCall returns the request that [Session.Call] writes for p, which needs
// an ID. The error wraps [ErrInvalid] where Call would refuse p.
func EncodeCall(p CallToolParams) (request []byte, err error) {
	s := Session{o: SessionOptions{MaxRequest: defaultMaxRequest}}
	r, err := s.callRequest(p)
	if err != nil {
		return nil, err
	}
	return r.msg, nil
}

// Ping asks for a sign of life of the tasks that handle messages and calls. A
// stock device answers that it does not know ping, which is as good as a pong.
// While it runs a slow tool it answers late, so a timeout proves little then.
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
