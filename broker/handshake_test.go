package broker

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"fleetd/fleet/fleettest"
)

// startTLS runs a broker with both listeners.
func startTLS(t testing.TB, change func(*options)) (*system, *domain, *x509.CertPool) {
	cert, pool := certificate(t)
	b, dom := start(t, func(o *options) {
		o.TLSAddr = "127.0.0.1:0"
		o.TLSConfig = &tls.Config{Certificates: []tls.Certificate{cert}}
		if change != nil {
			change(o)
		}
	})
	return b, dom, pool
}

// dialTLS connects a device over TLS, without CONNECT.
func dialTLS(t testing.TB, b *system, pool *x509.CertPool) *rawDevice {
	t.Helper()
	d := dialRaw(t, b.TLSAddr())
	conn := tls.Client(d.conn, &tls.Config{RootCAs: pool, ServerName: "fleet.test"})
	if err := conn.Handshake(); err != nil {
		t.Fatal(err)
	}
	d.conn, d.r = conn, bufio.NewReader(conn)
	return d
}

// helloOf returns the bytes of a ClientHello.
func helloOf(t testing.TB) []byte {
	t.Helper()
	ours, theirs := net.Pipe()
	defer ours.Close()
	go func() {
		_ = tls.Client(theirs, &tls.Config{ServerName: "fleet.test"}).Handshake()
		theirs.Close()
	}()
	buf := make([]byte, 16<<10)
	n, err := ours.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return buf[:n]
}

// Peers that send nothing, a part of a ClientHello or only a ClientHello do not block a peer that
// completes its handshake, although only one handshake computes at a time.
func TestHalfOpenHandshakesHoldNoPlace(t *testing.T) {
	b, _, pool := startTLS(t, func(o *options) { o.MaxHandshakes, o.ConnectTimeout = 1, deadline })
	hello := helloOf(t)
	for range 20 {
		for _, said := range [][]byte{nil, hello[:1], hello[:len(hello)/2], hello} {
			dialRaw(t, b.TLSAddr()).write(said)
		}
	}
	fleettest.Eventually(t, "all are accepted", func() bool { return b.Stats().Handshakes == 80 })
	d := dialTLS(t, b, pool)
	if code := d.connect(connectPacket{clientID: testClientID(1)}); code != 0 {
		t.Fatalf("CONNACK %d", code)
	}
	if n := b.Stats().Handshakes; n < 80 {
		t.Errorf("connected when only %d of 80 half-open handshakes were left", n)
	}
	d = dialTLS(t, b, pool) // the place is free again
	if code := d.connect(connectPacket{clientID: testClientID(2)}); code != 0 {
		t.Errorf("the next one: CONNACK %d", code)
	}
}

// If all places are in use, the peer that has kept its handshake waiting longest is evicted.
// Before evictAfter none is evicted.
func TestHandshakesAreBounded(t *testing.T) {
	b, _, pool := startTLS(t, func(o *options) { o.MaxPendingHandshakes, o.ConnectTimeout = 4, deadline })
	begin := time.Now()
	oldest := dialRaw(t, b.TLSAddr())
	fleettest.Eventually(t, "the oldest is accepted", func() bool { return b.Stats().Handshakes == 1 })
	for range 3 {
		dialRaw(t, b.TLSAddr())
	}
	d := dialTLS(t, b, pool)
	if took := time.Since(begin); took < evictAfter {
		t.Errorf("a fifth handshake was through %v after the first began", took)
	}
	if code := d.connect(connectPacket{clientID: testClientID(1)}); code != 0 {
		t.Fatalf("CONNACK %d", code)
	}
	if err := oldest.ended(deadline); err != nil {
		t.Errorf("the oldest: %v", err)
	}
	fleettest.Eventually(t, "counting", func() bool {
		s := b.Stats()
		return s.HandshakesEvicted >= 1 && s.Handshakes <= 4
	})
}

// Handshakes may use a quarter of the capacity, so the plain listener keeps the rest.
func TestHandshakesLeaveRoom(t *testing.T) {
	b, _, _ := startTLS(t, func(o *options) { o.MaxConnections, o.ConnectTimeout = 16, deadline })
	for range 100 {
		dialRaw(t, b.TLSAddr())
	}
	fleettest.Eventually(t, "the places are taken", func() bool { return b.Stats().Handshakes >= 3 })
	for i := range 8 {
		connectRaw(t, b, connectPacket{clientID: testClientID(i)})
		if n := b.Stats().Handshakes; n < 3 {
			t.Errorf("CONNACK when only %d handshakes were left", n)
		}
	}
}

func TestHandshakeGarbage(t *testing.T) {
	b, _, pool := startTLS(t, nil)
	plain := connectPacket{clientID: testClientID(1)}.bytes()
	http := []byte("GET / HTTP/1.1\r\n\r\n")
	for _, said := range [][]byte{http, plain, bytes.Repeat([]byte{0x16}, 100), {0x16, 3, 1, 0xff, 0xff, 1}} {
		d := dialRaw(t, b.TLSAddr())
		d.write(said)
		if err := d.ended(deadline); err != nil {
			t.Errorf("after %q: %v", said, err)
		}
	}
	fleettest.Eventually(t, "counting", func() bool {
		return b.Stats().HandshakesFailed == 4 && b.Stats().Handshakes == 0
	})
	if code := dialTLS(t, b, pool).connect(connectPacket{clientID: testClientID(1)}); code != 0 {
		t.Fatalf("CONNACK %d", code)
	}
}

// TestHalfOpenStorm opens hundreds of TLS connections that stop after the ClientHello, and
// meanwhile calls live devices over both listeners. Set BROKER_HALF_OPEN to measure with
// thousands and the usual bound.
func TestHalfOpenStorm(t *testing.T) {
	storm, _ := strconv.Atoi(os.Getenv("BROKER_HALF_OPEN"))
	measured, bound := storm > 0, 2048
	if !measured {
		storm, bound = 512, 256
	}
	b, _, pool := startTLS(t, func(o *options) { o.MaxPendingHandshakes = bound })
	hello := helloOf(t)
	plain := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	plain.serve(nil)
	secure := dialTLS(t, b, pool)
	if code := secure.connect(connectPacket{clientID: testClientID(2)}); code != 0 {
		t.Fatalf("CONNACK %d", code)
	}
	fleettest.Eventually(t, "the device is connected", func() bool { return b.registry.connection(secure.id) != nil })
	secure.serve(nil)
	for _, d := range []*rawDevice{plain, secure} {
		_ = d.conn.SetReadDeadline(time.Time{}) // a slow machine needs minutes
	}

	calls := func(until func() bool) (took []time.Duration) {
		for n := 0; n < 50 || !until(); n++ {
			begin := time.Now()
			id := []*rawDevice{plain, secure}[n%2].id
			if _, err := makeCall(b, id, "x", `{}`, deadline, nil); err != nil {
				t.Fatal(err)
			}
			took = append(took, time.Since(begin))
			time.Sleep(time.Millisecond)
		}
		slices.Sort(took)
		return took
	}
	before := calls(func() bool { return true })

	var opening sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	dialer := net.Dialer{Timeout: deadline}
	for range 64 {
		opening.Go(func() {
			for range storm / 64 {
				conn, err := dialer.Dial("tcp", b.TLSAddr().String())
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = conn.Write(hello)
				mu.Lock()
				conns = append(conns, conn)
				mu.Unlock()
			}
		})
	}
	done := make(chan struct{})
	begin := time.Now()
	go func() { opening.Wait(); close(done) }()
	during := calls(func() bool {
		select {
		case <-done:
			return b.Stats().HandshakesEvicted+int64(bound) >= int64(storm)/64*64
		default:
			return false
		}
	})
	stormed := time.Since(begin)
	begin = time.Now()
	late := dialTLS(t, b, pool)
	code := late.connect(connectPacket{clientID: testClientID(3)})
	t.Logf("%d half-open in %v, %d goroutines; another device connects in %v",
		len(conns), stormed, runtime.NumGoroutine(), time.Since(begin))
	t.Logf("calls: p50 %v, p99 %v before, p50 %v, p99 %v (of %d) meanwhile", before[len(before)/2],
		before[len(before)*99/100], during[len(during)/2], during[len(during)*99/100], len(during))
	if code != 0 {
		t.Errorf("CONNACK %d", code)
	}
	if s := b.Stats(); s.Handshakes > int64(bound) {
		t.Errorf("%d handshakes unfinished", s.Handshakes)
	}
	if p99 := during[len(during)*99/100]; measured && p99 > time.Second {
		t.Errorf("p99 of calls is %v", p99)
	}
	for _, c := range conns {
		c.Close()
	}
	fleettest.Eventually(t, "the end", func() bool { return b.Stats().Handshakes == 0 })
}
