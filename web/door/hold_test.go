package door_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fleetd/fleet/fleettest"
	"fleetd/web/door"
)

// A request that finds no leader waits for one.
func TestWaitsForALeader(t *testing.T) {
	a := newAuthority(t)
	e := startEdge(t, a, nil)
	var all sync.WaitGroup
	for _, tt := range [][3]string{{"GET", "/", ""}, {"POST", "/api/v1/calls", "{}"}, {"POST", "/xiaozhi/ota/", "poll"}} {
		all.Go(func() {
			resp, text := e.do(t, tt[0], tt[1], strings.NewReader(tt[2]))
			if !strings.Contains(text, tt[2]) || resp.StatusCode >= 500 {
				t.Errorf("%s: %d %s", tt[1], resp.StatusCode, text)
			}
		})
	}
	fleettest.Eventually(t, "all wait", func() bool { return e.sum().Held == 3 })
	e.leaders.Announce(startCore(t, a, 1, site()).leader())
	all.Wait()
	if s := e.sum(); s.Passed != 3 || s.Held != 0 || e.Stats(door.Poll).Passed != 1 {
		t.Errorf("%+v", s)
	}
	e.announce(t, door.Leader{}) // none
	gone, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	r, _ := http.NewRequestWithContext(gone, "GET", e.url+"/", nil)
	if _, err := e.client.Do(r); err == nil {
		t.Error("answered, although no core leads")
	}
	fleettest.Eventually(t, "a client that went away waits no longer", func() bool { return e.sum().Held == 0 })
}

// A leader may be announced before it listens, and before it serves.
func TestWaitsForALeaderThatStarts(t *testing.T) {
	a := newAuthority(t)
	e := startEdge(t, a, nil)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	e.leaders.Announce(door.Leader{Term: 1, Addr: addr})
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if resp, text := e.do(t, "POST", "/api/v1/calls", strings.NewReader("{}")); !strings.Contains(text, "body={}") {
				t.Errorf("%d %s", resp.StatusCode, text)
			}
		})
	}
	fleettest.Eventually(t, "attempts fail", func() bool { return e.sum().Retried >= 3 })
	if ln, err = net.Listen("tcp", addr); err != nil {
		t.Fatal(err)
	}
	c := serveCore(t, a, 0, ln, site())
	tried := c.seen.Load
	fleettest.Eventually(t, "the core is asked", func() bool { return tried() > 1 })
	c.term.Store(1)
	all.Wait()
	if s := e.sum(); s.Passed != 20 || s.Unknown+s.Refused != 0 {
		t.Errorf("%+v", s)
	}
}

func TestRefusals(t *testing.T) {
	e := startEdge(t, newAuthority(t), func(o *door.Options) { o.HoldFor = 20 * time.Millisecond })
	for _, tt := range []struct {
		path, accept, language, media string
		want                          []string
	}{
		{"/devices", "text/html,*/*;q=0.8", "en", "text/html; charset=utf-8",
			[]string{`lang="en"`, "No core of the cluster leads", `http-equiv="refresh"`}},
		{"/devices", "text/html", "zh-CN,zh;q=0.9", "text/html; charset=utf-8", []string{`lang="zh-CN"`, "主核心节点"}},
		{"/devices", "*/*", "", "text/plain; charset=utf-8", []string{"no_leader: no core of the cluster leads"}},
		{"/xiaozhi/ota/", "text/html", "", "text/plain; charset=utf-8", []string{"no_leader: "}},
		{"/api/v1/devices", "text/html", "zh-CN", "application/problem+json", []string{`"code":"no_leader"`, `"status":503`}},
		{"/mcp", "application/json", "", "application/problem+json", []string{`"code":"no_leader"`}},
	} {
		resp, text := e.do(t, "GET", tt.path, nil, "Accept", tt.accept, "Accept-Language", tt.language)
		if resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "2" || resp.Header.Get("Content-Type") != tt.media ||
			resp.ContentLength != int64(len(text)) {
			t.Errorf("%s: %d %v", tt.path, resp.StatusCode, resp.Header)
		}
		for _, want := range tt.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %q lacks %q", tt.path, text, want)
			}
		}
		if strings.HasSuffix(tt.media, "json") && !json.Valid([]byte(text)) {
			t.Errorf("%s: %s", tt.path, text)
		}
	}
	if s := e.sum(); s.Refused != 6 || s.Passed != 0 {
		t.Errorf("%+v", s)
	}
	if resp, text := e.do(t, "POST", "/devices", nil, "Accept", "text/html"); resp.StatusCode != 503 || strings.Contains(text, "refresh") {
		t.Errorf("a form is sent again by the browser: %s", text)
	}
}

// poll sends a boot poll on a connection of its device, and returns a function that reads the status.
func poll(t *testing.T, e *edge, id, path string) func() int {
	t.Helper()
	conn, err := net.Dial("tcp", e.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nDevice-Id: %s\r\nContent-Length: 2\r\n\r\n{}", path, id)
	return func() int {
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Error(err)
			return 0
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
}

// With no room, requests that are no polls give way first, then polls of unknown devices, and the
// newest before older ones.
func TestPollsOfKnownDevicesAreKept(t *testing.T) {
	a := newAuthority(t)
	var mu sync.Mutex
	var order []string
	c := startCore(t, a, 1, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, r.Header.Get("Device-Id"))
	}))
	e := startEdge(t, a, func(o *door.Options) { o.MaxHeld = 4 })
	e.leaders.Announce(c.leader())
	for _, id := range []string{"known-1", "known-2", "known-3"} {
		if status := poll(t, e, id, "/xiaozhi/ota/")(); status != 200 {
			t.Fatal(status)
		}
	}
	order = nil
	e.announce(t, door.Leader{})
	c.term.Store(2)
	answers := make(map[string]func() int)
	refused := int64(0)
	for i, step := range []struct{ id, path, refused string }{
		{"other-1", "/api/v1/calls", ""},
		{"other-2", "/devices", ""},
		{"new-1", "/xiaozhi/ota/", ""},
		{"known-1", "/xiaozhi/ota", ""}, // full
		{"other-3", "/devices", "other-3"},
		{"new-2", "/xiaozhi/ota/", "other-2"},
		{"known-2", "/xiaozhi/ota/", "other-1"},
		{"new-3", "/xiaozhi/ota/", "new-3"},
		{"known-3", "/xiaozhi/ota/", "new-2"},
	} {
		answers[step.id] = poll(t, e, step.id, step.path)
		if step.refused != "" {
			if status := answers[step.refused](); status != 503 {
				t.Errorf("%s: %d", step.refused, status)
			}
			delete(answers, step.refused)
			refused++
		}
		fleettest.Eventually(t, step.id, func() bool {
			s := e.sum()
			return s.Held == int64(min(i+1, 4)) && s.Refused == refused
		})
	}
	e.leaders.Announce(c.leader())
	for id, answer := range answers {
		if status := answer(); status != 200 {
			t.Errorf("%s: %d", id, status)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(order) != 4 {
		t.Errorf("%v", order)
	}
}

// Of 10,000 polls the bound keeps 1,000. They go to the leader 64 at a time.
func TestManyPollsWait(t *testing.T) {
	a := newAuthority(t)
	var now, most, all atomic.Int64
	c := startCore(t, a, 1, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := now.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		all.Add(1)
		time.Sleep(time.Millisecond)
		now.Add(-1)
	}))
	e := startEdge(t, a, func(o *door.Options) { o.MaxHeld, o.HoldFor = 1000, time.Minute })
	var clients sync.WaitGroup
	var passed, refused atomic.Int64
	start := func(n int) {
		for range n {
			clients.Go(func() {
				// Through the handler: 10,000 sockets are more than a test may have.
				r, _ := http.NewRequest("POST", "http://x/xiaozhi/ota/", nil)
				r.RemoteAddr, r.RequestURI = "192.0.2.1:1", "/xiaozhi/ota/"
				w := &statusWriter{header: make(http.Header)}
				e.ServeHTTP(w, r)
				switch w.status {
				case 200:
					passed.Add(1)
				case 503:
					refused.Add(1)
				default:
					t.Errorf("%d", w.status)
				}
			})
		}
	}
	start(10000)
	fleettest.Eventually(t, "9,000 are refused", func() bool { return refused.Load() == 9000 && e.sum().Held == 1000 })
	e.leaders.Announce(c.leader())
	clients.Wait()
	if passed.Load() != 1000 || all.Load() != 1000 || most.Load() > 64 {
		t.Errorf("%d passed, %d reached the core, %d at a time", passed.Load(), all.Load(), most.Load())
	}
}

// Long headers of requests that wait are bounded in bytes.
func TestHeadersAreBounded(t *testing.T) {
	e := startEdge(t, newAuthority(t), nil)
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for range 1500 {
		clients.Go(func() {
			defer func() { _ = recover() }() // http.ErrAbortHandler, at the end
			r, _ := http.NewRequestWithContext(ctx, "GET", "http://x/", nil)
			r.RemoteAddr, r.Header = "192.0.2.1:1", http.Header{"X": {strings.Repeat("x", 30<<10)}}
			e.ServeHTTP(&statusWriter{header: make(http.Header)}, r)
		})
	}
	const room = 32 << 20 / (30 << 10)
	fleettest.Eventually(t, "some are refused", func() bool {
		s := e.sum()
		return s.Refused >= 1500-room && s.Held <= room
	})
	if s := e.sum(); s.Refused > 1500-room+100 {
		t.Errorf("%d of 1,500 requests with 30 KiB of headers are refused", s.Refused)
	}
	cancel()
	clients.Wait()
}

type statusWriter struct {
	header http.Header
	status int
}

func (w *statusWriter) Header() http.Header { return w.header }
func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
}
func (w *statusWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return len(p), nil
}

// At its stop an edge refuses what waits, and ends what is under way.
func TestStops(t *testing.T) {
	a := newAuthority(t)
	begun, finish := make(chan bool), make(chan bool)
	c := startCore(t, a, 1, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun <- true
		<-finish
		fmt.Fprint(w, "finished")
	}))
	e := startEdge(t, a, nil)
	e.leaders.Announce(c.leader())
	var all sync.WaitGroup
	all.Go(func() {
		if _, text := e.do(t, "POST", "/api/v1/calls", strings.NewReader("{}")); text != "finished" {
			t.Errorf("a request under way: %q", text)
		}
	})
	<-begun
	e.announce(t, door.Leader{})
	all.Go(func() {
		if resp, text := e.do(t, "POST", "/api/v1/calls", strings.NewReader("{}")); resp.StatusCode != 503 ||
			!strings.Contains(text, "edge_stopping") {
			t.Errorf("a request that waits: %d %s", resp.StatusCode, text)
		}
	})
	fleettest.Eventually(t, "one waits", func() bool { return e.sum().Held == 1 })
	e.stop()
	fleettest.Eventually(t, "none waits", func() bool { return e.sum().Held == 0 })
	close(finish)
	all.Wait()
	if err := <-e.done; err != nil {
		t.Error(err)
	}
	e.done <- nil
}
