package broker

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"fleetd/broker/dialect"
	"fleetd/broker/link"
	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

const socketBoardHello = `{"type":"hello","version":%d,"features":{"mcp":true,"glyph_push":false},` +
	`"transport":"websocket","audio_params":{"format":"opus","sample_rate":16000,"channels":1,"frame_duration":60}}`

// A socketBoard is a board on a WebSocket, as the protocol's document describes it.
type socketBoard struct {
	t  testing.TB
	id fleet.DeviceID
	*websocket.Conn
	writing sync.Mutex

	mu      sync.Mutex
	texts   []string // all except mcp
	audio   []string // binary messages, in hex
	methods []string // of the requests it received
	ended   error
}

func socketServer(t testing.TB, b *system) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(b.edge.ServeWebSocket))
	t.Cleanup(s.Close)
	return "ws" + strings.TrimPrefix(s.URL, "http") + "/xiaozhi/v1/"
}

// socketHeader returns the headers of the nth device, with a valid token.
func socketHeader(n, version int) (fleet.DeviceID, http.Header) {
	mqttID := testClientID(n)
	id := deviceOfClientID(mqttID)
	return id, http.Header{"Device-Id": {id.MAC()}, "Client-Id": {dialect.UUIDOf(mqttID)}, "Protocol-Version": {fmt.Sprint(version)},
		"Authorization": {"Bearer " + passwordOf(mqttID)}}
}

// dialSocket connects the nth device. It sends hello unless hello is "", and answers requests.
func dialSocket(t testing.TB, url string, n, version int, hello string) *socketBoard {
	t.Helper()
	id, header := socketHeader(n, version)
	ws, answer, err := websocket.DefaultDialer.Dial(url, header)
	if err != nil {
		t.Fatalf("%v %+v", err, answer)
	}
	d := &socketBoard{t: t, id: id, Conn: ws}
	done := make(chan struct{})
	t.Cleanup(func() { ws.Close(); <-done })
	go func() { defer close(done); d.run() }()
	if hello != "" {
		d.say(hello)
	}
	return d
}

// WriteMessage may be called by several goroutines: the test's and the one that
// answers.
func (d *socketBoard) WriteMessage(kind int, data []byte) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	return d.Conn.WriteMessage(kind, data)
}

func (d *socketBoard) say(text string) {
	d.t.Helper()
	if err := d.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
		d.t.Error(err)
	}
}

func (d *socketBoard) sound(hexText string) {
	d.t.Helper()
	b, err := hex.DecodeString(hexText)
	if err != nil {
		d.t.Fatal(err)
	}
	if err := d.WriteMessage(websocket.BinaryMessage, b); err != nil {
		d.t.Error(err)
	}
}

func (d *socketBoard) run() {
	for {
		kind, data, err := d.ReadMessage()
		d.mu.Lock()
		if err != nil {
			d.ended = err
			d.mu.Unlock()
			return
		}
		var m struct {
			Type    string
			Payload struct {
				ID     int
				Method string
				Params struct{ Name string }
			}
		}
		switch {
		case kind == websocket.BinaryMessage:
			d.audio = append(d.audio, hex.EncodeToString(data))
		case json.Unmarshal(data, &m) != nil:
			d.t.Errorf("not JSON: %s", data)
		case m.Type != "mcp":
			d.texts = append(d.texts, string(data))
		default:
			d.methods = append(d.methods, m.Payload.Method)
			result := map[string]string{
				"initialize": `{"protocolVersion":"2024-11-05","capabilities":{"tools":{}},"serverInfo":{"name":"b","version":"2.4.2"}}`,
				"tools/list": `{"tools":[{"name":"self.lamp","description":"Lamp","inputSchema":{"type":"object","properties":{}}}]}`,
				"tools/call": `{"content":[{"type":"text","text":"` + string(d.id) + `"}],"isError":false}`,
			}[m.Payload.Method]
			if err := d.WriteMessage(websocket.TextMessage, fmt.Appendf(nil, `{"session_id":"s","type":"mcp","payload":`+
				`{"jsonrpc":"2.0","id":%d,"result":%s}}`, m.Payload.ID, result)); err != nil {
				d.ended = err
			}
		}
		d.mu.Unlock()
	}
}

func (d *socketBoard) got() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.texts, "\n")
}
func (d *socketBoard) heard() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.audio, "\n")
}
func (d *socketBoard) over() error { d.mu.Lock(); defer d.mu.Unlock(); return d.ended }

// Without a voice server the device is listed and called while its socket is open.
func TestWebSocketServesMCP(t *testing.T) {
	b, dom := start(t, func(o *options) { o.Devices.(*domain).fresh = false })
	d := dialSocket(t, socketServer(t, b), 1, 1, fmt.Sprintf(socketBoardHello, 1))
	fleettest.Eventually(t, "the tools are listed", func() bool { return len(dom.listed()) == 1 })
	if got := d.got(); !strings.HasPrefix(got, `{"type":"hello","transport":"websocket","session_id":"s-`) ||
		strings.Contains(got, "udp") || strings.Contains(got, "goodbye") {
		t.Errorf("hello: %s", got)
	}
	c, ok := b.Connection(d.id)
	if !ok || c.Transport != "ws" || c.RemoteAddr != "127.0.0.1" || !strings.HasSuffix(c.ClientID, dialect.UUIDOf(testClientID(1))) {
		t.Errorf("%+v", c)
	}
	a, err := makeCall(b, d.id, "self.lamp", `{}`, deadline, nil)
	if err != nil || a.Text != string(d.id) {
		t.Errorf("%+v, %v", a, err)
	}
	if s := b.Stats(); s.WebSockets != 1 || s.Sockets != 1 || s.Connections != 1 || s.Channels != 1 {
		t.Errorf("%+v", s)
	}
	if err := d.Close(); err != nil { // as boards do, without a close frame
		t.Fatal(err)
	}
	fleettest.Eventually(t, "it has left", func() bool {
		return dom.count("disconnected "+string(d.id)+" clean=true") == 1
	})
	if _, err := b.Queue(d.id, fleet.KindOperator); err == nil {
		t.Error("a device without a socket can be called")
	}
	fleettest.Eventually(t, "nothing is left of it", func() bool {
		s := b.Stats()
		return s.Sockets == 0 && s.Channels == 0
	})
}

func TestWebSocketChannelEndsInTime(t *testing.T) {
	b, dom := start(t, func(o *options) { o.ChannelTimeout = 50 * time.Millisecond })
	d := dialSocket(t, socketServer(t, b), 1, 1, fmt.Sprintf(socketBoardHello, 1))
	fleettest.Eventually(t, "the socket is closed", func() bool {
		return websocket.IsCloseError(d.over(), websocket.CloseNormalClosure)
	})
	fleettest.Eventually(t, "it is noted", func() bool {
		return dom.count("disconnected "+string(d.id)+" clean=false: "+fleet.CauseConversationOver) == 1
	})
}

// The hello vectors of the protocol's document.
func TestWebSocketHelloVectors(t *testing.T) {
	text, err := os.ReadFile("testdata/hello_ws.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors struct {
		Cases []struct {
			Name, Dir, Wire string
			Expect          struct {
				MustNotSend bool `json:"backend_must_not_send"`
			}
		}
	}
	if err := json.Unmarshal(text, &vectors); err != nil || len(vectors.Cases) < 3 {
		t.Fatal(len(vectors.Cases), err)
	}
	b, _ := start(t, nil)
	url := socketServer(t, b)
	for i, v := range vectors.Cases {
		if v.Dir != "up" {
			continue
		}
		d := dialSocket(t, url, i, 1, v.Wire)
		fleettest.Eventually(t, v.Name, func() bool { return d.got() != "" })
		var ours, valid map[string]any
		_ = json.Unmarshal([]byte(d.got()), &ours)
		for _, down := range vectors.Cases {
			if down.Dir == "down" && !down.Expect.MustNotSend {
				_ = json.Unmarshal([]byte(down.Wire), &valid)
			}
		}
		for key := range valid {
			if ours[key] == nil {
				t.Errorf("our hello %s lacks %s", d.got(), key)
			}
		}
		if ours["transport"] != "websocket" {
			t.Errorf("a board restarts on %s", d.got())
		}
	}
}

// The relay and the device exchange audio in all three forms of binary messages.
func TestWebSocketAudio(t *testing.T) {
	for _, tt := range []struct {
		version int
		up      string
		heard   string
		down    string
		bad     []string
	}{
		{1, "58aabb", `audio 0 "X\xaa\xbb"`, "58ccdd", []string{""}},
		{2, "0002" + "0000" + "00000000" + "000003e8" + "00000003" + "58aabb", `audio 1000 "X\xaa\xbb"`,
			"0002" + "0000" + "00000000" + "0000003c" + "00000003" + "58ccdd",
			[]string{"58aabb", "0002" + "0000" + "00000000" + "000003e8" + "ffffffff" + "58aabb",
				"0001" + "0000" + "00000000" + "000003e8" + "00000003" + "58aabb",
				"0002" + "0007" + "00000000" + "000003e8" + "00000003" + "58aabb"}},
		{3, "00" + "00" + "0003" + "58aabb", `audio 0 "X\xaa\xbb"`, "00" + "00" + "0003" + "58ccdd",
			[]string{"58", "0000000258aabb", "0900000358aabb"}},
	} {
		t.Run(fmt.Sprint("version ", tt.version), func(t *testing.T) {
			r := new(relay)
			b, _ := start(t, func(o *options) { o.Voice, o.VisionURL = r, nil })
			// The version in the header and in hello may differ: hello wins.
			d := dialSocket(t, socketServer(t, b), 1, 1, "")
			d.sound(tt.up) // before hello
			d.say(fmt.Sprintf(socketBoardHello, tt.version))
			for _, bad := range tt.bad {
				d.sound(bad)
			}
			d.sound(tt.up)
			fleettest.Eventually(t, "the frame", func() bool { return len(r.happened()) == 2 })
			if got := r.happened(); got[1] != tt.heard {
				t.Errorf("heard %q, want %q", got, tt.heard)
			}
			if tt.version > 1 {
				text := hex.EncodeToString([]byte(`{"type":"abort"}`))
				d.sound(map[int]string{2: "0002" + "0001" + "00000000" + "00000000" + "00000010", 3: "01" + "00" + "0010"}[tt.version] + text)
				fleettest.Eventually(t, "a message in a binary one", func() bool { return len(r.happened()) == 3 })
			}
			r.mu.Lock()
			v := r.begun[0]
			r.mu.Unlock()
			if !v.Stream.SendAudio([]byte{0x58, 0xcc, 0xdd}, 60) {
				t.Error("not sent")
			}
			fleettest.Eventually(t, "the answer", func() bool { return d.heard() != "" })
			if got := d.heard(); got != tt.down {
				t.Errorf("received %s, want %s", got, tt.down)
			}
			// The end follows the earlier messages.
			if err := v.Send([]byte(`{"type":"alert"}`)); err != nil {
				t.Error(err)
			}
			v.Stream.Close()
			fleettest.Eventually(t, "the end", func() bool { return d.over() != nil })
			if d.got() != `{"type":"alert"}` {
				t.Errorf("got %s before the end", d.got())
			}
		})
	}
}

func TestWebSocketEndsConversation(t *testing.T) {
	r := new(relay)
	b, dom := start(t, func(o *options) { o.Voice, o.VisionURL = r, nil })
	url := socketServer(t, b)
	hello := fmt.Sprintf(socketBoardHello, 1)
	d := dialSocket(t, url, 1, 1, hello)
	fleettest.Eventually(t, "hello", func() bool { return len(r.happened()) == 1 })
	d.say(hello) // twice
	fleettest.Eventually(t, "the second hello", func() bool { return len(r.happened()) == 2 })
	next := dialSocket(t, url, 1, 1, hello) // the device restarted, and its old socket is still open
	fleettest.Eventually(t, "the third hello", func() bool { return len(r.happened()) == 3 })
	fleettest.Eventually(t, "the first is replaced", func() bool {
		return d.over() != nil && dom.count("disconnected") == 1
	})
	if b.Stats().Takeovers != 1 {
		t.Errorf("%+v", b.Stats())
	}
	_ = next.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(1000, ""), time.Now().Add(deadline))
	fleettest.Eventually(t, "the second is over", func() bool { return dom.count("disconnected") == 2 })
	r.mu.Lock()
	defer r.mu.Unlock()
	if fmt.Sprint(r.ended) != fmt.Sprint([]fleet.ConversationEnd{fleet.EndedByNewHello, fleet.EndedByDevice}) {
		t.Errorf("ended %v", r.ended) // the replaced conversation ends with its connection: edge.VoiceDevice.Lost
	}
}

// A device has one connection, whatever its transport.
func TestWebSocketTakesOverFromMQTT(t *testing.T) {
	b, _ := start(t, nil)
	old := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	fleettest.Eventually(t, "MQTT", func() bool { c, ok := b.Connection(old.id); return ok && c.Transport == "mqtt" })
	d := dialSocket(t, socketServer(t, b), 1, 1, fmt.Sprintf(socketBoardHello, 1))
	if d.id != old.id {
		t.Fatal(d.id)
	}
	if err := old.ended(deadline); err != nil {
		t.Error(err)
	}
	fleettest.Eventually(t, "WebSocket", func() bool { c, ok := b.Connection(d.id); return ok && c.Transport == "ws" })
	if _, err := makeCall(b, d.id, "self.lamp", `{}`, deadline, nil); err != nil {
		t.Error(err)
	}
	if !b.Kick(d.id, link.CauseOf(fleet.CauseRetired, "the device was retired").Cause) {
		t.Error("not kicked")
	}
	fleettest.Eventually(t, "the end", func() bool { return d.over() != nil })
}

func TestWebSocketRefusesStrangers(t *testing.T) {
	b, dom := start(t, nil)
	url := socketServer(t, b)
	_, second := socketHeader(2, 1)
	for _, tt := range []struct {
		name   string
		change func(h http.Header)
		status int
	}{
		{"no token", func(h http.Header) { h.Del("Authorization") }, 401},
		{"not Bearer", func(h http.Header) { h.Set("Authorization", "Basic "+h.Get("Authorization")[7:]) }, 401},
		{"bad token", func(h http.Header) { h.Set("Authorization", "Bearer x.y") }, 401},
		{"of another device", func(h http.Header) { h.Set("Device-Id", second.Get("Device-Id")) }, 401},
		{"of another Client-Id", func(h http.Header) { h.Set("Client-Id", "other") }, 401},
		{"no device", func(h http.Header) { h.Del("Device-Id") }, 400},
		{"no id", func(h http.Header) { h.Set("Device-Id", "../x") }, 400},
		{"a browser", func(h http.Header) { h.Set("Origin", "https://fleet.example.org") }, 403},
	} {
		_, header := socketHeader(1, 1)
		tt.change(header)
		ws, answer, err := websocket.DefaultDialer.Dial(url, header)
		if err == nil {
			ws.Close()
			t.Errorf("%s: accepted", tt.name)
			continue
		}
		if answer == nil || answer.StatusCode != tt.status {
			t.Errorf("%s: %+v, want %d", tt.name, answer, tt.status)
		}
	}
	answer, err := http.Get("http" + strings.TrimPrefix(url, "ws"))
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusUpgradeRequired {
		t.Error(answer.Status)
	}
	if n := dom.count("connected"); n != 0 || b.Stats().Refused["origin"] != 1 {
		t.Errorf("%d connected, %+v", n, b.Stats().Refused)
	}
}

// Limits apply to a device that dials without end, and to an address that guesses tokens.
func TestWebSocketDialLimits(t *testing.T) {
	b, _ := start(t, nil)
	handler := http.HandlerFunc(b.edge.ServeWebSocket)
	dial := func(remote string, header http.Header) int {
		r := httptest.NewRequest(http.MethodGet, "/xiaozhi/v1/", nil)
		r.Header = header.Clone()
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "websocket")
		r.RemoteAddr = remote + ":1234"
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code
	}
	_, header := socketHeader(1, 1)
	header.Set("Authorization", "Bearer guess")
	count := map[int]int{}
	for range badTokensPerMinute + 10 {
		count[dial("192.0.2.1", header)]++
	}
	// More attempts are allowed as the minute of the first ones passes.
	if tried := count[401]; tried < badTokensPerMinute || tried+count[429] != badTokensPerMinute+10 || count[429] < 5 {
		t.Errorf("guesses: %v", count)
	}
	if got := dial("192.0.2.2", header); got != 401 {
		t.Errorf("another address: %d", got)
	}
	url := socketServer(t, b)
	_, header = socketHeader(2, 1)
	dialled, accepted := time.Now(), 0
	for range dialBurst + 5 {
		ws, answer, err := websocket.DefaultDialer.Dial(url, header)
		if err == nil {
			ws.Close()
			accepted++
		} else if answer == nil || answer.StatusCode != http.StatusTooManyRequests {
			t.Errorf("%v %+v", err, answer)
		}
	}
	if most := dialBurst + 1 + int(time.Since(dialled)/dialEvery); accepted < dialBurst || accepted > most {
		t.Errorf("%d of %d dials accepted, %d at most", accepted, dialBurst+5, most)
	}
}

// A hostile device with a valid token affects only itself.
func TestWebSocketHostile(t *testing.T) {
	r := new(relay)
	b, _ := start(t, func(o *options) { o.Voice, o.VisionURL, o.WriteTimeout = r, nil, time.Second })
	url := socketServer(t, b)
	hello := fmt.Sprintf(socketBoardHello, 1)
	well := dialSocket(t, url, 1, 1, hello)
	fleettest.Eventually(t, "hello", func() bool { return len(r.happened()) == 1 })

	long := dialSocket(t, url, 2, 1, hello)
	_ = long.WriteMessage(websocket.BinaryMessage, make([]byte, 10<<20)) // fails when the other end closes
	fleettest.Eventually(t, "the end of who sends 10 MB", func() bool { return long.over() != nil })

	flood := dialSocket(t, url, 3, 1, hello)
	fleettest.Eventually(t, "the end of a flood", func() bool {
		for range textBurst {
			_ = flood.WriteMessage(websocket.TextMessage, []byte(`{"type":"listen"}`)) // fails when the other end closes
		}
		return flood.over() != nil
	})

	junk := dialSocket(t, url, 4, 1, "")
	for _, text := range []string{"no JSON", "{", `[]`, `{"type":7}`, `{"type":"mcp","payload":7}`, "\xff\xfe"} {
		_ = junk.WriteMessage(websocket.TextMessage, []byte(text))
	}
	before := len(r.happened())
	junk.say(hello)
	fleettest.Eventually(t, "junk does not end a connection", func() bool { return len(r.happened()) > before })

	slow, header := socketHeader(5, 1)
	dialer := websocket.Dialer{NetDialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err == nil {
			err = c.(*net.TCPConn).SetReadBuffer(4096)
		}
		return c, err
	}}
	stuck, _, err := dialer.Dial(url, header)
	if err != nil {
		t.Fatal(err)
	}
	defer stuck.Close()
	fleettest.Eventually(t, "the slow one is in", func() bool { return b.registry.connection(slow) != nil })
	c := b.registry.connection(slow)
	message := []byte(`{"type":"tts","text":"` + strings.Repeat("x", 60<<10) + `"}`)
	fleettest.Eventually(t, "the end of who reads nothing", func() bool { _ = c.deliver(message); return c.hasEnded() })

	if well.over() != nil {
		t.Fatal(well.over())
	}
	if _, err := makeCall(b, well.id, "self.lamp", `{}`, deadline, nil); err != nil {
		t.Error(err)
	}
}

func TestWebSocketWithoutHello(t *testing.T) {
	b, dom := start(t, func(o *options) { o.SocketHello = 50 * time.Millisecond })
	d := dialSocket(t, socketServer(t, b), 1, 1, "")
	fleettest.Eventually(t, "its time is up", func() bool { return d.over() != nil })
	if !websocket.IsCloseError(d.over(), websocket.ClosePolicyViolation) {
		t.Error(d.over())
	}
	fleettest.Eventually(t, "it is noted", func() bool { return dom.count("disconnected") == 1 })
}

// A half-open connection: the device has vanished without closing it.
func TestWebSocketHalfOpen(t *testing.T) {
	b, dom := start(t, func(o *options) { o.SocketSilence = 200 * time.Millisecond })
	d := dialSocket(t, socketServer(t, b), 1, 1, fmt.Sprintf(socketBoardHello, 1))
	fleettest.Eventually(t, "its silence is noticed", func() bool {
		return dom.count("disconnected "+string(d.id)+" clean=false: "+fleet.CauseNoPong) == 1
	})
}

// Each of many devices hears and is heard in its own conversation only.
func TestWebSocketNoCrossTalk(t *testing.T) {
	r := new(relay)
	b, _ := start(t, func(o *options) { o.Voice, o.VisionURL = r, nil })
	url := socketServer(t, b)
	const devices, frames = 40, 30
	all := make([]*socketBoard, devices)
	for i := range all {
		all[i] = dialSocket(t, url, i, 1+i%3, fmt.Sprintf(socketBoardHello, 1+i%3))
	}
	fleettest.Eventually(t, "all are in conversation", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.begun) == devices
	})
	r.mu.Lock()
	begun := r.begun
	r.mu.Unlock()
	var wg sync.WaitGroup
	for _, v := range begun {
		wg.Go(func() {
			for range frames {
				v.Stream.SendAudio([]byte(v.ID), 0)
				_ = v.Send([]byte(`{"type":"stt","text":"` + string(v.ID) + `"}`))
			}
		})
	}
	wg.Wait()
	fleettest.Eventually(t, "all audio, but what was dropped as late", func() bool {
		n := b.Stats().AudioDropped
		for _, d := range all {
			d.mu.Lock()
			n += int64(len(d.audio))
			d.mu.Unlock()
		}
		return n == devices*frames
	})
	for _, d := range all {
		fleettest.Eventually(t, "all texts", func() bool {
			d.mu.Lock()
			defer d.mu.Unlock()
			return len(d.texts) == frames
		})
		own := hex.EncodeToString([]byte(d.id))
		for line := range strings.Lines(strings.TrimLeft(d.heard()+"\n", "\n") + hex.EncodeToString([]byte(d.got()))) {
			if n := strings.Count(line, own); n == 0 {
				t.Fatalf("%s received %s", d.id, line)
			}
		}
		for _, other := range all {
			if other != d && (strings.Contains(d.heard(), hex.EncodeToString([]byte(other.id))) ||
				strings.Contains(d.got(), string(other.id))) {
				t.Fatalf("%s heard %s", d.id, other.id)
			}
		}
	}
}

func TestWebSocketShutdown(t *testing.T) {
	b, _ := start(t, func(o *options) { o.VisionURL = nil })
	url := socketServer(t, b)
	d := dialSocket(t, url, 1, 1, fmt.Sprintf(socketBoardHello, 1))
	fleettest.Eventually(t, "hello", func() bool { return d.got() != "" })
	b.stop()
	fleettest.Eventually(t, "the end", func() bool {
		return websocket.IsCloseError(d.over(), websocket.CloseGoingAway)
	})
	_, header := socketHeader(2, 1)
	ws, _, err := websocket.DefaultDialer.Dial(url, header)
	if err == nil {
		defer ws.Close()
		if _, _, err := ws.ReadMessage(); err == nil {
			t.Error("served after the end")
		}
	}
}
