package door_test

import (
	"bufio"
	"crypto/tls"
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

// A counter counts how often each request was executed, by the header N.
type counter struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *counter) add(r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = make(map[string]int)
	}
	c.n[r.Header.Get("N")]++
}

func (c *counter) of(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[name]
}

func (c *counter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	c.add(r)
	fmt.Fprintf(w, "done %s %d", r.Header.Get("N"), len(body))
}

// The leader dies before, while and after it received a request. None is executed twice, and the
// client learns what is known.
func TestLeaderDies(t *testing.T) {
	a := newAuthority(t)
	var count counter
	begun := make(chan string)
	first := startCore(t, a, 1, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // net/http notices the client's end after that
		count.add(r)
		begun <- r.Header.Get("N")
		<-r.Context().Done()
	}))
	second := startCore(t, a, 2, &count)
	e := startEdge(t, a, nil)
	e.announce(t, first.leader())

	type answer struct {
		status int
		text   string
	}
	answers := make(map[string]chan answer)
	send := func(method, name string, body io.Reader, headers ...string) {
		ch := make(chan answer, 1)
		answers[name] = ch
		go func() {
			resp, text := e.do(t, method, "/api/v1/x", body, append(headers, "N", name)...)
			ch <- answer{resp.StatusCode, text}
		}()
	}
	send("POST", "post", strings.NewReader("{}"))
	send("POST", "post without a body", nil, "Idempotency-Key", "k")
	send("DELETE", "delete", nil)
	send("GET", "get", nil)
	send("HEAD", "head", nil)
	send("GET", "get with a body", strings.NewReader("{}"))
	for range len(answers) {
		<-begun
	}
	first.die()
	for name, want := range map[string]answer{"post": {502, `"code":"outcome_unknown"`},
		"post without a body": {502, `"code":"outcome_unknown"`}, "delete": {502, `"code":"outcome_unknown"`},
		"get with a body": {502, `"code":"outcome_unknown"`}} {
		if got := <-answers[name]; got.status != want.status || !strings.Contains(got.text, want.text) {
			t.Errorf("%s: %d %s", name, got.status, got.text)
		}
	}
	send("POST", "later", strings.NewReader("{}")) // the dead leader is the announced one
	fleettest.Eventually(t, "what can be repeated waits", func() bool { return e.sum().Held == 3 })
	e.announce(t, second.leader())
	for name, want := range map[string]answer{"get": {200, "done get 0"}, "head": {200, ""}, "later": {200, "done later 2"}} {
		if got := <-answers[name]; got != want {
			t.Errorf("%s: %d %s", name, got.status, got.text)
		}
	}
	for name, want := range map[string]int{"post": 1, "post without a body": 1, "delete": 1, "get with a body": 1, "get": 2,
		"head": 2, "later": 1} {
		if n := count.of(name); n != want {
			t.Errorf("%s was executed %d times, want %d", name, n, want)
		}
	}
	if s := e.sum(); s.Unknown != 4 || s.Passed != 3 || s.Refused != 0 {
		t.Errorf("%+v", s)
	}
}

// A response that the core did not finish is cut, and not begun again.
func TestLeaderDiesDuringAResponse(t *testing.T) {
	a := newAuthority(t)
	var executed atomic.Int64
	c := startCore(t, a, 1, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		executed.Add(1)
		w.Header().Set("Content-Length", "10")
		fmt.Fprint(w, "half")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	e := startEdge(t, a, nil)
	e.announce(t, c.leader())
	resp, err := e.client.Get(e.url + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	c.die()
	if text, err := io.ReadAll(resp.Body); err == nil || len(text) > 4 {
		t.Errorf("%q, %v", text, err)
	}
	if executed.Load() != 1 {
		t.Errorf("executed %d times", executed.Load())
	}
}

// Connections that the leader closed while they were unused cost a request nothing, unless it was
// written before the end was noticed.
func TestLeaderClosesUnusedConnections(t *testing.T) {
	a := newAuthority(t)
	var count counter
	c := startCore(t, a, 1, &count)
	e := startEdge(t, a, nil)
	e.announce(t, c.leader())
	for i := range 50 {
		name := fmt.Sprint(i)
		resp, text := e.do(t, "POST", "/api/v1/x", strings.NewReader("{}"), "N", name)
		n := count.of(name)
		if !(resp.StatusCode == 200 && n == 1 || resp.StatusCode == 502 && n <= 1) {
			t.Errorf("%d %s, executed %d times", resp.StatusCode, text, n)
		}
		c.cut()
	}
}

// A request that was sent on a connection used before is not repeated, whatever headers it has:
// net/http would repeat some.
func TestReusedConnectionDies(t *testing.T) {
	a := newAuthority(t)
	var count counter
	var c *core
	c = startCore(t, a, 1, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		count.add(r)
		if r.Header.Get("N") != "first" {
			c.cut()
		}
	}))
	e := startEdge(t, a, nil)
	e.announce(t, c.leader())
	for i, method := range []string{"POST", "DELETE", "PUT", "GET"} {
		e.do(t, "GET", "/api/v1/x", nil, "N", "first")
		if e.do(t, "GET", "/api/v1/x", nil, "N", "first"); c.seen.Load() != int64(i+1) {
			t.Fatalf("%d connections: none was used again", c.seen.Load())
		}
		resp, text := e.do(t, method, "/api/v1/x", nil, "N", method, "Idempotency-Key", "k", "X-Idempotency-Key", "k")
		want := 1
		if method == "GET" {
			want = 2 // net/http repeats it on a new connection, and the door not again
		}
		if n := count.of(method); resp.StatusCode != 502 || n != want {
			t.Errorf("%s: %d %s, executed %d times", method, resp.StatusCode, text, n)
		}
	}
}

// While leaders come, go and die, each post is executed at most once, and if its client was not
// left in doubt, as often as it was confirmed.
func TestLeadersChange(t *testing.T) {
	a := newAuthority(t)
	var count counter
	e := startEdge(t, a, func(o *door.Options) { o.HoldFor = 30 * time.Second })
	var clients sync.WaitGroup
	stop := make(chan bool)
	var confirmed, unknown atomic.Int64
	for i := range 8 {
		clients.Go(func() {
			for j := 0; ; j++ {
				select {
				case <-stop:
					return
				default:
				}
				name := fmt.Sprint(i, "-", j)
				body := strings.NewReader(strings.Repeat("x", 1+j%3*20000))
				resp, text := e.do(t, "POST", "/api/v1/x", body, "N", name)
				n := count.of(name)
				switch {
				case resp.StatusCode == 200 && n == 1 && strings.HasPrefix(text, "done "+name+" "):
					confirmed.Add(1)
				case resp.StatusCode == 502 && n <= 1:
					unknown.Add(1)
				case resp.StatusCode == 503 && n == 0:
				default:
					t.Errorf("%s: %d %s, executed %d times", name, resp.StatusCode, text, n)
				}
			}
		})
	}
	var last *core
	for term := range int64(20) {
		c := startCore(t, a, term+1, &count)
		switch {
		case last == nil:
		case term%4 == 1: // dies, and is replaced later
			last.die()
			e.leaders.Announce(door.Leader{})
		case term%4 == 2: // stops leading, before edges hear of it
			last.term.Store(0)
		case term%4 == 3: // ends in order
			last.stop()
		}
		before := confirmed.Load()
		e.leaders.Announce(c.leader())
		fleettest.Eventually(t, "requests are answered", func() bool { return confirmed.Load() > before+20 })
		last = c
	}
	close(stop)
	clients.Wait()
	t.Logf("%d confirmed, %d unknown, %+v", confirmed.Load(), unknown.Load(), e.sum())
	if unknown.Load() > 5*8 { // only deaths leave doubt
		t.Errorf("%d are unknown", unknown.Load())
	}
}

// A core that does not lead, or ends, handles nothing; its requests go to the next one, with their
// bodies.
func TestLeaderHandsOver(t *testing.T) {
	a := newAuthority(t)
	var count counter
	first, second := startCore(t, a, 1, &count), startCore(t, a, 2, &count)
	e := startEdge(t, a, func(o *door.Options) { o.HoldFor = 2 * time.Second })
	e.announce(t, first.leader())
	first.term.Store(0)
	// A long body cannot be sent again. Its client can, as it was not handled.
	long, text := e.do(t, "POST", "/api/v1/x", strings.NewReader(strings.Repeat("x", 1<<20)), "N", "long")
	if long.StatusCode != 503 && long.StatusCode != 502 || count.of("long") != 0 {
		t.Errorf("%d %s", long.StatusCode, text)
	}
	var all sync.WaitGroup
	for i, size := range []int{0, 1, 16 << 10} {
		all.Go(func() {
			name := fmt.Sprint(i)
			resp, text := e.do(t, "POST", "/api/v1/x", strings.NewReader(strings.Repeat("x", size)), "N", name)
			if want := fmt.Sprintf("done %s %d", name, size); resp.StatusCode != 200 || text != want {
				t.Errorf("%d %s, want %s", resp.StatusCode, text, want)
			}
		})
	}
	e.leaders.Announce(second.leader())
	all.Wait()
	second.stop()
	if resp, text := e.do(t, "GET", "/", nil); resp.StatusCode != 200 && resp.StatusCode != 503 {
		t.Errorf("during an orderly end: %d %s", resp.StatusCode, text)
	}
}

// A leader that hangs is replaced. Its requests end some seconds later.
func TestLeaderHangs(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	var count counter
	begun, never := make(chan bool), make(chan bool)
	first := startCore(t, a, 1, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		count.add(r)
		begun <- true
		<-never
	}))
	t.Cleanup(func() { close(never) })
	second := startCore(t, a, 2, &count)
	e := startEdge(t, a, nil)
	e.announce(t, first.leader())
	var all sync.WaitGroup
	for method, want := range map[string]int{"POST": 502, "GET": 200} {
		all.Go(func() {
			if resp, text := e.do(t, method, "/api/v1/x", nil, "N", method); resp.StatusCode != want {
				t.Errorf("%s: %d %s", method, resp.StatusCode, text)
			}
		})
		<-begun
	}
	e.announce(t, second.leader())
	if _, text := e.do(t, "POST", "/api/v1/x", nil, "N", "later"); text != "done later 0" {
		t.Errorf("after the change: %s", text)
	}
	all.Wait()
	if count.of("POST") != 1 || count.of("GET") != 2 {
		t.Errorf("POST %d times, GET %d times", count.of("POST"), count.of("GET"))
	}
}

// A leader of an older term is not believed, and a term with the same address is another leader.
func TestTerms(t *testing.T) {
	a := newAuthority(t)
	c := startCore(t, a, 5, site())
	e := startEdge(t, a, nil)
	e.announce(t, door.Leader{Term: 5, Addr: c.addr})
	e.do(t, "GET", "/", nil)
	seen := c.seen.Load()
	e.leaders.Announce(door.Leader{Term: 4, Addr: "127.0.0.1:1"})
	e.do(t, "GET", "/", nil)
	if e.Leader().Term != 5 || c.seen.Load() != seen {
		t.Errorf("%+v, %d connections", e.Leader(), c.seen.Load()-seen)
	}
	e.announce(t, door.Leader{Term: 6, Addr: c.addr}) // the core has yet to hear of it
	answered := make(chan int, 1)
	go func() {
		resp, _ := e.do(t, "GET", "/", nil)
		answered <- resp.StatusCode
	}()
	fleettest.Eventually(t, "the request waits", func() bool { return e.sum().Held == 1 })
	c.term.Store(6)
	if status := <-answered; status != http.StatusTeapot {
		t.Error(status)
	}
}

// The internal listener serves only nodes of the cluster.
func TestForeignNodes(t *testing.T) {
	a, foreign := newAuthority(t), newAuthority(t)
	var count counter
	c := startCore(t, a, 1, &count)
	ask := func(config *tls.Config, about string) string {
		config = config.Clone()
		config.RootCAs, config.ServerName = a.pool, "127.0.0.1"
		conn, err := tls.Dial("tcp", c.addr, config)
		if err != nil {
			return "no connection"
		}
		defer conn.Close()
		fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: x\r\nN: foreign\r\n%s\r\n", about)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return "no answer"
		}
		return fmt.Sprint(resp.StatusCode)
	}
	good := "Fleetd-Edge: http 192.0.2.1:1 192.0.2.2:2 1\r\n"
	for _, tt := range []struct {
		name        string
		config      *tls.Config
		about, want string
	}{
		{"an edge", a.config("edge-2", "edge"), strings.Replace(good, " 1\r", " 1 later fields\r", 1), "200"},
		{"a core", a.config("core-2", "core"), good, "200"},
		{"another role", a.config("laptop", "operator"), good, "403"},
		{"another cluster", foreign.config("edge-1", "edge"), good, "no answer"},
		{"no certificate", &tls.Config{}, good, "no answer"},
		{"no client", a.config("edge-2", "edge"), "", "400"},
		{"two clients", a.config("edge-2", "edge"), good + good, "400"},
		{"a bad address", a.config("edge-2", "edge"), strings.Replace(good, "192.0.2.1:1", "x", 1), "400"},
		{"a bad local address", a.config("edge-2", "edge"), strings.Replace(good, "192.0.2.2:2", "x", 1), "400"},
		{"a bad scheme", a.config("edge-2", "edge"), strings.Replace(good, "http ", "ftp ", 1), "400"},
		{"a bad term", a.config("edge-2", "edge"), strings.Replace(good, " 1\r", " x\r", 1), "400"},
		{"a later term", a.config("edge-2", "edge"), strings.Replace(good, " 1\r", " 2\r", 1), "503"},
	} {
		before := count.of("foreign")
		if got := ask(tt.config, tt.about); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
		if executed := count.of("foreign") != before; executed != (tt.want == "200") {
			t.Errorf("%s: executed: %v", tt.name, executed)
		}
	}
	plain, err := net.Dial("tcp", c.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	fmt.Fprintf(plain, "GET / HTTP/1.1\r\nHost: x\r\nN: foreign\r\n%s\r\n", good)
	if text, _ := io.ReadAll(plain); strings.Contains(string(text), "200") || count.of("foreign") != 2 {
		t.Errorf("without TLS: %q", text)
	}
	// A leader with a foreign certificate gets no request.
	e := startEdge(t, a, func(o *door.Options) { o.HoldFor = 100 * time.Millisecond })
	f := startCore(t, foreign, 1, &count)
	e.leaders.Announce(f.leader())
	if resp, _ := e.do(t, "GET", "/", nil, "N", "to a foreign core"); resp.StatusCode != 503 || count.of("to a foreign core") > 0 {
		t.Errorf("%d", resp.StatusCode)
	}
}
