package bus_test

import (
	"bytes"
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"fleetd/internal/bus"
)

// Two cores and two edges, each edge connected to another core.
func TestNodesExchangeMessages(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	c1, c2 := join(t, dir, "core-1", bus.Core), join(t, dir, "core-2", bus.Core)
	s1 := startServer(t, c1)
	s2 := startServer(t, c2, s1.Addr())
	await(t, "connected servers", func() bool { return s1.Routes() == 1 && s2.Routes() == 1 })
	core1, core2 := connectTo(t, c1, s1), connectTo(t, c2, s2)
	edge1, edge2 := connectTo(t, join(t, dir, "edge-1", bus.Edge), s1), connectTo(t, join(t, dir, "edge-2", bus.Edge), s2)
	c := c1.Cluster

	ups, beats := core1.subscribe(c.UpAll(7)), core1.subscribe(c.Nodes())
	sub1, sub2 := edge1.subscribe(c.Down("edge-1")), edge2.subscribe(c.Down("edge-2"))
	all1, all2 := edge1.subscribe(c.Edges()), edge2.subscribe(c.Edges())
	terms := core2.subscribe(c.Term())
	answers := core2.subscribe(c.Node("core-2") + ".question")
	await(t, "subscribed across servers", func() bool { // the servers exchange subscriptions in the background
		core1.publish(c.Term(), "1")
		core1.publish(c.Down("edge-2"), "warm up")
		core1.publish(c.Edges(), "warm up")
		edge2.publish(c.Up(7, "edge-2"), "warm up")
		edge2.publish(c.Node("edge-2"), "warm up")
		for _, s := range []*nats.Subscription{ups, beats, sub2, all1, all2, terms} {
			if n, _, err := s.Pending(); n == 0 || err != nil {
				return false
			}
		}
		_, err := core1.Request(answers.Subject, nil, time.Nanosecond)
		n, _, _ := answers.Pending()
		return err != nil && n > 0
	})
	// What each sent last arrives last.
	edge2.publish(c.Up(7, "edge-2"), "end")
	edge2.publish(c.Node("edge-2"), "end")
	core1.publish(c.Down("edge-2"), "end")
	core1.publish(c.Edges(), "end")
	core1.publish(c.Term(), "end")
	for _, s := range []*nats.Subscription{ups, beats, sub2, all1, all2, terms} {
		for {
			m, err := s.NextMsg(limit)
			if err != nil {
				t.Fatalf("%s: %v", s.Subject, err)
			}
			if string(m.Data) == "end" {
				break
			}
		}
	}

	edge1.publish(c.Up(7, "edge-1"), "hello")
	core1.receive(ups, c.Up(7, "edge-1"), "hello")
	if got := bus.Sender(c.Up(7, "edge-1")); got != "edge-1" {
		t.Errorf("Sender = %q", got)
	}
	edge2.publish(c.Up(6, "edge-2"), "for an earlier term")
	edge2.publish(c.Up(7, "edge-2"), "across servers")
	core1.receive(ups, c.Up(7, "edge-2"), "across servers")
	core1.publish(c.Down("edge-2"), "for one")
	core1.publish(c.Edges(), "for all")
	edge2.receive(sub2, c.Down("edge-2"), "for one")
	edge1.receive(all1, c.Edges(), "for all")
	edge2.receive(all2, c.Edges(), "for all")
	if n, _, _ := sub1.Pending(); n != 0 {
		t.Errorf("edge-1 has %d messages for edge-2", n)
	}

	// A core answers another on its inbox.
	for n, _, _ := answers.Pending(); n > 0; n, _, _ = answers.Pending() {
		if _, err := answers.NextMsg(limit); err != nil {
			t.Fatal(err)
		}
	}
	go func() {
		if m, err := answers.NextMsg(limit); err == nil {
			_ = m.Respond([]byte("answer"))
		}
	}()
	if m, err := core1.Request(answers.Subject, []byte("question"), limit); err != nil || string(m.Data) != "answer" {
		t.Errorf("between cores: %v", err)
	}

	// A message may have 4 MiB.
	large := bytes.Repeat([]byte("x"), 4<<20)
	edge2.publish(c.Up(7, "edge-2"), string(large))
	core1.receive(ups, c.Up(7, "edge-2"), string(large))
	if err := edge2.Publish(c.Up(7, "edge-2"), append(large, 'x')); !errors.Is(err, nats.ErrMaxPayload) {
		t.Errorf("more than 4 MiB: %v", err)
	}
}

// A peer that neither reads nor closes its connection is noticed on both sides.
func TestFrozenPeer(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	s := startServer(t, join(t, dir, "core", bus.Core))
	p := newProxy(t, s.Addr())
	edge := connect(t, bus.ConnectOptions{Identity: join(t, dir, "edge", bus.Edge), Servers: []string{p.Addr().String()}})
	edge.await(true)
	if s.Clients() != 1 {
		t.Fatalf("%d clients", s.Clients())
	}
	p.freeze(true)
	start := time.Now()
	serverNoticed := make(chan time.Duration, 1)
	go func() {
		eventually(func() bool { return s.Clients() == 0 })
		serverNoticed <- time.Since(start)
	}()
	lost := edge.await(false)
	edgeAfter, serverAfter := time.Since(start), <-serverNoticed
	if edgeAfter > 5*time.Second || serverAfter > 5*time.Second {
		t.Errorf("noticed after %v at the edge and %v at the server, want 5 s", edgeAfter, serverAfter)
	}
	if !errors.Is(lost.Err, nats.ErrStaleConnection) {
		t.Errorf("lost with %v", lost.Err)
	}
	p.freeze(false)
	edge.await(true)
}

// A frozen server is noticed by the other servers, and the route comes back.
func TestFrozenRoute(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	c1, c2 := join(t, dir, "core-1", bus.Core), join(t, dir, "core-2", bus.Core)
	s1 := startServer(t, c1)
	p := newProxy(t, routeAddr(t, s1))
	host, port, _ := net.SplitHostPort(p.Addr().String())
	n, _ := strconv.Atoi(port)
	s2 := startServer(t, c2, net.JoinHostPort(host, strconv.Itoa(n-1))) // its successor is the proxy
	await(t, "connected", func() bool { return s1.Routes() == 1 && s2.Routes() == 1 })
	p.freeze(true)
	start := time.Now()
	await(t, "noticed", func() bool { return s1.Routes() == 0 && s2.Routes() == 0 })
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("noticed after %v", d)
	}
	p.freeze(false)
	await(t, "connected again", func() bool { return s1.Routes() == 1 && s2.Routes() == 1 })
}

// The proxy keeps the address while the server restarts on another port.
func TestReconnect(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	core := join(t, dir, "core", bus.Core)
	first := startServer(t, core)
	p := newProxy(t, first.Addr())
	edge := connect(t, bus.ConnectOptions{Identity: join(t, dir, "edge", bus.Edge), Servers: []string{p.Addr().String()}})
	edge.await(true)
	down := edge.subscribe(core.Cluster.Down("edge"))

	first.Close()
	edge.await(false)
	if err := edge.Publish(core.Cluster.Node("edge"), nil); err == nil {
		t.Error("publishing without a connection does not fail")
	}
	second := startServer(t, core)
	p.lead(second.Addr())
	edge.await(true)
	if err := edge.FlushTimeout(limit); err != nil { // the subscription is there again
		t.Fatal(err)
	}
	conn := connectTo(t, core, second)
	conn.publish(core.Cluster.Down("edge"), "after the restart")
	edge.receive(down, core.Cluster.Down("edge"), "after the restart")
}

// An edge that was given one core learns of the other, and moves to it.
func TestAdvertise(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	var servers [2]*bus.Server
	var proxies [2]*proxy
	for i, name := range []string{"core-1", "core-2"} {
		o := bus.ServerOptions{Identity: join(t, dir, name, bus.Core), Listen: "127.0.0.1:0", Log: testLog(t)}
		if i > 0 {
			o.Routes = []string{servers[0].Addr()}
		}
		proxies[i] = newProxy(t, "")
		o.Advertise = proxies[i].Addr().String()
		s, err := bus.StartServer(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		proxies[i].lead(s.Addr())
		servers[i] = s
	}
	await(t, "connected", func() bool { return servers[0].Routes() == 1 && servers[1].Routes() == 1 })
	given := proxies[0].Addr().String()
	edge := connect(t, bus.ConnectOptions{Identity: join(t, dir, "edge", bus.Edge), Servers: []string{given}})
	edge.await(true)
	await(t, "aware of both", func() bool { return len(edge.Servers()) == 2 })
	servers[0].Close()
	if s := edge.await(true); !strings.HasSuffix(s.Server, proxies[1].Addr().String()) {
		t.Errorf("moved to %s", s.Server)
	}
}

// A node starts without any core, and connects once there is one.
func TestConnectBeforeServer(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := newProxy(t, ln.Addr().String())
	ln.Close()
	edge := connect(t, bus.ConnectOptions{Identity: join(t, dir, "edge", bus.Edge), Servers: []string{p.Addr().String()}})
	edge.await(false)
	s := startServer(t, join(t, dir, "core", bus.Core))
	p.lead(s.Addr())
	edge.await(true)
}

func TestServerStartFails(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	id := join(t, dir, "core", bus.Core)
	s := startServer(t, id)
	_, port, _ := net.SplitHostPort(s.Addr())
	n, _ := strconv.Atoi(port)
	for name, listen := range map[string]string{
		"port for nodes":   s.Addr(),
		"port for servers": net.JoinHostPort("127.0.0.1", strconv.Itoa(n-1)), // its successor is taken
	} {
		t.Run(name, func(t *testing.T) {
			second, err := bus.StartServer(t.Context(), bus.ServerOptions{Identity: id, Listen: listen})
			if err == nil {
				second.Close()
			}
			mustContain(t, err, port, "address already in use")
		})
	}
	for name, o := range map[string]bus.ServerOptions{
		"edge":      {Identity: join(t, dir, "edge", bus.Edge), Listen: "127.0.0.1:0"},
		"address":   {Identity: id, Listen: "127.0.0.1"},
		"last port": {Identity: id, Listen: "127.0.0.1:65535"},
		"route":     {Identity: id, Listen: "127.0.0.1:0", Routes: []string{"core-2"}},
		"advertise": {Identity: id, Listen: "127.0.0.1:0", Advertise: "core-1"},
	} {
		t.Run(name, func(t *testing.T) {
			if s, err := bus.StartServer(t.Context(), o); err == nil {
				s.Close()
				t.Error("starts")
			} else {
				t.Log(err)
			}
		})
	}
}

// external starts a NATS server that is not ours.
func external(t *testing.T, opts *server.Options) string {
	t.Helper()
	opts.Host, opts.Port, opts.NoSigs, opts.NoLog = "127.0.0.1", server.RANDOM_PORT, true, true
	opts.Username, opts.Password = "fleet", "pass word/1"
	ns, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	go ns.Start()
	t.Cleanup(func() { ns.Shutdown(); ns.WaitForShutdown() })
	if !ns.ReadyForConnections(limit) {
		t.Fatal("not ready")
	}
	return ns.Addr().String()
}

const password = "pass%20word%2F1"

// Two clusters share an existing NATS cluster, and do not see each other.
func TestTwoClustersOnOneNATS(t *testing.T) {
	t.Parallel()
	url := "nats://fleet:" + password + "@" + external(t, &server.Options{})
	log := new(logBuffer)
	dirs := []string{newCluster(t), newCluster(t)}
	var cores, edges [2]*client
	var ids [2]bus.Cluster
	for i, dir := range dirs {
		core, edge := join(t, dir, "core", bus.Core), join(t, dir, "edge", bus.Edge)
		ids[i] = core.Cluster
		cores[i] = connect(t, bus.ConnectOptions{Identity: core, URL: url, Log: log.logger()})
		edges[i] = connect(t, bus.ConnectOptions{Identity: edge, URL: url, Log: log.logger()})
		if s := cores[i].await(true); strings.Contains(s.Server, "pass") {
			t.Errorf("the state contains the password: %s", s.Server)
		}
		edges[i].await(true)
	}
	var ups, downs, all [2]*nats.Subscription
	for i, c := range ids {
		ups[i], downs[i] = cores[i].subscribe(c.UpAll(1)), edges[i].subscribe(c.Down("edge"))
		all[i] = edges[i].subscribe(c.Edges())
	}
	for i, c := range ids { // both have the same names and terms
		edges[i].publish(c.Up(1, "edge"), strconv.Itoa(i))
		cores[i].publish(c.Down("edge"), strconv.Itoa(i))
		cores[i].publish(c.Edges(), strconv.Itoa(i))
	}
	for i, c := range ids {
		cores[i].receive(ups[i], c.Up(1, "edge"), strconv.Itoa(i))
		edges[i].receive(downs[i], c.Down("edge"), strconv.Itoa(i))
		edges[i].receive(all[i], c.Edges(), strconv.Itoa(i))
	}
	for i := range ids {
		cores[i].publish(ids[i].Edges(), "last")
		edges[i].receive(all[i], ids[i].Edges(), "last")
		for _, sub := range []*nats.Subscription{ups[i], downs[i], all[i]} {
			if n, _, _ := sub.Pending(); n != 0 {
				t.Errorf("%d more messages on %s", n, sub.Subject)
			}
		}
	}
	if !strings.Contains(log.String(), "not encrypted") {
		t.Error("no warning that the connection is not encrypted")
	}

	wrong := connect(t, bus.ConnectOptions{Identity: join(t, dirs[0], "late", bus.Edge), Log: log.logger(),
		URL: strings.Replace(url, password, "pass%20wrong", 1)})
	if s := wrong.await(false); !errors.Is(s.Err, nats.ErrAuthorization) {
		t.Errorf("with a wrong password: %v", s.Err)
	}
	_, err := bus.Connect(t.Context(), bus.ConnectOptions{Identity: join(t, dirs[0], "later", bus.Edge), Log: log.logger(),
		URL: "nats://fleet:pass/wrong@127.0.0.1"})
	mustContain(t, err, "number 1")
	for _, secret := range []string{"pass word", "pass%20", "pass wrong", "pass/"} {
		if text := log.String() + err.Error(); strings.Contains(text, secret) {
			t.Errorf("a password was logged: %s", text)
		}
	}
}

// TLS to an existing NATS cluster accepts certificates of the cluster's CA.
func TestExternalTLS(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	ours, err := server.GenTLSConfig(tlsFiles(issue(t, dir, "nats", bus.Core, "127.0.0.1")))
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := server.GenTLSConfig(tlsFiles(issue(t, newCluster(t), "nats", bus.Core, "127.0.0.1")))
	if err != nil {
		t.Fatal(err)
	}
	id := join(t, dir, "edge", bus.Edge)
	for _, scheme := range []string{"nats", "tls"} {
		url := scheme + "://fleet:" + password + "@" + external(t, &server.Options{TLS: true, TLSConfig: ours})
		c := connect(t, bus.ConnectOptions{Identity: id, URL: url})
		c.await(true)
		if _, err := c.TLSConnectionState(); err != nil {
			t.Errorf("%s: %v", scheme, err)
		}
		url = scheme + "://fleet:" + password + "@" + external(t, &server.Options{TLS: true, TLSConfig: theirs})
		mustContain(t, connect(t, bus.ConnectOptions{Identity: id, URL: url}).await(false).Err, "unknown authority")
	}
	plain := "tls://fleet:" + password + "@" + external(t, &server.Options{})
	if s := connect(t, bus.ConnectOptions{Identity: id, URL: plain}).await(false); !errors.Is(s.Err,
		nats.ErrSecureConnWanted) {
		t.Errorf("tls:// to a server without TLS: %v", s.Err)
	}
}

func tlsFiles(dir string) *server.TLSConfigOpts {
	return &server.TLSConfigOpts{CertFile: dir + "/node.pem", KeyFile: dir + "/node-key.pem"}
}

// Servers that accept only short messages are refused at the start, with what to do.
func TestSmallMaxPayload(t *testing.T) {
	t.Parallel()
	url := "nats://fleet:" + password + "@" + external(t, &server.Options{MaxPayload: 64 << 10})
	nc, err := bus.Connect(t.Context(), bus.ConnectOptions{Identity: join(t, newCluster(t), "core", bus.Core), URL: url})
	if err == nil {
		nc.Close()
		t.Fatal("connected")
	}
	for _, want := range []string{"max_payload", "65536", "1048576"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v, without %q", err, want)
		}
	}
}
