package mcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"fleetd/mcp"
)

// FuzzReceive sends arbitrary text as a device while a call, a list and a ping
// wait for ids 1, 2 and 3, and checks everything that the session returns.
func FuzzReceive(f *testing.F) {
	var file malformedVectors
	loadVectors(f, "malformed.json", &file)
	for _, tt := range file.Up {
		f.Add([]byte(tt.Wire))
		if e, err := mcp.ParseEnvelope([]byte(tt.Wire)); err == nil {
			f.Add([]byte(strings.Replace(string(e.Payload), `"id":9`, `"id":1,"x":9`, 1)))
		}
	}
	for _, seed := range []string{
		`{"id":1,"result":{"content":[{"type":"image","image":"{\"data\":\"AAAA\",\"mimeType\":\"image/png\"}"},{"type":"audio","data":"A"},{"type":"resource","x":1e400},7]}}`,
		`{"id":2,"result":{"tools":[{"name":"a\u0000","inputSchema":{"a":"\ud800","b":1e999}},{"name":"b"},{"name":"b","annotations":{"audience":["user"]}}],"nextCursor":"x"}}`,
		`{"id":3,"error":{"message":"Method not implemented: ping"}}`,
		`{"method":"notifications/x","params":{"a":["\u0000"]}}`,
		`{"id":1,"error":{"message":"a"b\"}}`, `{"id":2,"result":{"tools":{}}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		o := mcp.SessionOptions{
			CallTimeout: 1, ListTimeout: 1, MaxPages: 3,
			OnUnmatched: func(a mcp.Answer) { checkOutcome(t, a.Result, a.Err) },
			OnNotification: func(method string, params json.RawMessage) {
				checkText(t, method)
				if params != nil {
					checkStorable(t, params)
				}
			},
		}
		s, d := connect(o, nil)
		d.answer = func(string) []string {
			s.Receive(msg)
			s.ReceiveBroken(msg)
			return []string{string(msg)}
		}
		r, err := s.Call(context.Background(), mcp.CallToolParams{ID: 1, Name: "self.a"})
		checkOutcome(t, r, err)
		s.NextID()
		tools, _ := s.ListTools(context.Background(), mcp.ListToolsParams{})
		for _, tool := range tools {
			checkTool(t, tool)
		}
		_ = s.Ping(context.Background())
	})
}

func checkOutcome(t *testing.T, r *mcp.CallToolResult, err error) {
	t.Helper()
	if (r == nil) != (err != nil) {
		t.Fatalf("result %v and error %v", r, err)
	}
	if e, ok := errors.AsType[*mcp.Error](err); ok {
		checkText(t, e.Message)
	}
	if r != nil {
		checkStorable(t, r.AppendJSON(nil))
	}
}

func checkTool(t *testing.T, tool mcp.Tool) {
	t.Helper()
	checkText(t, tool.Name)
	checkText(t, tool.Description)
	checkStorable(t, tool.InputSchema)
	if tool.Name == "" || len(tool.Name) > 128 || len(tool.Description) > 4096 || len(tool.InputSchema) > 16<<10 ||
		tool.InputSchema[0] != '{' {
		t.Errorf("tool %+v passes its limits", tool)
	}
}

func checkText(t *testing.T, text string) {
	t.Helper()
	if !utf8.ValidString(text) || strings.ContainsAny(text, "\x00\x1b\x7f") {
		t.Errorf("text %q is not clean", text)
	}
}

// checkStorable checks JSON against what jsonb refuses.
func checkStorable(t *testing.T, raw []byte) {
	t.Helper()
	if !json.Valid(raw) || !utf8.Valid(raw) || strings.Contains(strings.ReplaceAll(string(raw), `\\`, ""), `\u`) {
		t.Errorf("JSON %q is not clean", raw)
	}
}

// FuzzParseEnvelope compares the envelope with what encoding/json reads.
func FuzzParseEnvelope(f *testing.F) {
	var file malformedVectors
	loadVectors(f, "malformed.json", &file)
	for _, tt := range file.Up {
		f.Add([]byte(tt.Wire))
	}
	f.Add([]byte(`{"type":"hello","session_id":"\u0000","payload":null}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		e, err := mcp.ParseEnvelope(raw)
		var members map[string]json.RawMessage
		if err != nil {
			return // FuzzScanner checks the JSON parser
		}
		if err := json.Unmarshal(raw, &members); err != nil {
			t.Fatalf("ParseEnvelope accepts %q: %v", raw, err)
		}
		if len(e.Type) > 32 || len(e.SessionID) > 128 {
			t.Errorf("%+v passes its limits", e)
		}
		checkText(t, e.Type)
		checkText(t, e.SessionID)
		if e.Payload != nil && !json.Valid(e.Payload) {
			t.Errorf("payload %q", e.Payload)
		}
	})
}
