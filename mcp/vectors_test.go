package mcp_test

import (
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"fleetd/mcp"
)

func TestInitializeVectors(t *testing.T) {
	var file struct {
		About string
		Cases []struct {
			Name, Request, Reply string
			Expect               struct {
				ID            int32
				SessionID     *string `json:"session_id"`
				ServerName    string  `json:"server_name"`
				ServerVersion string  `json:"server_version"`
				ErrorMessage  string  `json:"error_message"`
				ErrorCode     any     `json:"error_code"`
				Alive         bool
			}
		}
	}
	loadVectors(t, "initialize.json", &file)
	for _, tt := range file.Cases {
		t.Run(tt.Name, func(t *testing.T) {
			want := parseRequest(t, tt.Request)
			s, d := connect(mcp.SessionOptions{IDs: mcp.NewIDs(tt.Expect.ID - 1)}, replies(tt.Reply))
			if tt.Expect.SessionID != nil {
				if e, err := mcp.ParseEnvelope([]byte(tt.Reply)); err != nil || e.SessionID != *tt.Expect.SessionID {
					t.Errorf("ParseEnvelope: session %q, %v, want %q", e.SessionID, err, *tt.Expect.SessionID)
				}
			}
			if want.Payload.Method == "ping" {
				if err := s.Ping(t.Context()); (err == nil) != tt.Expect.Alive || d.sent[0] != tt.Request {
					t.Errorf("Ping = %v after %s, want alive after %s", err, d.sent[0], tt.Request)
				}
				return
			}
			p := want.Payload.Params
			r, err := s.Initialize(t.Context(), mcp.InitializeParams{
				ClientName: p.ClientInfo.Name, ClientVersion: p.ClientInfo.Version,
				VisionURL: p.Capabilities.Vision.URL, VisionToken: p.Capabilities.Vision.Token,
			})
			if err != nil {
				t.Fatal(err)
			}
			if p.ClientInfo.Name != "" && d.sent[0] != tt.Request {
				t.Errorf("sent %s, want %s", d.sent[0], tt.Request)
			}
			if tt.Expect.ServerName != "" && (r.ServerName != tt.Expect.ServerName ||
				r.ServerVersion != tt.Expect.ServerVersion) {
				t.Errorf("Initialize = %+v, want %+v", r, tt.Expect)
			}
			if r.ProtocolVersion != "2024-11-05" || len(d.sent) != 2 {
				t.Errorf("Initialize = %+v, sent %d messages", r, len(d.sent))
			}
		})
	}
}

func TestNotificationVectors(t *testing.T) {
	var file struct {
		About string
		Cases []struct {
			Name, Dir, Wire string
			Expect          struct {
				Reply        any
				Kind, Method string
				NoReply      bool `json:"backend_must_not_reply"`
			}
		}
	}
	loadVectors(t, "notification.json", &file)
	for _, tt := range file.Cases {
		t.Run(tt.Name, func(t *testing.T) {
			var method string
			var params json.RawMessage
			s, d := connect(mcp.SessionOptions{
				OnNotification: func(m string, p json.RawMessage) { method, params = m, p },
				OnUnmatched:    func(a mcp.Answer) { t.Errorf("unmatched answer %+v", a) },
			}, replies(`{"type":"mcp","payload":{"id":1,"result":{}}}`))
			if tt.Dir == "down" { // the package sends only the first
				if _, err := s.Initialize(t.Context(), mcp.InitializeParams{}); err != nil {
					t.Fatal(err)
				}
				if tt.Name == "backend -> device initialized, ignored" && d.sent[1] != tt.Wire {
					t.Errorf("sent %s, want %s", d.sent[1], tt.Wire)
				}
				return
			}
			d.deliver([]byte(tt.Wire))
			if method != tt.Expect.Method || len(d.sent) != 0 {
				t.Errorf("notification %q, %d messages sent, want %q, none", method, len(d.sent), tt.Expect.Method)
			}
			var wire struct {
				Payload struct{ Params json.RawMessage }
			}
			if err := json.Unmarshal([]byte(tt.Wire), &wire); err != nil || string(params) != string(wire.Payload.Params) {
				t.Errorf("params %s, want %s (%v)", params, wire.Payload.Params, err)
			}
		})
	}
}

type callExpect struct {
	ID           int32
	Text         *string
	Failed       *bool
	IsError      *bool   `json:"isError"`
	TextIsJSON   bool    `json:"text_is_json"`
	Volume       int     `json:"volume"`
	Mime         string  `json:"image_mime"`
	Base64       string  `json:"image_base64"`
	ErrorMessage *string `json:"error_message"`
	ErrorCode    any     `json:"error_code"`
	Then         []string
	Verdict      string
	ArrivesAfter string `json:"arrives_after"`
}

func TestToolsCallVectors(t *testing.T) {
	var file struct {
		About string
		Cases []struct {
			Name, Request string
			Reply         *string
			Expect        callExpect
		}
	}
	loadVectors(t, "tools_call.json", &file)
	// This package refuses to build these requests, but reads their answers.
	unbuildable := map[string]bool{"arguments key absent": true, "arguments not an object": true, "no params": true,
		"no name": true}
	for _, tt := range file.Cases {
		t.Run(tt.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				answer := replies()
				if tt.Reply != nil {
					answer = replies(*tt.Reply)
				}
				s, d := connect(mcp.SessionOptions{}, answer)
				want := parseRequest(t, tt.Request).Payload
				p := mcp.CallToolParams{ID: want.ID, Name: want.Params.Name, Arguments: want.Params.Arguments}
				if unbuildable[tt.Name] {
					p.Name, p.Arguments = "self.any", nil
				}
				result, err := s.Call(t.Context(), p)
				if !unbuildable[tt.Name] && d.sent[0] != tt.Request {
					t.Errorf("sent %s\nwant %s", d.sent[0], tt.Request)
				}
				if tt.Reply == nil {
					if !errors.Is(err, mcp.ErrTimeout) || errors.Is(err, mcp.ErrNotSent) {
						t.Errorf("Call = %v, want ErrTimeout", err)
					}
					return
				}
				checkCall(t, result, err, tt.Expect)
			})
		})
	}
}

func checkCall(t *testing.T, result *mcp.CallToolResult, err error, want callExpect) {
	t.Helper()
	if want.ErrorMessage != nil {
		e, ok := errors.AsType[*mcp.Error](err)
		if !ok || e.Message != *want.ErrorMessage || e.HasCode || e.Code != -32000 {
			t.Errorf("Call = %+v, want device error %q without code", err, *want.ErrorMessage)
		}
		return
	}
	if err != nil || len(result.Content) != 1 {
		t.Fatalf("Call = %+v, %v, want one content item", result, err)
	}
	c := result.Content[0]
	if want.Text != nil && c != (mcp.Content{Type: "text", Text: *want.Text}) {
		t.Errorf("content = %+v, want text %q", c, *want.Text)
	}
	if failed := want.Text != nil && *want.Text == "false"; result.Failed() != failed || result.IsError {
		t.Errorf("Failed() = %t, isError %t, want %t, false", result.Failed(), result.IsError, failed)
	}
	if want.TextIsJSON {
		var status struct {
			Speaker struct{ Volume int } `json:"audio_speaker"`
		}
		if err := json.Unmarshal([]byte(c.Text), &status); err != nil || want.Volume != 0 &&
			status.Speaker.Volume != want.Volume {
			t.Errorf("text %s (%v), want JSON with volume %d", c.Text, err, want.Volume)
		}
	}
	if want.Mime != "" {
		wantJSON := `{"content":[{"type":"image","data":"` + want.Base64 + `","mimeType":"` + want.Mime +
			`"}],"isError":false}`
		if diff := cmp.Diff(wantJSON, string(result.AppendJSON(nil))); diff != "" {
			t.Error(diff)
		}
	}
}
