package door_test

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/gorilla/websocket"

	"fleetd/fleet/fleettest"
	"fleetd/web"
	"fleetd/web/device"
	"fleetd/web/door"
)

// echo answers with what it sees of a request.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Request-Id", "the core's")
	w.WriteHeader(http.StatusTeapot)
	fmt.Fprintf(w, "%s %s host=%s from=%s local=%v tls=%v edge=%s length=%d body=%s idempotency=%s agent=%q forwarded=%q header=%q",
		r.Method, r.RequestURI, r.Host, r.RemoteAddr, local, r.TLS != nil, door.EdgeOf(r.Context()), r.ContentLength, body,
		r.Header.Get("Idempotency-Key"), r.Header.Get("User-Agent"), r.Header.Values("X-Forwarded-For"),
		r.Header.Values("Fleetd-Edge"))
}

func site() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("/", echo)
	mux.HandleFunc("/file", func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "file.bin", time.Unix(1e9, 0), strings.NewReader("0123456789"))
	})
	mux.HandleFunc("/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := 0; ; i++ {
			fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
			if i > 0 {
				<-r.Context().Done()
				return
			}
			if r.URL.RawQuery == "once" {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	mux.HandleFunc("/mcp_endpoint/mcp/", func(w http.ResponseWriter, r *http.Request) {
		up := websocket.Upgrader{}
		c, err := up.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer c.Close()
		for {
			kind, data, err := c.ReadMessage()
			if err != nil || c.WriteMessage(kind, data) != nil {
				return
			}
		}
	})
	mux.HandleFunc("/upload", func(w http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		n, err := io.Copy(h, r.Body)
		w.Header().Set("Trailer", "X-Sum")
		w.WriteHeader(http.StatusOK)
		fmt.Fprintf(w, "%d %v %s", n, err, r.Trailer.Get("X-Client-Sum"))
		w.Header().Set("X-Sum", hex.EncodeToString(h.Sum(nil)))
	})
	mux.HandleFunc("/download", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.URL.RawQuery)
		w.Header().Set("Content-Length", strconv.Itoa(n))
		chunk := make([]byte, 64<<10)
		for ; n > 0; n -= min(n, len(chunk)) {
			if _, err := w.Write(chunk[:min(n, len(chunk))]); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/refuse", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no", http.StatusUnauthorized)
	})
	mux.HandleFunc("/xiaozhi/ota/", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body)
	})
	return mux
}

// newPair returns an edge whose leader serves site behind the middleware of package web.
func newPair(t testing.TB) (*edge, *core) {
	a := newAuthority(t)
	s := web.New(web.Options{Console: func(r chi.Router) { r.Mount("/", site()) }, Log: slog.New(slog.DiscardHandler)})
	c, e := startCore(t, a, 1, s), startEdge(t, a, nil)
	e.leaders.Announce(c.leader())
	return e, c
}

func TestPassesRequests(t *testing.T) {
	e, _ := newPair(t)
	tests := []struct {
		name, method, path, body string
		headers, want            []string
	}{
		{"a page", "GET", "/devices?q=a;b&x=%zz", "", nil, []string{"GET /devices?q=a;b&x=%zz host=" + e.addr,
			"from=127.0.0.1:", "local=" + e.addr, "tls=false edge=edge-1", "forwarded=[]", "header=[]"}},
		{"an escaped path", "GET", "/a%2fb/%E8%AE%BE", "", nil, []string{"GET /a%2fb/%E8%AE%BE"}},
		{"a call", "POST", "/api/v1/calls", `{"tool":"x"}`, []string{"Idempotency-Key", "k"},
			[]string{`length=12 body={"tool":"x"}`, "idempotency=k"}},
		{"a post without a body", "POST", "/api/v1/calls", "", []string{"Idempotency-Key", "k"},
			[]string{"length=0", "idempotency=k"}},
		{"behind a proxy", "GET", "/", "", []string{"X-Forwarded-For", "192.0.2.5, 198.51.100.7"},
			[]string{"from=198.51.100.7:", "forwarded=[]"}},
		{"forged", "GET", "/", "", []string{"Fleetd-Edge", "https 192.0.2.1:1 192.0.2.2:2 1", "Fleetd-Edge", "x",
			"Connection", "Fleetd-Edge", "Forwarded", "for=192.0.2.1"}, []string{"from=127.0.0.1:", "tls=false", "header=[]"}},
		{"expects", "POST", "/", "abc", []string{"Expect", "100-continue"}, []string{"body=abc"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var body io.Reader
			if tt.body != "" {
				body = strings.NewReader(tt.body)
			}
			resp, text := e.do(t, tt.method, tt.path, body, tt.headers...)
			if resp.StatusCode != http.StatusTeapot || resp.Header.Get("Content-Type") != "application/json" ||
				len(resp.Header.Values("X-Request-Id")) != 1 {
				t.Errorf("%d %v", resp.StatusCode, resp.Header)
			}
			for _, want := range tt.want {
				if !strings.Contains(text, want) {
					t.Errorf("%s\nlacks %s", text, want)
				}
			}
		})
	}
	if s := e.sum(); s.Passed != int64(len(tests)) || s.Refused+s.Unknown+s.Retried+s.Held != 0 {
		t.Errorf("%+v", s)
	}
	if e.Stats(door.API).Passed != 2 || e.Stats(door.Page).Passed != 5 {
		t.Errorf("%+v %+v", e.Stats(door.API), e.Stats(door.Page))
	}
}

func TestPassesFiles(t *testing.T) {
	e, _ := newPair(t)
	resp, text := e.do(t, "GET", "/file", nil, "Range", "bytes=2-4")
	if resp.StatusCode != 206 || text != "234" || resp.Header.Get("Content-Range") != "bytes 2-4/10" {
		t.Errorf("range: %d %q %v", resp.StatusCode, text, resp.Header)
	}
	resp, text = e.do(t, "HEAD", "/file", nil)
	if resp.StatusCode != 200 || text != "" || resp.ContentLength != 10 {
		t.Errorf("HEAD: %d %q %v", resp.StatusCode, text, resp.Header)
	}
	resp, _ = e.do(t, "GET", "/file", nil, "If-Modified-Since", resp.Header.Get("Last-Modified"))
	if resp.StatusCode != 304 {
		t.Errorf("conditional: %d", resp.StatusCode)
	}
	resp, text = e.do(t, "GET", "/file", nil, "Accept-Encoding", "gzip")
	if resp.Header.Get("Content-Encoding") != "" || text != "0123456789" {
		t.Errorf("encoding: %v %q", resp.Header, text)
	}
}

// Bodies of 20 MB pass in little memory, with their trailers.
func TestStreamsBodies(t *testing.T) {
	e, _ := newPair(t)
	const size = 20 << 20
	content := make([]byte, size)
	_, _ = rand.Read(content)
	sum := sha256.Sum256(content)
	upload := func(r *http.Request) {
		resp, err := e.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil || !strings.HasPrefix(string(text), fmt.Sprintf("%d <nil>", size)) ||
			resp.Trailer.Get("X-Sum") != hex.EncodeToString(sum[:]) {
			t.Errorf("upload: %q %v %v", text, err, resp.Trailer)
		}
		if r.Trailer != nil && !strings.HasSuffix(string(text), " sum") {
			t.Errorf("the request's trailer is missing: %q", text)
		}
	}
	r, _ := http.NewRequest("POST", e.url+"/upload", bytes.NewReader(content))
	upload(r)
	r, _ = http.NewRequest("POST", e.url+"/upload", struct{ io.Reader }{bytes.NewReader(content)}) // chunked
	r.Trailer = http.Header{"X-Client-Sum": {"sum"}}
	upload(r)

	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	resp, err := e.client.Get(e.url + "/download?" + strconv.Itoa(size))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if n, err := io.Copy(io.Discard, resp.Body); n != size || err != nil || resp.ContentLength != size {
		t.Errorf("%d of %d bytes, %v", n, resp.ContentLength, err)
	}
	runtime.ReadMemStats(&after)
	// Core, edge and client share this process.
	if used := after.TotalAlloc - before.TotalAlloc; used > 5<<20 {
		t.Errorf("a download of %d bytes allocated %d", size, used)
	}
}

// A client that reads nothing stops the core; it does not fill the edge's memory.
func TestSlowClientStopsTheCore(t *testing.T) {
	a := newAuthority(t)
	written := make(chan int, 1)
	var c *core
	c = startCore(t, a, 1, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if device.IsDownload(r.URL.Path) {
			c.setWriteBuffer(64 << 10) // as the handler of package device
		}
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Second))
		w.Header().Set("Content-Length", strconv.Itoa(1<<30))
		n := 0
		for {
			m, err := w.Write(make([]byte, 32<<10))
			if n += m; err != nil {
				written <- n
				panic(http.ErrAbortHandler)
			}
		}
	}))
	e := startEdge(t, a, nil)
	e.leaders.Announce(c.leader())
	for path, most := range map[string]int{"/other": 64 << 20, "/d/token/firmware.bin": 1 << 20} {
		conn, err := net.Dial("tcp", e.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.(*net.TCPConn).SetReadBuffer(32 << 10)
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path)
		n := <-written
		t.Logf("%s: %d bytes on their way", path, n)
		if n > most {
			t.Errorf("%s: %d bytes were taken from the core, and none by the client", path, n)
		}
		if path != "/other" {
			if _, err := io.Copy(io.Discard, conn); err == nil {
				t.Errorf("%s: a response that is incomplete ends in order", path)
			}
		}
	}
}

func TestPassesEventStreams(t *testing.T) {
	e, _ := newPair(t)
	resp, err := e.client.Get(e.url + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for _, want := range []string{"data: 0", "", "data: 1"} { // these arrive before the stream ends
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("%q, %v; want %q", lines.Text(), lines.Err(), want)
		}
	}
	began := time.Now()
	e.stop() // ends it in order, and does not wait for it
	for lines.Scan() {
	}
	if err := <-e.done; err != nil || lines.Err() != nil || time.Since(began) > 4*time.Second {
		t.Errorf("the stream ended with %v, the edge with %v after %v", lines.Err(), err, time.Since(began))
	}
	e.done <- nil
}

func TestPassesWebSockets(t *testing.T) {
	e, c := newPair(t)
	ws, resp, err := websocket.DefaultDialer.Dial("ws://"+e.addr+"/mcp_endpoint/mcp/", nil)
	if err != nil {
		t.Fatal(err, resp)
	}
	defer ws.Close()
	for i := range 100 {
		message := strings.Repeat("x", i*i)
		if err := ws.WriteMessage(websocket.TextMessage, []byte(message)); err != nil {
			t.Fatal(err)
		}
		if _, got, err := ws.ReadMessage(); err != nil || string(got) != message {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
	}
	c.cut()
	if _, _, err := ws.ReadMessage(); err == nil {
		t.Error("the WebSocket outlives the core")
	}
}

// WebSockets of devices end at the edge, also while no core leads.
func TestServesSocketsOfDevices(t *testing.T) {
	e := startEdge(t, newAuthority(t), func(o *door.Options) {
		o.Devices = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Panic") != "" {
				panic("of a handler")
			}
			http.Error(w, "at the edge from "+r.RemoteAddr, http.StatusServiceUnavailable)
		})
		o.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	})
	for _, path := range []string{"/xiaozhi/v1/", "/xiaozhi/v1"} {
		resp, text := e.do(t, "GET", path, nil, "X-Forwarded-For", "192.0.2.9")
		if resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "2" || !strings.HasPrefix(text, "at the edge from 192.0.2.9:") {
			t.Errorf("%s: %d %v %q", path, resp.StatusCode, resp.Header, text)
		}
	}
	if resp, _ := e.do(t, "GET", "/xiaozhi/v1/", nil, "Panic", "1"); resp.StatusCode != 500 {
		t.Errorf("%d after a panic", resp.StatusCode)
	}
}

// The core may answer before the body has arrived.
func TestEarlyAnswers(t *testing.T) {
	e, _ := newPair(t)
	conn, err := net.Dial("tcp", e.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// More than the buffer of the connection to the core, or the core does not see the request.
	fmt.Fprintf(conn, "POST /refuse HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n\r\n%s", strings.Repeat("x", 20000))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || resp.StatusCode != http.StatusUnauthorized {
		t.Fatal(resp, err)
	}
	if text, err := io.ReadAll(resp.Body); err != nil || string(text) != "no\n" {
		t.Errorf("%q %v", text, err)
	}
}

// A body that arrives slowly passes; a poll's has seconds.
func TestSlowBodies(t *testing.T) {
	t.Parallel()
	e, _ := newPair(t)
	r, w := io.Pipe()
	go func() {
		for range 10 {
			fmt.Fprint(w, "x")
			time.Sleep(5 * time.Millisecond)
		}
		w.Close()
	}()
	if _, text := e.do(t, "POST", "/api/v1/x", r); !strings.Contains(text, "body=xxxxxxxxxx ") {
		t.Error(text)
	}
	conn, err := net.Dial("tcp", e.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "POST /xiaozhi/ota/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || resp.StatusCode != http.StatusRequestTimeout {
		t.Error(resp, err)
	}
}

// Devices close first, also behind an edge.
func TestDevicesCloseFirst(t *testing.T) {
	e, _ := newPair(t)
	for path, waiting := range map[string]int{"/xiaozhi/ota/": 1, "/other": 0} {
		conn, err := net.Dial("tcp", e.addr)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}", path)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		fleettest.Eventually(t, path, func() bool { return e.linger.Waiting() == waiting })
		conn.Close()
		fleettest.Eventually(t, path+": closed", func() bool { return e.linger.Waiting() == 0 })
	}
}

func TestConnectIsRefused(t *testing.T) {
	e, _ := newPair(t)
	conn, err := net.Dial("tcp", e.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "CONNECT x:1 HTTP/1.1\r\nHost: x:1\r\n\r\n")
	if resp, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || resp.StatusCode != 405 {
		t.Error(resp, err)
	}
}
