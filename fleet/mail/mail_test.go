package mail_test

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"fleetd/fleet/mail"
)

// server is a mail server that serves one connection at a time and records in got what it
// receives.
type server struct {
	addr     string
	roots    *x509.CertPool
	starttls bool
	refuse   string // reply to AUTH; "" accepts
	got      chan session
}

type session struct {
	lines     []string // commands
	body      string
	encrypted bool
	auth      string
}

func newServer(t *testing.T, s *server) *server {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, _ := x509.ParseCertificate(der)
	s.roots = x509.NewCertPool()
	s.roots.AddCert(leaf)
	config := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	s.addr, s.got = ln.Addr().String(), make(chan session, 4)
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			s.got <- s.serve(conn, config)
		}
	}()
	return s
}

func (s *server) serve(conn net.Conn, config *tls.Config) (got session) {
	defer func() { conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Minute)) // a client that stops may leave the connection open
	r := bufio.NewReader(conn)
	say := func(lines ...string) {
		for _, l := range lines {
			fmt.Fprintf(conn, "%s\r\n", l)
		}
	}
	say("220 test ESMTP")
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return got
		}
		line = strings.TrimRight(line, "\r\n")
		got.lines = append(got.lines, line)
		switch word := strings.ToUpper(strings.Fields(line + " ")[0]); word {
		case "EHLO":
			if s.starttls && !got.encrypted {
				say("250-test", "250 STARTTLS")
			} else {
				say("250-test", "250 AUTH PLAIN")
			}
		case "STARTTLS":
			say("220 go on")
			encrypted := tls.Server(conn, config)
			conn, r, got.encrypted = encrypted, bufio.NewReader(encrypted), true
		case "AUTH":
			plain, _ := base64.StdEncoding.DecodeString(strings.Fields(line)[2])
			got.auth = string(plain)
			if s.refuse != "" {
				say(s.refuse)
			} else {
				say("235 in")
			}
		case "DATA":
			say("354 go on")
			for {
				l, err := r.ReadString('\n')
				if err != nil || l == ".\r\n" {
					break
				}
				got.body += l
			}
			say("250 accepted")
		case "QUIT":
			say("221 bye")
			return got
		default:
			say("250 ok")
		}
	}
}

func TestSendWithSTARTTLS(t *testing.T) {
	s := newServer(t, &server{starttls: true})
	m, err := mail.Open("smtp://fleet:s%2Fecret@"+s.addr, "fleetd@example.org")
	if err != nil {
		t.Fatal(err)
	}
	m.TLS = &tls.Config{RootCAs: s.roots}
	if err := m.Send(t.Context(), []string{"ada@example.org", "bo@example.org"}, "2 台设备下线", "line one\nbcc: no header\n.\nend\n"); err != nil {
		t.Fatal(err)
	}
	got := <-s.got
	all := strings.Join(got.lines, "\n")
	if !got.encrypted || got.auth != "\x00fleet\x00s/ecret" {
		t.Errorf("encrypted %t, auth %q", got.encrypted, got.auth)
	}
	for _, want := range []string{"MAIL FROM:<fleetd@example.org>", "RCPT TO:<ada@example.org>", "RCPT TO:<bo@example.org>"} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in %q", want, all)
		}
	}
	if strings.Contains(got.body, "ada@example.org") || !strings.Contains(got.body, "Auto-Submitted: auto-generated") ||
		!strings.Contains(got.body, "\r\n\r\nline one\r\nbcc: no header\r\n") {
		t.Errorf("the mail is %q", got.body)
	}
}

// A server that offers no STARTTLS gets neither the password nor the mail, because an
// attacker in between could have removed the offer.
func TestNothingIsSentInTheClear(t *testing.T) {
	s := newServer(t, &server{})
	m, err := mail.Open("smtp://fleet:secret@"+s.addr, "fleetd@example.org")
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Send(t.Context(), []string{"ada@example.org"}, "x", "y"); err == nil {
		t.Error("it was sent")
	}
	if got := <-s.got; got.auth != "" || got.body != "" {
		t.Errorf("the server got %q and %q", got.auth, got.body)
	}
}

func TestForeignCertificateIsRefused(t *testing.T) {
	s := newServer(t, &server{starttls: true})
	m, err := mail.Open("smtp://"+s.addr, "fleetd@example.org")
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Send(t.Context(), []string{"ada@example.org"}, "x", "y"); err == nil {
		t.Error("it was sent")
	}
}

func TestPasswordIsInNoError(t *testing.T) {
	s := newServer(t, &server{refuse: "535 no such user fleet with hunter22222"})
	m, err := mail.Open("smtp://fleet:hunter22222@"+s.addr+"?tls=none", "fleetd@example.org")
	if err != nil {
		t.Fatal(err)
	}
	err = m.Send(t.Context(), []string{"ada@example.org"}, "x", "y")
	if err == nil || strings.Contains(err.Error(), "hunter22222") {
		t.Errorf("error %v", err)
	}
	if got := <-s.got; got.body != "" {
		t.Errorf("the mail went out: %q", got.body)
	}
}

func TestOpen(t *testing.T) {
	tests := []struct {
		url, from string
		ok        bool
	}{
		{"smtp://mail.example.org", "fleetd@example.org", true},
		{"smtps://u:p@mail.example.org:465", "fleetd@example.org", true},
		{"smtp://127.0.0.1:25?tls=none", "fleetd@example.org", true},
		{"smtp://u:p@mail.example.org:25?tls=none", "fleetd@example.org", false}, // an unencrypted password
		{"smtp://mail.example.org?tls=maybe", "fleetd@example.org", false},
		{"smtp://mail.example.org?verify=off", "fleetd@example.org", false},
		{"http://mail.example.org", "fleetd@example.org", false},
		{"smtp://mail.example.org:0", "fleetd@example.org", false},
		{"mail.example.org", "fleetd@example.org", false},
		{"smtp://mail.example.org", "", false},
		{"smtp://mail.example.org", "Fleet <fleetd@example.org>", false},
		{"smtp://mail.example.org", "a@example.org\r\nBcc: b@example.org", false},
	}
	for _, tt := range tests {
		if _, err := mail.Open(tt.url, tt.from); (err == nil) != tt.ok {
			t.Errorf("Open(%q, %q): %v", tt.url, tt.from, err)
		} else if err != nil && strings.Contains(err.Error(), "u:p") {
			t.Errorf("the error holds the password: %v", err)
		}
	}
}
