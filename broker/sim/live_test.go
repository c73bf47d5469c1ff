package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/listeners"
	"github.com/mochi-mqtt/server/v2/packets"
)

// A backend is a foreign MQTT broker with an OTA server beside it: the least
// that stock devices need.
type backend struct {
	t      *testing.T
	broker *mqtt.Server
	http   *httptest.Server
	addr   string // of the broker

	mu        sync.Mutex
	clients   map[string]*mqtt.Client
	polls     []poll
	answer    func(p poll) string // of the OTA endpoint; "" is status 500
	files     map[string][]byte   // by path, for GET
	requests  []string            // method and path of all but polls
	post      http.HandlerFunc    // what uploads reach
	orderly   map[string]int      // DISCONNECT packets, by client
	published chan string         // payloads from devices
}

type poll struct {
	id, version, elf, slot string
}

func newBackend(t *testing.T) *backend {
	t.Helper()
	b := &backend{
		t: t, clients: map[string]*mqtt.Client{}, orderly: map[string]int{}, files: map[string][]byte{},
		published: make(chan string, 1000),
	}
	b.answer = func(p poll) string { return b.mqttSection(p.id) }
	b.startBroker()
	b.http = httptest.NewServer(b)
	t.Cleanup(b.http.Close)
	return b
}

func (b *backend) startBroker() {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		b.t.Fatal(err)
	}
	b.addr = ln.Addr().String()
	b.broker = mqtt.New(&mqtt.Options{Logger: slog.New(slog.DiscardHandler)})
	for _, err := range []error{
		b.broker.AddHook(&deviceHook{b: b}, nil),
		b.broker.AddListener(&listener{Listener: ln}), b.broker.Serve(),
	} {
		if err != nil {
			b.t.Fatal(err)
		}
	}
	b.t.Cleanup(func() { b.broker.Close() })
}

// A listener is mochi's own, but its Close waits until every accepted
// connection is known to the server, which would otherwise race with it.
type listener struct {
	net.Listener
	accepted sync.WaitGroup
}

func (l *listener) Init(*slog.Logger) error { return nil }
func (l *listener) ID() string              { return "test" }
func (l *listener) Address() string         { return l.Addr().String() }
func (l *listener) Protocol() string        { return "tcp" }

func (l *listener) Serve(establish listeners.EstablishFn) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		l.accepted.Go(func() { _ = establish(l.ID(), conn) })
	}
}

func (l *listener) Close(closeClients listeners.CloseFn) {
	l.Listener.Close()
	closeClients(l.ID())
	l.accepted.Wait()
}

type deviceHook struct {
	mqtt.HookBase
	b *backend
}

func (h *deviceHook) Provides(event byte) bool {
	return slices.Contains([]byte{mqtt.OnConnectAuthenticate, mqtt.OnACLCheck, mqtt.OnSessionEstablished, mqtt.OnPublish, mqtt.OnPacketRead, mqtt.OnSubscribe}, event)
}

func (h *deviceHook) OnConnectAuthenticate(*mqtt.Client, packets.Packet) bool { return true }
func (h *deviceHook) OnACLCheck(*mqtt.Client, string, bool) bool              { return true }

func (h *deviceHook) OnSessionEstablished(cl *mqtt.Client, _ packets.Packet) {
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	h.b.clients[cl.ID] = cl
}

func (h *deviceHook) OnPacketRead(cl *mqtt.Client, p packets.Packet) (packets.Packet, error) {
	if p.FixedHeader.Type == packets.Disconnect {
		h.b.mu.Lock()
		h.b.orderly[cl.ID]++
		h.b.mu.Unlock()
	}
	return p, nil
}

func (h *deviceHook) OnSubscribe(_ *mqtt.Client, p packets.Packet) packets.Packet {
	h.b.t.Error("a stock device never sends SUBSCRIBE")
	return p
}

func (h *deviceHook) OnPublish(cl *mqtt.Client, p packets.Packet) (packets.Packet, error) {
	if p.TopicName != "up" || p.FixedHeader.Qos != 0 || p.FixedHeader.Retain {
		h.b.t.Errorf("PUBLISH to %q with %+v", p.TopicName, p.FixedHeader)
	}
	h.b.published <- string(p.Payload)
	return p, nil
}

func (b *backend) mqttSection(id string) string {
	return fmt.Sprintf(`{"mqtt":{"endpoint":"%s","client_id":"%s","username":"u","password":"p","publish_topic":"up","subscribe_topic":"null","keepalive":60}}`, b.addr, id)
}

func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/ota/" && r.Method == http.MethodPost {
		b.servePoll(w, r)
		return
	}
	b.mu.Lock()
	b.requests = append(b.requests, r.Method+" "+r.URL.Path)
	file, post := b.files[r.URL.Path], b.post
	b.mu.Unlock()
	switch {
	case r.Method == http.MethodPost && post != nil:
		post(w, r)
	case file != nil:
		w.Header().Set("Content-Length", fmt.Sprint(len(file)))
		_, _ = w.Write(file)
	default:
		http.NotFound(w, r)
	}
}

func (b *backend) servePoll(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var facts struct {
		Application struct {
			Version string
			Elf     string `json:"elf_sha256"`
		}
		OTA struct{ Label string }
	}
	_ = json.Unmarshal(body, &facts)
	p := poll{r.Header.Get("Device-Id"), facts.Application.Version, facts.Application.Elf, facts.OTA.Label}
	b.mu.Lock()
	b.polls = append(b.polls, p)
	answer := b.answer(p)
	b.mu.Unlock()
	if answer == "" {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(answer)))
	_, _ = io.WriteString(w, answer)
}

func (b *backend) lastPoll() (last poll, count int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if count = len(b.polls); count > 0 {
		last = b.polls[count-1]
	}
	return last, count
}

// start runs a fleet until the test ends, and checks that it ends.
func (b *backend) start(o Options) *Fleet {
	b.t.Helper()
	o.OTAURL = b.http.URL + "/ota/"
	f, err := New(o)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- f.Run(ctx) }()
	b.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			b.t.Error(err)
		}
	})
	return f
}

// send writes to the device's connection, as nothing is subscribed.
func (b *backend) send(d *Device, qos byte, payload string) {
	b.t.Helper()
	b.mu.Lock()
	cl := b.clients[d.ID()]
	b.mu.Unlock()
	err := cl.WritePacket(packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: qos}, PacketID: 7, TopicName: "any/topic", Payload: []byte(payload),
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

func request(id int, method, params string) string {
	return fmt.Sprintf(`{"type":"mcp","payload":{"jsonrpc":"2.0","id":%d,"method":"%s","params":%s}}`, id, method, params)
}

func toolCall(id int, name, arguments string) string {
	return request(id, "tools/call", fmt.Sprintf(`{"name":"%s","arguments":%s}`, name, arguments))
}

func (b *backend) ask(d *Device, payload string) string {
	b.t.Helper()
	b.send(d, 0, payload)
	return b.next()
}

func (b *backend) next() string {
	b.t.Helper()
	select {
	case p := <-b.published:
		return p
	case <-time.After(10 * time.Second):
		b.t.Fatal("the device stayed silent")
		return ""
	}
}

// eventually waits for a condition that only time can bring.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 15 s: %s", what)
		}
	}
}

func (b *backend) connected(d *Device) {
	b.t.Helper()
	eventually(b.t, "connected", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return d.Connected() && b.clients[d.ID()] != nil
	})
}

func text0(reply string) string {
	var r struct {
		Payload struct {
			Result struct{ Content []struct{ Text string } }
			Error  struct{ Message string }
		}
	}
	_ = json.Unmarshal([]byte(reply), &r)
	if len(r.Payload.Result.Content) == 1 {
		return r.Payload.Result.Content[0].Text
	}
	return "error: " + r.Payload.Error.Message
}

func TestCallOverBroker(t *testing.T) {
	b := newBackend(t)
	f := b.start(Options{Boards: []string{"esp-box-3"}, TimeScale: 0.01, RecordCalls: 2})
	d := f.Device(0)
	b.connected(d)
	if got := text0(b.ask(d, toolCall(1, "self.audio_speaker.set_volume", `{"volume":33.9}`))); got != "true" {
		t.Errorf("set_volume: %s", got)
	}
	if got := text0(b.ask(d, toolCall(2, "self.get_device_status", `{}`))); !strings.Contains(got, `"volume":33`) {
		t.Errorf("status: %s", got)
	}
	b.send(d, 1, toolCall(3, "self.screen.set_theme", `{"theme":"dark"}`))
	b.next()
	if s := d.State(); s.Theme != "dark" || s.Volume != 33 {
		t.Errorf("state %+v", s)
	}
	if calls := d.Calls(); len(calls) != 2 || calls[0].ID != 2 || calls[1].Tool != "self.screen.set_theme" || calls[1].Arguments != `{"theme":"dark"}` {
		t.Errorf("recorded %+v", calls)
	}
}

func TestRebootIsNotAnswered(t *testing.T) {
	b := newBackend(t)
	f := b.start(Options{TimeScale: 0.02})
	d := f.Device(0)
	b.connected(d)
	b.send(d, 0, toolCall(1, "self.reboot", `{}`))
	b.send(d, 0, toolCall(2, "self.get_device_status", `{}`))
	eventually(t, "second poll", func() bool { _, n := b.lastPoll(); return n == 2 })
	b.connected(d)
	b.mu.Lock()
	orderly := b.orderly[d.ID()]
	b.mu.Unlock()
	// The second call runs if it was queued before the restart was; its answer
	// is behind the restart either way.
	if orderly != 1 || len(b.published) != 0 {
		t.Errorf("%d DISCONNECTs, %d answers, %d calls executed", orderly, len(b.published), f.Stats().Calls)
	}
	if got := text0(b.ask(d, toolCall(3, "self.audio_speaker.set_volume", `{"volume":1}`))); got != "true" {
		t.Errorf("after the restart: %s", got)
	}
}

func TestReconnectsForEver(t *testing.T) {
	b := newBackend(t)
	f := b.start(Options{TimeScale: 0.005})
	d := f.Device(0)
	for i := range 3 {
		b.connected(d)
		b.mu.Lock()
		b.clients[d.ID()].Net.Conn.Close()
		delete(b.clients, d.ID())
		b.mu.Unlock()
		eventually(t, "reconnect", func() bool { return f.Stats().Connects == int64(i+2) })
	}
	if _, n := b.lastPoll(); n != 1 {
		t.Errorf("%d polls; only a boot polls", n)
	}
}

func TestRunEndsWithDisconnect(t *testing.T) {
	b := newBackend(t)
	f, err := New(Options{OTAURL: b.http.URL + "/ota/", Devices: 20})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		eventually(t, "all connected", func() bool { return f.Stats().Connected == 20 })
		cancel()
	}()
	if err := f.Run(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "20 DISCONNECTs", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.orderly) == 20
	})
	if f.Stats().Connected != 0 {
		t.Errorf("%+v", f.Stats())
	}
}

func TestTwoStartsAreTheSameFleet(t *testing.T) {
	make := func() (ids []string) {
		f, err := New(Options{OTAURL: "http://h/ota/", Devices: 300, Seed: 7, Boards: BoardNames()})
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for i := range f.Len() {
			d := f.Device(i)
			if seen[d.ID()] || seen[d.ClientID()] {
				t.Fatalf("device %d has the identity of another", i)
			}
			seen[d.ID()], seen[d.ClientID()] = true, true
			ids = append(ids, fmt.Sprint(d.ID(), d.ClientID(), d.Board(), d.Firmware(), d.State()))
		}
		return ids
	}
	if a, b := make(), make(); strings.Join(a, "\n") != strings.Join(b, "\n") {
		t.Error("the same seed made two different fleets")
	}
}
