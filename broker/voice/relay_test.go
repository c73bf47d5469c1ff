package voice

import (
	"context"
	"crypto/sha1"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"fleetd/broker/edge"
	"fleetd/broker/voice/voicetest"
	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/fleettest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const deadline = time.Minute

const boardHello = `{"type":"hello","version":3,"transport":"udp","features":{"aec":true,"mcp":true,"glyph_push":true},` +
	`"text_font":{"bundle":"noto-v1","charset":"common","size":20,"bpp":4},` +
	`"audio_params":{"format":"opus","sample_rate":16000,"channels":1,"frame_duration":60}}`

// A board is the device's side of a conversation.
type board struct {
	t      testing.TB
	id     fleet.DeviceID
	remote string // address of its MQTT connection
	lost   chan struct{}

	mu     sync.Mutex
	sent   []string // to the board
	opened int
	closed int

	conversation edge.Conversation

	session, key, nonce string
	udp                 *net.UDPConn
	sequence            uint32
}

func newBoard(t testing.TB, n int) *board {
	return &board{t: t, id: fleet.DeviceID(fmt.Sprintf("02000000%04x", n)), remote: "127.0.0.1",
		lost: make(chan struct{})}
}

func (b *board) device() edge.VoiceDevice {
	return edge.VoiceDevice{ID: b.id, ClientID: "uuid-" + string(b.id), RemoteAddr: b.remote, Lost: b.lost,
		Send: func(p []byte) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.sent = append(b.sent, string(p))
			return nil
		},
		Opened: func() { b.mu.Lock(); b.opened++; b.mu.Unlock() },
		Closed: func() { b.mu.Lock(); b.closed++; b.mu.Unlock() }}
}

func (b *board) talk(r *Relay, hello string) {
	payload := []byte(hello)
	b.conversation = r.Begin(b.device(), payload)
	clear(payload) // it was valid only until now
}

func (b *board) got() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.sent)
}

// types returns the types of the messages that the board received.
func (b *board) types() (types []string) {
	for _, text := range b.got() {
		var m struct{ Type string }
		if err := json.Unmarshal([]byte(text), &m); err != nil {
			b.t.Errorf("not JSON: %s", text)
		}
		types = append(types, m.Type)
	}
	return types
}

// open waits for the hello and opens the UDP socket that it names.
func (b *board) open() {
	b.t.Helper()
	fleettest.Eventually(b.t, "hello", func() bool { return len(b.got()) > 0 })
	var h struct {
		Type, Transport string
		SessionID       string `json:"session_id"`
		UDP             struct {
			Server, Key, Nonce string
			Port               int
		}
	}
	if err := json.Unmarshal([]byte(b.got()[0]), &h); err != nil || h.Type != "hello" || h.Transport != "udp" {
		b.t.Fatalf("%s, %v", b.got()[0], err)
	}
	b.session, b.key, b.nonce = h.SessionID, h.UDP.Key, h.UDP.Nonce
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(h.UDP.Server),
		uint16(h.UDP.Port))))
	if err != nil {
		b.t.Fatal(err)
	}
	b.udp = conn
	b.t.Cleanup(func() { conn.Close() })
}

func (b *board) say(text string, timestamp uint32) {
	b.t.Helper()
	b.send(speech(text), timestamp)
}

// send sends a frame with any contents.
func (b *board) send(frame []byte, timestamp uint32) {
	b.t.Helper()
	b.sequence++
	if _, err := b.udp.Write(seal(b.t, b.key, b.nonce, timestamp, b.sequence, frame)); err != nil {
		b.t.Fatal(err)
	}
}

// hearWithin returns the next frame, or false if none arrived.
func (b *board) hearWithin(d time.Duration) (string, bool) {
	b.t.Helper()
	_ = b.udp.SetReadDeadline(time.Now().Add(d))
	buf := make([]byte, 2000)
	n, err := b.udp.Read(buf)
	if err != nil {
		return "", false
	}
	frame, _ := b.decrypt(buf[:n])
	return frame, true
}

// hear returns the next frame and its time stamp.
func (b *board) hear() (string, uint32) {
	b.t.Helper()
	buf := make([]byte, 2000)
	_ = b.udp.SetReadDeadline(time.Now().Add(deadline))
	n, err := b.udp.Read(buf)
	if err != nil {
		b.t.Fatal(err)
	}
	return b.decrypt(buf[:n])
}

func (b *board) decrypt(packet []byte) (string, uint32) {
	b.t.Helper()
	h, ok := parseHeader(packet)
	if !ok {
		b.t.Fatalf("malformed packet %x", packet)
	}
	frame := seal(b.t, b.key, b.nonce, h.timestamp, h.sequence, packet[headerSize:])[headerSize:]
	if len(frame) == 0 || frame[0] != tocSpeech {
		b.t.Fatalf("not decrypted: %x", frame)
	}
	return string(frame[1:]), h.timestamp
}

// calls is a Caller that makes no real calls.
type calls struct {
	mu    sync.Mutex
	made  []call.Request
	tools []fleet.Tool
	// programs are the tools of plug-ins.
	programs map[fleet.DeviceID][]fleet.Tool
	// unlisted is how many more reads find the device not on record yet.
	unlisted int
	make     func(ctx context.Context, r call.Request) (fleet.Call, error)
}

func (c *calls) Make(ctx context.Context, r call.Request) (fleet.Call, error) {
	c.mu.Lock()
	c.made = append(c.made, r)
	do := c.make
	c.mu.Unlock()
	if do != nil {
		return do(ctx, r)
	}
	return fleet.Call{State: fleet.CallSucceeded, Tool: r.Tool,
		Result: json.RawMessage(`{"content":[{"type":"text","text":"` + r.Tool + `"}],"isError":false}`)}, nil
}

func (c *calls) all() []call.Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.made)
}

func (c *calls) Offered(_ context.Context, _ fleet.Principal, id fleet.DeviceID) (fleet.Device, []fleet.Tool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id.IsProgram() {
		return fleet.Device{ID: id, InventoryID: "p"}, c.programs[id], nil
	}
	if c.unlisted > 0 {
		c.unlisted--
		return fleet.Device{}, nil, fmt.Errorf("device %s: %w", id, fleet.ErrNotFound)
	}
	return fleet.Device{ID: id, Board: "bread-compact-wifi", Version: "2.4.2", InventoryID: "i"}, c.tools, nil
}

type texts struct{}

func (texts) Ended(how fleet.ConversationEnd) (string, string) { return "Voice", "end " + string(how) }
func (texts) Call(c fleet.Call) string                         { return "call " + c.Error.Code }
func (texts) Error(err error) string                           { return "error " + err.Error() }

// records stores conversations in memory.
type records struct {
	mu   sync.Mutex
	list map[[16]byte]fleet.Conversation
	fail error
}

func (s *records) SaveConversations(_ context.Context, list []fleet.Conversation) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return s.fail
	}
	for _, c := range list {
		s.list[c.ID] = c
	}
	return nil
}

func (s *records) Conversations(context.Context, fleet.ConversationFilter) (fleet.Page[fleet.Conversation], error) {
	return fleet.Page[fleet.Conversation]{}, nil
}

func (s *records) ended(how fleet.ConversationEnd) (n int, last fleet.Conversation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.list {
		if c.Ended == how {
			n, last = n+1, c
		}
	}
	return n, last
}

type world struct {
	*Relay
	calls   *calls
	records *records
	stop    func()
}

func start(t testing.TB, url string, change func(*Options)) *world {
	t.Helper()
	w := &world{calls: &calls{}, records: &records{list: make(map[[16]byte]fleet.Conversation)}}
	o := Options{Upstream: Upstream{Name: "lab", URL: url}, Addr: "127.0.0.1:0", Endpoint: "127.0.0.1:0", Calls: w.calls,
		Store: w.records, Texts: texts{}, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	if change != nil {
		change(&o)
	}
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	w.Relay = r
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(w.stop)
	return w
}

func server(t testing.TB, o voicetest.Options) *voicetest.Server {
	t.Helper()
	s := voicetest.Start(o)
	t.Cleanup(s.Close)
	return s
}

func first(t testing.TB, s *voicetest.Server) *voicetest.Session {
	t.Helper()
	fleettest.Eventually(t, "the upstream has a conversation", func() bool { return len(s.Sessions()) > 0 })
	return s.Sessions()[0]
}

// A conversation from hello to goodbye relays audio both ways with its time stamps, and messages
// both ways, each with its receiver's session id.
func TestConversation(t *testing.T) {
	for _, framed := range []bool{false, true} {
		t.Run(fmt.Sprint("framed ", framed), func(t *testing.T) {
			up := server(t, voicetest.Options{Secret: "s3cret", Echo: true})
			w := start(t, up.URL(framed), func(o *Options) { o.Upstream.Secret = "s3cret" })
			b := newBoard(t, 1)
			b.talk(w.Relay, boardHello)
			b.open()
			s := first(t, up)
			for name, want := range map[string]string{"Device-Id": "02:00:00:00:00:01", "Client-Id": "uuid-020000000001",
				"Protocol-Version": "1", "X-Forwarded-For": "127.0.0.1"} {
				if got := s.Header.Get(name); got != want {
					t.Errorf("%s: %q, want %q", name, got, want)
				}
			}
			hello, _ := json.Marshal(s.Hello())
			want := `{"audio_params":{"channels":1,"format":"opus","frame_duration":60,"sample_rate":16000},` +
				`"features":{"aec":true,"glyph_push":true,"mcp":true},` +
				`"text_font":{"bpp":4,"bundle":"noto-v1","charset":"common","size":20},` +
				`"transport":"websocket","type":"hello","version":1}`
			if string(hello) != want {
				t.Errorf("hello upstream: %s", hello)
			}

			listen := `{"session_id":"` + b.session + `","type":"listen","state":"start","mode":"auto"}`
			if b.conversation.Receive("listen", b.session, []byte(listen)) {
				t.Error("listen ended the conversation")
			}
			for i := range uint32(3) {
				b.say(fmt.Sprint("frame ", i), 1000+i)
				frame, timestamp := b.hear()
				wantAt := uint32(1000 + i)
				if !framed {
					wantAt = 60 * i
				}
				if frame != fmt.Sprint("frame ", i) || timestamp != wantAt {
					t.Errorf("heard %q at %d", frame, timestamp)
				}
			}
			for _, f := range s.Frames() {
				if framed && (f.Timestamp < 1000 || f.Sequence == 0) {
					t.Errorf("%+v", f)
				}
			}
			fleettest.Eventually(t, "listen arrives", func() bool { return len(s.Texts()) == 1 })
			if got := s.Texts()[0]; got != strings.Replace(listen, b.session, s.ID, 1) {
				t.Errorf("listen upstream: %s", got)
			}
			fleettest.Eventually(t, "tts arrives", func() bool { return len(b.got()) == 2 })
			if got := b.got()[1]; got != `{"type":"tts","state":"start","session_id":"`+b.session+`"}` {
				t.Errorf("tts: %s", got)
			}

			if b.conversation.Receive("goodbye", "s-of-another", []byte(`{"type":"goodbye"}`)) {
				t.Error("a goodbye of another conversation ended this one")
			}
			if !b.conversation.Receive("goodbye", b.session, []byte(`{"type":"goodbye"}`)) {
				t.Error("goodbye did not end the conversation")
			}
			fleettest.Eventually(t, "the upstream's socket is closed", s.Closed)
			fleettest.Eventually(t, "it is on record", func() bool {
				n, _ := w.records.ended(fleet.EndedByDevice)
				return n == 1
			})
			_, c := w.records.ended(fleet.EndedByDevice)
			if c.Upstream != "lab" || c.Device != b.id || c.End == nil || c.HelloIn <= 0 || c.Audio.Received != 3 ||
				c.Audio.Sent != 3 || c.Audio.Lost != 0 {
				t.Errorf("%+v", c)
			}
			if faults := s.Faults(); len(faults) > 0 {
				t.Error(faults)
			}
			if got := b.types(); !slices.Equal(got, []string{"hello", "tts"}) || b.opened != 1 || b.closed != 0 {
				t.Errorf("%v, opened %d, closed %d", got, b.opened, b.closed)
			}
			if n := len(w.socket.channels); n != 0 {
				t.Errorf("%d channels left", n)
			}
		})
	}
}

// Members of a hello that fleetd does not know pass through in both directions. Members that it
// knows do not, however they are spelled.
func TestHelloMembersPassThrough(t *testing.T) {
	long := `"` + strings.Repeat("x", maxMembers) + `"`
	up := server(t, voicetest.Options{Answer: `{"type":"hello","features":{"glyph_push":true,"later":[1]},"session_id":"up-1",` +
		`"UDP":{"server":"192.0.2.66","port":9,"key":"","nonce":""},"Session_ID":"s-other","transport":"websocket",` +
		`"tRansport":"udp","long":` + long + `,"glyphs":{"a \"b\"": [ 1, 2 ]},"Glyphs":0,"not utf-8":"` + "\xff" + `","version":1,` +
		`"audio_params":{"sample_rate":16000,"bitrate":12000,"Channels":1,"vad":{"ms":300}}}`})
	w := start(t, up.URL(false), nil)
	b := newBoard(t, 1)
	b.talk(w.Relay, `{"type":"hello","version":3,"transport":"udp","features":{"mcp":true,"glyph_push":true,"later":{}},`+
		`"text_font":{"bundle":"noto-v2","weights":[400,700]},"long":`+long+`,"camera":null,"Camera":1,"SESSION_ID":"s-other",`+
		`"audio_params":{"format":"opus","frame_duration":60,"dred":true}}`)
	b.open()
	s := first(t, up)
	fleettest.Eventually(t, "hello", func() bool { return s.Hello() != nil })
	hello, _ := json.Marshal(s.Hello())
	want := `{"audio_params":{"dred":true,"format":"opus","frame_duration":60},"camera":null,` +
		`"features":{"glyph_push":true,"later":{},"mcp":true},"text_font":{"bundle":"noto-v2","weights":[400,700]},` +
		`"transport":"websocket","type":"hello","version":1}`
	if string(hello) != want {
		t.Errorf("hello upstream: %s", hello)
	}
	want = `"audio_params":{"format":"opus","sample_rate":16000,"channels":1,"frame_duration":60,"bitrate":12000,"vad":{"ms":300}},` +
		`"udp":{"server":"127.0.0.1","port":` + fmt.Sprint(w.port) + `,"encryption":"aes-128-ctr","key":"` + b.key + `","nonce":"` +
		b.nonce + `"},"features":{"glyph_push":true,"later":[1]},"glyphs":{"a \"b\"": [ 1, 2 ]}}`
	if got, ok := strings.CutPrefix(b.got()[0], `{"type":"hello","version":3,"transport":"udp","session_id":"`+b.session+`",`); !ok ||
		got != want {
		t.Errorf("hello to the device: %s", b.got()[0])
	}
	stream := newBoard(t, 2)
	stream.onStream(w.Relay)
	fleettest.Eventually(t, "hello", func() bool { return len(stream.got()) > 0 })
	if got := stream.got()[0]; !strings.HasSuffix(got, `,"features":{"glyph_push":true,"later":[1]},"glyphs":{"a \"b\"": [ 1, 2 ]}}`) {
		t.Errorf("hello over a stream: %s", got)
	}
}

// Whatever failure the upstream has, the device gets a hello that it accepts, a goodbye with the
// same session, and an alert with the reason.
func TestUpstreamFails(t *testing.T) {
	endless := func(w http.ResponseWriter, _ *http.Request) {
		for i := range 4000 {
			w.Header().Set(fmt.Sprint("X-Long-", i), strings.Repeat("x", 200))
		}
		w.WriteHeader(http.StatusSwitchingProtocols)
	}
	tests := []struct {
		name string
		o    voicetest.Options
		url  string
		want fleet.ConversationEnd
	}{
		{"nothing listens", voicetest.Options{}, "ws://127.0.0.1:1/", fleet.EndedUnreachable},
		{"HTML", voicetest.Options{Broken: voicetest.HTML}, "", fleet.EndedNoWebSocket},
		{"endless headers", voicetest.Options{Broken: endless}, "", fleet.EndedNoWebSocket},
		{"401", voicetest.Options{Broken: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }}, "",
			fleet.EndedRefused},
		{"token refused", voicetest.Options{Secret: "other"}, "", fleet.EndedRefused},
		{"no hello", voicetest.Options{NoHello: true}, "", fleet.EndedNoHello},
		{"slow hello", voicetest.Options{HelloAfter: deadline}, "", fleet.EndedNoHello},
		{"upgrade that is not answered", voicetest.Options{Broken: func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
		}}, "", fleet.EndedUnreachable},
		{"hello that no device survives", voicetest.Options{Answer: `{"type":"hello","audio_params":{"sample_rate":"x"}}`},
			"", fleet.EndedBadHello},
		{"10 MB in place of hello", voicetest.Options{Answer: `"` + strings.Repeat("x", 10<<20) + `"`}, "",
			fleet.EndedTooLarge},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			timeout := deadline
			switch tt.name {
			case "no hello", "slow hello", "upgrade that is not answered": // dialing must be faster than this on a busy machine
				t.Parallel()
				timeout = 2 * time.Second
			}
			url := tt.url
			if url == "" {
				url = server(t, tt.o).URL(false)
			}
			w := start(t, url, func(o *Options) { o.Upstream.Secret, o.HelloTimeout = "mine", timeout })
			b := newBoard(t, 1)
			b.talk(w.Relay, boardHello)
			fleettest.Eventually(t, "hello, goodbye, alert", func() bool { return len(b.got()) == 3 })
			if got := b.types(); !slices.Equal(got, []string{"hello", "goodbye", "alert"}) {
				t.Fatal(got)
			}
			b.open()
			if len(b.key) != 32 || len(b.nonce) != 32 || !strings.HasPrefix(b.nonce, "01") {
				t.Errorf("key %q, nonce %q: a device refuses such a hello", b.key, b.nonce)
			}
			if got := b.got()[1]; got != `{"type":"goodbye","session_id":"`+b.session+`"}` {
				t.Error(got)
			}
			want := `{"type":"alert","status":"Voice","message":"end ` + string(tt.want) + `","emotion":"neutral"}`
			if got := b.got()[2]; got != want {
				t.Errorf("%s, want %s", got, want)
			}
			fleettest.Eventually(t, "it is on record", func() bool { n, _ := w.records.ended(tt.want); return n == 1 })
			if b.closed != 1 || b.opened != 0 {
				t.Errorf("opened %d, closed %d", b.opened, b.closed)
			}
		})
	}
}

// After some failures in a row devices are refused without trying the upstream.
func TestBreaker(t *testing.T) {
	var tried atomic.Int32
	up := server(t, voicetest.Options{Broken: func(w http.ResponseWriter, r *http.Request) {
		tried.Add(1)
		voicetest.HTML(w, r)
	}})
	w := start(t, up.URL(false), nil)
	for i := range 6 {
		b := newBoard(t, i)
		b.talk(w.Relay, boardHello)
		fleettest.Eventually(t, "the answer", func() bool { return len(b.got()) == 3 })
	}
	if tried.Load() != breakAfter {
		t.Errorf("the upstream was tried %d times", tried.Load())
	}
	now := time.Now()
	line := w.lines.of(&Upstream{})
	if line.allow(now.Add(retryAfter)) != "" || line.allow(now.Add(retryAfter)) == "" {
		t.Error("not one conversation tries again")
	}
	line.note("", time.Second, now)
	if line.allow(now) != "" {
		t.Error("the breaker is open after a success")
	}
}

func TestEndsOfAConversation(t *testing.T) {
	tests := []struct {
		name  string
		end   func(w *world, b *board, s *voicetest.Session)
		want  fleet.ConversationEnd
		types []string
	}{
		{"the upstream closes", func(_ *world, _ *board, s *voicetest.Session) { s.Close() }, fleet.EndedByUpstream,
			[]string{"hello", "goodbye"}},
		{"the upstream says goodbye", func(_ *world, _ *board, s *voicetest.Session) {
			_ = s.Send(`{"type":"goodbye","session_id":"another"}`) // for another session
			_ = s.Send(`{"type":"llm","emotion":"happy"}`)
			_ = s.Send(`{"type":"goodbye","session_id":"` + s.ID + `"}`)
		}, fleet.EndedByUpstream, []string{"hello", "llm", "goodbye"}},
		{"the upstream's connection breaks", func(_ *world, _ *board, s *voicetest.Session) { s.Crash() },
			fleet.EndedLost, []string{"hello", "goodbye", "alert"}},
		{"a frame of 10 MB", func(_ *world, _ *board, s *voicetest.Session) { _ = s.SendBinary(make([]byte, 10<<20)) },
			fleet.EndedTooLarge, []string{"hello", "goodbye", "alert"}},
		{"the device is lost", func(_ *world, b *board, _ *voicetest.Session) { close(b.lost) }, fleet.EndedByDeviceLost,
			[]string{"hello"}},
		{"hello twice", func(w *world, b *board, _ *voicetest.Session) {
			b.conversation.End(fleet.EndedByNewHello)
			b.talk(w.Relay, boardHello)
			fleettest.Eventually(b.t, "second hello", func() bool { return len(b.got()) == 2 })
		}, fleet.EndedByNewHello, []string{"hello", "hello"}},
		{"fleetd stops", func(w *world, _ *board, _ *voicetest.Session) { w.stop() }, fleet.EndedByStop,
			[]string{"hello", "goodbye"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			up := server(t, voicetest.Options{})
			w := start(t, up.URL(false), nil)
			b := newBoard(t, 1)
			b.talk(w.Relay, boardHello)
			b.open()
			s := first(t, up)
			tt.end(w, b, s)
			fleettest.Eventually(t, "the end is on record", func() bool {
				n, _ := w.records.ended(tt.want)
				return n == 1
			})
			if got := b.types(); !slices.Equal(got, tt.types) {
				t.Errorf("the device got %v, want %v", got, tt.types)
			}
			fleettest.Eventually(t, "the upstream's socket is closed", s.Closed)
		})
	}
}

// If a device disconnects while its hello is in transit, its conversation ends at once, not after
// the timeout of the silent upstream.
func TestDeviceLeavesWithItsHello(t *testing.T) {
	up := server(t, voicetest.Options{})
	w := start(t, up.URL(false), nil)
	b := newBoard(t, 1)
	d := b.device()
	d.Send = func([]byte) error { close(b.lost); return nil }
	w.Begin(d, []byte(boardHello))
	fleettest.Eventually(t, "the end is on record", func() bool {
		n, _ := w.records.ended(fleet.EndedByDeviceLost)
		return n == 1
	})
	fleettest.Eventually(t, "the upstream's socket is closed", first(t, up).Closed)
}

// Messages that one side may not send to the other are dropped, and so are messages that a device
// could read differently than fleetd.
func TestWhatIsNotRelayed(t *testing.T) {
	up := server(t, voicetest.Options{})
	w := start(t, up.URL(false), nil)
	b := newBoard(t, 1)
	b.talk(w.Relay, boardHello)
	b.open()
	s := first(t, up)
	reboot := `{"type":"mcp","payload":{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"self.reboot"}}}`
	hidden := strings.TrimPrefix(reboot, `{"type":"mcp",`)
	for _, text := range []string{
		`{"type":"system","command":"reboot"}`,
		`{"type":"system","command":"x","Command":"reboot"}`,
		`{"type":"system","COMMAND":"reboot"}`,
		`{"type":"server","action":"restart"}`,
		`{"type":"hello","transport":"udp"}`,
		`{"Type":"mcp",` + hidden,
		`{"TYPE":"mcp","type":"tts",` + hidden,
		`{"type":"mcp","type":"tts",` + hidden,
		`{"type":"tts","type":"mcp",` + hidden,
		`{"type":"mcp\u0000","x":1,` + hidden,
		`{"type\u0000y":"mcp","type":"tts",` + hidden,
		`{"type":1}`, `[]`, `reboot`, `{"type":"tts"} {"type":"mcp"}`, `{"type":"tts"`, ``,
		`{"type":"stt","text":"` + strings.Repeat("x", maxDown) + `"}`,
	} {
		if err := s.Send(text); err != nil {
			t.Fatal(err)
		}
	}
	_ = s.Send(`{"type":"ping"}`)
	_ = s.Send(`{"type":"system","command":"other"}`)
	_ = s.Send(`{"type":"custom","payload":{"session_id":"x"}}`)
	fleettest.Eventually(t, "what is relayed", func() bool { return len(b.got()) == 3 })
	if got := b.types(); !slices.Equal(got, []string{"hello", "system", "custom"}) {
		t.Errorf("the device got %v", b.got())
	}

	for kind, text := range map[string]string{
		"server": `{"type":"server"}`, "mcp": reboot, "x": `{"type":"x","type":"server"}`, "y": `{"type":"y"`,
		"long": `{"type":"long","text":"` + strings.Repeat("x", maxUp) + `"}`} {
		b.conversation.Receive(kind, b.session, []byte(text))
	}
	b.conversation.Receive("ping", "", []byte(`{"type":"ping"}`))
	abort := `{"session_id":"old","type":"abort","reason":"wake_word_detected"}`
	b.conversation.Receive("abort", "old", []byte(abort))
	fleettest.Eventually(t, "what is relayed", func() bool { return len(s.Texts()) == 2 })
	if got := s.Texts(); got[0] != `{"type":"pong"}` || got[1] != abort {
		t.Errorf("the upstream got %q", got)
	}
	if got := b.types(); got[len(got)-1] != "pong" {
		t.Errorf("the device got %v", got)
	}
}

func TestRebootByPolicy(t *testing.T) {
	up := server(t, voicetest.Options{})
	w := start(t, up.URL(false), func(o *Options) { o.Upstream.AllowReboot = true })
	b := newBoard(t, 1)
	b.talk(w.Relay, boardHello)
	b.open()
	_ = first(t, up).Send(`{"type":"system","command":"reboot"}`)
	fleettest.Eventually(t, "system arrives", func() bool { return len(b.got()) == 2 })
}

// A server that stops reading affects its conversation only.
func TestSlowUpstream(t *testing.T) {
	stuck := make(chan struct{})
	up := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		conn, buf, err := rw.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprintf(buf, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
			"Sec-WebSocket-Accept: %s\r\n\r\n", acceptKey(r.Header.Get("Sec-WebSocket-Key")))
		hello := `{"type":"hello","session_id":"u"}`
		buf.WriteByte(0x81)
		buf.WriteByte(byte(len(hello)))
		buf.WriteString(hello)
		buf.Flush()
		<-stuck
	}))
	defer up.Close()
	defer close(stuck)
	w := start(t, "ws"+strings.TrimPrefix(up.URL, "http"), nil)
	b := newBoard(t, 1)
	b.talk(w.Relay, boardHello)
	b.open()
	long := []byte(`{"type":"x","text":"` + strings.Repeat("x", maxUp-100) + `"}`)
	begin := time.Now()
	for range 2000 { // more than the sockets' buffers hold
		b.conversation.Receive("x", b.session, long)
		if took := time.Since(begin); took > deadline {
			t.Fatalf("Receive blocks: %v", took)
		}
	}
	fleettest.Eventually(t, "the conversation ends", func() bool {
		n, _ := w.records.ended(fleet.EndedSlow)
		return n == 1
	})
	if got := b.types(); !slices.Equal(got, []string{"hello", "goodbye", "alert"}) {
		t.Error(got)
	}
}

func TestTooManyConversations(t *testing.T) {
	up := server(t, voicetest.Options{})
	w := start(t, up.URL(false), func(o *Options) { o.MaxConversations = 1 })
	one, two := newBoard(t, 1), newBoard(t, 2)
	one.talk(w.Relay, boardHello)
	one.open()
	two.talk(w.Relay, boardHello)
	fleettest.Eventually(t, "the second is sent off", func() bool { return len(two.got()) == 3 })
	if n, _ := w.records.ended(fleet.EndedFull); n > 1 || len(up.Sessions()) != 1 {
		t.Errorf("%d ended, %d upstream", n, len(up.Sessions()))
	}
}

// A device is sent off if no core can choose its voice server now, and shows why.
func TestNoLeader(t *testing.T) {
	w := start(t, "", func(o *Options) {
		o.Choose = func(ctx context.Context, _ Hello) (Upstream, bool, error) {
			<-ctx.Done()
			return Upstream{}, false, ctx.Err()
		}
		o.ChooseTimeout = 10 * time.Millisecond
	})
	b := newBoard(t, 1)
	b.talk(w.Relay, boardHello)
	fleettest.Eventually(t, "the board is sent off", func() bool { return len(b.got()) == 3 })
	if got := b.got(); !strings.Contains(got[2], string(fleet.EndedNoLeader)) {
		t.Errorf("the board got %q", got)
	}
	w.stop()
	if n, _ := w.records.ended(fleet.EndedNoLeader); n != 0 || w.Stats().Ended[fleet.EndedNoLeader] != 1 {
		t.Errorf("%d records, %+v", n, w.Stats())
	}
}

// Records wait for as long as their store is unavailable, if the relay keeps them.
func TestRecordsAreKept(t *testing.T) {
	up := server(t, voicetest.Options{})
	var tries atomic.Int64
	w := start(t, up.URL(false), func(o *Options) {
		o.KeepRecords = true
		o.Store = unavailable{o.Store, &tries}
	})
	b := newBoard(t, 1)
	b.talk(w.Relay, boardHello)
	b.open()
	b.conversation.End(fleet.EndedByNewHello)
	fleettest.Eventually(t, "the record is stored", func() bool {
		n, _ := w.records.ended(fleet.EndedByNewHello)
		return n == 1
	})
	if n := w.Stats().NotRecorded; n != 0 {
		t.Errorf("%d records are lost", n)
	}
}

// unavailable are records that cannot be stored four times.
type unavailable struct {
	Records
	tries *atomic.Int64
}

func (u unavailable) SaveConversations(ctx context.Context, list []fleet.Conversation) error {
	if u.tries.Add(1) <= 4 {
		return fleet.ErrUnavailable
	}
	return u.Records.SaveConversations(ctx, list)
}

// Many conversations run at once, each with the speech of its device, while others send
// forged and replayed packets. No frame reaches another conversation.
func TestNoCrossTalk(t *testing.T) {
	up := server(t, voicetest.Options{Echo: true})
	w := start(t, up.URL(true), nil)
	const devices, frames = 40, 15
	boards := make([]*board, devices)
	for i := range boards {
		boards[i] = newBoard(t, i)
		boards[i].remote = "192.0.2.44" // as behind two routers: no address is accepted at once
		boards[i].talk(w.Relay, boardHello)
	}
	for _, b := range boards {
		b.open()
	}
	stop := make(chan struct{})
	var hostile, polite sync.WaitGroup
	// One more device, also in a conversation, sends packets in the names of all others: made
	// with its own key, and copied from overheard packets.
	thief := newBoard(t, devices)
	thief.talk(w.Relay, boardHello)
	thief.open()
	hostile.Go(func() {
		for n := uint32(1); ; n++ {
			for _, b := range boards {
				select {
				case <-stop:
					return
				default:
				}
				_, _ = thief.udp.Write(seal(t, thief.key, b.nonce, 0, 2+n%frames, speech("forged by the thief")))
			}
			time.Sleep(time.Millisecond)
		}
	})
	for i, b := range boards {
		polite.Go(func() {
			for range moveAfter - 1 {
				b.say(fmt.Sprintf("device %d", i), 0)
			}
			for n := range uint32(frames) {
				want := fmt.Sprintf("device %d", i)
				for again, ok := time.Now().Add(deadline), false; !ok; { // a flood may drop packets
					if time.Now().After(again) {
						t.Errorf("device %d heard nothing", i)
						return
					}
					b.say(want, n)
					replay := seal(t, b.key, b.nonce, n, b.sequence, speech(want))
					_, _ = thief.udp.Write(replay)
					var got string
					if got, ok = b.hearWithin(time.Second); ok && got != want {
						t.Errorf("device %d heard %q", i, got)
					}
				}
			}
		})
	}
	polite.Wait()
	close(stop)
	hostile.Wait()
	for _, s := range up.Sessions() {
		if s.Header.Get("Device-Id") == thief.id.MAC() {
			continue
		}
		var index int
		if _, err := fmt.Sscanf(strings.ReplaceAll(s.Header.Get("Device-Id"), ":", ""), "02000000%04x", &index); err != nil {
			t.Fatal(err)
		}
		want := string(speech(fmt.Sprintf("device %d", index)))
		if len(s.Frames()) < frames {
			t.Errorf("device %d: %d frames upstream", index, len(s.Frames()))
		}
		for _, f := range s.Frames() {
			if f.Data != want {
				t.Fatalf("the conversation of device %d got %q", index, f.Data)
			}
		}
	}
	buf := make([]byte, 2000)
	_ = thief.udp.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := thief.udp.Read(buf); err == nil {
		t.Errorf("the thief got %x", buf[:n])
	}
}

// A device that moves to another address continues to send and receive audio.
func TestDeviceMoves(t *testing.T) {
	up := server(t, voicetest.Options{Echo: true})
	w := start(t, up.URL(false), nil)
	b := newBoard(t, 1)
	b.talk(w.Relay, boardHello)
	b.open()
	b.say("before", 0)
	b.hear()
	b.open() // another socket: another port
	for range moveAfter {
		b.say("after", 0)
	}
	if got, _ := b.hear(); got != "after" {
		t.Errorf("heard %q", got)
	}
}

// Floods of arbitrary datagrams at the UDP port do not end conversations.
func TestFlood(t *testing.T) {
	up := server(t, voicetest.Options{Echo: true})
	w := start(t, up.URL(false), nil)
	b := newBoard(t, 1)
	b.talk(w.Relay, boardHello)
	b.open()
	flood, err := net.Dial("udp", w.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer flood.Close()
	for i := range 5000 {
		_, _ = flood.Write(make([]byte, i%2000))
	}
	var got string
	for end, ok := time.Now().Add(deadline), false; !ok && time.Now().Before(end); { // the flood may displace packets
		b.say("still here", 0)
		got, ok = b.hearWithin(time.Second)
	}
	if got != "still here" {
		t.Errorf("heard %q", got)
	}
	fleettest.Eventually(t, "they are counted", func() bool { return w.Stats().Malformed > 0 })
	_ = flood.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := flood.Read(make([]byte, 10)); err == nil {
		t.Errorf("%d bytes came back", n)
	}
}

func TestRecordsAreLostWithoutDatabase(t *testing.T) {
	up := server(t, voicetest.Options{})
	w := start(t, up.URL(false), nil)
	w.records.fail = errors.New("no database")
	b := newBoard(t, 1)
	b.talk(w.Relay, boardHello)
	b.open()
	b.conversation.Receive("goodbye", b.session, nil)
	w.stop()
	if w.Stats().NotRecorded == 0 {
		t.Error("lost records are not counted")
	}
}

// acceptKey returns the Sec-WebSocket-Accept for a Sec-WebSocket-Key (RFC 6455, 4.2.2).
func acceptKey(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return base64.StdEncoding.EncodeToString(sum[:])
}
