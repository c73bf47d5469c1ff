package feed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"
	"go.uber.org/goleak"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A longLog has as many entries as size says, each with a line of 2 KiB.
type longLog struct{ size atomic.Int64 }

func (l *longLog) Status() record.Status {
	return record.Status{Origin: "test", Latest: record.Checkpoint{Size: l.size.Load()}}
}

func (l *longLog) Read(_ context.Context, first, end int64) (list []record.Entry, err error) {
	for n := first; n < end; n++ {
		line := fmt.Sprintf(`{"entry":"action","action":"test","subject":"%d","pad":"%s"}`, n, strings.Repeat("x", 2<<10))
		list = append(list, record.Entry{Number: n, Kind: "action", Subject: fmt.Sprint(n), At: time.Now(), Line: json.RawMessage(line)})
	}
	return list, nil
}

type sameRights struct{}

func (sameRights) PrincipalNow(_ context.Context, p fleet.Principal) (fleet.Principal, error) {
	return p, nil
}

// startFeed runs a feed of the log, for any token.
func startFeed(t *testing.T, l Log) *Service {
	t.Helper()
	s, err := New(Options{Addr: "127.0.0.1:0", Authority: sameRights{}, Record: l, Events: &fleet.Events{},
		Authenticate: func(_ context.Context, token string) (fleet.Principal, error) {
			return fleet.Principal{Kind: fleet.KindProgram, ID: token, Name: token, Role: fleet.RoleViewer}, nil
		},
		Follow: func(ctx context.Context, _ fleet.Principal) (context.Context, context.CancelFunc) {
			return context.WithCancel(ctx)
		}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

// subscribe connects a client of MQTT 5 and subscribes to all entries.
func subscribe(t *testing.T, s *Service, token string, qos byte, got func(*paho.Publish)) (ended chan byte) {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ended = make(chan byte, 1)
	c := paho.NewClient(paho.ClientConfig{Conn: conn,
		OnServerDisconnect: func(p *paho.Disconnect) { ended <- p.ReasonCode },
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(p paho.PublishReceived) (bool, error) {
			got(p.Packet)
			return true, nil
		}}})
	if _, err := c.Connect(t.Context(), &paho.Connect{ClientID: token, CleanStart: true, KeepAlive: 60, PasswordFlag: true,
		UsernameFlag: true, Username: "me", Password: []byte(token)}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Subscribe(t.Context(), &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{
		{Topic: "fleet/events/#", QoS: qos}}}); err != nil {
		t.Fatal(err)
	}
	return ended
}

// subscribeSlow subscribes to all entries, and reads none. A client library would read, and keep what it read.
func subscribeSlow(t *testing.T, s *Service) {
	t.Helper()
	slow, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = slow.Close() })
	if _, err := slow.Write([]byte("\x10\x1a\x00\x04MQTT\x04\xc2\x00\x00\x00\x04slow\x00\x02me\x00\x04slow" +
		"\x82\x13\x00\x01\x00\x0efleet/events/#\x00")); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 9) // CONNACK and SUBACK, whose last byte is the QoS
	if _, err := io.ReadFull(slow, answer); err != nil || answer[8] != 0 {
		t.Fatalf("the slow client is not subscribed: %x, %v", answer, err)
	}
}

// A client that does not read loses its connection. Others get every entry, in order.
func TestSlowClient(t *testing.T) {
	const entries = 15_000 // of 2 KiB: more than queues and sockets hold
	l := &longLog{}
	s := startFeed(t, l)
	subscribeSlow(t, s)
	for _, qos := range []byte{0, 1} {
		var next atomic.Int64
		ended := subscribe(t, s, fmt.Sprint("good", qos), qos, func(p *paho.Publish) {
			if n := next.Add(1) - 1; !strings.Contains(string(p.Payload[:200]), fmt.Sprintf(`"id":"%d"`, n)) {
				t.Errorf("entry %s in place of %d", p.Payload[:200], n)
			}
		})
		next.Store(l.size.Load())
		total := l.size.Add(entries)
		fleettest.EventuallyWithin(t, time.Minute, "all entries", func() bool {
			return next.Load() == total || len(ended) > 0 || s.Stats().Slow > 1
		})
		if next.Load() != total {
			t.Fatalf("a client that reads got %d entries of %d: %+v", next.Load(), total, s.Stats())
		}
	}
	if n := s.Stats().Slow; n > 1 {
		t.Fatalf("%d clients were too slow", n)
	}
	fleettest.Eventually(t, "the slow client has gone", func() bool { return s.Stats().Slow == 1 && s.Stats().Connections == 2 })
}

// A client whose socket accepts no bytes counts as slow before its queue is full.
func TestStuckClient(t *testing.T) {
	t.Parallel()
	l := &longLog{}
	s := startFeed(t, l)
	subscribeSlow(t, s)
	l.size.Store(7000)
	fleettest.Eventually(t, "it has gone", func() bool { return s.Stats().Connections == 0 })
	if n := s.Stats().Slow; n != 1 {
		t.Errorf("%d clients were too slow", n)
	}
}

// Wrong packets end one connection alone.
func TestBrokenPackets(t *testing.T) {
	l := &longLog{}
	s := startFeed(t, l)
	for name, packet := range map[string]string{
		"no MQTT":         "GET / HTTP/1.1\r\n\r\n",
		"not CONNECT":     "\xc0\x00",
		"too long":        "\x10\xff\xff\xff\x7f",
		"a bad length":    "\x10\xff\xff\xff\xff\xff",
		"a short CONNECT": "\x10\x02\x00\x04",
		"an old protocol": "\x10\x0c\x00\x04MQTT\x02\x02\x00\x0a\x00\x00",
	} {
		conn, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write([]byte(packet))
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		if n, err := conn.Read(make([]byte, 100)); err == nil && n > 0 {
			_, err = conn.Read(make([]byte, 100))
			if errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: the connection stays open", name)
			}
		} else if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
			t.Errorf("%s: the connection stays open", name)
		}
		_ = conn.Close()
	}
	got := make(chan string, 10)
	subscribe(t, s, "good", 1, func(p *paho.Publish) { got <- p.Topic })
	l.size.Add(1)
	select {
	case topic := <-got:
		if topic != "fleet/events/action/-" {
			t.Errorf("topic %s", topic)
		}
	case <-time.After(10 * time.Second):
		t.Error("no entry after broken packets of others")
	}
}

func TestEntities(t *testing.T) {
	for schema, want := range map[string]string{
		`{"type":"object","properties":{}}`:                                                    "button",
		`{"type":"object"}`:                                                                    "button",
		`{"properties":{"a":{"type":"string"}}}`:                                               "button",
		`{"properties":{"a":{"type":"string"}},"required":["a"]}`:                              "",
		`{"properties":{"on":{"type":"boolean"}},"required":["on"]}`:                           "switch",
		`{"properties":{"n":{"type":"integer","minimum":0,"maximum":9}},"required":["n"]}`:     "number",
		`{"properties":{"n":{"type":"integer"}},"required":["n"]}`:                             "",
		`{"properties":{"n":{"type":"integer","minimum":9,"maximum":9}},"required":["n"]}`:     "",
		`{"properties":{"n":{"type":"integer","minimum":0,"maximum":1e300}},"required":["n"]}`: "",
		`{"properties":{"a":{"type":"boolean"},"b":{"type":"boolean"}},"required":["a","b"]}`:  "",
		`{"properties":{"a":{"type":["boolean","null"]}},"required":["a"]}`:                    "",
		`[]`: "",
	} {
		e, ok := entityOf(fleet.Tool{Name: "t", InputSchema: json.RawMessage(schema)})
		if ok != (want != "") || ok && e.platform != want {
			t.Errorf("%s: %+v %v, want %q", schema, e, ok, want)
		}
	}
	for _, name := range []string{"", "a/b", "+", "#", "a b", strings.Repeat("x", 129)} {
		if _, ok := entityOf(fleet.Tool{Name: name, InputSchema: json.RawMessage(`{}`)}); ok {
			t.Errorf("the tool %q has a topic", name)
		}
	}
	if a, b := objectID("plugin.x"), objectID("plugin_x"); a == b || strings.Contains(a, ".") {
		t.Errorf("ids %s and %s", a, b)
	}
}
