package logstream

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/leodido/go-syslog/v4/rfc5424"

	"fleetd/fleet"
	"fleetd/fleet/outbound"
)

// Facility and severities of RFC 5424.
const (
	facilityAudit   = 13
	severityWarning = 4
	severityInfo    = 6
)

// syslog writes messages of RFC 5424 to one TLS connection, with their lengths before them
// (RFC 5425). The text of a message is the entry as one line of JSON.
//
// A server confirms nothing. If it does not close the connection for a while after messages were
// written, they count as received.
type syslog struct {
	guard   *outbound.Guard
	address string // host:port
	config  *tls.Config
	host    string // of this machine
	settles time.Duration

	conn  *tls.Conn
	mu    sync.Mutex
	ended error // why the server closed the connection
}

func newSyslog(guard *outbound.Guard, address string, config *tls.Config, settles time.Duration) *syslog {
	hostPort := outbound.HostPort(address)
	if name, _, err := net.SplitHostPort(hostPort); err == nil {
		config = config.Clone()
		config.ServerName = name
	}
	host, err := os.Hostname()
	if err != nil {
		host = "-"
	}
	return &syslog{guard: guard, address: hostPort, config: config, host: host, settles: settles}
}

func (s *syslog) settled() time.Duration { return s.settles }

func (s *syslog) connect(ctx context.Context) error {
	if s.conn != nil {
		return nil
	}
	plain, err := s.guard.DialWritten(ctx, "tcp", s.address)
	if err != nil {
		return failed(err)
	}
	conn := tls.Client(plain, s.config)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = plain.Close()
		return failed(err)
	}
	s.conn, s.ended = conn, nil
	go s.watch(conn)
	return nil
}

// watch notices that the server closes the connection. A syslog server sends nothing.
func (s *syslog) watch(conn *tls.Conn) {
	b := make([]byte, 512)
	for {
		if _, err := conn.Read(b); err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.ended = err
			return
		}
	}
}

func (s *syslog) check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil && s.ended != nil {
		return &failure{reason: fleet.Because("log_stream_closed", "detail", s.ended.Error())}
	}
	return nil
}

func (s *syslog) send(ctx context.Context, list []event) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	if err := s.connect(ctx); err != nil {
		return 0, err
	}
	if err := s.check(); err != nil {
		return 0, err
	}
	var b []byte
	for i := range list {
		message, err := s.message(&list[i])
		if err != nil {
			return 0, failed(err)
		}
		b = append(strconv.AppendInt(b, int64(len(message)), 10), ' ')
		b = append(b, message...)
	}
	// A write does not end with its context. The connection is of no use after that.
	defer context.AfterFunc(ctx, func() { _ = s.conn.SetWriteDeadline(time.Now()) })()
	if _, err := s.conn.Write(b); err != nil {
		return 0, failed(err)
	}
	return 0, nil
}

func (s *syslog) message(e *event) (string, error) {
	severity := uint8(severityInfo)
	if e.failed() {
		severity = severityWarning
	}
	m := new(rfc5424.SyslogMessage)
	m.SetPriority(facilityAudit*8 + severity)
	m.SetVersion(1)
	m.SetTimestamp(e.At.UTC().Format("2006-01-02T15:04:05.000000Z"))
	m.SetHostname(s.host)
	m.SetAppname("fleetd")
	m.SetMsgID(e.Kind)
	m.SetMessage(string(e.body()))
	return m.String()
}

func (s *syslog) close() {
	if s.conn != nil {
		_ = s.conn.SetWriteDeadline(time.Now().Add(time.Second)) // Close sends an alert
		_ = s.conn.Close()
	}
}
