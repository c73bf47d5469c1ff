package broker

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"fleetd/fleet/fleettest"
)

// At a shutdown MQTT 5 devices receive a DISCONNECT; for others the socket just closes, because
// their protocol defines no DISCONNECT from the server.
func TestShutdown(t *testing.T) {
	b, _ := start(t, func(o *options) { o.WriteBuffer = 4 << 10 })
	v4 := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	v5 := connectRaw(t, b, connectPacket{clientID: testClientID(2), version: 5})
	silent := dialRaw(t, b.Addr())
	stuck := connectRaw(t, b, connectPacket{clientID: testClientID(3), version: 5})
	stick(t, b.registry.connection(stuck.id))
	waiting := make(chan error, 1)
	go func() { _, err := makeCall(b, v4.id, "x", `{}`, deadline, nil); waiting <- err }()
	fleettest.Eventually(t, "a call is under way", func() bool { return b.Stats().PublishesOut > 3 })
	b.stop()
	if err := <-waiting; err == nil {
		t.Error("a call outlived the broker")
	}
	if kinds := lastPackets(v5); !strings.HasSuffix(kinds, "\xe0") {
		t.Errorf("MQTT 5: packets %x, want a DISCONNECT at the end", kinds)
	}
	if kinds := lastPackets(v4); strings.Contains(kinds, "\xe0") {
		t.Errorf("MQTT 3.1.1: packets %x with a DISCONNECT", kinds)
	}
	if err := silent.ended(deadline); err != nil {
		t.Error(err)
	}
}

// lastPackets returns the first bytes of all packets that remain to be read.
func lastPackets(d *rawDevice) (kinds string) {
	for {
		kind, _, err := d.read()
		if err != nil {
			return kinds
		}
		kinds += string([]byte{kind})
	}
}

// No packet may appear in the log: not a payload, and not a second CONNECT's password.
func TestLogsHoldNoPackets(t *testing.T) {
	log := new(lockedWriter)
	b, dom := start(t, func(o *options) {
		o.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	d := connectRaw(t, b, connectPacket{clientID: testClientID(1), version: 5})
	d.publish("a-secret-payload")
	d.write(connectPacket{clientID: testClientID(1), version: 5}.bytes())
	if err := d.ended(deadline); err != nil {
		t.Error(err)
	}
	fleettest.Eventually(t, "the end", func() bool { return dom.count("disconnected") == 1 })
	text := log.String()
	for _, secret := range []string{"a-secret-payload", passwordOf(testClientID(1))} {
		bytes := strings.Trim(fmt.Sprint([]byte(secret)), "[]") // as a logged struct shows them
		if strings.Contains(text, secret) || strings.Contains(text, bytes) {
			t.Errorf("the log holds %q", secret)
		}
	}
	if !strings.Contains(text, "second connect packet") {
		t.Errorf("the protocol error is not logged:\n%s", text)
	}
}

func TestRefusalsAreLoggedOnce(t *testing.T) {
	log := new(lockedWriter)
	b, _ := start(t, func(o *options) { o.Logger = slog.New(slog.NewTextHandler(log, nil)) })
	for range 20 {
		dialRaw(t, b.Addr()).connect(connectPacket{clientID: testClientID(1), password: "wrong"})
	}
	if n := strings.Count(log.String(), "connection refused"); n != 1 {
		t.Errorf("%d log lines for one device that keeps trying", n)
	}
	if n := b.Stats().Refused["forged"]; n != 20 {
		t.Errorf("%d refusals counted", n)
	}
}

func TestHello(t *testing.T) {
	b, dom := start(t, nil)
	d := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	if _, _, err := d.message(); err != nil { // initialize
		t.Fatal(err)
	}
	begin := time.Now()
	for range 50 { // one answer a second, however often the device sends hello
		d.publish(`{"type":"hello","version":3,"transport":"udp","features":{"mcp":true},"audio_params":{"format":"opus"}}`)
	}
	d.publish(`{"type":"mcp","payload":{"jsonrpc":"2.0","method":"notifications/end"}}`)
	fleettest.Eventually(t, "all are read", func() bool { return dom.count("notified") == 1 })
	var hello struct {
		Type, Transport string
		SessionID       string `json:"session_id"`
		UDP             struct {
			Server     string
			Port       int
			Key, Nonce string
		}
	}
	_, text, err := d.message()
	if err != nil || json.Unmarshal([]byte(text), &hello) != nil {
		t.Fatalf("%q, %v", text, err)
	}
	hex32 := func(s string) bool { return len(s) == 32 && strings.Trim(s, "0123456789abcdef") == "" }
	if u := hello.UDP; hello.Type != "hello" || hello.Transport != "udp" || u.Server != "127.0.0.1" || u.Port != 9 ||
		!hex32(u.Key) || !hex32(u.Nonce) || !strings.HasPrefix(u.Nonce, "01") {
		t.Errorf("hello %s", text)
	}
	_, text, err = d.message()
	if want := `{"type":"goodbye","session_id":"` + hello.SessionID + `"}`; err != nil || text != want {
		t.Errorf("%q, %v, want %q", text, err, want)
	}
	if n, most := b.Stats().Hellos, 1+int64(time.Since(begin)/helloEvery); n < 1 || n > most {
		t.Errorf("%d hellos answered, %d at most", n, most)
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	cert, pool := certificate(t)
	b, _ := start(t, func(o *options) {
		o.Addr, o.TLSAddr = "", "127.0.0.1:0"
		o.TLSConfig = &tls.Config{Certificates: []tls.Certificate{cert}}
		o.MaxHandshakes = 2
		o.ConnectTimeout = 3 * time.Second // a good device must be faster than this on a busy machine
	})
	for range 20 { // more silent sockets than slots
		silent := dialRaw(t, b.TLSAddr())
		defer silent.ended(deadline)
	}
	conn, err := tls.Dial("tcp", b.TLSAddr().String(), &tls.Config{RootCAs: pool, ServerName: "fleet.test"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	d := dialRaw(t, b.TLSAddr())
	d.conn.Close()
	d.conn, d.r = conn, bufio.NewReader(conn)
	if code := d.connect(connectPacket{clientID: testClientID(1)}); code != 0 {
		t.Fatalf("CONNACK %d", code)
	}
	fleettest.Eventually(t, "the device is connected", func() bool { return b.registry.connection(d.id) != nil })
	if c := b.registry.connection(d.id); c.Transport != "mqtts" || c.RemoteAddr != "127.0.0.1" {
		t.Errorf("connection %+v", c.Connection)
	}
	d.serve(nil)
	if _, err := makeCall(b, d.id, "x", `{}`, deadline, nil); err != nil {
		t.Error(err)
	}
	fleettest.Eventually(t, "silent sockets are closed", func() bool { return b.Stats().Sockets == 1 })
}

func certificate(t testing.TB) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"fleet.test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	leaf, _ := x509.ParseCertificate(der)
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}
