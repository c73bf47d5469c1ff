package voice

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"fleetd/broker/voice/voicetest"
	"fleetd/fleet"
	"fleetd/fleet/fleettest"
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

// onStream begins a conversation of a board that sends audio over its connection.
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
	fleettest.Eventually(t, "hello", func() bool { return len(b.got()) > 0 })
	hello := b.got()[0]
	if !strings.HasPrefix(hello, `{"type":"hello","transport":"websocket","session_id":"s-`) ||
		!strings.HasSuffix(hello, `"audio_params":{"format":"opus","sample_rate":24000,"channels":1,"frame_duration":60}}`) {
		t.Errorf("hello: %s", hello)
	}
	for i := range uint32(3) {
		b.conversation.Hear(speech(fmt.Sprint("frame ", i)), 1000+60*i)
		fleettest.Eventually(t, "the echo", func() bool { return len(s.heard()) == int(i)+1 })
	}
	b.conversation.Hear(nil, 0)
	b.conversation.Hear(make([]byte, maxStreamFrame+1), 0)
	b.conversation.Hear([]byte{3}, 0) // no Opus packet
	if got, want := s.heard(), []string{"1000 frame 0", "1060 frame 1", "1120 frame 2"}; !slices.Equal(got, want) {
		t.Errorf("heard %q", got)
	}
	first(t, up).Close()
	fleettest.Eventually(t, "the connection ends", s.ended)
	if types := b.types(); slices.Contains(types, "goodbye") {
		t.Errorf("messages %v: such a board knows no goodbye", types)
	}
	fleettest.Eventually(t, "the record", func() bool { n, _ := w.records.ended(fleet.EndedByUpstream); return n == 1 })
	_, c := w.records.ended(fleet.EndedByUpstream)
	if c.Audio.Received != 3 || c.Audio.Refused != 4 || c.Audio.Sent != 3 {
		t.Errorf("%+v", c.Audio)
	}
}

// A board that waits for hello gets one, followed by the end of its connection, with the reason
// on its screen.
func TestConversationOverStreamFails(t *testing.T) {
	w := start(t, "ws://127.0.0.1:1/xiaozhi/v1/", nil)
	b := newBoard(t, 1)
	s := b.onStream(w.Relay)
	fleettest.Eventually(t, "the connection ends", s.ended)
	if got := b.types(); !slices.Equal(got, []string{"hello", "alert"}) {
		t.Errorf("messages %v", got)
	}
}

// The frame duration in a board's hello is a hint: frames of any duration that Opus allows are
// relayed, over datagrams and over a stream, except the first ones from an address that is not
// yet accepted.
func TestFramesOfAnotherLength(t *testing.T) {
	tests := []struct {
		name  string
		hello int // frame_duration; 0: none
		frame []byte
	}{
		{"60 ms after a hello of 20", 20, []byte{11 << 3, 'a'}},
		{"20 ms after a hello of 60", 60, []byte{9 << 3, 'a'}},
		{"2.5 ms", 60, []byte{28 << 3, 'a'}},
		{"120 ms, two frames", 60, []byte{11<<3 | 1, 'a', 'b'}},
		{"three frames of 20 ms", 20, []byte{9<<3 | 3, 3, 'a', 'b', 'c'}},
		{"a hello without a length", 0, []byte{15 << 3, 'a'}},
	}
	const frames = 50
	up := server(t, voicetest.Options{})
	w := start(t, up.URL(false), nil)
	for i, tt := range tests {
		hello := strings.Replace(boardHello, `"frame_duration":60`, fmt.Sprintf(`"frame_duration":%d`, tt.hello), 1)
		for way, remote := range map[string]string{"near": "127.0.0.1", "elsewhere": "192.0.2.44", "stream": ""} {
			t.Run(tt.name+", "+way, func(t *testing.T) {
				before := len(up.Sessions())
				b := newBoard(t, i)
				b.remote = remote
				if way == "stream" {
					d := b.device()
					d.Stream = new(boardStream)
					b.conversation = w.Begin(d, []byte(hello))
					fleettest.Eventually(t, "hello", func() bool { return len(b.got()) > 0 })
				} else {
					b.talk(w.Relay, hello)
					b.open()
				}
				for n := range uint32(frames) {
					if way == "stream" {
						b.conversation.Hear(tt.frame, 0)
					} else {
						b.send(tt.frame, n)
					}
				}
				want := frames
				switch {
				case way == "elsewhere" && tt.hello == 0:
					want -= moveAfter - 1
				case way == "elsewhere":
					want -= moveUnlike - 1
				}
				s := up.Sessions()[before]
				fleettest.Eventually(t, fmt.Sprintf("%d frames arrive", want), func() bool {
					return len(s.Frames()) == want
				})
				if f := s.Frames()[want-1]; f.Data != string(tt.frame) {
					t.Errorf("frame %x", f.Data)
				}
				b.conversation.Receive("goodbye", "", []byte(`{"type":"goodbye"}`))
				fleettest.Eventually(t, "the conversation ends", s.Closed)
			})
		}
	}
}

// If a conversation has only frames that cannot be relayed, it ends and the device shows the
// reason. One bad frame among good ones does not end it.
func TestAudioThatIsNotOpus(t *testing.T) {
	up := server(t, voicetest.Options{})
	w := start(t, up.URL(false), nil)
	long := []byte{11<<3 | 3, 3, 'a', 'b', 'c'} // 180 ms: longer than Opus allows
	for n, way := range []string{"near", "elsewhere", "stream"} {
		t.Run(way, func(t *testing.T) {
			b := newBoard(t, n)
			var s *boardStream
			switch way {
			case "stream":
				s = b.onStream(w.Relay)
				fleettest.Eventually(t, "hello", func() bool { return len(b.got()) > 0 })
			case "elsewhere":
				b.remote = "192.0.2.44"
				fallthrough
			default:
				b.talk(w.Relay, boardHello)
				b.open()
			}
			say := func(frame []byte) {
				if s != nil {
					b.conversation.Hear(frame, 0)
				} else {
					b.send(frame, 0)
				}
			}
			good := up.Sessions()[n]
			for range maxBadAudio - 1 {
				say(long)
			}
			for range moveAfter {
				say(speech("good"))
			}
			fleettest.Eventually(t, "a good frame arrives", func() bool { return len(good.Frames()) > 0 })
			for range maxBadAudio {
				say(long)
			}
			fleettest.Eventually(t, "the record", func() bool {
				_, c := w.records.ended(fleet.EndedBadAudio)
				return c.Device == b.id && c.Audio.Refused >= 2*maxBadAudio-1
			})
			want := []string{"hello", "goodbye", "alert"}
			if s != nil {
				want = []string{"hello", "alert"}
				fleettest.Eventually(t, "the connection ends", s.ended)
			}
			if got := b.types(); !slices.Equal(got, want) {
				t.Errorf("messages %v", b.got())
			}
		})
	}
}
