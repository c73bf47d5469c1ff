package bus_test

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"fleetd/internal/bus"
)

// Servers and connections leave no goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit bounds every wait of the tests for what should come at once.
const limit = 30 * time.Second

// newCluster creates a cluster and returns its directory.
func newCluster(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "cluster")
	if _, err := bus.Init(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// issue makes the directory of a node.
func issue(t testing.TB, dir, name string, role bus.Role, hosts ...string) string {
	t.Helper()
	out, _, err := bus.Issue(dir, bus.Order{Name: name, Role: role, Hosts: hosts, Out: filepath.Join(t.TempDir(), name)})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// join makes a node and opens its identity.
func join(t testing.TB, dir, name string, role bus.Role) *bus.Identity {
	t.Helper()
	id, err := bus.Open(issue(t, dir, name, role))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func startServer(t testing.TB, id *bus.Identity, routes ...string) *bus.Server {
	t.Helper()
	s, err := bus.StartServer(t.Context(), bus.ServerOptions{Identity: id, Listen: "127.0.0.1:0", Routes: routes,
		Log: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// A client is a connection and what it reported.
type client struct {
	*nats.Conn
	t      testing.TB
	states chan bus.State
	errs   chan error
}

// connect opens a connection. It may not be connected yet.
func connect(t testing.TB, o bus.ConnectOptions) *client {
	t.Helper()
	c := &client{t: t, states: make(chan bus.State, 1000), errs: make(chan error, 1000)}
	o.OnState = func(s bus.State) { c.states <- s }
	o.OnError = func(err error) { c.errs <- err }
	if o.Log == nil {
		o.Log = testLog(t)
	}
	nc, err := bus.Connect(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	c.Conn = nc
	t.Cleanup(func() {
		if c.Close(); !eventually(c.IsClosed) {
			t.Error("the connection does not close")
		}
	})
	return c
}

// connectTo opens a connection to a server, and waits for it.
func connectTo(t testing.TB, id *bus.Identity, s *bus.Server) *client {
	t.Helper()
	o := bus.ConnectOptions{Identity: id, Servers: []string{s.Addr()}}
	if id.Role == bus.Core {
		o = bus.ConnectOptions{Identity: id, Embedded: s}
	}
	c := connect(t, o)
	c.await(true)
	return c
}

// await returns the next state with or without a connection.
func (c *client) await(connected bool) bus.State {
	c.t.Helper()
	for timeout := time.After(limit); ; {
		select {
		case s := <-c.states:
			if s.Connected == connected && (connected || s.Err != nil) {
				return s
			}
		case <-timeout:
			c.t.Fatalf("connected is not %v; last error: %v", connected, c.LastError())
		}
	}
}

// subscribe returns once the server has the subscription.
func (c *client) subscribe(subject string) *nats.Subscription {
	c.t.Helper()
	sub, err := c.SubscribeSync(subject)
	if err == nil {
		err = c.FlushTimeout(limit)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return sub
}

func (c *client) publish(subject, text string) {
	c.t.Helper()
	if err := c.Publish(subject, []byte(text)); err != nil {
		c.t.Fatal(err)
	}
}

// receive fails unless the next message is the wanted one.
func (c *client) receive(sub *nats.Subscription, subject, text string) {
	c.t.Helper()
	m, err := sub.NextMsg(limit)
	if err != nil {
		c.t.Fatalf("waiting for %q on %s: %v", text, subject, err)
	}
	if m.Subject != subject || string(m.Data) != text {
		c.t.Fatalf("%q on %s, want %q on %s", m.Data, m.Subject, text, subject)
	}
}

func eventually(holds func() bool) bool {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if holds() {
			return true
		}
	}
	return false
}

func await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	if !eventually(holds) {
		t.Fatalf("not %s after %s", what, limit)
	}
}

// A logBuffer keeps what is logged.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func (b *logBuffer) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// testLog prints its lines if the test fails.
func testLog(t testing.TB) *slog.Logger {
	b := new(logBuffer)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(b.String())
		}
	})
	return b.logger()
}

// A proxy passes connections on, and can stop reading as a frozen machine does.
type proxy struct {
	net.Listener
	mu     sync.Mutex
	thawed *sync.Cond
	frozen bool
	target string
	conns  []net.Conn
	wg     sync.WaitGroup
}

func newProxy(t testing.TB, target string) *proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{Listener: ln, target: target}
	p.thawed = sync.NewCond(&p.mu)
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		p.Close()
		p.freeze(false)
		p.mu.Lock()
		for _, c := range p.conns {
			c.Close()
		}
		p.mu.Unlock()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) accept() {
	for {
		from, err := p.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		for p.frozen {
			p.thawed.Wait()
		}
		to, err := net.Dial("tcp", p.target)
		p.mu.Unlock()
		if err != nil {
			from.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, from, to)
		p.mu.Unlock()
		p.wg.Go(func() { p.copy(from, to) })
		p.wg.Go(func() { p.copy(to, from) })
	}
}

// copy keeps both connections open while the proxy is frozen, whatever happens.
func (p *proxy) copy(to, from net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		for p.frozen {
			p.thawed.Wait()
		}
		p.mu.Unlock()
		if _, failed := to.Write(buf[:n]); err != nil || failed != nil {
			to.Close()
			from.Close()
			return
		}
	}
}

func (p *proxy) freeze(frozen bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = frozen
	p.thawed.Broadcast()
}

func (p *proxy) lead(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// routeAddr returns the address that a server has for other servers.
func routeAddr(t testing.TB, s *bus.Server) string {
	t.Helper()
	a, err := net.ResolveTCPAddr("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	a.Port++
	return a.String()
}

// closed fails unless the other side closes the connection.
func closed(t testing.TB, conn net.Conn) error {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(limit))
	_, err := io.Copy(io.Discard, conn)
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		t.Error("the connection stays open")
	}
	return err
}

func mustContain(t testing.TB, err error, words ...string) {
	t.Helper()
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not contain %q", err, w)
		}
	}
}
