package voice

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/shown"
)

// The upstream believes that it talks MCP to the device. fleetd answers in the device's place,
// from its records, and makes the calls.

type rpcRequest struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Method  string          `json:"method"`
	Params  json.RawMessage `json:"params"`
}

type rpcError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// JSON-RPC error codes. A call without a result has codeNotDone and a text for the model to
// speak.
const (
	codeMethod  = -32601
	codeParams  = -32602
	codeNotDone = -32000
)

const maxRPCID = 64 // longest id, in bytes; ids are numbers

// ask answers an MCP request of the upstream, on another goroutine. It may
// be called before the upstream's hello.
func (c *conversation) ask(payload json.RawMessage) {
	var q rpcRequest
	if json.Unmarshal(payload, &q) != nil || q.JSONRPC != "2.0" || q.Method == "" || len(q.ID) == 0 ||
		len(q.ID) > maxRPCID || string(q.ID) == "null" || strings.HasPrefix(q.Method, "notifications") {
		return // a notification, an unexpected answer, or no JSON-RPC
	}
	select {
	case c.asking <- struct{}{}:
	default:
		c.answer(q.ID, nil, c.busy())
		return
	}
	go func() {
		defer func() { <-c.asking }()
		result, no := c.do(q)
		c.answer(q.ID, result, no)
	}()
}

func (c *conversation) busy() *rpcError {
	return &rpcError{codeNotDone, c.relay.o.Texts.Call(fleet.Call{State: fleet.CallRefused,
		Error: fleet.NewCallError(fleet.CodeBusy)})}
}

func (c *conversation) answer(id, result json.RawMessage, no *rpcError) {
	text, err := json.Marshal(struct {
		SessionID string `json:"session_id"`
		Type      string `json:"type"`
		Payload   any    `json:"payload"`
	}{c.session, "mcp", struct {
		JSONRPC string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Result  json.RawMessage `json:"result,omitempty"`
		Error   *rpcError       `json:"error,omitempty"`
	}{"2.0", id, result, no}})
	if err == nil {
		c.say(text)
	}
}

func (c *conversation) principal() fleet.Principal {
	return fleet.Principal{Kind: fleet.KindVoice, ID: c.id.String(), Name: c.server.Name,
		Role: fleet.RoleOperator}
}

func (c *conversation) do(q rpcRequest) (json.RawMessage, *rpcError) {
	switch q.Method {
	case "initialize":
		return c.initialize(q.Params)
	case "ping":
		return json.RawMessage(`{}`), nil
	case "tools/list":
		return c.listTools(q.Params)
	case "tools/call":
		return c.callTool(q.Params)
	}
	return nil, &rpcError{codeMethod, "Method not implemented: " + fleet.CleanText(q.Method, 80)}
}

// listingTime is how long to wait for the tool list of a device that has just connected: fleetd
// may still be listing its tools.
const listingTime = 5 * time.Second

// offered returns the device and the tools that the model may call.
func (c *conversation) offered() (d fleet.Device, tools []fleet.Tool, err error) {
	for end := time.Now().Add(listingTime); ; {
		ctx, cancel := context.WithTimeout(c.life, c.relay.o.OfferTimeout)
		d, tools, err = c.relay.o.Calls.Offered(ctx, c.principal(), c.device.ID)
		cancel()
		unlisted := err == nil && d.InventoryID == "" || errors.Is(err, fleet.ErrNotFound)
		if !unlisted || time.Now().After(end) {
			return d, tools, err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-c.life.Done():
			return d, nil, c.life.Err()
		}
	}
}

// xiaozhiClient is the name of xiaozhi-esp32-server's MCP client. From a result with isError that
// client reads a member "error", which MCP does not define, and not the content: its model would
// learn only that something failed. The message of a JSON-RPC error reaches the model.
// [send_mcp_initialize_message, call_mcp_tool and handle_mcp_message in
// core/providers/tools/device_mcp/mcp_handler.py, 7475ea2b]
const xiaozhiClient = "XiaozhiClient"

// initialize answers as the device would. The camera's address in the request is not passed on:
// the device has fleetd's address, and fleetd forwards pictures to the upstream's.
func (c *conversation) initialize(params json.RawMessage) (json.RawMessage, *rpcError) {
	var p struct {
		Capabilities struct {
			Vision Vision `json:"vision"`
		} `json:"capabilities"`
		ClientInfo struct {
			Name string `json:"name"`
		} `json:"clientInfo"`
	}
	if json.Unmarshal(params, &p) == nil {
		c.setVision(p.Capabilities.Vision)
		c.resultsWithoutErrors.Store(p.ClientInfo.Name == xiaozhiClient)
	}
	ctx, cancel := context.WithTimeout(c.life, c.relay.o.OfferTimeout)
	defer cancel()
	d, _, err := c.relay.o.Calls.Offered(ctx, c.principal(), c.device.ID)
	if err != nil {
		d = fleet.Device{ID: c.device.ID} // not on record yet: the tool list waits for it
	}
	type info struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	}
	result, _ := json.Marshal(map[string]any{
		"protocolVersion": "2024-11-05",
		"capabilities":    map[string]any{"tools": map[string]any{}},
		"serverInfo":      info{cmp.Or(d.Board, string(d.ID)), d.Version},
	})
	return result, nil
}

// maxPage is how many bytes of tools a page contains, as in a device's pages.
const maxPage = 8000

// A listedTool is a tool in a list.
type listedTool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"inputSchema"`
}

// A toolText is a tool with its text in a list.
type toolText struct {
	name string
	text []byte
}

// listTools returns a page of tools: those of the device and then those of programs. As with
// devices, the cursor is the name of the first tool that was not yet sent.
func (c *conversation) listTools(params json.RawMessage) (json.RawMessage, *rpcError) {
	var p struct {
		Cursor string `json:"cursor"`
	}
	_ = json.Unmarshal(params, &p) // without params the list starts at its beginning
	var tools []toolText
	if !c.server.NoTools {
		_, own, err := c.offered()
		if err != nil {
			return nil, &rpcError{codeNotDone, c.relay.o.Texts.Error(err)}
		}
		programs := c.listed()
		if p.Cursor == "" {
			programs = c.offerPrograms(own)
		}
		tools = append(textsOf(own), programs.texts()...)
	}
	if p.Cursor != "" {
		for len(tools) > 0 && tools[0].name != p.Cursor {
			tools = tools[1:]
		}
		if len(tools) == 0 {
			return nil, &rpcError{codeParams, "unknown cursor"}
		}
	}
	page := struct {
		Tools      []json.RawMessage `json:"tools"`
		NextCursor string            `json:"nextCursor,omitempty"`
	}{Tools: []json.RawMessage{}}
	size := 0
	for _, t := range tools {
		if size += len(t.text); size > maxPage && len(page.Tools) > 0 {
			page.NextCursor = t.name
			break
		}
		page.Tools = append(page.Tools, t.text)
	}
	result, _ := json.Marshal(page)
	return result, nil
}

// textsOf returns the device's tools as they are listed.
func textsOf(own []fleet.Tool) []toolText {
	tools := make([]toolText, 0, len(own))
	for _, t := range own {
		if !bytes.HasPrefix(bytes.TrimSpace(t.InputSchema), []byte("{")) {
			t.InputSchema = json.RawMessage(`{"type":"object","properties":{}}`) // for a tool without a schema
		}
		text, err := json.Marshal(listedTool{t.Name, t.Description, shown.Schema(t.InputSchema)})
		if err != nil {
			continue // no tool has such a schema
		}
		tools = append(tools, toolText{t.Name, text})
	}
	return tools
}

var errNoTools = fleet.Refuse(fleet.ErrForbidden, "voice_no_tools")

// callTool makes a call and returns its MCP result. A call without a result becomes an error
// whose text the model can speak. The call continues if the upstream's wait times out or the
// conversation ends.
func (c *conversation) callTool(params json.RawMessage) (json.RawMessage, *rpcError) {
	var p struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}
	if json.Unmarshal(params, &p) != nil || p.Name == "" {
		return nil, &rpcError{codeParams, "Missing name"}
	}
	if len(p.Arguments) > 0 && !bytes.HasPrefix(bytes.TrimSpace(p.Arguments), []byte("{")) {
		return nil, &rpcError{codeParams, "Invalid arguments"}
	}
	if c.server.NoTools {
		return nil, &rpcError{codeNotDone, c.relay.o.Texts.Error(errNoTools)}
	}
	r, done, no := c.request(p.Name, p.Arguments)
	if no != nil {
		return nil, no
	}
	c.calls.Add(1)
	c.relay.stats.calls.Add(1)
	type outcome struct {
		call fleet.Call
		err  error
	}
	made := make(chan outcome, 1)
	ctx := context.WithoutCancel(c.life)
	go func() {
		defer done()
		call, err := c.relay.o.Calls.Make(ctx, r)
		if r.Device.IsProgram() && len(call.Result) > 0 {
			call.Result = Spoken(call.Result)
		}
		made <- outcome{call, err}
	}()
	wait, cancel := context.WithTimeout(c.life, c.relay.o.CallTimeout)
	defer cancel()
	select {
	case o := <-made:
		return c.outcome(o.call, o.err)
	case <-wait.Done():
		return c.outcome(fleet.Call{State: fleet.CallTimedOut,
			Error: fleet.NewCallError(fleet.CodeNoAnswer+".answer", "timeout_ms", c.relay.o.CallTimeout)}, nil)
	}
}

func (c *conversation) outcome(call fleet.Call, err error) (json.RawMessage, *rpcError) {
	switch {
	case err != nil && !errors.Is(err, context.Canceled):
		return nil, &rpcError{codeNotDone, c.relay.o.Texts.Error(err)}
	case call.State == fleet.CallToolError && c.resultsWithoutErrors.Load() && isError(call.Result):
	case len(call.Result) > 0 && (call.State == fleet.CallSucceeded || call.State == fleet.CallToolError):
		return call.Result, nil
	case call.State == fleet.CallSucceeded: // confirmed by evidence, or with an answer that is not stored
		return json.RawMessage(`{"content":[{"type":"text","text":"true"}],"isError":false}`), nil
	}
	return nil, &rpcError{codeNotDone, c.relay.o.Texts.Call(call)}
}

func isError(result json.RawMessage) bool {
	var r struct {
		IsError bool `json:"isError"`
	}
	return json.Unmarshal(result, &r) == nil && r.IsError
}
