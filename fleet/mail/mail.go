// Package mail sends plain text through a mail server (SMTP).
//
// A password is never sent over an unencrypted connection, unless the server is on this
// machine, and never appears in an error. The package does not depend on alerts and reuses no
// connection: each mail opens one. It has no lock and no goroutine.
package mail

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	netmail "net/mail"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	gomail "github.com/wneessen/go-mail"
)

// sendTimeout is the timeout of one mail, from the connection to the server's confirmation.
const sendTimeout = 30 * time.Second

// A Sender sends mails through one server.
type Sender struct {
	host, user, password string
	port                 int
	implicit             bool // TLS from the first byte, on port 465; otherwise STARTTLS
	plain                bool // no TLS at all
	from                 string

	// TLS is the configuration for TLS; nil uses the system's authorities.
	TLS *tls.Config
}

// Open parses the address of a server and of the sender. It opens no connection.
//
//	smtp://user:password@host:587   STARTTLS, which the server must offer
//	smtps://user:password@host:465  TLS from the first byte
//	smtp://host:25?tls=none         no TLS; with a password only on this machine
func Open(server, from string) (*Sender, error) {
	u, err := url.Parse(server)
	if err != nil || u.Hostname() == "" || u.Scheme != "smtp" && u.Scheme != "smtps" || strings.Trim(u.Path, "/") != "" {
		return nil, errors.New("invalid address of a mail server; use smtp://user:password@host:587 or smtps://") // without the address, which may contain a password
	}
	s := &Sender{host: u.Hostname(), user: u.User.Username(), implicit: u.Scheme == "smtps", port: 587}
	s.password, _ = u.User.Password()
	if s.implicit {
		s.port = 465
	}
	if u.Port() != "" {
		if s.port, err = strconv.Atoi(u.Port()); err != nil || s.port < 1 || s.port > 65535 {
			return nil, errors.New("the port of the mail server must be between 1 and 65535")
		}
	}
	for name, values := range u.Query() {
		if name != "tls" || len(values) != 1 || values[0] != "none" || s.implicit {
			return nil, fmt.Errorf("unknown parameter %q; only tls=none is allowed, with smtp://", name)
		}
		s.plain = true
	}
	if s.plain && s.password != "" && !onThisMachine(s.host) {
		return nil, errors.New("a password needs TLS; remove tls=none")
	}
	if s.from, err = Address(from); err != nil {
		return nil, fmt.Errorf("invalid sender %q; use an address such as fleetd@example.org", from)
	}
	return s, nil
}

func onThisMachine(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

// maxAddress is the longest address of RFC 5321 (4.5.3.1.3), without its brackets.
const maxAddress = 254

// Address normalises the address of a person or list, without a name.
func Address(text string) (string, error) {
	text = strings.TrimSpace(text)
	a, err := netmail.ParseAddress(text)
	if err != nil || a.Address != text || len(text) > maxAddress || strings.ContainsAny(text, "\r\n\t ,;<>\"") {
		return "", fmt.Errorf("%q is not a mail address", text)
	}
	return text, nil
}

// Send sends a text to all recipients in one mail, in which none sees the others.
func (s *Sender) Send(ctx context.Context, to []string, subject, text string) error {
	m := gomail.NewMsg()
	if err := m.FromFormat("fleetd", s.from); err != nil {
		return fmt.Errorf("sender of a mail: %w", err)
	}
	if err := m.Bcc(to...); err != nil {
		return fmt.Errorf("recipients of a mail: %w", err)
	}
	m.SetGenHeader("To", "undisclosed-recipients:;")
	m.SetGenHeader("Auto-Submitted", "auto-generated") // RFC 3834: prevents automatic replies
	m.Subject(subject)
	m.SetDate()
	m.SetMessageID()
	m.SetBodyString(gomail.TypeTextPlain, text)
	options := []gomail.Option{gomail.WithPort(s.port), gomail.WithTimeout(sendTimeout)}
	switch {
	case s.implicit:
		options = append(options, gomail.WithSSL())
	case s.plain:
		options = append(options, gomail.WithTLSPolicy(gomail.NoTLS))
	default:
		options = append(options, gomail.WithTLSPolicy(gomail.TLSMandatory))
	}
	if !s.implicit {
		// A client that gives up leaves its connection open, so close it.
		var conn net.Conn
		defer func() {
			if conn != nil {
				_ = conn.Close()
			}
		}()
		dial := func(ctx context.Context, network, addr string) (c net.Conn, err error) {
			c, err = (&net.Dialer{}).DialContext(ctx, network, addr)
			conn = c
			return c, err
		}
		options = append(options, gomail.WithDialContextFunc(dial))
	}
	if s.TLS != nil {
		config := s.TLS.Clone()
		config.ServerName = s.host
		options = append(options, gomail.WithTLSConfig(config))
	}
	if s.user != "" {
		kind := gomail.SMTPAuthAutoDiscover
		if s.plain {
			kind = gomail.SMTPAuthPlainNoEnc // the server is on this machine: Open has checked
		}
		options = append(options, gomail.WithSMTPAuth(kind), gomail.WithUsername(s.user), gomail.WithPassword(s.password))
	}
	c, err := gomail.NewClient(s.host, options...)
	if err != nil {
		return s.clean(err)
	}
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	if err := c.DialAndSendWithContext(ctx, m); err != nil {
		return s.clean(err)
	}
	return nil
}

// clean removes the password from an error, because a server may repeat what it received.
func (s *Sender) clean(err error) error {
	text := err.Error()
	if s.password != "" {
		text = strings.ReplaceAll(text, s.password, "(password)")
	}
	return errors.New("mail: " + text)
}
