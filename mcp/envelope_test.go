package mcp_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"fleetd/mcp"
)

func TestHelloVectors(t *testing.T) {
	var file struct {
		Cases []struct {
			Name, Dir, Wire string
			Expect          struct {
				Type      string
				SessionID string `json:"session_id"`
			}
		}
	}
	loadLoosely(t, "hello.json", &file) // most of it concerns the audio channel
	up := 0
	for _, tt := range file.Cases {
		e, err := mcp.ParseEnvelope([]byte(tt.Wire))
		if valid := json.Valid([]byte(tt.Wire)); (err == nil) != valid {
			t.Errorf("%s: ParseEnvelope = %v, valid JSON %t", tt.Name, err, valid)
		}
		if e.Payload != nil {
			t.Errorf("%s: payload %s", tt.Name, e.Payload)
		}
		if tt.Name == "type not a string" && e.Type != "" {
			t.Errorf("%s: type %q", tt.Name, e.Type)
		}
		if tt.Dir != "up" {
			continue
		}
		up++
		if e.Type != tt.Expect.Type || tt.Expect.SessionID != "" && e.SessionID != tt.Expect.SessionID {
			t.Errorf("%s: type %q, session %q, want %+v", tt.Name, e.Type, e.SessionID, tt.Expect)
		}
	}
	if up < 8 {
		t.Errorf("%d uplinks checked, want at least 8", up)
	}
}

func TestParseEnvelope(t *testing.T) {
	long := strings.Repeat("x", 600)
	tests := []struct {
		name, raw   string
		typ, sid, p string
		err         error
	}{
		{name: "mcp", raw: `{"session_id":"s","type":"mcp","payload":{"id":1}}`, typ: "mcp", sid: "s", p: `{"id":1}`},
		{name: "white space", raw: " {\n\"type\" : \"mcp\" , \"payload\" : [ 1 ] } \r\n", typ: "mcp", p: `[ 1 ]`},
		{name: "nested members are not ours", raw: `{"payload":{"type":"mcp"},"x":[{"type":"mcp"}]}`, p: `{"type":"mcp"}`},
		{name: "long and dirty text", raw: `{"type":"` + long + `","session_id":"a\u0000\u001bb` + long + `"}`,
			typ: long[:32], sid: "ab" + long[:126]},
		{name: "keys in another case", raw: `{"Type":"mcp"}`},
		{name: "session id of another kind", raw: `{"session_id":7}`},
		{name: "array", raw: `[]`, err: mcp.ErrMalformed},
		{name: "two objects", raw: `{}{}`, err: mcp.ErrMalformed},
		{name: "raw line break", raw: "{\"type\":\"a\nb\"}", err: mcp.ErrMalformed},
		{name: "deep", raw: `{"payload":` + strings.Repeat("[", 100_000), err: mcp.ErrMalformed},
		{name: "deep and closed", raw: `{"payload":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + "}",
			err: mcp.ErrMalformed},
		{name: "huge", raw: `{"type":"` + strings.Repeat("x", 512<<10) + `"}`, err: mcp.ErrTooLarge},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e, err := mcp.ParseEnvelope([]byte(tt.raw))
			if !errors.Is(err, tt.err) || e.Type != tt.typ || e.SessionID != tt.sid || string(e.Payload) != tt.p {
				t.Errorf("ParseEnvelope = %+v (payload %s), %v", e, e.Payload, err)
			}
		})
	}
}
