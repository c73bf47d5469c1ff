package sim

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"strings"
	"sync"
	"time"
)

var packetBuffers = sync.Pool{New: func() any { return new([]byte) }}

// onMessage handles a message of section 3.5. It runs on the reader's goroutine, and retains
// nothing of payload.
func (d *Device) onMessage(conn serverConn, payload []byte) {
	if !json.Valid(payload) {
		d.stats().ignored.Add(1)
		return
	}
	if c, ok := conn.(*mqttConn); ok && d.board.software {
		c.breakAt = time.Now().Add(d.fleet.scaled(silenceLimit))
	}
	msg := value(payload[value(payload).skipSpace(0):])
	switch msg.field("type").text() {
	case "mcp":
		d.onMCP(conn, msg.field("payload"))
	case "hello":
		d.onHello(msg)
	case "goodbye":
		d.onGoodbye(conn, msg)
	case "system":
		if msg.field("command").text() == "reboot" {
			d.schedule(d.restart)
		}
	case "alert":
		d.onAlert(msg)
	case "llm", "stt", "tts", "custom": // change the screen or do nothing
	default:
		d.stats().ignored.Add(1)
	}
}

func (d *Device) onAlert(msg value) {
	message := msg.field("message")
	if msg.field("status").isString() && message.isString() && msg.field("emotion").isString() {
		d.change(func(s *State) { s.Message = clip(message.text(), maxMessage) })
	}
}

// A conversation is the voice session of section 3. Audio is sent only if there is a script.
type conversation struct {
	id    string        // sent with every message, also after the channel closed
	open  bool          // the audio channel
	hello chan struct{} // closed by the server's hello while one is awaited
	audio audioLine     // nil without a script
}

// close closes the audio channel.
func (c *conversation) close() {
	c.open = false
	if c.audio != nil {
		c.audio.close()
	}
}

const helloWait = 10 * time.Second

// Talk makes the device open an audio channel, as a press of its button does. Its main task is
// blocked until the server sends hello, or for ten seconds.
func (d *Device) Talk() {
	if d.board.software {
		select {
		case d.talk <- struct{}{}:
		default: // it talks soon
		}
		return
	}
	d.schedule(d.openChannel)
}

// Talking reports whether the audio channel is open.
func (d *Device) Talking() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.session.open
}

func (d *Device) openChannel(ctx context.Context) {
	d.mu.Lock()
	socket := d.onSocket
	d.mu.Unlock()
	if socket != nil {
		d.openSocket(ctx, *socket)
		return
	}
	answered := make(chan struct{})
	d.mu.Lock()
	d.session.close()
	d.session = conversation{hello: answered}
	d.mu.Unlock()
	d.publish([]byte(`{"type":"hello","version":3,"transport":"udp","features":{"mcp":true,"glyph_push":false},` +
		`"audio_params":{"format":"opus","sample_rate":16000,"channels":1,"frame_duration":60}}`))
	timer := time.NewTimer(d.fleet.scaled(helloWait))
	defer timer.Stop()
	select {
	case <-answered:
		d.publish(d.message(`"type":"listen","state":"start","mode":"auto"`))
	case <-timer.C:
	case <-ctx.Done():
	}
}

// onHello accepts the session id of a valid hello (3.3). It ignores an invalid hello.
func (d *Device) onHello(msg value) {
	if s, ok := d.socket(); ok {
		d.onSocketHello(s, msg)
		return
	}
	udp := msg.field("udp")
	port := udp.field("port")
	if msg.field("transport").text() != "udp" || !udp.field("server").isString() || !port.isNumber() ||
		port.number() < 1 || port.number() > 65535 || !isHex128(udp.field("key")) || !isHex128(udp.field("nonce")) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.session.id = msg.field("session_id").text()
	if d.session.hello != nil {
		close(d.session.hello)
		d.session.hello, d.session.open = nil, true
		d.session.audio = d.openAudio(udp)
	}
}

func isHex128(v value) bool {
	b, err := hex.DecodeString(v.text())
	return err == nil && len(b) == 16
}

// onGoodbye closes the channel without an answer, if it names this session.
func (d *Device) onGoodbye(conn serverConn, msg value) {
	if _, ok := conn.(*socketConn); ok {
		d.stats().ignored.Add(1) // on a WebSocket, only the end of the socket ends it
		return
	}
	d.mu.Lock()
	id := msg.field("session_id")
	ends := id.isString() && id.text() == d.session.id
	if ends {
		d.session.close()
	}
	d.mu.Unlock()
	if ends && d.board.software {
		conn.hangUp()
	}
}

// closeChannel closes the channel and sends goodbye if the channel is open.
func (d *Device) closeChannel() {
	d.mu.Lock()
	open := d.session.open
	d.session.close()
	d.mu.Unlock()
	if s, ok := d.socket(); ok {
		s.hangUp() // the end of the socket replaces goodbye
		return
	}
	if open {
		d.publish(d.message(`"type":"goodbye"`))
	}
}

// message returns a message with the session id, which the firmware does not escape, followed by
// members.
func (d *Device) message(members string) []byte {
	d.mu.Lock()
	id := d.session.id
	d.mu.Unlock()
	var b strings.Builder
	b.Grow(len(id) + len(members) + 20)
	b.WriteString(`{"session_id":"`)
	b.WriteString(id)
	b.WriteString(`",`)
	b.WriteString(members)
	b.WriteString(`}`)
	return []byte(b.String())
}
