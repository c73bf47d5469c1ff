package logstream_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	gosyslog "github.com/leodido/go-syslog/v4"
	"github.com/leodido/go-syslog/v4/octetcounting"
	"github.com/leodido/go-syslog/v4/rfc5424"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/proto"

	"fleetd/fleet"
	"fleetd/fleet/logstream"
	"fleetd/fleet/record"
)

// A collector notes the numbers that a receiver got.
type collector struct {
	mu  sync.Mutex
	got []int64
}

func (c *collector) add(numbers ...int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.got = append(c.got, numbers...)
}

func (c *collector) list() []int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.got)
}

func (c *collector) has(n int64) bool { return slices.Contains(c.list(), n) }

// check fails unless the receiver got the entries from 0 to n at least once, and each for the first time after all
// before it.
func (c *collector) check(t *testing.T, n int64) {
	t.Helper()
	next := int64(0)
	for i, number := range c.list() {
		if number > next {
			t.Fatalf("message %d: got entry %d before entry %d", i, number, next)
		}
		next = max(next, number+1)
	}
	if next != n {
		t.Fatalf("got the entries before %d, want those before %d", next, n)
	}
}

func number(t *testing.T, id string) int64 {
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		t.Errorf("the id %q is no number", id)
	}
	return n
}

func text(s string) *string { return &s }

// A receiver that fails in every way gets each entry at least once, in order, across restarts of the service.
func TestWebhookAtLeastOnce(t *testing.T) {
	for _, batch := range []int{1, 7} {
		t.Run(fmt.Sprint("batch ", batch), func(t *testing.T) {
			w := newWorld(t)
			var c collector
			var secret string
			random := rand.New(rand.NewPCG(1, 2))
			receiver := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					return // the sender stopped
				}
				verifier, _ := standardwebhooks.NewWebhook(secret)
				if err := verifier.Verify(body, r.Header); err != nil {
					t.Error("signature: ", err)
				}
				var events []cloudevents.Event
				if batch == 1 {
					events = make([]cloudevents.Event, 1)
					err = json.Unmarshal(body, &events[0])
				} else {
					err = json.Unmarshal(body, &events)
				}
				if err != nil {
					t.Errorf("body %s: %v", body, err)
				}
				take := func() {
					for _, e := range events {
						if err := e.Validate(); err != nil {
							t.Error(err)
						}
						c.add(number(t, e.ID()))
					}
				}
				switch c.mu.Lock(); random.IntN(8) {
				case 0:
					c.mu.Unlock()
					rw.WriteHeader(http.StatusInternalServerError)
				case 1: // accepted, and the answer is lost
					c.mu.Unlock()
					take()
					panic(http.ErrAbortHandler)
				case 2:
					c.mu.Unlock()
					panic(http.ErrAbortHandler)
				default:
					c.mu.Unlock()
					take()
				}
			}))
			defer receiver.Close()
			var s logstream.Stream
			s, secret = w.create(t, logstream.Request{Kind: logstream.Webhook, URL: &receiver.URL, Batch: &batch})
			for range 5 {
				stop := w.run(t)
				w.seal(40)
				time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond)
				stop()
			}
			w.run(t)
			until(t, "all entries", func() bool { return w.stream(s.ID).Next == 200 })
			c.check(t, 200)
			deliveries, _ := w.LogStreamDeliveries(t.Context(), s.ID, 1000)
			if !slices.ContainsFunc(deliveries, func(d logstream.Delivery) bool { return !d.OK() }) {
				t.Error("the delivery log has no failure")
			}
		})
	}
}

func TestCloudEvent(t *testing.T) {
	w := newWorld(t)
	var body []byte
	var header http.Header
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		defer w.mu.Unlock()
		body, _ = io.ReadAll(r.Body)
		header = r.Header
	}))
	defer receiver.Close()
	w.seal(1)
	s, _ := w.create(t, logstream.Request{Kind: logstream.Webhook, URL: &receiver.URL, Headers: text("X-Site: 4\nAuthorization: Bearer b")})
	w.run(t)
	until(t, "the entry", func() bool { return w.stream(s.ID).Next == 1 })
	w.mu.Lock()
	defer w.mu.Unlock()
	want := `{"data":{"entry":"call","device_id":"dev-0","tool":"self.reboot","state":"succeeded",` +
		`"trace_id":"0af76519-16cd-43dd-8448-eb211c80319c"},"datacontenttype":"application/json","id":"0",` +
		`"sequence":"00000000000000000000","source":"fleetd/test","specversion":"1.0","subject":"dev-0",` +
		`"time":"2026-09-21T14:13:20.000123Z","traceid":"0af7651916cd43dd8448eb211c80319c","type":"fleetd.call"}`
	var a, b any
	if json.Unmarshal(body, &a) != nil || json.Unmarshal([]byte(want), &b) != nil || fmt.Sprint(a) != fmt.Sprint(b) {
		t.Errorf("body %s\nwant %s", body, want)
	}
	for name, value := range map[string]string{"Content-Type": "application/cloudevents+json", "X-Site": "4",
		"Authorization": "Bearer b", "Webhook-Id": "0"} {
		if header.Get(name) != value {
			t.Errorf("%s: %q, want %q", name, header.Get(name), value)
		}
	}
}

// An answer 410 disables the stream; Retry-After delays the next attempt.
func TestAnswersOfTheReceiver(t *testing.T) {
	w := newWorld(t)
	var c collector
	answers := []int{http.StatusTooManyRequests, http.StatusOK, http.StatusGone}
	var times []time.Time
	receiver := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		n := min(len(times), len(answers)-1)
		times = append(times, time.Now())
		rw.Header().Set("Retry-After", "1")
		rw.WriteHeader(answers[n])
	}))
	defer receiver.Close()
	w.seal(3)
	s, _ := w.create(t, logstream.Request{Kind: logstream.Webhook, URL: &receiver.URL})
	w.run(t)
	until(t, "the stream is disabled", func() bool { return !w.stream(s.ID).Enabled })
	if s := w.stream(s.ID); s.Next != 1 || s.Last.Status != http.StatusGone || !s.Last.Reason.Is("log_stream_status") {
		t.Errorf("stream %+v", s)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(times) != 3 || times[1].Sub(times[0]) < time.Second {
		t.Errorf("requests at %v", times)
	}
}

// A syslog server that closes connections gets each entry at least once, in order.
func TestSyslogAtLeastOnce(t *testing.T) {
	w := newWorld(t)
	var c collector
	web := httptest.NewUnstartedServer(nil)
	web.StartTLS() // for its certificate
	defer web.Close()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: web.TLS.Certificates})
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	defer serving.Wait()
	defer listener.Close()
	serving.Go(func() {
		for n := 0; ; n++ {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			accepts := 20 + rand.IntN(60)
			if n > 8 {
				accepts = 1000
			}
			serving.Go(func() { serveSyslog(t, conn, accepts, &c) })
		}
	})
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw}))
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	s, _ := w.create(t, logstream.Request{Kind: logstream.Syslog, URL: text("tls://127.0.0.1:" + port), CA: &ca})
	stop := w.run(t)
	for range 20 {
		w.seal(25)
		time.Sleep(20 * time.Millisecond)
	}
	until(t, "all entries", func() bool { return w.stream(s.ID).Next == 500 })
	stop() // closes the connection
	listener.Close()
	c.check(t, 500)
}

// serveSyslog reads messages and closes the connection after a number of them, in which case what the kernel has
// received after that is lost.
func serveSyslog(t *testing.T, conn net.Conn, left int, c *collector) {
	defer conn.Close()
	parser := octetcounting.NewParser(gosyslog.WithListener(func(r *gosyslog.Result) {
		if r.Error != nil {
			return // the end of the connection
		}
		m := r.Message.(*rfc5424.SyslogMessage)
		var e record.Entry
		if err := json.Unmarshal([]byte(*m.Message), &e); err != nil {
			t.Error(err)
		}
		if *m.Appname != "fleetd" || *m.MsgID != "call" || *m.Facility != 13 || *m.Severity != 6 || !m.Timestamp.Equal(e.At) {
			t.Errorf("message %+v", m)
		}
		c.add(e.Number)
		if left--; left == 0 {
			conn.Close()
		}
	}))
	parser.Parse(&stopped{bufio.NewReaderSize(conn, 512), &left})
}

// stopped is a reader that ends when no messages are left to accept.
type stopped struct {
	io.Reader
	left *int
}

func (r *stopped) Read(b []byte) (int, error) {
	if *r.left <= 0 {
		return 0, io.EOF
	}
	return r.Reader.Read(b[:min(len(b), 512)])
}

func TestOTLP(t *testing.T) {
	w := newWorld(t)
	var got []*logs.LogRecord
	var path, mediaType string
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var data logs.LogsData
		if err := proto.Unmarshal(body, &data); err != nil {
			t.Error(err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		path, mediaType = r.URL.Path, r.Header.Get("Content-Type")
		got = append(got, data.ResourceLogs[0].ScopeLogs[0].LogRecords...)
	}))
	defer receiver.Close()
	w.seal(1)
	w.mu.Lock()
	w.add("call", `{"entry":"call","device_id":"d","tool":"self.x","state":"timed_out"}`)
	w.mu.Unlock()
	s, _ := w.create(t, logstream.Request{Kind: logstream.OTLP, URL: &receiver.URL})
	w.run(t)
	until(t, "both entries", func() bool { return w.stream(s.ID).Next == 2 })
	w.mu.Lock()
	defer w.mu.Unlock()
	if path != "/v1/logs" || mediaType != "application/x-protobuf" || len(got) != 2 {
		t.Fatalf("%s %s, %d records", path, mediaType, len(got))
	}
	attributes := map[string]string{}
	for _, a := range got[1].Attributes {
		attributes[a.Key] = a.Value.GetStringValue() + strconv.FormatInt(a.Value.GetIntValue(), 10)
	}
	if fmt.Sprintf("%x", got[0].TraceId) != "0af7651916cd43dd8448eb211c80319c" || got[0].EventName != "fleetd.call" ||
		got[0].TimeUnixNano != 1_790_000_000_000_123_000 || got[0].SeverityText != "INFO" || got[1].SeverityText != "WARN" {
		t.Errorf("records %v", got)
	}
	if want := map[string]string{"fleetd.entry": "1", "fleetd.device": "d0", "fleetd.subject": "d0", "fleetd.action": "self.x0",
		"fleetd.outcome": "timed_out0"}; fmt.Sprint(attributes) != fmt.Sprint(want) {
		t.Errorf("attributes %v, want %v", attributes, want)
	}
}

func TestFilter(t *testing.T) {
	entries := [][2]string{
		{"call", `{"device_id":"d1","tool":"self.reboot","state":"timed_out"}`},   // 0
		{"call", `{"device_id":"d2","tool":"self.lamp.set","state":"succeeded"}`}, // 1
		{"action", `{"subject":"d1","action":"device.hold"}`},                     // 2
		{"connection", `{"device_id":"d1","presence":"offline"}`},                 // 3
		{"campaign_step", `{"to":"failed","kind":"state"}`},                       // 4
		{"call", ``},                       // 5: removed
		{"started", `{"entry":"started"}`}, // 6
	}
	tests := []struct {
		name   string
		filter logstream.Filter
		want   []int64
	}{
		{"all", logstream.Filter{}, []int64{0, 1, 2, 3, 4, 6}},
		{"kinds", logstream.Filter{Kinds: []string{"call", "connection"}}, []int64{0, 1, 3}},
		{"tools and actions", logstream.Filter{Actions: []string{"self.lamp.*", "device.hold"}}, []int64{1, 2}},
		{"outcomes", logstream.Filter{Outcomes: []string{"timed_out", "offline", "failed"}}, []int64{0, 3, 4}},
		{"devices", logstream.Filter{Devices: []string{"d1"}}, []int64{0, 2, 3}},
		{"all of a filter's lists", logstream.Filter{Kinds: []string{"call"}, Devices: []string{"d1"}}, []int64{0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			for _, e := range entries {
				w.add(e[0], e[1])
			}
			var c collector
			receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				c.add(number(t, r.Header.Get("Webhook-Id")))
			}))
			defer receiver.Close()
			s, _ := w.create(t, logstream.Request{Kind: logstream.Webhook, URL: &receiver.URL, Filter: &tt.filter})
			w.run(t)
			until(t, "the cursor", func() bool { return w.stream(s.ID).Next == int64(len(entries)) })
			if got := c.list(); !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
			deliveries, _ := w.LogStreamDeliveries(t.Context(), s.ID, 10)
			removed := 0
			for _, d := range deliveries {
				removed += d.Removed
			}
			if removed != 1 {
				t.Errorf("%d entries noted as removed, want 1", removed)
			}
		})
	}
}

// A change of a stream takes effect: other addresses, off and on, replay, deletion.
func TestChanges(t *testing.T) {
	w := newWorld(t)
	var first, second collector
	serve := func(c *collector) *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			c.add(number(t, r.Header.Get("Webhook-Id")))
		}))
		t.Cleanup(s.Close)
		return s
	}
	a, b := serve(&first), serve(&second)
	w.seal(3)
	s, _ := w.create(t, logstream.Request{Kind: logstream.Webhook, URL: &a.URL})
	w.run(t)
	until(t, "three entries", func() bool { return w.stream(s.ID).Next == 3 })
	change := func(r logstream.Request) {
		t.Helper()
		if _, err := w.Update(t.Context(), admin, s.ID, r); err != nil {
			t.Fatal(err)
		}
	}
	change(logstream.Request{URL: &b.URL})
	w.seal(1)
	until(t, "the other address gets the next", func() bool { return second.has(3) && w.stream(s.ID).Next == 4 })
	off, on := false, true
	change(logstream.Request{Enabled: &off})
	w.seal(1)
	time.Sleep(500 * time.Millisecond)
	if second.has(4) {
		t.Error("a disabled stream sent")
	}
	change(logstream.Request{Enabled: &on})
	until(t, "what waited", func() bool { return second.has(4) && w.stream(s.ID).Next == 5 })
	if _, err := w.Replay(t.Context(), admin, s.ID, "1"); err != nil {
		t.Fatal(err)
	}
	until(t, "entries sent again", func() bool { return len(second.list()) == 6 })
	if got := fmt.Sprint(second.list()); got != "[3 4 1 2 3 4]" {
		t.Error("second address got ", got)
	}
	if got := fmt.Sprint(first.list()); got != "[0 1 2]" {
		t.Error("first address got ", got)
	}
}

func TestRefusals(t *testing.T) {
	ctx := context.Background()
	long := strings.Repeat("x", 201)
	tests := []struct {
		name string
		r    logstream.Request
		code string
	}{
		{"kind", logstream.Request{Kind: "kafka"}, "invalid_log_stream_kind"},
		{"no name", logstream.Request{Name: text(""), Kind: logstream.Webhook, URL: text("https://a.example/")}, "invalid_name"},
		{"no address", logstream.Request{Kind: logstream.Webhook}, "invalid_log_stream_url"},
		{"scheme", logstream.Request{Kind: logstream.Webhook, URL: text("file:///etc/passwd")}, "invalid_log_stream_url"},
		{"syslog without TLS", logstream.Request{Kind: logstream.Syslog, URL: text("tcp://a.example:514")}, "invalid_log_stream_url"},
		{"syslog with a path", logstream.Request{Kind: logstream.Syslog, URL: text("tls://a.example:514/x")}, "invalid_log_stream_url"},
		{"shown form as an address", logstream.Request{Kind: logstream.OTLP, URL: text("https://a.example/…")}, "invalid_log_stream_url"},
		{"short secret", logstream.Request{Kind: logstream.Webhook, URL: text("https://a.example/"), Secret: text("whsec_YWJj")}, "invalid_log_stream_secret"},
		{"header with a line break", logstream.Request{Kind: logstream.OTLP, URL: text("https://a.example/"), Headers: text("A: b\rX: y")}, "invalid_log_stream_headers"},
		{"reserved header", logstream.Request{Kind: logstream.OTLP, URL: text("https://a.example/"), Headers: text("host: b")}, "invalid_log_stream_headers"},
		{"authority", logstream.Request{Kind: logstream.Syslog, URL: text("tls://a.example"), CA: text("x")}, "invalid_certificate"},
		{"certificate without key", logstream.Request{Kind: logstream.Syslog, URL: text("tls://a.example"), Certificate: text("x")}, "invalid_certificate"},
		{"unknown kind of entry", logstream.Request{Kind: logstream.OTLP, URL: text("https://a.example/"),
			Filter: &logstream.Filter{Kinds: []string{"x"}}}, "invalid_log_stream_filter"},
		{"long action", logstream.Request{Kind: logstream.OTLP, URL: text("https://a.example/"),
			Filter: &logstream.Filter{Actions: []string{long}}}, "invalid_log_stream_filter"},
		{"number after the end", logstream.Request{Kind: logstream.OTLP, URL: text("https://a.example/"), From: "4"}, "invalid_log_stream_start"},
		{"negative number", logstream.Request{Kind: logstream.OTLP, URL: text("https://a.example/"), From: "-1"}, "invalid_log_stream_start"},
		{"no time", logstream.Request{Kind: logstream.OTLP, URL: text("https://a.example/"), From: "yesterday"}, "invalid_log_stream_start"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.seal(3)
			if tt.r.Name == nil {
				tt.r.Name = text("archive")
			}
			_, _, err := w.Create(ctx, admin, tt.r)
			if code := codeOf(err); code != tt.code || len(w.streams) != 0 {
				t.Errorf("error %v, want %s; %d streams", err, tt.code, len(w.streams))
			}
		})
	}
	t.Run("as an operator", func(t *testing.T) {
		w := newWorld(t)
		by := admin
		by.Role = fleet.RoleOperator
		_, _, err := w.Create(ctx, by, logstream.Request{Name: text("x"), Kind: logstream.Webhook,
			URL: text("https://a.example/")})
		if !errors.Is(err, fleet.ErrForbidden) || len(w.streams) != 0 {
			t.Errorf("error %v, %d streams", err, len(w.streams))
		}
	})
}
