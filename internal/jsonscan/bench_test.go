package jsonscan_test

import (
	"encoding/json"
	"strconv"
	"testing"

	"fleetd/internal/jsonscan"
)

// The bodies of a usual call, as bench sends them.
const (
	restBody = `{"tool":"self.audio_speaker.set_volume","arguments":{"volume":50}}`
	mcpBody  = `{"jsonrpc":"2.0","id":17,"method":"tools/call","params":{"name":"call_device","arguments":{"device":"02beef000011",` +
		`"tool":"self.audio_speaker.set_volume","arguments":{"volume":50}},"_meta":{"progressToken":17}}}`
)

type restCall struct {
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments"`
	TimeoutMs int64           `json:"timeout_ms"`
}

type mcpCall struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Method  string          `json:"method"`
	Params  struct {
		Name      string `json:"name"`
		Arguments struct {
			Device    string          `json:"device"`
			Tool      string          `json:"tool"`
			Arguments json.RawMessage `json:"arguments"`
		} `json:"arguments"`
		Meta struct {
			ProgressToken json.RawMessage `json:"progressToken"`
		} `json:"_meta"`
	} `json:"params"`
}

// BenchmarkBody compares the scanner with encoding/json: into one struct, which
// also accepts keys in any case, and into a map, which keeps the keys unchanged.
func BenchmarkBody(b *testing.B) {
	run := func(name, body string, read func(data []byte) bool) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			data := []byte(body)
			for b.Loop() {
				if !read(data) {
					b.Fatal(body)
				}
			}
		})
	}
	run("rest/scanner", restBody, func(data []byte) bool {
		var c restCall
		return jsonscan.PlainMembers(data, func(key, value []byte) (ok bool) {
			ok = true
			switch string(key) {
			case "tool":
				var text []byte
				text, ok = jsonscan.PlainString(value)
				c.Tool = string(text)
			case "arguments":
				c.Arguments = value
			case "timeout_ms":
				c.TimeoutMs, _ = strconv.ParseInt(string(value), 10, 64)
			}
			return ok
		}) && c.Tool != ""
	})
	run("rest/struct", restBody, func(data []byte) bool {
		var c restCall
		return json.Unmarshal(data, &c) == nil && c.Tool != ""
	})
	run("rest/map", restBody, func(data []byte) bool {
		var c map[string]json.RawMessage
		return json.Unmarshal(data, &c) == nil && len(c["tool"]) > 0
	})
	run("mcp/scanner", mcpBody, func(data []byte) bool {
		found := 0
		return jsonscan.PlainMembers(data, func(key, value []byte) bool {
			return string(key) != "params" || jsonscan.PlainMembers(value, func(key, value []byte) bool {
				found++
				switch string(key) {
				case "arguments", "_meta":
					return jsonscan.PlainMembers(value, func([]byte, []byte) bool { found++; return true })
				}
				return true
			})
		}) && found == 7
	})
	run("mcp/struct", mcpBody, func(data []byte) bool {
		var c mcpCall
		return json.Unmarshal(data, &c) == nil && c.Params.Arguments.Device != ""
	})
}
