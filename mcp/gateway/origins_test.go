package gateway_test

import (
	"fmt"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/operator"
	"fleetd/fleet/origin"
)

// A call names the MCP client and the trace of its message, also if the SDK handles it.
func TestCallsHaveAnOrigin(t *testing.T) {
	w := newWorld(t)
	token := w.token(t, operator.TokenRequest{Kind: fleet.KindModel})
	session := w.session(t, token)
	const stateless = `"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
		`"io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"},"io.modelcontextprotocol/clientCapabilities":{},`
	const inHeader, inMeta = "0af7651916cd43dd8448eb211c80319c", "4bf92f3577b34da6a3ce929d0e0e4736"
	parent := func(trace string) string { return "00-" + trace + "-b7ad6b7169203331-01" }
	tests := []struct {
		name, version, session, meta string
		client, trace                string
	}{
		{"without a session", "2025-11-25", "", "", "agent/3", inHeader},
		{"without a session, trace in _meta", "2025-11-25", "", `"traceparent":"` + parent(inMeta) + `"`, "agent/3", inMeta},
		{"in a session", "2025-11-25", session, "", "x 1", inHeader},
		{"in a session, trace in _meta", "2025-11-25", session, `"traceparent":"` + parent(inMeta) + `"`, "x 1", inMeta},
		{"of a version without sessions", "2026-07-28", "", stateless + `"traceparent":"` + parent(inMeta) + `"`, "x 1", inMeta},
		{"not a trace", "2025-11-25", session, `"traceparent":"01"`, "x 1", ""},
	}
	for _, tt := range tests {
		for _, accept := range []string{"application/json, text/event-stream", "text/event-stream, application/json"} {
			t.Run(tt.name+", "+accept, func(t *testing.T) {
				header := []string{"Accept", accept, "Mcp-Protocol-Version", tt.version, "User-Agent", "agent/3", "Traceparent",
					parent(inHeader)}
				if tt.version == "2026-07-28" {
					header = append(header, "Mcp-Method", "tools/call", "Mcp-Name", "call_device")
				}
				if tt.session != "" {
					header = append(header, "Mcp-Session-Id", tt.session)
				}
				meta := ""
				if tt.meta != "" {
					meta = `,"_meta":{` + tt.meta + `}`
				}
				resp := w.post(t, token, "/mcp", fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"call_device",
					"arguments":{"device":"a085e3112233","tool":"self.audio_speaker.set_volume","arguments":{"volume":7}}%s}}`, meta),
					header...)
				resp.Body.Close()
				page, err := w.store.Calls(t.Context(), call.Filter{Device: "a085e3112233", Limit: 1})
				if err != nil || resp.StatusCode != 200 || len(page.Items) != 1 {
					t.Fatalf("%s: %v, %d calls", resp.Status, err, len(page.Items))
				}
				trace, _ := origin.ParseTraceID(tt.trace)
				want := origin.Origin{Address: "127.0.0.1", Client: tt.client, Trace: trace}
				if got := page.Items[0].Origin; got != want {
					t.Errorf("origin %+v, want %+v", got, want)
				}
			})
		}
	}
}
