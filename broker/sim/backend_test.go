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
	"sync"
	"testing"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/listeners"
	"github.com/mochi-mqtt/server/v2/packets"

	"fleetd/fleet/fleettest"
)

// A backend is a foreign MQTT broker and an OTA server: the minimum that stock devices need.
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
	acks      int                 // PUBACK packets
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
	l := &listener{Listener: ln, serving: make(chan struct{}), ended: make(chan struct{})}
	b.broker = mqtt.New(&mqtt.Options{Logger: slog.New(slog.DiscardHandler)})
	for _, err := range []error{
		b.broker.AddHook(&deviceHook{b: b}, nil),
		b.broker.AddListener(l), b.broker.Serve(),
	} {
		if err != nil {
			b.t.Fatal(err)
		}
	}
	<-l.serving
	b.t.Cleanup(func() {
		l.Listener.Close()
		<-l.ended
		l.accepted.Wait() // the fleet has ended before, so its connections end
		b.broker.Close()
	})
}

// A listener differs from mochi's own in that a test can wait for its
// goroutines before it closes the server: mochi's wait groups race otherwise.
type listener struct {
	net.Listener
	serving  chan struct{}
	ended    chan struct{}
	accepted sync.WaitGroup
}

func (l *listener) Init(*slog.Logger) error { return nil }
func (l *listener) ID() string              { return "test" }
func (l *listener) Address() string         { return l.Addr().String() }
func (l *listener) Protocol() string        { return "tcp" }

func (l *listener) Serve(establish listeners.EstablishFn) {
	close(l.serving)
	defer close(l.ended)
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
}

type deviceHook struct {
	mqtt.HookBase
	b *backend
}

func (h *deviceHook) Provides(event byte) bool {
	return slices.Contains([]byte{mqtt.OnConnectAuthenticate, mqtt.OnACLCheck, mqtt.OnSessionEstablish, mqtt.OnPublish,
		mqtt.OnPacketRead, mqtt.OnSubscribe}, event)
}

func (h *deviceHook) OnConnectAuthenticate(*mqtt.Client, packets.Packet) bool { return true }
func (h *deviceHook) OnACLCheck(*mqtt.Client, string, bool) bool              { return true }

// OnSessionEstablish runs before CONNACK is sent: a test that sees the device connected finds its
// connection.
func (h *deviceHook) OnSessionEstablish(cl *mqtt.Client, _ packets.Packet) {
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	h.b.clients[cl.ID] = cl
}

func (h *deviceHook) OnPacketRead(cl *mqtt.Client, p packets.Packet) (packets.Packet, error) {
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	switch p.FixedHeader.Type {
	case packets.Disconnect:
		h.b.orderly[cl.ID]++
	case packets.Puback:
		h.b.acks++
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

// send writes to the device's connection directly, since nothing is subscribed.
func (b *backend) send(d *Device, qos byte, payload string) {
	b.t.Helper()
	b.mu.Lock()
	cl := b.clients[d.ID()]
	b.mu.Unlock()
	err := cl.WritePacket(packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: qos}, PacketID: 7, TopicName: "any/topic",
		Payload: []byte(payload),
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
	case <-time.After(time.Minute):
		b.t.Fatal("the device stayed silent")
		return ""
	}
}

// left waits until the device has said goodbye as many times as given.
func (b *backend) left(d *Device, times int) {
	b.t.Helper()
	fleettest.Eventually(b.t, "DISCONNECT", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.orderly[d.ID()] == times
	})
}

func (b *backend) connected(d *Device) {
	b.t.Helper()
	fleettest.Eventually(b.t, "connected", func() bool {
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
