package mcp_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetd/mcp"
)

type malformedVectors struct {
	About string
	Down  []struct{ Name, Wire, Device string }
	Up    []struct {
		Name, Wire string
		Base64     string `json:"wire_base64"`
		Expect     struct {
			JSONValid  *bool `json:"json_valid"`
			Keep       bool  `json:"keep_connection"`
			Salvage    int64 `json:"salvage_id"`
			Unmatched  bool
			CallFails  bool   `json:"call_fails"`
			ErrorCode  *int   `json:"error_code"`
			OKAndEmpty bool   `json:"call_ok_with_empty_content"`
			Note       string `json:"note"`
		}
	}
}

// malformedOutcomes are the outcomes of calls with the ids of the up vectors.
var malformedOutcomes = map[string]string{
	"error text with unescaped quotes (device bug): salvage id 90": `device error: Unknown tool: a"b`,
	"error text with raw newline":                                  "device error: bad\nthing",
	"empty payload":                                                "waiting",
	"truncated":                                                    "malformed",
	"invalid UTF-8 (base64)": `{"content":[{"type":"text","text":"` +
		"\ufffd\ufffd" + `"}],"isError":false}`,
	"NUL in text":                             `{"content":[{"type":"text","text":"ab"}],"isError":false}`,
	"unknown id (late reply)":                 "waiting",
	"string id from a non-stock device":       "waiting",
	"result and error missing":                "malformed",
	"error as string":                         "device error: boom",
	"error with code from a non-stock device": "device error -32601: Unknown tool: x",
	"content missing":                         `{"content":[],"isError":false}`,
	"unknown message type":                    "waiting",
	"not an object":                           "waiting",
	"type missing":                            "waiting",
}

func TestMalformedUplinkVectors(t *testing.T) {
	var file malformedVectors
	loadVectors(t, "malformed.json", &file)
	got, unmatched := map[string]string{}, 0
	for _, tt := range file.Up {
		wire := []byte(tt.Wire)
		if tt.Base64 != "" {
			wire, _ = base64.StdEncoding.DecodeString(tt.Base64)
		}
		_, err := mcp.ParseEnvelope(wire)
		object := strings.HasPrefix(string(wire), "{")
		if valid := tt.Expect.JSONValid; valid != nil && (err == nil) != (*valid && object) {
			t.Errorf("%s: ParseEnvelope = %v", tt.Name, err)
		}
		seen := false
		got[tt.Name] = callAnsweredBy(wire, func(mcp.Answer) { seen = true })
		if seen != tt.Expect.Unmatched {
			t.Errorf("%s: unmatched = %t, want %t", tt.Name, seen, tt.Expect.Unmatched)
		}
		if seen {
			unmatched++
		}
	}
	if diff := cmp.Diff(malformedOutcomes, got); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
	if unmatched != 2 {
		t.Errorf("%d unmatched answers, want 2", unmatched)
	}
}

// callAnsweredBy calls a tool with the id that a vector answers, and returns
// the outcome.
func callAnsweredBy(wire []byte, unmatched func(mcp.Answer)) string {
	id := int32(1)
	for n := int32(90); n <= 100; n++ {
		if strings.Contains(string(wire), fmt.Sprintf(`"id":%d`, n)) {
			id = n
		}
	}
	// The answer is delivered within Send: a timeout of 1 ns cannot lose it.
	s, _ := connect(mcp.SessionOptions{OnUnmatched: unmatched, CallTimeout: 1}, replies(string(wire)))
	r, err := s.Call(context.Background(), mcp.CallToolParams{ID: id, Name: "self.any"})
	switch _, device := errors.AsType[*mcp.Error](err); {
	case device:
		return err.Error()
	case errors.Is(err, mcp.ErrTimeout):
		return "waiting"
	case errors.Is(err, mcp.ErrMalformed):
		return "malformed"
	}
	return string(r.AppendJSON(nil))
}
