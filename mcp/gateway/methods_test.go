package gateway_test

import (
	"bufio"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"fleetd/fleet/operator"
)

const statelessMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
	`"io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"}}`

// An unknown method is an error of JSON-RPC, with the HTTP status of the protocol
// version, and an unknown notification has no effect: plain text would end the
// connection.
func TestUnknownMethods(t *testing.T) {
	w := newWorld(t)
	token := w.token(t, operator.TokenRequest{})
	session := w.post(t, token, "/mcp", initialize).Header.Get("Mcp-Session-Id")
	const unknown = `{"jsonrpc":"2.0","id":"a","method":"tasks/list","params":{` + statelessMeta + `}}`
	for _, tt := range []struct {
		name, path, body string
		header           []string
		status, code     int
	}{
		{"without a session", "/mcp", `{"jsonrpc":"2.0","id":"a","method":"tasks/list"}`, nil, 200, -32601},
		{"before 2026-07-28", "/mcp", `{"jsonrpc":"2.0","id":"a","method":"roots/list"}`,
			[]string{"Mcp-Protocol-Version", "2025-11-25"}, 200, -32601},
		{"in a session", "/mcp", `{"jsonrpc":"2.0","id":"a","method":"nonsense","params":{}}`,
			[]string{"Mcp-Session-Id", session}, 200, -32601},
		{"in a session that is not one", "/mcp", `{"jsonrpc":"2.0","id":"a","method":"nonsense"}`,
			[]string{"Mcp-Session-Id", "FORGED"}, 404, 0},
		{"of a device", "/mcp/devices/" + string(unit), `{"jsonrpc":"2.0","id":"a","method":"nonsense"}`, nil, 200, -32601},
		{"in 2026-07-28", "/mcp", unknown, []string{"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tasks/list"}, 404,
			-32601},
		{"a notification", "/mcp", `{"jsonrpc":"2.0","method":"notifications/nonsense"}`, nil, 202, 0},
	} {
		resp := w.post(t, token, tt.path, tt.body, tt.header...)
		body, _ := io.ReadAll(resp.Body)
		var m struct {
			ID    string
			Error struct{ Code int }
		}
		_ = json.Unmarshal(body, &m) // an answer without an error has no JSON
		if resp.StatusCode != tt.status || m.Error.Code != tt.code || tt.code != 0 && m.ID != "a" {
			t.Errorf("%s: %s %s, want %d and the code %d", tt.name, resp.Status, body, tt.status, tt.code)
		}
	}
	for _, method := range []string{"initialize", "ping", "server/discover", "tools/list", "tools/call", "prompts/list",
		"prompts/get", "resources/list", "resources/templates/list", "resources/read", "completion/complete"} {
		resp := w.post(t, token, "/mcp", `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":{`+statelessMeta+`}}`)
		if body, _ := io.ReadAll(resp.Body); strings.Contains(string(body), "unknown method") {
			t.Errorf("%s: %s", method, body)
		}
	}
}

func TestUnknownMethodOfAnOldStream(t *testing.T) {
	w := newWorld(t)
	token := w.token(t, operator.TokenRequest{})
	stream := w.open(t, token, "/mcp/sse")
	defer stream.Body.Close()
	lines := bufio.NewScanner(stream.Body)
	next := func(begin string) string {
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok && strings.HasPrefix(data, begin) {
				return data
			}
		}
		t.Fatalf("the stream ended before %q: %v", begin, lines.Err())
		return ""
	}
	path := next("/mcp/sse?")
	if resp := w.post(t, token, path, `{"jsonrpc":"2.0","id":7,"method":"nonsense"}`); resp.StatusCode != 202 {
		t.Errorf("status %s", resp.Status)
	}
	if got := next("{"); !strings.Contains(got, `"id":7`) || !strings.Contains(got, "-32601") {
		t.Errorf("the event is %s", got)
	}
}
