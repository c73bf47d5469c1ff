package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"fleetd/fleet/fleettest"
)

// A clientCA signs certificates of devices.
type clientCA struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	n    int64
}

func newClientCA(t *testing.T) *clientCA {
	a := &clientCA{t: t}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "devices"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err == nil {
		a.cert, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// file writes the authority's certificate.
func (a *clientCA) file() string {
	name := filepath.Join(a.t.TempDir(), "ca.pem")
	if err := os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return name
}

// issue signs a certificate with this common name, as change wants it.
func (a *clientCA) issue(name string, change ...func(*x509.Certificate)) tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	a.n++
	template := &x509.Certificate{SerialNumber: big.NewInt(1 + a.n), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, f := range change {
		f(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// presenting returns a client's configuration. The server's certificate is not the subject of the tests.
func presenting(certs ...tls.Certificate) *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, Certificates: certs}
}

// startCertified starts a server with a TLS broker that accepts certificates of the authority.
func startCertified(t *testing.T, a *clientCA) *testServer {
	files := newCertFiles(t)
	files.writePair(1, time.Now().Add(time.Hour))
	return startTestServer(t, func(c *Config) {
		c.MQTTSAddr, c.TLSCert, c.TLSKey = freeAddr(t), files.cert, files.key
		if a != nil {
			c.ClientCA = a.file()
		}
	})
}

const noConnack = 0xff // the handshake failed, or the socket ended before a CONNACK

// connack connects once and returns the reason code.
func (d *testServer) connack(t *testing.T, config *tls.Config, clientID, user, password string) byte {
	t.Helper()
	conn, err := tls.Dial("tcp", d.MQTTSAddr().String(), config)
	if err != nil {
		return noConnack
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	client := paho.NewClient(paho.ClientConfig{Conn: conn})
	ack, err := client.Connect(ctx, &paho.Connect{ClientID: clientID, KeepAlive: 10, CleanStart: true, Username: user,
		UsernameFlag: user != "", Password: []byte(password), PasswordFlag: password != "",
		Properties: &paho.ConnectProperties{User: paho.UserProperties{{Key: "MCP-COMPONENT-TYPE", Value: "mcp-server"}}}})
	if ack == nil {
		return noConnack
	}
	if err == nil {
		_ = client.Disconnect(&paho.Disconnect{})
	}
	return ack.ReasonCode
}

func TestMQTT5Certificates(t *testing.T) {
	ours, foreign := newClientCA(t), newClientCA(t)
	d := startCertified(t, ours)
	lamp, other := d.newMQTT5(t, "lamp-1", false), d.newMQTT5(t, "lamp-2", false)
	user, password := lamp.user, lamp.password

	// A foreign client with the certificate and nothing else is the device.
	lamp.user, lamp.password, lamp.tls = "", "", presenting(ours.issue("lamp-1"))
	lamp.connect(d, "lamp-1")
	fleettest.Eventually(t, "the device is introduced", func() bool { return d.broker.Introduced("lamp-1") })
	if c := d.callREST(t, "lamp-1", "light.set", `{"level":3,"on":true}`); c.State != "succeeded" {
		t.Errorf("call: %+v", c)
	}
	before, _ := d.broker.Connection("lamp-1")

	expired := func(c *x509.Certificate) {
		c.NotBefore, c.NotAfter = c.NotBefore.Add(-time.Hour), time.Now().Add(-time.Minute)
	}
	early := func(c *x509.Certificate) { c.NotBefore = time.Now().Add(30 * time.Minute) }
	forServers := func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }
	alsoNamed := func(c *x509.Certificate) { c.DNSNames = []string{"lamp-1"} }
	unlike := ours.issue("lamp-1")
	unlike.PrivateKey = ours.issue("lamp-1").PrivateKey
	forged := presenting()
	forged.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &unlike, nil }
	for name, c := range map[string]struct {
		config             *tls.Config
		id, user, password string
		want               byte
	}{
		"no certificate, no credentials":      {presenting(), "lamp-1", "", "", 0x86},
		"another's certificate":               {presenting(ours.issue("lamp-2")), "lamp-1", "", "", 0x85},
		"another's certificate with the name": {presenting(ours.issue("lamp-2", alsoNamed)), "lamp-1", "", "", 0x85},
		"upper case":                          {presenting(ours.issue("LAMP-1")), "lamp-1", "", "", 0x85},
		"no common name":                      {presenting(ours.issue("")), "lamp-1", "", "", 0x85},
		"a device that was never created":     {presenting(ours.issue("lamp-7")), "lamp-7", "", "", 0x86},
		"a plug-in":                           {presenting(ours.issue("plugin.weather")), "plugin.weather", "", "", 0x85},
		"expired":                             {presenting(ours.issue("lamp-1", expired)), "lamp-1", "", "", noConnack},
		"not valid yet":                       {presenting(ours.issue("lamp-1", early)), "lamp-1", "", "", noConnack},
		"of a server":                         {presenting(ours.issue("lamp-1", forServers)), "lamp-1", "", "", noConnack},
		"another key":                         {forged, "lamp-1", "", "", noConnack},
		"wrong credentials":                   {presenting(ours.issue("lamp-1")), "lamp-1", user, "x", 0x86},
		"a user name alone":                   {presenting(ours.issue("lamp-1")), "lamp-1", user, "", 0x86},
		"a password alone":                    {presenting(ours.issue("lamp-1")), "lamp-1", "", password, 0x86},
		"its own credentials, for another id": {presenting(ours.issue("lamp-2")), "lamp-1", other.user, other.password, 0x85},
	} {
		if got := d.connack(t, c.config, c.id, c.user, c.password); got != c.want {
			t.Errorf("%s: reason code %#x, want %#x", name, got, c.want)
		}
	}
	presented := foreign.issue("lamp-1")
	config := presenting()
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &presented, nil }
	if got := d.connack(t, config, "lamp-1", "", ""); got != noConnack {
		t.Errorf("a certificate of another authority: reason code %#x", got)
	}
	if after, ok := d.broker.Connection("lamp-1"); !ok || after.Epoch != before.Epoch {
		t.Error("the device lost its connection")
	}

	// Credentials go on to work, with and without a certificate.
	for _, config := range []*tls.Config{presenting(), presenting(ours.issue("a factory's name"))} {
		if got := d.connack(t, config, "lamp-2", other.user, other.password); got != 0 {
			t.Errorf("credentials over TLS: reason code %#x", got)
		}
	}

	// Revoked credentials end the certificate, too; new ones permit it again.
	own := presenting(ours.issue("lamp-1"))
	d.mqtt5REST(t, http.MethodDelete, "/devices/lamp-1/credentials", "", http.StatusNoContent, nil)
	fleettest.Eventually(t, "the connection ends", func() bool {
		after, ok := d.broker.Connection("lamp-1")
		return !ok || after.Epoch != before.Epoch
	})
	_ = lamp.client().Disconnect(t.Context())
	if got := d.connack(t, own, "lamp-1", "", ""); got != 0x86 {
		t.Errorf("with revoked credentials: reason code %#x", got)
	}
	d.restart()
	if got := d.connack(t, own, "lamp-1", "", ""); got != 0x86 {
		t.Errorf("with revoked credentials, after a restart: reason code %#x", got)
	}
	d.mqtt5REST(t, http.MethodPost, "/devices/lamp-1/credentials", "", http.StatusCreated, nil)
	if got := d.connack(t, own, "lamp-1", "", ""); got != 0 {
		t.Errorf("with new credentials: reason code %#x", got)
	}
	if got := d.connack(t, own, "lamp-1", user, password); got != 0x86 {
		t.Errorf("previous credentials: reason code %#x", got)
	}

	d.mqtt5REST(t, http.MethodPost, "/devices/lamp-1/reject", "", http.StatusOK, nil)
	if got := d.connack(t, own, "lamp-1", "", ""); got != 0x86 {
		t.Errorf("a rejected device: reason code %#x", got)
	}
	d.mqtt5REST(t, http.MethodDelete, "/devices/lamp-2", "", http.StatusNoContent, nil)
	if got := d.connack(t, presenting(ours.issue("lamp-2")), "lamp-2", "", ""); got != 0x86 {
		t.Errorf("a retired device: reason code %#x", got)
	}
}

// Without authorities a certificate proves nothing, and is not requested.
func TestMQTT5CertificateWithoutAuthority(t *testing.T) {
	d := startCertified(t, nil)
	d.newMQTT5(t, "lamp-1", false)
	if got := d.connack(t, presenting(newClientCA(t).issue("lamp-1")), "lamp-1", "", ""); got != 0x86 {
		t.Errorf("reason code %#x", got)
	}
}

func TestClientCAFile(t *testing.T) {
	a := newClientCA(t)
	leaf := a.issue("lamp-1")
	key, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		t.Fatal(err)
	}
	for want, content := range map[string][]byte{
		"no certificate in PEM form": []byte("hello"),
		"not of an authority":        pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Certificate[0]}),
		"PRIVATE KEY":                pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		"malformed":                  pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}),
	} {
		name := filepath.Join(t.TempDir(), "ca.pem")
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := openClientCAs(name, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "--mqtts-client-ca") {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := openClientCAs(a.file(), slog.New(slog.DiscardHandler)); err != nil {
		t.Error(err)
	}
}
