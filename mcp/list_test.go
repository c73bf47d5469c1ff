package mcp_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"fleetd/mcp"
)

// endless is a device whose list never ends: each page has a fresh tool and a
// fresh cursor, padded by n bytes.
func endless(t *testing.T, n int) func(string) []string {
	return func(wire string) []string {
		id := parseRequest(t, wire).Payload.ID
		return []string{fmt.Sprintf(`{"type":"mcp","payload":{"id":%d,"result":{"tools":[{"name":"self.t%[1]d","description":"%s"}],"nextCursor":"c%[1]d"}}}`,
			id, strings.Repeat("x", n))}
	}
}

func TestListLimits(t *testing.T) {
	tests := []struct {
		name  string
		o     mcp.SessionOptions
		pad   int
		tools int
	}{
		{"pages by default", mcp.SessionOptions{}, 0, 64},
		{"pages", mcp.SessionOptions{MaxPages: 3}, 0, 3},
		{"tools", mcp.SessionOptions{MaxTools: 5}, 0, 5},
		{"bytes", mcp.SessionOptions{MaxListBytes: 10_000}, 4000, 2},
		{"bytes by default", mcp.SessionOptions{}, 60_000, 8},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, _ := connect(tt.o, endless(t, tt.pad))
			tools, err := s.ListTools(t.Context(), mcp.ListToolsParams{})
			if !errors.Is(err, mcp.ErrTooLarge) || len(tools) != tt.tools {
				t.Errorf("ListTools = %d tools, %v, want %d, ErrTooLarge", len(tools), err, tt.tools)
			}
		})
	}
}

func TestListKeepsToolsOnTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := connect(mcp.SessionOptions{},
			replies(`{"type":"mcp","payload":{"id":1,"result":{"tools":[{"name":"self.a"}],"nextCursor":"b"}}}`, ``))
		tools, err := s.ListTools(t.Context(), mcp.ListToolsParams{})
		if !errors.Is(err, mcp.ErrTimeout) || len(tools) != 1 || !strings.Contains(err.Error(), "page 2") {
			t.Errorf("ListTools = %v, %v, want one tool and ErrTimeout at page 2", tools, err)
		}
	})
}

func TestLastPage(t *testing.T) {
	for _, end := range []string{``, `,"nextCursor":null`, `,"nextCursor":""`} {
		s, _ := connect(mcp.SessionOptions{}, replies(`{"type":"mcp","payload":{"id":1,"result":{"tools":[]`+end+`}}}`))
		if tools, err := s.ListTools(t.Context(), mcp.ListToolsParams{}); err != nil || len(tools) != 0 {
			t.Errorf("last page %s: %v, %v", end, tools, err)
		}
	}
}

func TestMalformedLists(t *testing.T) {
	for _, result := range []string{`[]`, `{"tools":{}}`, `{"tools":[],"nextCursor":7}`, `{"tools":[],"nextCursor":"` +
		strings.Repeat("x", 1024) + `"}`} {
		s, _ := connect(mcp.SessionOptions{}, replies(`{"type":"mcp","payload":{"id":1,"result":`+result+`}}`))
		if _, err := s.ListTools(t.Context(), mcp.ListToolsParams{}); !errors.Is(err, mcp.ErrMalformed) {
			t.Errorf("%.40s: %v, want ErrMalformed", result, err)
		}
	}
}

func TestToolsAreCleaned(t *testing.T) {
	const any = `{"type":"object"}`
	deep := strings.Repeat(`{"a":`, 16) + `{}` + strings.Repeat(`}`, 16)
	tests := []struct{ name, tool, schema, description string }{
		{"order and white space", `"inputSchema": { "z" : 1 , "a" : [ 2 ] }`, `{"z":1,"a":[2]}`, ""},
		{"what jsonb refuses", `"inputSchema":{"a":"\u0000x\ud800"}`, "{\"a\":\"x\ufffd\"}", ""},
		{"number out of range", `"inputSchema":{"a":1e999}`, any, ""},
		{"array", `"inputSchema":[]`, any, ""},
		{"string", `"inputSchema":"{}"`, any, ""},
		{"none", `"x":1`, any, ""},
		{"deep", `"inputSchema":` + deep, any, ""},
		{"large", `"inputSchema":{"a":"` + strings.Repeat("x", 16<<10) + `"}`, any, ""},
		{"description", `"description":"a\nb\u0007"`, any, "a\nb"},
		{"long description", `"description":"` + strings.Repeat("灯", 2000) + `"`, any, strings.Repeat("灯", 1365)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, _ := connect(mcp.SessionOptions{}, replies(`{"type":"mcp","payload":{"id":1,"result":{"tools":[{"name":"self.a",`+
				tt.tool+`}]}}}`))
			tools, err := s.ListTools(t.Context(), mcp.ListToolsParams{})
			want := []mcp.Tool{{Name: "self.a", Description: tt.description, InputSchema: []byte(tt.schema)}}
			if diff := cmp.Diff(want, tools); err != nil || diff != "" {
				t.Errorf("ListTools: %v\n%s", err, diff)
			}
		})
	}
}

// ListTools leaves out a tool if its name cannot be sent back or is a
// duplicate.
func TestUncallableToolsAreLeftOut(t *testing.T) {
	var log bytes.Buffer
	s, _ := connect(mcp.SessionOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))},
		replies(`{"type":"mcp","payload":{"id":1,"result":{"tools":[`+
			`{"name":"self.a","description":"first"},{"name":"self.\"b"},{"name":"self.c\n"},{"name":""},{"name":7},{},[],{"name":"self.a"},`+
			`{"name":"`+strings.Repeat("x", 129)+`"},{"name":"self.d","annotations":{"audience":["user","assistant"]}},`+
			`{"name":"self.e","annotations":{"audience":["user"]}},{"name":"self.f","annotations":{"audience":"user"}}]}}}`))
	tools, err := s.ListTools(t.Context(), mcp.ListToolsParams{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, tool := range tools {
		got = append(got, fmt.Sprintf("%s %q %t", tool.Name, tool.Description, tool.UserOnly()))
	}
	want := []string{`self.a "first" false`, `self.d "" false`, `self.e "" true`, `self.f "" false`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if n := strings.Count(log.String(), "tool left out"); n != 1 {
		t.Errorf("%d log lines for one page, want 1:\n%s", n, &log)
	}
}
