package gateway_test

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"fleetd/fleet"
	"fleetd/mcp/gateway"
)

// Calls that the gateway reads without the SDK are answered as the SDK does.
func TestUsualCallsAreAnsweredAsTheSDKDoes(t *testing.T) {
	w := newWorld(t)
	token := w.token(t, fleet.TokenRequest{Kind: fleet.KindModel})
	varies := regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}|\d{4}-\d\d-\d\dT[0-9:.]+Z|"duration_ms":\d+|after \d+ ms`)
	const meta = `,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
		`"io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
	ask := func(version, accept, tool, args, id string) (int, string) {
		header := []string{"Accept", accept, "Mcp-Protocol-Version", version}
		body := `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"` + tool + `","arguments":` + args
		if version == "2026-07-28" {
			header = append(header, "Mcp-Method", "tools/call", "Mcp-Name", tool)
			body += meta
		}
		resp := w.post(t, token, "/mcp", body+"}}", header...)
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, resp.Header.Get("Content-Type") + resp.Header.Get("Cache-Control") +
			varies.ReplaceAllString(strings.TrimSpace(string(data)), "*")
	}
	for _, version := range []string{"2025-11-25", "2025-03-26", "2026-07-28"} {
		for _, tt := range []struct{ tool, args, id string }{
			{"call_device", `{"device":"a085e3112233","tool":"self.audio_speaker.set_volume","arguments":{"volume":7}}`, "1"},
			{"call_device", ` { "tool" : "self.get_device_status" , "device":"a085e3112233" , "timeout_ms": 60000 } `, `"a"`},
			{"read_device", `{"device":"a085e3112233","tool":"self.get_device_status","purpose":"p"}`, "999999"},
			{"read_device", `{"device":"a085e3112233","tool":"self.audio_speaker.set_volume"}`, "1"},
			{"call_device", `{"device":"a085e3112233","tool":"self.reboot"}`, "1"},
			{"call_device", `{"device":"a085e3110000","tool":"self.get_device_status"}`, "1"},
			{"call_device", `{"device":"a085e3112255","tool":"self.get_device_status"}`, "1"},
			{"call_device", `{"device":"a085e3112233","tool":"self.none"}`, "1"},
			{"call_device", `{"device":"a085e3112233","tool":"self.get_device_status","arguments":[]}`, "1"},
			{"call_device", `{"device":"a085e3112233","tool":"self.get_device_status","device":"x"}`, "1"},
			{"call_device", `{"Device":"a085e3112233","tool":"self.get_device_status"}`, "1"},
			{"call_device", `{}`, "1"},
		} {
			status, got := ask(version, "application/json, text/event-stream", tt.tool, tt.args, tt.id)
			wantStatus, want := ask(version, "text/event-stream, application/json", tt.tool, tt.args, tt.id)
			if status != wantStatus || got != want {
				t.Errorf("%s %s %s:\n%d %s\nand by the SDK\n%d %s", version, tt.tool, tt.args, status, got, wantStatus, want)
			}
			if status != http.StatusOK {
				t.Errorf("%s %s: %d %s", version, tt.args, status, got)
			}
		}
	}
}

func FuzzUsualBody(f *testing.F) {
	f.Add(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"call_device","arguments":{"device":"x","tool":"y"}}}`)
	f.Add(`{"id":"\"","method":"tools/call","params":{"a":[{"b":"}"}]}}`)
	f.Fuzz(func(_ *testing.T, body string) { gateway.ReadUsual(body) })
}
