package door_test

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fleetd/fleet/fleettest"
	"fleetd/web/device"
	"fleetd/web/door"
)

// An authority signs certificates: the name is the node's, the organizational unit its role.
type authority struct {
	t    testing.TB
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pool *x509.CertPool
}

func newAuthority(t testing.TB) *authority {
	a := &authority{t: t, pool: x509.NewCertPool()}
	a.key, _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "cluster"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	a.cert, _ = x509.ParseCertificate(der)
	a.pool.AddCert(a.cert)
	return a
}

// config returns the configuration of a node, for both ends of connections.
func (a *authority) config(name, role string) *tls.Config {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject: pkix.Name{CommonName: name, OrganizationalUnit: []string{role}}, IPAddresses: []net.IP{{127, 0, 0, 1}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		NotAfter:    time.Now().Add(time.Hour)}, a.cert, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: a.pool, ClientCAs: a.pool,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
}

func nodeOf(s *tls.ConnectionState) (string, error) {
	if len(s.VerifiedChains) == 0 {
		return "", errors.New("no certificate")
	}
	subject := s.PeerCertificates[0].Subject
	if role := strings.Join(subject.OrganizationalUnit, ","); role != "edge" && role != "core" {
		return "", errors.New("neither edge nor core")
	}
	return subject.CommonName, nil
}

// A core has an internal listener. Its connections can be cut as the death of its machine would.
type core struct {
	t    testing.TB
	term atomic.Int64
	addr string
	stop context.CancelFunc
	done chan error
	left chan string // edges that seem to have ended
	own  *door.Internal

	ln    net.Listener
	mu    sync.Mutex
	conns []net.Conn
	seen  atomic.Int64 // connections
}

// Accept implements [net.Listener].
func (c *core) Accept() (net.Conn, error) {
	conn, err := c.ln.Accept()
	if err == nil {
		c.mu.Lock()
		c.conns = append(c.conns, conn)
		c.mu.Unlock()
		c.seen.Add(1)
	}
	return conn, err
}
func (c *core) Close() error   { return c.ln.Close() }
func (c *core) Addr() net.Addr { return c.ln.Addr() }

// cut ends all connections.
func (c *core) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		conn.Close()
	}
	c.conns = nil
}

func (c *core) setWriteBuffer(bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.(*net.TCPConn).SetWriteBuffer(bytes)
	}
}

// die ends the listener and all connections.
func (c *core) die() {
	c.ln.Close()
	c.cut()
}

func startCore(t testing.TB, a *authority, term int64, h http.Handler) *core {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveCore(t, a, term, ln, h)
}

func serveCore(t testing.TB, a *authority, term int64, ln net.Listener, h http.Handler) *core {
	own, _ := h.(ownHandler)
	c := &core{t: t, ln: ln, addr: ln.Addr().String(), done: make(chan error, 1), left: make(chan string, 10)}
	c.term.Store(term)
	i := door.NewInternal(door.InternalOptions{Handler: h, TLS: a.config("core-1", "core"), Peer: nodeOf, Term: c.term.Load,
		Own: own.own, Tunnels: own.tunnels, Left: func(edge string) { c.left <- edge },
		Log: cmp.Or(own.log, slog.New(slog.DiscardHandler))})
	ctx, stop := context.WithCancel(context.Background())
	c.stop, c.own = stop, i
	go func() { c.done <- i.Run(ctx, c) }()
	t.Cleanup(func() { stop(); c.die(); <-c.done })
	return c
}

// An ownHandler also serves what edges ask for themselves.
type ownHandler struct {
	http.Handler
	own http.Handler
	log *slog.Logger // may be nil

	tunnels map[string]func(edge string, conn net.Conn)
}

func (c *core) leader() door.Leader { return door.Leader{Term: c.term.Load(), Addr: c.addr} }

// An edge is a door with its listener.
type edge struct {
	*door.Door
	leaders *door.Announced
	addr    string
	url     string
	stop    context.CancelFunc
	done    chan error
	client  *http.Client
	linger  *device.Lingerer
}

func startEdge(t testing.TB, a *authority, set func(*door.Options)) *edge {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &edge{leaders: &door.Announced{}, addr: ln.Addr().String(), done: make(chan error, 1),
		linger: device.NewLingerer(device.LingerOptions{For: time.Hour})}
	e.url = "http://" + e.addr
	o := door.Options{Leader: e.leaders, TLS: a.config("edge-1", "edge"), ConnContext: device.WithConn, Node: "edge-1",
		Log: slog.New(slog.DiscardHandler)}
	if set != nil {
		set(&o)
	}
	e.Door = door.New(o)
	ctx, stop := context.WithCancel(context.Background())
	e.stop = stop
	transport := &http.Transport{MaxIdleConnsPerHost: 100}
	e.client = &http.Client{Transport: transport}
	go func() { e.done <- e.Run(ctx, e.linger.Listener(ln)) }()
	t.Cleanup(func() {
		stop()
		<-e.done
		e.linger.Stop()
		transport.CloseIdleConnections()
	})
	return e
}

// announce sets the leader, and waits until requests go there.
func (e *edge) announce(t testing.TB, l door.Leader) {
	t.Helper()
	e.leaders.Announce(l)
	fleettest.Eventually(t, "the door uses the leader", func() bool { return e.Leader() == l })
}

// do sends a request and returns the response with its body.
func (e *edge) do(t testing.TB, method, path string, body io.Reader, headers ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest(method, e.url+path, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	resp, err := e.client.Do(r)
	if err != nil {
		t.Errorf("%s %s: %v", method, path, err)
		return &http.Response{}, ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Errorf("%s %s: body: %v", method, path, err)
	}
	return resp, string(text)
}

// sum adds the figures of all kinds.
func (e *edge) sum() (s door.Stats) {
	for k := range door.Kinds {
		n := e.Stats(door.Kind(k))
		s.Passed += n.Passed
		s.Held += n.Held
		s.Refused += n.Refused
		s.Retried += n.Retried
		s.Unknown += n.Unknown
	}
	return s
}
