package mcp_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"fleetd/mcp"
)

// silence returns the reason for which a stock device would drop wire or
// misread it, nil if it would do neither. It follows the firmware's own order
// of checks, with another JSON parser.
func silence(wire string) error {
	var e struct {
		Type    string
		Payload map[string]json.RawMessage
	}
	if err := json.Unmarshal([]byte(wire), &e); err != nil || e.Type != "mcp" {
		return fmt.Errorf("no envelope of type mcp: %v", err)
	}
	if string(e.Payload["jsonrpc"]) != `"2.0"` {
		return errors.New("jsonrpc is not the string 2.0")
	}
	var method string
	if err := json.Unmarshal(e.Payload["method"], &method); err != nil {
		return errors.New("method is not a string")
	}
	var params map[string]json.RawMessage
	if raw, ok := e.Payload["params"]; ok && (json.Unmarshal(raw, &params) != nil || params == nil) {
		return errors.New("params is not an object")
	}
	if raw, ok := params["withUserTools"]; ok && string(raw) != "true" && string(raw) != "false" {
		return errors.New("withUserTools is not a bool")
	}
	var id int32
	if err := json.Unmarshal(e.Payload["id"], &id); (err != nil || id < 1) && !strings.HasPrefix(method, "notifications") {
		return errors.New("id is not a whole number from 1 to 2147483647")
	}
	return nil
}

// silence, which checks the requests of the tests below, finds a reason for
// each request that must never be built.
func TestSilenceKnowsTheVectors(t *testing.T) {
	var file malformedVectors
	loadVectors(t, "malformed.json", &file)
	for _, tt := range file.Down {
		if silence(tt.Wire) == nil {
			t.Errorf("%s passes: %s", tt.Name, tt.Wire)
		}
	}
	if len(file.Down) < 13 {
		t.Errorf("only %d vectors", len(file.Down))
	}
}

// FuzzRequests looks for a request that a stock device would drop.
func FuzzRequests(f *testing.F) {
	f.Add("self.a", `{"volume":50}`, "cursor", int32(0), true)
	f.Add("self.\"a\\", `null`, "\"\x00\\", int32(math.MaxInt32), false)
	f.Add("灯", `{"a":{"b":[1,2.5e3,"\ud83d\ude00"]}} `, "\xff\u2028", int32(-7), true)
	f.Add("", `[1]`, "", int32(math.MinInt32), false)
	f.Fuzz(func(t *testing.T, name, arguments, text string, last int32, user bool) {
		cursor, _ := json.Marshal(text)
		var s *mcp.Session
		s, d := connect(mcp.SessionOptions{IDs: mcp.NewIDs(last), CallTimeout: 1, ListTimeout: 1},
			func(wire string) []string {
				id := parseRequest(t, wire).Payload.ID
				return []string{fmt.Sprintf(`{"type":"mcp","payload":{"id":%d,"result":{"tools":[],"nextCursor":%s}}}`, id, cursor)}
			})
		_, err := s.CallTool(t.Context(), name, json.RawMessage(arguments))
		if sent := len(d.sent) > 0; sent == errors.Is(err, mcp.ErrNotSent) {
			t.Errorf("CallTool = %v, sent: %t", err, sent)
		}
		_, _ = s.ListTools(t.Context(), mcp.ListToolsParams{WithUserTools: user})
		_, _ = s.Initialize(t.Context(), mcp.InitializeParams{ClientName: name, ClientVersion: text, VisionURL: text,
			VisionToken: name})
		_ = s.Ping(t.Context())
		for _, wire := range d.sent {
			if err := silence(wire); err != nil {
				t.Errorf("%v: %s", err, wire)
			}
		}
	})
}

func TestCallRefusesWhatWouldBreakTheDevice(t *testing.T) {
	tests := []struct {
		name, tool, arguments string
		says                  string // part of the error; empty: the call is sent
	}{
		{"plain", "self.audio_speaker.set_volume", `{"volume":50}`, ""},
		{"no arguments", "self.reboot", ``, ""},
		{"null arguments", "self.reboot", ` null `, ""},
		{"name in Chinese", "self.灯", `{}`, ""},
		{"quotes and line breaks in text", "self.say", `{"text":"a \"quoted\"\nline \\ and \u00e9 \ud83d\ude00"}`, ""},
		{"URL", "self.screen.snapshot", `{"url":"http://192.0.2.10:8080/u/t0k3n?a=b","quality":60}`, ""},
		{"deep enough", "self.a", `{"a":{"b":{"c":{}}}}`, ""},
		{"empty name", "", `{}`, "name is empty"},
		{"long name", strings.Repeat("a", 129), `{}`, "129 bytes"},
		{"quote in name", `self."a`, `{}`, "quotes"},
		{"backslash in name", `self.\a`, `{}`, "backslashes"},
		{"line break in name", "self.a\nb", `{}`, "control characters"},
		{"broken UTF-8 in name", "self.\xff", `{}`, "broken UTF-8"},
		{"array", "self.a", `[1]`, "not an object"},
		{"string", "self.a", `"{}"`, "not an object"},
		{"two values", "self.a", `{} {}`, "unexpected byte"},
		{"not JSON", "self.a", `{"a":}`, "unexpected byte"},
		{"unfinished", "self.a", `{"a":1`, "unexpected end"},
		{"too deep", "self.a", `{"a":{"b":{"c":{"d":[]}}}}`, "nested too deep"},
		{"very deep", "self.a", `{"a":` + strings.Repeat("[", 100_000), "nested too deep"},
		{"NUL", "self.a", `{"a":"\u0000"}`, "U+0000"},
		{"NUL in key", "self.a", `{"\u0000":1}`, "U+0000"},
		{"lone surrogate", "self.a", `{"a":["\ud800"]}`, "UTF-8"},
		{"broken UTF-8", "self.a", "{\"a\":\"\xff\"}", "UTF-8"},
		{"endless number", "self.a", `{"a":0.` + strings.Repeat("1", 62) + `}`, "number"},
		{"quote in URL", "self.a", `{"url":"http://192.0.2.10/\""}`, "URL in argument url"},
		{"escaped quote in URL", "self.a", `{"URL":"x\u0022"}`, "URL in argument URL"},
		{"line break in URL by looks", "self.a", `{"from":"HTTPS://192.0.2.10/\n"}`, "URL in argument from"},
		{"large", "self.a", `{"a":"` + strings.Repeat("x", 4000) + `"}`, "too large"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, d := connect(mcp.SessionOptions{CallTimeout: 1}, nil)
			_, err := s.CallTool(t.Context(), tt.tool, json.RawMessage(tt.arguments))
			if tt.says == "" {
				if !errors.Is(err, mcp.ErrTimeout) || len(d.sent) != 1 || silence(d.sent[0]) != nil {
					t.Errorf("CallTool = %v, sent %q", err, d.sent)
				}
				return
			}
			if !errors.Is(err, mcp.ErrInvalid) || !errors.Is(err, mcp.ErrNotSent) || len(d.sent) != 0 ||
				!strings.Contains(err.Error(), tt.says) {
				t.Errorf("CallTool = %v, sent %q, want ErrInvalid with %q and nothing sent", err, d.sent, tt.says)
			}
		})
	}
}

// A URL may be a one-time secret, and errors are logged.
func TestRefusedURLIsNotRepeated(t *testing.T) {
	s, _ := connect(mcp.SessionOptions{}, nil)
	_, err := s.CallTool(t.Context(), "self.a", json.RawMessage(`{"url":"http://192.0.2.10/s3cret\""}`))
	if err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("error %v repeats the URL", err)
	}
	_, err = s.Initialize(t.Context(), mcp.InitializeParams{VisionURL: "http://192.0.2.10/\n", VisionToken: "s3cret"})
	if !errors.Is(err, mcp.ErrInvalid) || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("Initialize = %v, want ErrInvalid without the token", err)
	}
}

func TestIDs(t *testing.T) {
	var zero mcp.IDs
	if a, b := zero.Next(), zero.Next(); a != 1 || b != 2 {
		t.Errorf("zero value: %d, %d, want 1, 2", a, b)
	}
	ids := mcp.NewIDs(math.MaxInt32 - 1)
	if a, b := ids.Next(), ids.Next(); a != math.MaxInt32 || b != 1 {
		t.Errorf("at the end: %d, %d, want %d, 1", a, b, math.MaxInt32)
	}
	if n := mcp.NewIDs(-5).Next(); n < 1 {
		t.Errorf("after -5: %d", n)
	}
}
