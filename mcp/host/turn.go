package host

//lint:file-ignore SA1019 log messages are deprecated since 2026-07-28, and what servers have

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/fleet"
	"fleetd/fleet/answer"
	"fleetd/mcp"
)

// Limits of the calls to one unit. Programs, unlike boards, work on several calls at a time.
const (
	maxInFlight = 32
	maxWaiting  = 64
)

// maxResult bounds the result of a call, as for boards.
const maxResult = 256 << 10

// A turn is the place of a call in the queue of a session.
type turn struct {
	s     *session
	id    int32
	ready chan struct{}
	state atomic.Int32 // turnWaiting, turnReady or turnDone
}

const (
	turnWaiting = iota
	turnReady
	turnDone
)

var _ fleet.Turn = (*turn)(nil)

// Queue joins the queue of a unit.
func (h *Host) Queue(id fleet.DeviceID, _ fleet.PrincipalKind) (fleet.Turn, error) {
	s := h.session(id)
	if s == nil {
		return nil, fleet.ErrOffline
	}
	return s.queue()
}

func (s *session) queue() (*turn, error) {
	t := &turn{s: s, id: s.unit.ids.Add(1), ready: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended:
		return nil, fleet.ErrOffline
	case s.inFlight < maxInFlight:
		s.admit(t)
	case len(s.waiting) >= maxWaiting:
		return nil, fleet.ErrBusy
	default:
		s.waiting = append(s.waiting, t)
	}
	return t, nil
}

// admit lets a turn send. The caller holds mu.
func (s *session) admit(t *turn) {
	s.inFlight++
	t.state.Store(turnReady)
	close(t.ready)
}

// stop accepts no more calls.
func (s *session) stop() { s.stopFor(fleet.Cause{}) }

// stopFor is stop with the cause for which the connection ends.
func (s *session) stopFor(cause fleet.Cause) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if !cause.Reason.Is("") {
		s.cause = cause
	}
}

// drained returns a channel that is closed once no call is in flight or waits. Call stop first.
func (s *session) drained() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.idle == nil {
		s.idle = make(chan struct{})
		if s.inFlight == 0 {
			close(s.idle)
		}
	}
	return s.idle
}

// Ready implements [fleet.Turn].
func (t *turn) Ready() <-chan struct{} { return t.ready }

// Lost implements [fleet.Turn].
func (t *turn) Lost() <-chan struct{} { return t.s.lost }

// RPCID implements [fleet.Turn]. The SDK numbers the requests on the wire itself.
func (t *turn) RPCID() int32 { return t.id }

// Done implements [fleet.Turn].
func (t *turn) Done() {
	s := t.s
	s.mu.Lock()
	defer s.mu.Unlock()
	switch t.state.Swap(turnDone) {
	case turnWaiting:
		s.waiting = slices.DeleteFunc(s.waiting, func(other *turn) bool { return other == t })
	case turnReady:
		s.inFlight--
		if len(s.waiting) > 0 {
			next := s.waiting[0]
			s.waiting = s.waiting[1:]
			s.admit(next)
		}
		if s.idle != nil && s.inFlight == 0 {
			close(s.idle)
		}
	}
}

// Send implements [fleet.Turn]. If ctx ends, the SDK notifies the server that the call is
// cancelled, and drops its answer: late is never called.
func (t *turn) Send(ctx context.Context, inv fleet.Invocation, _ func(fleet.Answer)) (fleet.Answer, error) {
	s := t.s
	sent := &sending{onWritten: inv.OnWritten}
	params := &sdk.CallToolParams{Name: inv.Tool, Arguments: arguments(inv.Arguments)}
	if inv.OnProgress != nil {
		token := "call-" + strconv.Itoa(int(t.id))
		params.SetProgressToken(token)
		s.mu.Lock()
		s.progress[token] = inv.OnProgress
		s.mu.Unlock()
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.progress, token)
		}()
	}
	if s.protocol() >= "2026-07-28" {
		if params.Meta == nil {
			params.Meta = sdk.Meta{}
		}
		params.Meta[sdk.MetaKeyLogLevel] = string(logLevel)
	}
	result, err := s.client.CallTool(context.WithValue(ctx, sendingKey{}, sent), params)
	if err == nil && result.NeedsInput() {
		err = &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest,
			Message: "the tool asks for input from a user or a model, which fleetd does not pass on"}
	}
	if rpc, refused := jsonrpcError(err); refused {
		s.answered()
		return fleet.Answer{}, &fleet.ToolError{Tool: inv.Tool, Code: int(rpc.Code),
			Message: fleet.CleanText(rpc.Message, 2048)}
	}
	switch {
	case err == nil:
		s.answered()
		return answerOf(inv.Tool, result)
	case !sent.written.Load():
		return fleet.Answer{}, fmt.Errorf("%w: %w", fleet.ErrOffline, err)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		s.unanswered(inv.Tool)
		return fleet.Answer{}, fmt.Errorf("%w: %w", fleet.ErrNoAnswer, err)
	case ctx.Err() != nil:
		return fleet.Answer{}, ctx.Err()
	}
	return fleet.Answer{}, fmt.Errorf("%w: %w", fleet.ErrLost, err)
}

// arguments returns the arguments to send: some servers do not accept that they are missing.
func arguments(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 || string(raw) == "null" {
		return json.RawMessage("{}")
	}
	return raw
}

func answerOf(tool string, result *sdk.CallToolResult) (fleet.Answer, error) {
	data, err := json.Marshal(result)
	if err != nil {
		return fleet.Answer{}, &fleet.ToolError{Tool: tool, Code: mcp.CodeUnspecified,
			Message: "the answer cannot be read: " + err.Error()}
	}
	parsed, err := mcp.ParseResult(data, maxResult)
	a := answer.Of(tool, parsed, err)
	if a.Err != nil {
		return fleet.Answer{}, a.Err
	}
	return a, nil
}

// jsonrpcError returns the error that the server sent.
func jsonrpcError(err error) (*jsonrpc.Error, bool) {
	e, ok := errors.AsType[*jsonrpc.Error](err)
	return e, ok
}

// A sending notes when the message of a call was written.
type sending struct {
	written   atomic.Bool
	onWritten func()
}

type sendingKey struct{}

func (s *sending) done() {
	if s.written.Swap(true) || s.onWritten == nil {
		return
	}
	s.onWritten()
}
