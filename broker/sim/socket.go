package sim

import (
	"context"
	"encoding/binary"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

// A device that was given a WebSocket and no MQTT connects when somebody talks to
// it, and closes the socket with the conversation (5).

const socketWait = 10 * time.Second // for the upgrade, and for the server's hello

// A socketConn is the WebSocket of one conversation.
type socketConn struct {
	d       *Device
	ws      *websocket.Conn
	version int
	ended   sync.Once

	write sync.Mutex
}

func (s *socketConn) message(_ string, payload []byte) error {
	return s.send(websocket.TextMessage, payload)
}

func (s *socketConn) send(kind int, b []byte) error {
	s.write.Lock()
	defer s.write.Unlock()
	_ = s.ws.SetWriteDeadline(time.Now().Add(networkWait))
	return s.ws.WriteMessage(kind, b)
}

// hangUp closes the socket; the reader notices.
func (s *socketConn) hangUp() { s.ended.Do(func() { s.ws.Close() }) }

// Close does the same as hangUp: a board sends nothing when it closes its socket.
func (s *socketConn) Close() error { s.hangUp(); return nil }

func (s *socketConn) close() {}

// say sends a frame in the format of the device's version.
func (s *socketConn) say(_ int, at time.Duration, frame []byte) error {
	var head []byte
	switch s.version {
	case 2:
		head = make([]byte, 16)
		binary.BigEndian.PutUint16(head, 2)
		binary.BigEndian.PutUint32(head[8:], uint32(at.Milliseconds()))
		binary.BigEndian.PutUint32(head[12:], uint32(len(frame)))
	case 3:
		head = make([]byte, 4)
		binary.BigEndian.PutUint16(head[2:], uint16(len(frame)))
	}
	return s.send(websocket.BinaryMessage, append(head, frame...))
}

// frame returns the sound in a binary message. A device trusts the length in its header.
func (s *socketConn) frame(b []byte) (frame []byte, ok bool) {
	head := map[int]int{2: 16, 3: 4}[s.version]
	if len(b) <= head {
		return nil, false
	}
	frame = b[head:]
	switch s.version {
	case 2:
		return frame, binary.BigEndian.Uint16(b) == 2 && int(binary.BigEndian.Uint32(b[12:])) == len(frame)
	case 3:
		return frame, b[0] == 0 && int(binary.BigEndian.Uint16(b[2:])) == len(frame)
	}
	return frame, true
}

// socket returns the open socket, if the device has one.
func (d *Device) socket() (*socketConn, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, ok := d.conn.(*socketConn)
	return s, ok
}

// openSocket begins a conversation. It runs on the main task, which is blocked
// until the server's hello.
func (d *Device) openSocket(ctx context.Context, settings socketSettings) {
	d.closeChannel()
	s, err := d.dialSocket(ctx, settings)
	if err != nil {
		d.stats().connectFailures.Add(1)
		d.log().Debug("no conversation", "err", err)
		return
	}
	answered := make(chan struct{})
	d.mu.Lock()
	d.session = conversation{hello: answered}
	d.mu.Unlock()
	d.setConn(s)
	stop := context.AfterFunc(ctx, s.hangUp)
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer stop()
		d.readSocket(s)
	}()
	_ = s.message("", []byte(`{"type":"hello","version":`+strconv.Itoa(s.version)+`,"features":{"mcp":true,"glyph_push":`+
		`false},"transport":"websocket","audio_params":{"format":"opus","sample_rate":16000,"channels":1,`+
		`"frame_duration":60}}`)) // an error ends the reader
	timer := time.NewTimer(d.fleet.scaled(socketWait))
	defer timer.Stop()
	select {
	case <-answered:
		d.publish(d.message(`"type":"listen","state":"start","mode":"auto"`))
	case <-timer.C:
		s.hangUp()
	case <-read:
	case <-ctx.Done():
	}
}

func (d *Device) dialSocket(ctx context.Context, settings socketSettings) (*socketConn, error) {
	ctx, cancel := context.WithTimeout(ctx, socketWait)
	defer cancel()
	version, token := max(1, settings.version), settings.token
	if !strings.Contains(token, " ") {
		token = "Bearer " + token
	}
	dialer := websocket.Dialer{NetDialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
		return dialFrom(ctx, d.localAddr(), addr)
	}}
	ws, _, err := dialer.DialContext(ctx, settings.url, http.Header{"Authorization": {token}, "Device-Id": {d.id.mac},
		"Client-Id": {d.id.uuid}, "Protocol-Version": {strconv.Itoa(version)}})
	if err != nil {
		return nil, err
	}
	return &socketConn{d: d, ws: ws, version: version}, nil
}

// readSocket handles the server's messages until the socket closes.
func (d *Device) readSocket(s *socketConn) {
	defer func() {
		s.hangUp()
		d.mu.Lock()
		ours := d.conn == serverConn(s)
		d.mu.Unlock()
		if ours {
			d.setConn(nil)
		}
	}()
	for {
		kind, b, err := s.ws.ReadMessage()
		if err != nil {
			return
		}
		if kind == websocket.TextMessage {
			d.onMessage(s, b)
			continue
		}
		frame, ok := s.frame(b)
		if !ok {
			d.stats().audioDropped.Add(1)
			continue
		}
		d.stats().audioHeard.Add(1)
		if hear := d.fleet.options.Hear; hear != nil {
			hear(d.id.mac, frame[1:])
		}
	}
}

// onSocketHello accepts the session id. A hello without transport crashes the device; a hello
// with another transport is ignored.
func (d *Device) onSocketHello(s *socketConn, msg value) {
	transport := msg.field("transport")
	if !transport.isString() {
		d.stats().crashes.Add(1)
		d.log().Warn("device crashed and restarts", "reason", "a hello without transport")
		d.mu.Lock()
		restart := d.restarts
		d.mu.Unlock()
		restart()
		return
	}
	if transport.text() != "websocket" {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.session.id = msg.field("session_id").text()
	if d.session.hello == nil {
		return
	}
	close(d.session.hello)
	d.session.hello, d.session.open = nil, true
	if d.fleet.options.Speech != nil {
		d.session.audio = s
		go d.speak(s)
	}
}

// talkNowAndThen holds a conversation as often as the fleet's options require, and otherwise when
// [Device.Talk] is called.
func (d *Device) talkNowAndThen(ctx context.Context) {
	every := d.fleet.options.TalkEvery
	if every <= 0 {
		<-ctx.Done()
		return
	}
	for sleepFor(ctx, every/2) {
		d.Talk()
		if !sleepFor(ctx, every/2) {
			return
		}
		d.EndTalk()
	}
}
