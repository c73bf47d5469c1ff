package sim

import (
	"context"
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

// toneFrames contains three notes as Opus frames, 60 ms each, at 24 kHz. In tone.bin each frame
// follows its length in two bytes.
var toneFrames = readTone(toneFile)

//go:embed tone.bin
var toneFile []byte

func readTone(b []byte) (frames [][]byte) {
	for len(b) > 2 {
		n := int(binary.BigEndian.Uint16(b))
		frames, b = append(frames, b[2:2+n]), b[2+n:]
	}
	return frames
}

// A VoiceServer is a voice server without speech recognition: it answers each utterance with a
// tone, and every other one also sets the board's volume, as a language model would on request.
// It shows how fleetd works with a voice server.
type VoiceServer struct {
	// Pause is the silence after which a board's utterance is over. Default: 700ms.
	Pause time.Duration

	listener net.Listener
	http     http.Server

	mu      sync.Mutex
	talks   map[*talk]struct{}
	stopped bool
	running sync.WaitGroup
}

// ListenVoice binds the address of a voice server, such as 127.0.0.1:8000.
// [VoiceServer.Run] starts it.
func ListenVoice(addr string) (*VoiceServer, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	s := &VoiceServer{Pause: 700 * time.Millisecond, listener: l, talks: make(map[*talk]struct{})}
	s.http = http.Server{Handler: http.HandlerFunc(s.serve), ReadHeaderTimeout: networkWait}
	return s, nil
}

// URL returns the value for fleetd's --voice-upstream.
func (s *VoiceServer) URL() string {
	return "ws://" + s.listener.Addr().String() + "/xiaozhi/v1/?from=mqtt_gateway"
}

// Run serves until ctx ends, and then ends all conversations.
func (s *VoiceServer) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = s.http.Close() })
	defer stop()
	err := s.http.Serve(s.listener)
	s.mu.Lock()
	s.stopped = true
	for t := range s.talks {
		_ = t.ws.Close()
	}
	s.mu.Unlock()
	s.running.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (s *VoiceServer) serve(w http.ResponseWriter, r *http.Request) {
	ws, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
	if err != nil {
		return // Upgrade has answered
	}
	defer ws.Close()
	ws.SetReadLimit(1 << 20)
	t := &talk{server: s, ws: ws, framed: r.URL.RawQuery == "from=mqtt_gateway",
		id: fmt.Sprintf("tone-%x", time.Now().UnixNano())}
	s.mu.Lock()
	if s.stopped {
		s.mu.Unlock()
		return
	}
	s.talks[t] = struct{}{}
	s.running.Add(1)
	s.mu.Unlock()
	t.run()
	s.mu.Lock()
	delete(s.talks, t)
	s.mu.Unlock()
	s.running.Done()
}

// A talk is one conversation of a voice server. One goroutine reads, one answers.
type talk struct {
	server *VoiceServer
	ws     *websocket.Conn
	framed bool // audio has the gateway's header
	id     string

	answering sync.Mutex
	calls     int
	sequence  uint32
	timestamp uint32
	volume    bool // the board has a tool for it
	listed    bool
}

func (t *talk) run() {
	heard := make(chan struct{}, 1) // a frame
	over := make(chan struct{}, 1)  // the board reports the end of the utterance
	var answering sync.WaitGroup
	answering.Go(func() { t.answerAll(heard, over) })
	defer answering.Wait()
	defer close(heard)
	for {
		kind, message, err := t.ws.ReadMessage()
		if err != nil {
			return
		}
		wake := heard
		if kind == websocket.TextMessage && !t.onText(message) {
			continue
		} else if kind == websocket.TextMessage {
			wake = over
		}
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}

// onText reports whether the message ends an utterance.
func (t *talk) onText(message []byte) bool {
	var m struct {
		Type, State string
		Features    struct{ MCP bool }
		Payload     struct {
			ID     int
			Result struct {
				Tools      []struct{ Name string }
				NextCursor string
			}
		}
	}
	if json.Unmarshal(message, &m) != nil {
		return false
	}
	t.answering.Lock()
	defer t.answering.Unlock()
	switch m.Type {
	case "hello":
		if m.Features.MCP {
			t.send(`{"type":"mcp","payload":{"jsonrpc":"2.0","id":1,"method":"initialize","params":{` +
				`"protocolVersion":"2024-11-05","capabilities":{},"clientInfo":{"name":"tone","version":"1"}}}}`)
		}
		t.send(`{"type":"hello","version":1,"transport":"websocket","session_id":"` + t.id +
			`","audio_params":{"format":"opus","sample_rate":24000,"channels":1,"frame_duration":60}}`)
	case "mcp":
		if t.listed {
			return false
		}
		cursor, _ := json.Marshal(m.Payload.Result.NextCursor)
		switch {
		case m.Payload.ID == 1:
			t.send(`{"type":"mcp","payload":{"jsonrpc":"2.0","id":2,"method":"tools/list"}}`)
		case m.Payload.ID == 2 && len(cursor) > len(`""`):
			t.send(`{"type":"mcp","payload":{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{"cursor":` +
				string(cursor) + `}}}`)
		default:
			t.listed = true
		}
		for _, tool := range m.Payload.Result.Tools {
			t.volume = t.volume || tool.Name == "self.audio_speaker.set_volume"
		}
	case "listen":
		return m.State == "stop"
	}
	return false
}

// answerAll answers utterances until heard is closed.
func (t *talk) answerAll(heard, over <-chan struct{}) {
	pause := time.NewTimer(time.Hour)
	defer pause.Stop()
	for n := 0; ; {
		select {
		case _, open := <-heard:
			if !open {
				return
			}
			pause.Reset(t.server.Pause)
			continue
		case <-over:
		case <-pause.C:
		}
		pause.Reset(time.Hour)
		if !t.answer(n, heard) {
			return
		}
		n++
	}
}

// answer calls the tool, for every other utterance, and plays the tone. It
// reports false if the conversation ended.
func (t *talk) answer(n int, heard <-chan struct{}) bool {
	texts := []string{"Volume set.", "Three notes for you."}
	t.answering.Lock()
	if t.volume && n%2 == 0 {
		t.calls++
		t.send(fmt.Sprintf(`{"type":"mcp","payload":{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{`+
			`"name":"self.audio_speaker.set_volume","arguments":{"volume":%d}}}}`, t.calls, 40+5*(time.Now().Second()%10)))
	}
	for _, text := range []string{`{"type":"llm","emotion":"happy"}`, `{"type":"tts","state":"start"}`,
		`{"type":"tts","state":"sentence_start","text":"` + texts[n%2] + `"}`} {
		t.send(strings.TrimSuffix(text, "}") + `,"session_id":"` + t.id + `"}`)
	}
	t.answering.Unlock()
	beat := time.NewTicker(boardFrame)
	defer beat.Stop()
	for frames := slices.Clone(toneFrames); len(frames) > 0; {
		select {
		case _, open := <-heard:
			if !open {
				return false
			}
			continue // the board continues to talk, and the tone continues
		case <-beat.C:
		}
		t.play(frames[0])
		frames = frames[1:]
	}
	t.answering.Lock()
	defer t.answering.Unlock()
	t.send(`{"type":"tts","state":"stop","session_id":"` + t.id + `"}`)
	return true
}

// send and play ignore errors: the reader sees the end of the socket.
func (t *talk) send(text string) { _ = t.ws.WriteMessage(websocket.TextMessage, []byte(text)) }

func (t *talk) play(frame []byte) {
	t.answering.Lock()
	defer t.answering.Unlock()
	var b []byte
	if t.framed {
		t.sequence++
		t.timestamp += uint32(boardFrame.Milliseconds())
		b = binary.BigEndian.AppendUint16([]byte{1, 0}, uint16(len(frame)))
		b = binary.BigEndian.AppendUint32(b, t.sequence)
		b = binary.BigEndian.AppendUint32(b, t.timestamp)
		b = binary.BigEndian.AppendUint32(b, uint32(len(frame)))
	}
	_ = t.ws.WriteMessage(websocket.BinaryMessage, append(b, frame...))
}
