package mcp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"fleetd/mcp"
)

// echo is a transport that answers each call at once, at the lowest cost.
type echo struct {
	session *mcp.Session
	tail    string
	up      []byte
}

func (e *echo) Send(_ context.Context, msg []byte, _ mcp.Scope) error {
	const head = `{"jsonrpc":"2.0","id":`
	id := msg[len(head):]
	n := 0
	for '0' <= id[n] && id[n] <= '9' {
		n++
	}
	e.up = append(e.up[:0], `{"session_id":"","type":"mcp","payload":`+head...)
	e.up = append(append(e.up, id[:n]...), e.tail...)
	env, err := mcp.ParseEnvelope(e.up)
	if err == nil {
		e.session.Receive(env.Payload)
	}
	return err
}

// BenchmarkCall is one call there and back, envelope included.
func BenchmarkCall(b *testing.B) {
	for _, size := range []int{4, 1 << 10, 200 << 10} {
		b.Run(fmt.Sprintf("answer=%dB", size), func(b *testing.B) {
			link := &echo{tail: `,"result":{"content":[{"type":"text","text":"` + strings.Repeat("t", size) +
				`"}],"isError":false}}}`}
			link.session = mcp.NewSession(link, mcp.SessionOptions{})
			arguments := json.RawMessage(`{"volume":50}`)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := link.session.CallTool(context.Background(), "self.audio_speaker.set_volume", arguments); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkParseEnvelope(b *testing.B) {
	raw := []byte(answerTo(1234567, "true"))
	b.ReportAllocs()
	b.SetBytes(int64(len(raw)))
	for b.Loop() {
		if _, err := mcp.ParseEnvelope(raw); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkListTools(b *testing.B) {
	var file listVectors
	loadVectors(b, "tools_list_paged.json", &file)
	for b.Loop() {
		var answers []string
		for _, p := range file.Cases[0].Pages {
			answers = append(answers, p.Reply)
		}
		s, _ := connect(mcp.SessionOptions{IDs: mcp.NewIDs(9)}, replies(answers...))
		if tools, err := s.ListTools(context.Background(), mcp.ListToolsParams{WithUserTools: true}); err != nil ||
			len(tools) != 36 {
			b.Fatal(len(tools), err)
		}
	}
}

// An idle session is small, because one process has 50,000 of them.
func TestSessionIsSmall(t *testing.T) {
	if size := unsafe.Sizeof(mcp.Session{}); size > 208 {
		t.Errorf("a Session has %d bytes", size)
	}
}

// A call allocates little, because it shares two cores with a broker and a
// database.
func TestCallAllocations(t *testing.T) {
	link := &echo{tail: `,"result":{"content":[{"type":"text","text":"true"}],"isError":false}}}`}
	link.session = mcp.NewSession(link, mcp.SessionOptions{})
	arguments := json.RawMessage(`{"volume":50}`)
	allocs := testing.AllocsPerRun(100, func() {
		if _, err := link.session.CallTool(context.Background(), "self.a", arguments); err != nil {
			t.Fatal(err)
		}
	})
	if allocs > 12 {
		t.Errorf("%v allocations a call, want at most 12", allocs)
	}
}
