package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/fleet"
)

// A usualCall is a tools/call of call_device or read_device in the form in which
// most come: without a session, and without anything that the SDK would have to
// look at. The SDK makes a session and several buffers of 64 KiB for each request,
// which takes longer than the call itself. All other requests, and so everything
// that is at fault, go to the SDK.
type usualCall struct {
	id, name  []byte // JSON; name without its quotes
	arguments []byte
	stateless bool // in a version without sessions, whose results say who made them
}

// serveUsual answers a usual call, and reports whether it was one.
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
	if !ok {
		return false
	}
	by := *c.by.Load()
	ctx := fleet.WithScope(r.Context(), by)
	if !u.stateless {
		ctx = context.WithoutCancel(ctx) // a client cancels with a message, for which it would need a session
	}
	var result *mcp.CallToolResult
	var a answer
	err := g.models[string(u.name)].Admit(by, string(u.name))
	if err == nil {
		a, err = do(ctx, by, nil, in)
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

// is reports whether a header has the value, in one line.
func is(header []string, value string) bool { return len(header) == 1 && header[0] == value }

func (u *usualCall) read(r *http.Request, body []byte) bool {
	h := r.Header
	if !is(h["Content-Type"], "application/json") || !is(h["Accept"], "application/json, text/event-stream") ||
		len(h["Last-Event-Id"]) > 0 || !json.Valid(body) {
		return false
	}
	switch version := h[versionHeader]; {
	case len(version) == 0 || is(version, "2025-03-26") || is(version, "2025-06-18") || is(version, "2025-11-25"):
	case is(version, firstStateless):
		u.stateless = true
	default:
		return false
	}
	var method, params []byte
	if !members(body, func(name string, value []byte) bool {
		switch name {
		case "jsonrpc":
			return string(value) == `"2.0"`
		case "id":
			u.id = value
			return value[0] == '"' || value[0] >= '0' && value[0] <= '9' && len(value) <= 15 && !bytes.ContainsAny(value, ".eE")
		case "method":
			method = value
			return true
		case "params":
			params = value
			return true
		}
		return false
	}) || u.id == nil || string(method) != `"tools/call"` {
		return false
	}
	var meta, name []byte
	if !members(params, func(key string, value []byte) bool {
		switch key {
		case "name":
			name = value
		case "arguments":
			u.arguments = value
		case "_meta":
			meta = value
		default:
			return false
		}
		return true
	}) || len(name) < 2 || name[0] != '"' {
		return false
	}
	u.name = name[1 : len(name)-1]
	if u.stateless {
		return is(h["Mcp-Method"], "tools/call") && is(h["Mcp-Name"], string(u.name)) && usualMeta(meta)
	}
	return meta == nil
}

// usualMeta reports whether _meta says what the version without sessions requires,
// and no more.
func usualMeta(meta []byte) bool {
	version, capabilities := false, false
	return members(meta, func(key string, value []byte) bool {
		switch key {
		case mcp.MetaKeyProtocolVersion:
			version = string(value) == `"`+firstStateless+`"`
			return version
		case mcp.MetaKeyClientCapabilities:
			capabilities = value[0] == '{'
			return capabilities && !bytes.Contains(value, []byte("elicitation")) // its user may be asked for an approval
		case mcp.MetaKeyClientInfo:
			var info mcp.Implementation
			return json.Unmarshal(value, &info) == nil
		}
		return false
	}) && version && capabilities
}

// members calls do with the members of an object, until it returns false. The text
// is valid JSON. It returns false also for what is no object, a name that comes
// twice, and one that has escapes.
func members(object []byte, do func(name string, value []byte) bool) bool {
	rest := bytes.TrimSpace(object)
	if len(rest) < 2 || rest[0] != '{' {
		return false
	}
	var seen [8]string
	n := 0
	for rest = space(rest[1:]); rest[0] != '}'; n++ {
		end := valueEnd(rest)
		name := string(rest[1 : end-1])
		if n == len(seen) || strings.ContainsRune(name, '\\') {
			return false
		}
		for _, s := range seen[:n] {
			if s == name {
				return false
			}
		}
		seen[n] = name
		rest = space(space(rest[end:])[1:]) // after the colon
		end = valueEnd(rest)
		if !do(name, rest[:end]) {
			return false
		}
		if rest = space(rest[end:]); rest[0] == ',' {
			rest = space(rest[1:])
		}
	}
	return true
}

func space(b []byte) []byte { return bytes.TrimLeft(b, " \t\r\n") }

// valueEnd is where the value at the beginning of valid JSON ends.
func valueEnd(b []byte) int {
	depth, quoted := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
			if !quoted && depth == 0 {
				return i + 1
			}
		case quoted:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			if depth == 0 {
				return i
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case depth == 0 && (c == ',' || c == ' ' || c == '\t' || c == '\r' || c == '\n'):
			return i
		}
	}
	return len(b)
}

// readCallIn reads arguments that need no explanation.
func readCallIn(arguments []byte) (in callIn, ok bool) {
	text := func(to *string, value []byte) bool {
		if value[0] != '"' || bytes.ContainsFunc(value, func(c rune) bool { return c == '\\' || c > '~' }) {
			return false
		}
		*to = string(value[1 : len(value)-1])
		return true
	}
	return in, members(arguments, func(name string, value []byte) bool {
		switch name {
		case "device":
			return text(&in.Device, value)
		case "tool":
			return text(&in.Tool, value)
		case "purpose":
			return text(&in.Purpose, value)
		case "arguments":
			in.Arguments = value
			return true
		case "timeout_ms":
			n, err := strconv.ParseInt(string(value), 10, 64)
			in.TimeoutMs = n
			return err == nil
		}
		return false
	}) && in.complete()
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
	b := make([]byte, 0, len(data)+len(u.id)+80)
	b = append(append(append(b, `{"jsonrpc":"2.0","id":`...), u.id...), `,"result":`...)
	b = append(b, data...)
	if u.stateless {
		b = append(b[:len(b)-1], `,"resultType":"complete"}`...)
	}
	b = append(b, '}')
	h := w.Header()
	h["Cache-Control"], h["Content-Type"] = noTransform, jsonType
	h["Content-Length"] = []string{strconv.Itoa(len(b))}
	_, _ = w.Write(b) // the client may be gone
}

var noTransform, jsonType = []string{"no-cache, no-transform"}, []string{"application/json"}
