package mcp_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetd/mcp"
)

// resultOf calls a tool that answers with result.
func resultOf(t *testing.T, result string) (*mcp.CallToolResult, error) {
	t.Helper()
	s, _ := connect(mcp.SessionOptions{}, replies(`{"type":"mcp","payload":{"id":1,"result":`+result+`}}`))
	return s.CallTool(t.Context(), "self.a", nil)
}

func TestResultNormalisation(t *testing.T) {
	long := strings.Repeat("QUJD", 5000)
	tests := []struct{ name, content, want string }{
		{"empty text", `{"type":"text","text":""}`, `{"type":"text","text":""}`},
		{"markup is left alone", `{"type":"text","text":"<b>&\u003c"}`, `{"type":"text","text":"<b>&<"}`},
		{"stock image", `{"type":"image","image":"{\"type\":\"image\",\"mimeType\":\"image/jpeg\",\"data\":\"QUJD\"}"}`,
			`{"type":"image","data":"QUJD","mimeType":"image/jpeg"}`},
		{"image as object", `{"type":"image","image":{"mimeType":"image/png","data":"QQ=="}}`,
			`{"type":"image","data":"QQ==","mimeType":"image/png"}`},
		{"large image", `{"type":"image","mimeType":"image/png","data":"` + long + `QQ=="}`, `{"type":"image","data":"` +
			long + `QQ==","mimeType":"image/png"}`},
		{"audio", `{"type":"audio","mimeType":"audio/ogg","data":"QUJD"}`,
			`{"type":"audio","data":"QUJD","mimeType":"audio/ogg"}`},
		{"padding inside", `{"type":"image","mimeType":"image/png","data":"` + long[:1022] + `==` + long + `"}`,
			`{"type":"text","text":"[unreadable image from the device: data is not base64]"}`},
		{"no base64", `{"type":"image","mimeType":"image/png","data":"<svg>"}`,
			`{"type":"text","text":"[unreadable image from the device: data is not base64]"}`},
		{"no MIME type", `{"type":"image","data":"QUJD"}`,
			`{"type":"text","text":"[unreadable image from the device: no data or no MIME type]"}`},
		{"not an image", `{"type":"image","data":"QUJD","mimeType":"text/html"}`,
			`{"type":"text","text":"[unreadable image from the device: MIME type is text/html]"}`},
		{"image is not JSON", `{"type":"image","image":"/9j/4AAQ"}`,
			`{"type":"text","text":"[unreadable image from the device: not JSON]"}`},
		{"unknown type", `{"type":"x", "a":[1,"\u0000"]}`, `{"type":"text","text":"{\"type\":\"x\",\"a\":[1,\"\"]}"}`},
		{"text without text", `{"type":"text"}`, `{"type":"text","text":"{\"type\":\"text\"}"}`},
		{"bare string", `"true"`, `{"type":"text","text":"\"true\""}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := resultOf(t, `{"content":[`+tt.content+`]}`)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(`{"content":[`+tt.want+`],"isError":false}`, string(r.AppendJSON(nil))); diff != "" {
				t.Error(diff)
			}
			checkRoundTrip(t, r)
		})
	}
}

// checkRoundTrip stores r and reads it back, as a database would.
func checkRoundTrip(t *testing.T, r *mcp.CallToolResult) {
	t.Helper()
	stored, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back mcp.CallToolResult
	if err := json.Unmarshal(stored, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(*r, back); diff != "" {
		t.Errorf("stored and read (-before +after):\n%s", diff)
	}
}

func TestResultsThatAreNoResults(t *testing.T) {
	tests := []struct {
		name, result string
		want         error
	}{
		{"null", `null`, mcp.ErrMalformed},
		{"string", `"true"`, mcp.ErrMalformed},
		{"content of another kind", `{"content":"true"}`, mcp.ErrMalformed},
		{"too many items", `{"content":[0` + strings.Repeat(",0", 256) + `]}`, mcp.ErrTooLarge},
		{"null content", `{"content":null}`, nil},
	}
	for _, tt := range tests {
		if _, err := resultOf(t, tt.result); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
}

func TestFailed(t *testing.T) {
	for result, want := range map[string]bool{
		`{"content":[{"type":"text","text":"false"}],"isError":false}`:            true,
		`{"content":[{"type":"text","text":"ok"}],"isError":true}`:                true,
		`{"content":[{"type":"text","text":"true"}],"isError":false}`:             false,
		`{"content":[{"type":"text","text":"false"},{"type":"text","text":"x"}]}`: false,
		`{"content":[]}`: false,
	} {
		if r, err := resultOf(t, result); err != nil || r.Failed() != want {
			t.Errorf("%s: Failed() = %t, %v, want %t", result, r.Failed(), err, want)
		}
	}
}

func TestSalvage(t *testing.T) {
	tests := []struct{ name, raw, message string }{
		{"quotes", `{"session_id":"","type":"mcp","payload":{"jsonrpc":"2.0","id":1,"error":{"message":"Unknown tool: "a", "id":2"}}}`, `Unknown tool: "a", "id":2`},
		{"backslashes", `{"id":1,"error":{"message":"no C:\path\"}}`, `no C:\path\`},
		{"control characters", "{\"id\": 1 ,\"error\":{\"message\":\"a\x00\x1bb\nc\xff\"}}", "ab\nc\ufffd"},
		{"cut off", `{"id":1,"error":{"message":"Failed to open`, `Failed to open`},
		{"long", `{"id":1,"error":{"message":"` + strings.Repeat(`"`, 5000), strings.Repeat(`"`, 2048)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, d := connect(mcp.SessionOptions{}, nil)
			d.answer = func(string) []string {
				if !s.ReceiveBroken([]byte(tt.raw)) {
					t.Error("nothing salvaged")
				}
				return nil
			}
			_, err := s.CallTool(t.Context(), "self.a", nil)
			want := &mcp.Error{Code: mcp.CodeUnspecified, Message: tt.message, Salvaged: true}
			if diff := cmp.Diff(error(want), err); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestNothingToSalvage(t *testing.T) {
	s := mcp.NewSession(&device{}, mcp.SessionOptions{OnUnmatched: func(a mcp.Answer) { t.Errorf("unmatched %+v", a) }})
	for _, raw := range []string{
		"", "{", `{"id"`, `{"id":`, `{"id":x`, `{"id":"1","result"`, `{"id":99999999999}x`, `{"id":1.5}x`,
		`{"error":{"message":"a"b, "id":1`, strings.Repeat(" ", 1024) + `{"id":1`, fmt.Sprintf(`{"session_id":1}%d`, 1),
	} {
		if s.ReceiveBroken([]byte(raw)) {
			t.Errorf("salvaged something from %q", raw)
		}
	}
}

// A result that exceeds a limit is not a failure of the tool, unless its
// isError is true.
func TestLimitsOfResults(t *testing.T) {
	deep := strings.Repeat("[", 40) + strings.Repeat("]", 40)
	long := strings.Repeat("x", 256<<10)
	tests := []struct {
		name, answer string
		want         mcp.LimitError
	}{
		{"bytes", `{"id":7,"result":{"content":[{"type":"text","text":"` + long + `"}],"isError":false}}`,
			mcp.LimitError{Limit: mcp.LimitBytes, Max: 256 << 10}},
		{"bytes of a failure", `{"id":7,"result":{"content":[{"type":"text","text":"` + long + `"}],"isError":true}}`,
			mcp.LimitError{Limit: mcp.LimitBytes, Max: 256 << 10, IsError: true}},
		{"levels", `{"id":7,"result":{"content":` + deep + `,"isError":false}}`, mcp.LimitError{Limit: mcp.LimitLevels,
			Max: 32}},
		{"items", `{"id":7,"result":{"content":[0` + strings.Repeat(",0", 256) + `]}}`, mcp.LimitError{Limit: mcp.LimitItems,
			Max: 256}},
		{"items of a failure", `{"id":7,"result":{"content":[0` + strings.Repeat(",0", 256) + `],"isError":true}}`,
			mcp.LimitError{Limit: mcp.LimitItems, Max: 256, IsError: true}},
	}
	for _, tt := range tests {
		var got mcp.Answer
		s := mcp.NewSession(nil, mcp.SessionOptions{OnUnmatched: func(a mcp.Answer) { got = a }})
		s.Receive([]byte(tt.answer))
		limit, ok := errors.AsType[*mcp.LimitError](got.Err)
		if !ok || got.ID != 7 {
			t.Errorf("%s: id %d, %v", tt.name, got.ID, got.Err)
			continue
		}
		if tt.want.Limit == mcp.LimitBytes {
			tt.want.Size = len(tt.answer)
		}
		if *limit != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, *limit, tt.want)
		}
	}
	var got mcp.Answer
	s := mcp.NewSession(nil, mcp.SessionOptions{OnUnmatched: func(a mcp.Answer) { got = a }})
	s.Receive([]byte(`{"id":7,"error":{"message":"` + long + `"}}`))
	if e, ok := errors.AsType[*mcp.Error](got.Err); !ok || !strings.HasPrefix(e.Message, "xxx") || len(e.Message) > 2048 {
		t.Errorf("a large error: %T %.100v", got.Err, got.Err)
	}
}
