package sim

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

func TestToneFrames(t *testing.T) {
	if len(toneFrames) != 24 {
		t.Errorf("%d frames", len(toneFrames))
	}
	for i, f := range toneFrames {
		if len(f) < 10 || f[0] != 11<<3 {
			t.Errorf("frame %d: %x", i, f)
		}
	}
}

// A voice server plays the tone after each utterance, sets the volume after the
// first, and ends with its conversations.
func TestVoiceServer(t *testing.T) {
	s, err := ListenVoice("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.Pause = 500 * time.Millisecond // which is no gap between frames on a busy machine
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	ws, _, err := websocket.DefaultDialer.Dial(strings.TrimSuffix(s.URL(), "?from=mqtt_gateway"), http.Header{})
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	say := func(text string) {
		if err := ws.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	say(`{"type":"hello","features":{"mcp":true}}`)
	calls, notes, tools := 0, 0, `{"type":"mcp","payload":{"jsonrpc":"2.0","id":2,"result":{"tools":[`
	for spoken := 0; spoken < 2; {
		_ = ws.SetReadDeadline(time.Now().Add(time.Minute))
		kind, message, err := ws.ReadMessage()
		if err != nil {
			t.Fatal(err)
		}
		text := string(message)
		switch {
		case kind == websocket.BinaryMessage:
			notes++
		case strings.Contains(text, `"method":"initialize"`):
			say(`{"type":"mcp","payload":{"jsonrpc":"2.0","id":1,"result":{}}}`)
		case strings.Contains(text, `"cursor":"self.audio_speaker.set_volume"`):
			say(tools + `{"name":"self.audio_speaker.set_volume"}]}}}`)
			for range 3 {
				_ = ws.WriteMessage(websocket.BinaryMessage, toneFrames[0])
			}
		case strings.Contains(text, `"method":"tools/list"`):
			say(tools + `],"nextCursor":"self.audio_speaker.set_volume"}}}`)
		case strings.Contains(text, `"method":"tools/call"`):
			calls++
		case strings.Contains(text, `"state":"stop"`):
			if spoken++; spoken == 1 {
				say(`{"type":"listen","state":"stop"}`)
			}
		}
	}
	if calls != 1 || notes != 2*len(toneFrames) {
		t.Errorf("%d calls, %d frames", calls, notes)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
