package voice

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"fleetd/broker/voice/voicetest"
	"fleetd/fleet"
)

// A boardStream is the audio side of a board on a WebSocket.
type boardStream struct {
	mu     sync.Mutex
	audio  []string
	closed int
}

func (s *boardStream) SendAudio(frame []byte, timestamp uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.audio = append(s.audio, fmt.Sprintf("%d %s", timestamp, frame[1:]))
	return true
}

func (s *boardStream) Close() { s.mu.Lock(); s.closed++; s.mu.Unlock() }

func (s *boardStream) heard() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.audio)
}
func (s *boardStream) ended() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.closed == 1 }

// onStream begins a conversation of a board whose audio comes over its connection.
func (b *board) onStream(r *Relay) *boardStream {
	s := new(boardStream)
	d := b.device()
	d.Stream = s
	hello := strings.Replace(boardHello, `"version":3,"transport":"udp"`, `"version":2,"transport":"websocket"`, 1)
	b.conversation = r.Begin(d, []byte(hello))
	return s
}

func TestConversationOverStream(t *testing.T) {
	answer := make(chan struct{})
	up := server(t, voicetest.Options{Echo: true, HelloWhen: answer})
	w := start(t, up.URL(true), nil)
	b := newBoard(t, 1)
	s := b.onStream(w.Relay)
	b.conversation.Hear(speech("before the hello"), 1)
	close(answer)
	eventually(t, "hello", func() bool { return len(b.got()) > 0 })
	hello := b.got()[0]
	if !strings.HasPrefix(hello, `{"type":"hello","transport":"websocket","session_id":"s-`) ||
		!strings.HasSuffix(hello, `"audio_params":{"format":"opus","sample_rate":24000,"channels":1,"frame_duration":60}}`) {
		t.Errorf("hello: %s", hello)
	}
	for i := range uint32(3) {
		b.conversation.Hear(speech(fmt.Sprint("frame ", i)), 1000+60*i)
		eventually(t, "the echo", func() bool { return len(s.heard()) == int(i)+1 })
	}
	b.conversation.Hear(nil, 0)
	b.conversation.Hear(make([]byte, maxFrame+1), 0)
	b.conversation.Hear([]byte{3}, 0) // no Opus packet
	if got, want := s.heard(), []string{"1000 frame 0", "1060 frame 1", "1120 frame 2"}; !slices.Equal(got, want) {
		t.Errorf("heard %q", got)
	}
	first(t, up).Close()
	eventually(t, "the connection ends", s.ended)
	if types := b.types(); slices.Contains(types, "goodbye") {
		t.Errorf("messages %v: such a board knows no goodbye", types)
	}
	eventually(t, "the record", func() bool { n, _ := w.records.ended(fleet.EndedByUpstream); return n == 1 })
	_, c := w.records.ended(fleet.EndedByUpstream)
	if c.Audio.Received != 3 || c.Audio.Refused != 4 || c.Audio.Sent != 3 {
		t.Errorf("%+v", c.Audio)
	}
}

// A board that waits for hello gets one and then the end of its connection, with
// the reason on its screen.
func TestConversationOverStreamFails(t *testing.T) {
	w := start(t, "ws://127.0.0.1:1/xiaozhi/v1/", nil)
	b := newBoard(t, 1)
	s := b.onStream(w.Relay)
	eventually(t, "the connection ends", s.ended)
	if got := b.types(); !slices.Equal(got, []string{"hello", "alert"}) {
		t.Errorf("messages %v", got)
	}
}
