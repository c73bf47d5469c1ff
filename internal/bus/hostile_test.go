package bus_test

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"fleetd/internal/bus"
)

// stranger is for a client that accepts any server, and presents its
// certificate whether the server knows the CA or not.
func stranger(certs ...tls.Certificate) *tls.Config {
	return &tls.Config{InsecureSkipVerify: true,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &append(certs, tls.Certificate{})[0], nil
		}}
}

func loadPair(t *testing.T, dir string) tls.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "node.pem"), filepath.Join(dir, "node-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// forge signs a changed certificate with the CA's key and the node's key. It
// replaces the node's certificate in out.
func forge(t *testing.T, dir, out string, change func(*x509.Certificate)) tls.Certificate {
	t.Helper()
	decode := func(path string) []byte {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(text)
		return block.Bytes
	}
	ca, err := x509.ParseCertificate(decode(filepath.Join(dir, "ca.pem")))
	if err != nil {
		t.Fatal(err)
	}
	caKey, err := x509.ParsePKCS8PrivateKey(decode(filepath.Join(dir, "ca-key.pem")))
	if err != nil {
		t.Fatal(err)
	}
	pair := loadPair(t, out)
	template := *pair.Leaf
	template.SerialNumber, template.RawSubject = big.NewInt(1), nil
	change(&template)
	der, err := x509.CreateCertificate(rand.Reader, &template, ca, &pair.PrivateKey.(*ecdsa.PrivateKey).PublicKey, caKey)
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(filepath.Join(out, "node.pem"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	return loadPair(t, out)
}

// Strangers get an error, and what they publish reaches no node.
func TestStrangers(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	id := join(t, dir, "core", bus.Core)
	s := startServer(t, id)
	core := connectTo(t, id, s)
	c := id.Cluster
	all := core.subscribe("fleetd." + string(c) + ".>")

	expired := forge(t, dir, issue(t, dir, "edge", bus.Edge), func(cert *x509.Certificate) {
		cert.NotAfter = time.Now().Add(-time.Second)
	})
	early := forge(t, dir, issue(t, dir, "edge", bus.Edge), func(cert *x509.Certificate) {
		cert.NotBefore = time.Now().Add(time.Hour)
	})
	role := forge(t, dir, issue(t, dir, "edge", bus.Edge), func(cert *x509.Certificate) {
		cert.Subject.OrganizationalUnit = []string{"edge", "core"}
	})
	name := forge(t, dir, issue(t, dir, "edge", bus.Edge), func(cert *x509.Certificate) { cert.Subject.CommonName = "*" })
	server := forge(t, dir, issue(t, dir, "edge", bus.Edge), func(cert *x509.Certificate) {
		cert.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	})
	for _, tt := range []struct {
		name   string
		config *tls.Config
		want   string
	}{
		{"no certificate", stranger(), "certificate required"},
		{"another cluster", stranger(loadPair(t, issue(t, newCluster(t), "core", bus.Core))), "unknown certificate authority"},
		{"expired", stranger(expired), "expired certificate"},
		{"not valid yet", stranger(early), "expired certificate"},
		{"two roles", stranger(role), "bad certificate"},
		{"a wildcard as its name", stranger(name), "bad certificate"},
		{"a certificate for servers alone", stranger(server), "bad certificate"},
		{"TLS 1.2", &tls.Config{Certificates: []tls.Certificate{loadPair(t, issue(t, dir, "edge", bus.Edge))},
			InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}, "protocol version"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			nc, err := nats.Connect("tls://"+s.Addr(), nats.Secure(tt.config), nats.TLSHandshakeFirst(), nats.NoReconnect())
			if err == nil {
				_ = nc.Publish(c.Term(), []byte("stranger"))
				_ = nc.Flush()
				nc.Close()
			}
			mustContain(t, err, tt.want)
		})
	}
	t.Run("without TLS", func(t *testing.T) {
		conn, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = conn.Write([]byte("CONNECT {\"verbose\":false}\r\nPUB " + c.Term() + " 8\r\nstranger\r\nPING\r\n"))
		_ = conn.SetReadDeadline(time.Now().Add(limit))
		if answer, _ := io.ReadAll(conn); len(answer) > 16 {
			t.Errorf("the server answers %q", answer)
		}
	})

	edge := connectTo(t, join(t, dir, "edge", bus.Edge), s)
	edge.publish(c.Node("edge"), "after the strangers")
	core.receive(all, c.Node("edge"), "after the strangers")
}

// A node that meets a server of another cluster, or an edge that poses as a
// core, sends nothing.
func TestFalseServers(t *testing.T) {
	t.Parallel()
	dir, other := newCluster(t), newCluster(t)
	edge := join(t, dir, "edge", bus.Edge)
	foreign := startServer(t, join(t, other, "core", bus.Core))
	c := connect(t, bus.ConnectOptions{Identity: edge, Servers: []string{foreign.Addr()}})
	mustContain(t, c.await(false).Err, "no core of the cluster "+string(edge.Cluster))

	// The false core has a node's certificate and takes what it gets.
	pair := loadPair(t, issue(t, dir, "edge-2", bus.Edge, "127.0.0.1", "localhost"))
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}})
	if err != nil {
		t.Fatal(err)
	}
	handshake := make(chan error, 1)
	go func() {
		conn, err := ln.Accept()
		if err == nil {
			err = conn.(*tls.Conn).Handshake()
			conn.Close()
		}
		handshake <- err
	}()
	c = connect(t, bus.ConnectOptions{Identity: edge, Servers: []string{ln.Addr().String()}})
	mustContain(t, c.await(false).Err, "no core of the cluster "+string(edge.Cluster))
	if err := <-handshake; err == nil {
		t.Error("the edge trusts another edge")
	}
	ln.Close()
}

// An edge learns why the server refuses it, also when it was connected before.
func TestRefusalIsReported(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	id := join(t, dir, "core", bus.Core)
	first := startServer(t, id)
	p := newProxy(t, first.Addr())
	edge := connect(t, bus.ConnectOptions{Identity: join(t, dir, "edge", bus.Edge), Servers: []string{p.Addr().String()}})
	edge.await(true)
	refusing, err := tls.Listen("tcp", "127.0.0.1:0", id.ServerTLS(bus.Core))
	if err != nil {
		t.Fatal(err)
	}
	defer refusing.Close()
	go func() {
		for {
			conn, err := refusing.Accept()
			if err != nil {
				return
			}
			_ = conn.(*tls.Conn).Handshake()
			conn.Close()
		}
	}()
	p.lead(refusing.Addr().String())
	first.Close()
	for { // first, of the loss
		if s := edge.await(false); strings.Contains(s.Err.Error(), "refuses the certificate of this node") {
			break
		}
	}
}

// An edge can neither be another node nor listen to it.
func TestEdgePermissions(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	id := join(t, dir, "core", bus.Core)
	s := startServer(t, id)
	core, victim := connectTo(t, id, s), connectTo(t, join(t, dir, "victim", bus.Edge), s)
	edge := connectTo(t, join(t, dir, "edge", bus.Edge), s)
	c := id.Cluster
	all := core.subscribe("fleetd." + string(c) + ".>")
	down, term, edges := victim.subscribe(c.Down("victim")), victim.subscribe(c.Term()), victim.subscribe(c.Edges())

	refused := func(t *testing.T) {
		t.Helper()
		select {
		case err := <-edge.errs:
			if !errors.Is(err, nats.ErrPermissionViolation) {
				t.Errorf("error %v", err)
			}
		case <-time.After(limit):
			t.Error("no error at the edge")
		}
	}
	for _, subject := range []string{c.Up(1, "victim"), c.Node("victim"), c.Node("core"), c.Term(), c.Edges(),
		c.Down("victim"), c.Down("edge"), "fleetd." + string(c) + ".inbox.core.1", c.Up(1, "edge") + ".more",
		"fleetd." + string(c) + ".up.1.2.edge", bus.Cluster("0123456789abcdef").Node("edge"), "_INBOX.1",
		"$SYS.REQ.SERVER.PING", "other"} {
		t.Run("publish "+subject, func(t *testing.T) {
			edge.publish(subject, "forged")
			refused(t)
		})
	}
	for _, subject := range []string{c.Down("victim"), "fleetd." + string(c) + ".down.*", c.UpAll(1), c.Up(1, "edge"),
		c.Nodes(), c.Node("edge"), "fleetd." + string(c) + ".>", "fleetd.*.term", "fleetd.>", ">", "_INBOX.>", "$SYS.>",
		"fleetd." + string(c) + ".inbox.>"} {
		t.Run("subscribe "+subject, func(t *testing.T) {
			sub, err := edge.SubscribeSync(subject)
			if err != nil {
				t.Fatal(err)
			}
			refused(t)
			if err := edge.FlushTimeout(limit); err != nil {
				t.Fatal(err)
			}
			for _, to := range []string{c.Down("victim"), c.Up(1, "edge"), c.Node("edge"), c.Term(), "fleetd." + string(c) + ".inbox.x"} {
				core.publish(to, "secret")
			}
			if err := core.FlushTimeout(limit); err != nil {
				t.Fatal(err)
			}
			if err := edge.FlushTimeout(limit); err != nil { // what the server sent before is here
				t.Fatal(err)
			}
			if n, _, _ := sub.Pending(); n != 0 {
				t.Errorf("the edge received %d messages", n)
			}
			for _, sub := range []*nats.Subscription{down, term} {
				core.receive(sub, sub.Subject, "secret")
			}
		})
	}

	// A reply subject gives no permission to publish there.
	own := edge.subscribe(c.Down("edge"))
	if err := core.PublishRequest(c.Down("edge"), c.Term(), []byte("question")); err != nil {
		t.Fatal(err)
	}
	m, err := own.NextMsg(limit)
	if err == nil {
		err = m.Respond([]byte("forged"))
	}
	if err != nil {
		t.Fatal(err)
	}
	refused(t)

	// The server itself would publish a trace of the message.
	traced := nats.NewMsg(c.Node("edge"))
	traced.Header.Set("Nats-Trace-Dest", c.Term())
	if err := edge.PublishMsg(traced); err != nil {
		t.Fatal(err)
	}

	for edge.publish(c.Node("edge"), "allowed"); ; {
		m, err := all.NextMsg(limit)
		if err != nil {
			t.Fatal(err)
		}
		if string(m.Data) == "allowed" {
			break
		}
		if m.Subject != c.Node("edge") || len(m.Data) > 0 { // not the traced one
			t.Errorf("the core received %q on %s", m.Data, m.Subject)
		}
	}
	core.publish(c.Edges(), "last")
	victim.receive(edges, c.Edges(), "last")
	for _, sub := range []*nats.Subscription{down, term, edges} {
		if n, _, _ := sub.Pending(); n != 0 {
			t.Errorf("the other edge received %d forged messages on %s", n, sub.Subject)
		}
	}
}

// An edge cannot be a server of the bus, which could publish anything.
func TestEdgeAsRoute(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	id := join(t, dir, "core", bus.Core)
	s := startServer(t, id)
	core := connectTo(t, id, s)
	all := core.subscribe("fleetd." + string(id.Cluster) + ".>")
	for _, tt := range []struct {
		name   string
		config *tls.Config
		want   string
	}{
		{"edge", stranger(loadPair(t, issue(t, dir, "edge", bus.Edge))), "bad certificate"},
		{"no certificate", stranger(), "certificate required"},
		{"another cluster", stranger(loadPair(t, issue(t, newCluster(t), "core-2", bus.Core))), "unknown certificate authority"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conn, err := tls.Dial("tcp", routeAddr(t, s), tt.config)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_, _ = conn.Write([]byte(`INFO {"server_id":"X","server_name":"x","cluster":"` + string(id.Cluster) + `"}` +
				"\r\nCONNECT {\"verbose\":false,\"name\":\"x\",\"cluster\":\"" + string(id.Cluster) + "\"}\r\n" +
				"RMSG $G " + id.Cluster.Term() + " 6\r\nforged\r\n"))
			mustContain(t, closed(t, conn), tt.want)
		})
	}
	// The port for nodes does not accept routes, even of a core.
	conn, err := tls.Dial("tcp", s.Addr(), stranger(loadPair(t, issue(t, dir, "core-2", bus.Core))))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = conn.Write([]byte(`CONNECT {"verbose":false,"name":"x","cluster":"` + string(id.Cluster) + "\"}\r\n" +
		"RMSG $G " + id.Cluster.Term() + " 6\r\nforged\r\n"))
	_ = closed(t, conn)

	edge := connectTo(t, join(t, dir, "edge", bus.Edge), s)
	edge.publish(id.Cluster.Node("edge"), "allowed")
	core.receive(all, id.Cluster.Node("edge"), "allowed")
	if s.Routes() != 0 {
		t.Errorf("%d routes", s.Routes())
	}
}

// A client that reads nothing is cut, and the others notice nothing. On a slow
// machine its pings are unanswered before 64 MiB wait for it.
func TestSlowClient(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	id := join(t, dir, "core", bus.Core)
	s := startServer(t, id)
	p := newProxy(t, s.Addr())
	core := connectTo(t, id, s)
	slow := connect(t, bus.ConnectOptions{Identity: join(t, dir, "slow", bus.Edge), Servers: []string{p.Addr().String()}})
	slow.await(true)
	slow.subscribe(id.Cluster.Edges())
	fine := connectTo(t, join(t, dir, "fine", bus.Edge), s)
	all := fine.subscribe(id.Cluster.Edges())
	p.freeze(true)
	large := string(make([]byte, 4<<20))
	for range 20 { // 80 MiB; the sockets hold a few of them
		core.publish(id.Cluster.Edges(), large)
		fine.receive(all, id.Cluster.Edges(), large)
	}
	await(t, "cut", func() bool { return s.Clients() == 2 })
}

// Neither port is impressed by garbage, before or after a handshake.
func TestGarbage(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	id := join(t, dir, "core", bus.Core)
	s := startServer(t, id)
	core := connectTo(t, id, s)
	all := core.subscribe("fleetd." + string(id.Cluster) + ".>")
	garbage := make([]byte, 64<<10)
	rand.Read(garbage)
	garbage[0] = 'G' // not the begin of a TLS record
	record := append([]byte{0x16, 3, 1, 0xff, 0xff}, garbage...)
	for _, address := range []string{s.Addr(), routeAddr(t, s)} {
		for _, text := range [][]byte{garbage, record, []byte("GET / HTTP/1.1\r\n\r\n"), nil} {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = conn.Write(text)
			_ = closed(t, conn) // the silent one, too: within the time for the handshake
			conn.Close()
		}
	}
	for _, node := range []bus.Role{bus.Core, bus.Edge} {
		pair := loadPair(t, issue(t, dir, "broken", node))
		for _, address := range []string{s.Addr(), routeAddr(t, s)} {
			conn, err := tls.Dial("tcp", address, stranger(pair))
			if err != nil {
				t.Fatal(err)
			}
			_, _ = conn.Write(garbage)
			_ = closed(t, conn)
			conn.Close()
		}
	}
	edge := connectTo(t, join(t, dir, "edge", bus.Edge), s)
	edge.publish(id.Cluster.Node("edge"), "after the garbage")
	core.receive(all, id.Cluster.Node("edge"), "after the garbage")
}
