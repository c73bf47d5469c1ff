package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync"

	"github.com/gorilla/websocket"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/endpoint"
	"fleetd/fleet/shown"
)

const (
	maxAsking        = 8 // requests of one consumer at a time
	maxConsumerBytes = call.MaxProgramArgumentBytes + 64<<10
	maxPageBytes     = 64 << 10 // of a page of tools: some WebSocket libraries read frames of 1 MiB at most
)

// codeNotDone is the JSON-RPC error of a call without a result. Its message is a text for the
// model.
const codeNotDone = -32000

// A consumer is an MCP client of one endpoint. fleetd answers in the endpoint's place, from its
// records, and makes the calls.
type consumer struct {
	all    *Endpoints
	device fleet.DeviceID
	by     fleet.Principal
	token  endpoint.Hash
	socket *socket
	asking chan struct{}

	mu     sync.Mutex
	cancel map[jsonrpc.ID]context.CancelFunc
	notify bool // it has sent initialize
}

// ServeConsumer accepts the WebSocket of an MCP client that lists and calls the tools of an
// endpoint.
func (e *Endpoints) ServeConsumer(w http.ResponseWriter, r *http.Request) {
	found, _, ok := e.authenticate(w, r, endpoint.Consumer)
	if !ok {
		return
	}
	by, err := found.Principal()
	if err != nil {
		e.refuse(w, r, found.Name, http.StatusInternalServerError, err.Error())
		return
	}
	c := &consumer{all: e, device: found.Device(), by: by, token: found.Consumer.Hash,
		asking: make(chan struct{}, maxAsking), cancel: map[jsonrpc.ID]context.CancelFunc{}}
	e.mu.Lock()
	d := e.of(found.Name)
	status, text := 0, ""
	switch {
	case e.stopped:
		status, text = http.StatusServiceUnavailable, "fleetd stops"
	case len(d.consumers) >= maxConsumers:
		status, text = http.StatusTooManyRequests, "too many programs are connected with this token"
	case !d.pace.Allow():
		status, text = http.StatusTooManyRequests, "too many attempts with this token; wait a second before each attempt"
	}
	e.mu.Unlock()
	if status != 0 {
		e.refuse(w, r, found.Name, status, text)
		return
	}
	ws, err := e.upgrader.Upgrade(w, r, nil)
	if err != nil { // Upgrade has replied
		return
	}
	c.socket = newSocket(ws, maxConsumerBytes, e.o.PingEvery, func(string) {})
	e.mu.Lock()
	admitted := !e.stopped && len(d.consumers) < maxConsumers && d.wanted != nil && !d.wanted.Disabled &&
		d.wanted.Consumer.Hash == c.token
	if admitted {
		d.consumers[c] = struct{}{}
		e.serving.Add(1)
	}
	e.mu.Unlock()
	if !admitted {
		c.socket.close(websocket.ClosePolicyViolation, closeTexts["endpoint_revoked"])
		return
	}
	go func() {
		defer e.serving.Done()
		c.serve()
		e.mu.Lock()
		delete(d.consumers, c)
		e.mu.Unlock()
	}()
}

// end ends the connection at once.
func (c *consumer) end() {
	c.socket.end() // no request begins any more
	go c.socket.close(websocket.ClosePolicyViolation, "the token or the endpoint is no longer valid")
}

// serve answers requests until the connection ends, and withdraws the calls that are left.
func (c *consumer) serve() {
	var requests sync.WaitGroup
	defer requests.Wait()
	for {
		m, err := c.socket.Read(c.socket.life)
		if err != nil || c.socket.life.Err() != nil {
			return
		}
		r, ok := m.(*jsonrpc.Request)
		if !ok {
			continue
		}
		if !r.IsCall() {
			c.notified(r)
			continue
		}
		select {
		case c.asking <- struct{}{}:
		default:
			c.answer(r.ID, nil, &jsonrpc.Error{Code: codeNotDone, Message: c.all.o.Texts.Call(fleet.Call{
				State: fleet.CallRefused, Error: fleet.NewCallError(fleet.CodeBusy)})})
			continue
		}
		ctx, cancel := context.WithCancel(c.socket.life)
		c.mu.Lock()
		c.cancel[r.ID] = cancel
		c.mu.Unlock()
		requests.Go(func() {
			defer func() { <-c.asking }()
			result, failure := c.do(ctx, r)
			c.mu.Lock()
			delete(c.cancel, r.ID)
			c.mu.Unlock()
			cancel()
			c.answer(r.ID, result, failure)
		})
	}
}

func (c *consumer) notified(r *jsonrpc.Request) {
	if r.Method != "notifications/cancelled" {
		return
	}
	var p struct {
		RequestID any `json:"requestId"`
	}
	_ = json.Unmarshal(r.Params, &p)
	id, err := jsonrpc.MakeID(p.RequestID)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if cancel := c.cancel[id]; cancel != nil {
		cancel()
	}
}

func (c *consumer) answer(id jsonrpc.ID, result json.RawMessage, failure *jsonrpc.Error) {
	r := &jsonrpc.Response{ID: id, Result: result}
	if failure != nil {
		r.Result, r.Error = nil, failure
	}
	_ = c.socket.Write(context.Background(), r) // the connection ends if it fails
}

// listChanged notifies the client, without waiting for it.
func (c *consumer) listChanged() {
	c.mu.Lock()
	notify := c.notify
	c.mu.Unlock()
	if notify {
		go func() {
			_ = c.socket.Write(context.Background(), &jsonrpc.Request{Method: "notifications/tools/list_changed"})
		}()
	}
}

func (c *consumer) do(ctx context.Context, r *jsonrpc.Request) (json.RawMessage, *jsonrpc.Error) {
	switch r.Method {
	case "initialize":
		return c.initialize(ctx, r.Params)
	case "ping":
		return json.RawMessage(`{}`), nil
	case "tools/list":
		return c.listTools(ctx, r.Params)
	case "tools/call":
		return c.callTool(ctx, r.Params)
	}
	return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound,
		Message: "Method not found: " + fleet.CleanText(r.Method, 80)}
}

func (c *consumer) initialize(ctx context.Context, params json.RawMessage) (json.RawMessage, *jsonrpc.Error) {
	var p struct {
		ProtocolVersion string `json:"protocolVersion"`
	}
	_ = json.Unmarshal(params, &p)
	// The last version that begins with initialize is the default.
	if !slices.Contains(sdk.SupportedProtocolVersions(), p.ProtocolVersion) || p.ProtocolVersion > "2025-11-25" {
		p.ProtocolVersion = "2025-11-25"
	}
	d, _, err := c.all.o.Calls.Offered(ctx, c.by, c.device)
	if err != nil {
		d = fleet.Device{ID: c.device} // its provider has never connected
	}
	c.mu.Lock()
	c.notify = true
	c.mu.Unlock()
	result, _ := json.Marshal(map[string]any{
		"protocolVersion": p.ProtocolVersion,
		"capabilities":    map[string]any{"tools": map[string]any{"listChanged": true}},
		"serverInfo":      map[string]any{"name": string(c.device), "version": d.Version},
	})
	return result, nil
}

// listTools returns a page of the tools that the policy lets a model call. The cursor is the name
// of the first tool that was not sent yet.
func (c *consumer) listTools(ctx context.Context, params json.RawMessage) (json.RawMessage, *jsonrpc.Error) {
	var p struct {
		Cursor string `json:"cursor"`
	}
	_ = json.Unmarshal(params, &p) // without params the list starts at its beginning
	_, tools, err := c.all.o.Calls.Offered(ctx, c.by, c.device)
	if err != nil && !isMissing(err) {
		return nil, &jsonrpc.Error{Code: codeNotDone, Message: c.all.o.Texts.Error(err)}
	}
	if p.Cursor != "" {
		i := slices.IndexFunc(tools, func(t fleet.Tool) bool { return t.Name == p.Cursor })
		if i < 0 {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "unknown cursor"}
		}
		tools = tools[i:]
	}
	type listed struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		InputSchema json.RawMessage `json:"inputSchema"`
	}
	page := struct {
		Tools      []json.RawMessage `json:"tools"`
		NextCursor string            `json:"nextCursor,omitempty"`
	}{Tools: []json.RawMessage{}}
	size := 0
	for _, t := range tools {
		if !bytes.HasPrefix(bytes.TrimSpace(t.InputSchema), []byte("{")) {
			t.InputSchema = json.RawMessage(`{"type":"object","properties":{}}`)
		}
		text, err := json.Marshal(listed{t.Name, t.Description, shown.Schema(t.InputSchema)})
		if err != nil {
			continue // no tool has such a schema
		}
		if size += len(text); size > maxPageBytes && len(page.Tools) > 0 {
			page.NextCursor = t.Name
			break
		}
		page.Tools = append(page.Tools, text)
	}
	result, _ := json.Marshal(page)
	return result, nil
}

// callTool makes a call of the endpoint. If the client cancels it or disconnects, fleetd
// cancels it at the provider.
func (c *consumer) callTool(ctx context.Context, params json.RawMessage) (json.RawMessage, *jsonrpc.Error) {
	var p struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
		Meta      struct {
			ProgressToken any `json:"progressToken"`
		} `json:"_meta"`
	}
	if json.Unmarshal(params, &p) != nil || p.Name == "" {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "Missing name"}
	}
	if string(p.Arguments) == "null" {
		p.Arguments = nil
	}
	if len(p.Arguments) > 0 && !bytes.HasPrefix(bytes.TrimSpace(p.Arguments), []byte("{")) {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "Invalid arguments"}
	}
	r := call.Request{Actor: c.by, Device: c.device, Tool: p.Name, Arguments: p.Arguments, Withdraw: ctx.Done()}
	if p.Meta.ProgressToken != nil {
		r.OnProgress = func(progress fleet.Progress) { c.progressed(p.Meta.ProgressToken, progress) }
	}
	made, err := c.all.o.Calls.Make(context.WithoutCancel(ctx), r)
	switch {
	case err != nil:
		return nil, &jsonrpc.Error{Code: codeNotDone, Message: c.all.o.Texts.Error(err)}
	case len(made.Result) > 0 && (made.State == fleet.CallSucceeded || made.State == fleet.CallToolError):
		return made.Result, nil
	case made.State == fleet.CallSucceeded: // with an answer that is not stored
		return json.RawMessage(`{"content":[{"type":"text","text":"true"}],"isError":false}`), nil
	}
	return nil, &jsonrpc.Error{Code: codeNotDone, Message: c.all.o.Texts.Call(made)}
}

func (c *consumer) progressed(token any, p fleet.Progress) {
	params, err := json.Marshal(sdk.ProgressNotificationParams{ProgressToken: token, Progress: p.Done, Total: p.Total,
		Message: p.Message})
	if err == nil {
		_ = c.socket.Write(context.Background(), &jsonrpc.Request{Method: "notifications/progress", Params: params})
	}
}

// isMissing reports whether the device is not on record: its provider has never connected.
func isMissing(err error) bool { return errors.Is(err, fleet.ErrNotFound) }
