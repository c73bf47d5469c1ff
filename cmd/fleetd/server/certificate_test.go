package server

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fleetd/broker/edge"
	"fleetd/broker/link"
	"fleetd/fleet/fleettest"
)

// A certFiles is a directory with a certificate and its key.
type certFiles struct {
	t         *testing.T
	cert, key string
}

func newCertFiles(t *testing.T) certFiles {
	dir := t.TempDir()
	return certFiles{t, filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")}
}

// pair creates a certificate with this serial number.
func (f certFiles) pair(serial int64, expires time.Time) (cert, key []byte) {
	f.t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), DNSNames: []string{"fleet.test"},
		NotBefore: expires.Add(-48 * time.Hour), NotAfter: expires}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		f.t.Fatal(err)
	}
	pkcs, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		f.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs})
}

// write replaces a file as programs that renew certificates do.
func (f certFiles) write(name string, content []byte) {
	f.t.Helper()
	if err := os.WriteFile(name+".new", content, 0o600); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		f.t.Fatal(err)
	}
}

func (f certFiles) writePair(serial int64, expires time.Time) {
	cert, key := f.pair(serial, expires)
	f.write(f.cert, cert)
	f.write(f.key, key)
}

// served returns the serial number of the certificate that a server presents.
func served(t *testing.T, addr net.Addr) int64 {
	t.Helper()
	conn, err := tls.Dial("tcp", addr.String(), &tls.Config{InsecureSkipVerify: true}) // only the number is checked
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
}

// noDevices refuses every device.
type noDevices struct{}

func (noDevices) Open(link.Connect, link.Carrier) (link.Connection, error) {
	return nil, link.RefusedCredentials
}

// The edge presents a renewed certificate to new connections. A certificate
// that does not work leaves the earlier one in use, with one entry in the log.
func TestCertificateIsReadAgain(t *testing.T) {
	files := newCertFiles(t)
	month := time.Now().Add(30 * 24 * time.Hour).Truncate(time.Second)
	files.writePair(1, month)
	var log bytes.Buffer
	c, err := openCertificate(files.cert, files.key, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{GetCertificate: c.get}
	b, err := edge.New(edge.Options{TLSAddr: "127.0.0.1:0", TLSConfig: config, Core: noDevices{}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	cert2, key2 := files.pair(2, month.Add(time.Hour))
	cert3, key3 := files.pair(3, month.Add(2*time.Hour))
	oldCert, oldKey := files.pair(9, time.Now().Add(-time.Hour))
	both := func(cert, key []byte) { files.write(files.cert, cert); files.write(files.key, key) }
	steps := []struct {
		name   string
		change func()
		want   int64
		bad    float64
		logged string
		lines  int
	}{
		{"nothing", func() {}, 1, 0, "", 0},
		{"half of a new pair", func() { files.write(files.cert, cert2) }, 1, 1, "the earlier one stays in use", 1},
		{"nothing more", func() {}, 1, 1, "", 0},
		{"the other half", func() { files.write(files.key, key2) }, 2, 0, "the certificate was changed", 1},
		{"garbage", func() { files.write(files.cert, []byte("garbage")) }, 2, 1, "the earlier one stays in use", 1},
		{"other garbage", func() { files.write(files.cert, []byte("more garbage")) }, 2, 1, "", 0},
		{"no file", func() { _ = os.Remove(files.key) }, 2, 1, "", 0},
		{"a new pair", func() { both(cert3, key3) }, 3, 0, "the certificate was changed", 1},
		{"an expired pair", func() { both(oldCert, oldKey) }, 3, 1, "expired on", 1},
	}
	for _, s := range steps {
		log.Reset()
		s.change()
		c.follow(time.Now())
		if got := served(t, b.TLSAddr()); got != s.want || c.filesBad() != s.bad {
			t.Errorf("%s: certificate %d, bad %v; want %d, %v", s.name, got, c.filesBad(), s.want, s.bad)
		}
		if n := strings.Count(log.String(), "\n"); n != s.lines || !strings.Contains(log.String(), s.logged) {
			t.Errorf("%s: log %q, want %d lines with %q", s.name, &log, s.lines, s.logged)
		}
	}
	if want := month.Add(2 * time.Hour); !c.expiry().Equal(want) {
		t.Errorf("expiry %v, want %v", c.expiry(), want)
	}
}

func TestCertificateIsFollowed(t *testing.T) {
	files := newCertFiles(t)
	files.writePair(1, time.Now().Add(time.Hour))
	c, err := openCertificate(files.cert, files.key, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	c.every = time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.run(ctx) }()
	files.writePair(2, time.Now().Add(2*time.Hour))
	inUse := func() int64 { return c.current.Load().Leaf.SerialNumber.Int64() }
	fleettest.Eventually(t, "the new certificate is in use", func() bool { return inUse() == 2 })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestCertificateThatDoesNotWork(t *testing.T) {
	files := newCertFiles(t)
	files.write(files.cert, []byte("garbage"))
	files.write(files.key, []byte("garbage"))
	_, err := openCertificate(files.cert, files.key, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), files.cert) {
		t.Errorf("error %v", err)
	}
}
