package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/fleet"
	"fleetd/fleet/origin"
	"fleetd/internal/jsonscan"
)

// A usualCall is a tools/call of call_device or read_device in the form in which clients
// send it: with or without a session, with or without a progress token, and without
// anything else that the SDK would have to handle. For a request without a session the
// SDK creates a session and several buffers of 64 KiB, which takes longer than the call;
// for a request with a session it passes the message from goroutine to goroutine. All
// other requests, and so all invalid ones, go to the SDK.
type usualCall struct {
	id, name  []byte // JSON; name without its quotes
	arguments []byte
	session   string              // its id; empty without one
	progress  bool                // the client accepts progress notifications, but boards send none
	stateless bool                // the protocol version has no sessions, and its results name the server
	client    *mcp.Implementation // from _meta
	trace     *origin.TraceID     // from _meta
}

// streams reports whether the SDK would answer with a stream of events.
func (u *usualCall) streams() bool { return u.session != "" || u.progress }

// serveUsual answers a usual call. It returns false if the request is not one.
func (g *Gateway) serveUsual(w http.ResponseWriter, r *http.Request, c *caller, body []byte) bool {
	var u usualCall
	if c.server != g.fleet || !u.read(r, body) {
		return false
	}
	do := g.usual[string(u.name)]
	if do == nil {
		return false
	}
	in, ok := readCallIn(u.arguments)
	if !ok || u.progress && programOf(in.Device) {
		return false
	}
	by, from := *c.by.Load(), *c.from.Load()
	from.Client = nameOfClient(from.Client, u.client)
	if u.trace != nil {
		from.Trace = *u.trace
	}
	ctx := fleet.WithScope(r.Context(), by)
	if !u.stateless {
		ctx = context.WithoutCancel(ctx) // a client can cancel only with a message, for which it needs a session
	}
	if u.session != "" {
		t := g.sessions.enter(u.session, r.URL.Path, c, true)
		if t == nil {
			return false
		}
		defer t.leave(true)
		if !t.initialized() {
			return false
		}
		from.Client = nameOfClient(from.Client, t.session.InitializeParams().ClientInfo)
		var state begun
		if ctx, state = t.begin(ctx, string(u.id)); state == elsewhere {
			return false
		} else if state == twice {
			u.refuseTwice(w)
			return true
		}
		defer t.done(string(u.id))
	}
	var result *mcp.CallToolResult
	var a answer
	err := g.models[string(u.name)].Admit(by, string(u.name))
	if err == nil {
		a, err = do(origin.With(ctx, from), by, nil, in)
	}
	if err == nil {
		result, err = a.result()
	}
	if err != nil {
		result = g.failed(string(u.name), err)
	}
	g.writeUsual(w, &u, result)
	return true
}

// programOf reports whether an id is that of a program, which may report progress.
func programOf(id string) bool {
	parsed, err := fleet.ParseDeviceID(id)
	return err == nil && parsed.IsProgram()
}

// is reports whether a header has exactly one value, and that value is value.
func is(header []string, value string) bool { return len(header) == 1 && header[0] == value }

func (u *usualCall) read(r *http.Request, body []byte) bool {
	h := r.Header
	if !is(h["Content-Type"], "application/json") || !is(h["Accept"], "application/json, text/event-stream") ||
		len(h["Last-Event-Id"]) > 0 {
		return false
	}
	switch version := h[versionHeader]; {
	case len(version) == 0 || is(version, "2025-03-26") || is(version, "2025-06-18") || is(version, "2025-11-25"):
	case is(version, firstStateless):
		u.stateless = true
	default:
		return false
	}
	if session := h[sessionHeader]; len(session) > 0 {
		if u.session = session[0]; u.session == "" || len(session) > 1 || u.stateless {
			return false
		}
	}
	return u.readMessage(body) && (!u.stateless ||
		is(h["Mcp-Method"], "tools/call") && is(h["Mcp-Name"], string(u.name)))
}

// readMessage reads the body. It must not accept anything that the SDK refuses or reads
// differently.
func (u *usualCall) readMessage(body []byte) bool {
	var version, method, params, meta []byte
	if !jsonscan.PlainMembers(body, func(key, value []byte) bool {
		switch string(key) {
		case "jsonrpc":
			version = value
		case "id":
			u.id = value
			_, plain := jsonscan.PlainString(value)
			return plain || value[0] >= '0' && value[0] <= '9' && len(value) <= 15 && !bytes.ContainsAny(value, ".eE")
		case "method":
			method = value
		case "params":
			params = value
		default:
			return false
		}
		return true
	}) || string(version) != `"2.0"` || u.id == nil || string(method) != `"tools/call"` {
		return false
	}
	if !jsonscan.PlainMembers(params, func(key, value []byte) (ok bool) {
		switch string(key) {
		case "name":
			u.name, ok = jsonscan.PlainString(value)
			return ok
		case "arguments":
			u.arguments = value
		case "_meta":
			meta = value
		default:
			return false
		}
		return true
	}) || len(u.name) == 0 {
		return false
	}
	return meta == nil && !u.stateless || u.readMeta(meta)
}

// ofProtocol is the prefix of the keys of _meta that the protocol defines, except
// progressToken.
const ofProtocol = "io.modelcontextprotocol/"

// readMeta reads _meta. Clients' own keys have no effect, except the trace. Of the protocol's keys it
// accepts only those that the version without sessions requires.
func (u *usualCall) readMeta(meta []byte) bool {
	version, capabilities := false, false
	return jsonscan.PlainMembers(meta, func(key, value []byte) bool {
		switch string(key) {
		case "progressToken":
			u.progress = value[0] == '"' || value[0] == '-' || value[0] >= '0' && value[0] <= '9'
			return u.progress
		case mcp.MetaKeyProtocolVersion:
			version = string(value) == `"`+firstStateless+`"`
			return version
		case mcp.MetaKeyClientCapabilities:
			capabilities = value[0] == '{'
			return capabilities && !bytes.Contains(value, []byte("elicitation")) // the user could get an elicitation
		case mcp.MetaKeyClientInfo:
			return u.stateless && json.Unmarshal(value, &u.client) == nil
		case traceParent:
			if parent, plain := jsonscan.PlainString(value); plain {
				u.trace = new(origin.ParseTraceParent(string(parent)))
			}
			return u.trace != nil
		}
		return !bytes.HasPrefix(key, []byte(ofProtocol))
	}) && version == u.stateless && capabilities == u.stateless
}

// readCallIn reads arguments without escapes or unknown members.
func readCallIn(arguments []byte) (in callIn, ok bool) {
	return in, jsonscan.PlainMembers(arguments, func(key, value []byte) bool {
		text, plain := jsonscan.PlainString(value)
		switch string(key) {
		case "device":
			in.Device = string(text)
		case "tool":
			in.Tool = string(text)
		case "purpose":
			in.Purpose = string(text)
		case "arguments":
			in.Arguments = value
			return true
		case "timeout_ms":
			n, err := strconv.ParseInt(string(value), 10, 64)
			in.TimeoutMs = n
			return err == nil
		default:
			return false
		}
		return plain
	}) && in.complete()
}

// refuseTwice answers as the SDK does if a call in progress has the same id.
func (u *usualCall) refuseTwice(w http.ResponseWriter) {
	var raw any
	_ = json.Unmarshal(u.id, &raw) // valid: it was checked
	id, _ := jsonrpc.MakeID(raw)
	data, err := jsonrpc.EncodeMessage(&jsonrpc.Response{ID: id, Error: &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest,
		Message: fmt.Sprintf("duplicate in-flight request ID %v", id.Raw())}})
	if err != nil {
		panic(err) // cannot fail: the id was parsed, and the text is constant
	}
	h := w.Header()
	h["Cache-Control"], h["Content-Type"], h["Connection"] = noTransform, jsonType, keepAlive
	w.WriteHeader(http.StatusBadRequest)
	_, _ = w.Write(data) // the client may be gone
}

// writeUsual writes a result as the SDK does.
func (g *Gateway) writeUsual(w http.ResponseWriter, u *usualCall, result *mcp.CallToolResult) {
	if u.stateless {
		if result.Meta == nil {
			result.Meta = mcp.Meta{}
		}
		result.Meta[mcp.MetaKeyServerInfo] = g.implementation()
	}
	data, err := json.Marshal(result)
	if err != nil {
		g.log.Error("result of an MCP tool not written", "err", err)
		g.refuse(w, http.StatusInternalServerError, fleet.Refuse(fleet.ErrUnavailable, "unavailable"))
		return
	}
	b := make([]byte, 0, len(data)+len(u.id)+120)
	if u.streams() {
		b = append(b, "event: message\ndata: "...)
	}
	b = append(append(append(b, `{"jsonrpc":"2.0","id":`...), u.id...), `,"result":`...)
	b = append(b, data...)
	if u.stateless {
		b = append(b[:len(b)-1], `,"resultType":"complete"}`...)
	}
	b = append(b, '}')
	h := w.Header()
	h["Cache-Control"], h["Content-Type"] = noTransform, jsonType
	if u.streams() {
		b = append(b, "\n\n"...)
		h["Content-Type"], h["Connection"] = eventStream, keepAlive
	}
	h["Content-Length"] = []string{strconv.Itoa(len(b))}
	_, _ = w.Write(b) // the client may be gone
}

var (
	noTransform, keepAlive = []string{"no-cache, no-transform"}, []string{"keep-alive"}
	jsonType, eventStream  = []string{"application/json"}, []string{"text/event-stream"}
)
