package voice

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"fleetd/broker/voice/voicetest"
	"fleetd/fleet/fleettest"
)

// A frame that the socket accepts in part stays whole: its remainder is written before all later
// messages.
func TestFramesStayWholeOnFullSocket(t *testing.T) {
	if !direct {
		t.Skip("frames take no direct way on this system")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	_ = raw.(*net.TCPConn).SetWriteBuffer(4 << 10)
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	_ = peer.(*net.TCPConn).SetReadBuffer(8 << 10)
	c := newDirectConn(raw)
	parts, sequence := 0, uint32(0)
	var reading sync.WaitGroup
	reading.Go(func() {
		for want := uint32(1); ; want++ {
			var head [8]byte
			if _, err := io.ReadFull(peer, head[:]); err != nil {
				return
			}
			payload := make([]byte, binary.BigEndian.Uint16(head[2:]))
			if _, err := io.ReadFull(peer, payload); err != nil {
				return
			}
			for i := range payload {
				payload[i] ^= head[4+i&3]
			}
			if head[0] != 0x82 || head[1] != 0x80|126 || binary.BigEndian.Uint32(payload) != want ||
				!bytes.Equal(payload[4:], bytes.Repeat([]byte{byte(want)}, len(payload)-4)) {
				t.Errorf("frame %d: %x %x", want, head, payload)
				return
			}
			time.Sleep(time.Millisecond) // lets the socket fill up
		}
	})
	for end := time.Now().Add(deadline); parts < 20 && time.Now().Before(end); {
		header := binary.BigEndian.AppendUint32(nil, sequence+1)
		sent, whole := c.writeBinary(header, bytes.Repeat([]byte{byte(sequence + 1)}, 20_000+100*int(sequence%400)))
		if sent {
			sequence++
		} else {
			time.Sleep(time.Millisecond)
		}
		if sent && !whole {
			parts++
			if sent, _ := c.writeBinary(header, header); sent {
				t.Fatal("a frame went between the parts of another")
			}
		}
		if !sent || !whole {
			if err := c.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	raw.Close()
	reading.Wait()
	if parts < 20 {
		t.Errorf("%d frames in parts: the socket was never full", parts)
	}
}

// A WebSocket server reads frames of all lengths unchanged.
func TestFramesAreWebSocketMessages(t *testing.T) {
	lengths := []int{1, 109, 110, 125, 126, 127, maxFrame}
	got := make(chan []byte, len(lengths))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer ws.Close()
		for range lengths {
			kind, message, err := ws.ReadMessage()
			if err != nil || kind != websocket.BinaryMessage {
				t.Errorf("kind %d, %v", kind, err)
				return
			}
			got <- message
		}
	}))
	defer s.Close()
	for _, query := range []string{"", "?from=mqtt_gateway"} {
		u := &Upstream{URL: "ws" + strings.TrimPrefix(s.URL, "http") + query}
		c, err := u.dial(t.Context(), "uuid", "02:00:00:00:00:01", "")
		if err != nil {
			t.Fatal(err)
		}
		q := newQueue(frame60)
		for i, n := range lengths {
			frame := bytes.Repeat([]byte{byte(i + 1)}, n)
			if sent := c.writeAudioNow(q, frame, 7); sent != direct {
				t.Errorf("%d bytes: sent %v", n, sent)
			} else if !sent {
				c.writing.Lock()
				err := c.writeAudio(frame, 7)
				c.writing.Unlock()
				if err != nil {
					t.Fatal(err)
				}
			}
			message := <-got
			payload, timestamp, ok := c.audio(message)
			if !ok || !bytes.Equal(payload, frame) || c.framed && (timestamp != 7 ||
				binary.BigEndian.Uint32(message[4:]) != uint32(i+1)) {
				t.Errorf("%d bytes: got %x", n, message)
			}
		}
		c.close()
	}
}

// A frame waits behind queued frames, and behind a message that is written in parts.
func TestFramesKeepTheirOrder(t *testing.T) {
	up := server(t, voicetest.Options{})
	w := start(t, up.URL(true), nil)
	b := newBoard(t, 1)
	b.talk(w.Relay, boardHello)
	b.open()
	s := first(t, up)
	c := b.conversation.(*conversation)
	c.upstream.writing.Lock() // as a long message does
	for i := range 5 {
		b.say(string(rune('a'+i)), uint32(i))
	}
	fleettest.Eventually(t, "frames wait", func() bool {
		c.frames.mu.Lock()
		defer c.frames.mu.Unlock()
		return c.frames.n >= 4
	})
	c.upstream.writing.Unlock()
	for i := range 5 {
		b.say(string(rune('f'+i)), uint32(5+i))
	}
	fleettest.Eventually(t, "all arrive", func() bool { return len(s.Frames()) == 10 })
	for i, f := range s.Frames() {
		if f.Timestamp != uint32(i) || f.Sequence != uint32(i+1) {
			t.Errorf("frame %d: %+v", i, f)
		}
	}
}
