package door

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// A Leader is the core that leads. A Leader without an address means that no core leads.
type Leader struct {
	Term int64
	Addr string // host:port of its internal listener
}

// A LeaderSource knows which core leads.
type LeaderSource interface {
	// Leader returns the leader, and a channel that is closed at the next change.
	Leader() (Leader, <-chan struct{})
}

// Announced is a [LeaderSource] that its owner sets. The zero value knows no leader.
type Announced struct {
	mu      sync.Mutex
	leader  Leader
	term    int64 // the highest so far
	changed chan struct{}
}

// Announce sets the leader. It ignores a term older than one it has seen: a core that was replaced
// may not know it yet.
func (a *Announced) Announce(l Leader) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if l.Addr == "" {
		l = Leader{}
	} else if l.Term < a.term {
		return
	}
	a.term = max(a.term, l.Term)
	if l == a.leader {
		return
	}
	a.leader = l
	if a.changed != nil {
		close(a.changed)
		a.changed = nil
	}
}

// Leader implements [LeaderSource].
func (a *Announced) Leader() (Leader, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.changed == nil {
		a.changed = make(chan struct{})
	}
	return a.leader, a.changed
}

const (
	// dialTimeout bounds a connection's TCP and TLS handshakes together.
	dialTimeout = 3 * time.Second
	// retireTimeout is how long requests may go on at a leader that was replaced. A core that ends
	// in order answers them before it is; a core that hangs holds its requests for as long.
	retireTimeout = 3 * time.Second
	// downloadBuffer bounds what the kernel holds of a download at the edge's end of the
	// connection. A revoked image stops soon, and the core sees the device's progress.
	downloadBuffer = 64 << 10
)

// A leader has the connections to a core during one of its terms.
//
// They are HTTP/1.1: measured with mutual TLS, a small request costs 6% less processor time than over
// HTTP/2, a body of 2 MB 23% less (up) to 47% less (down). A WebSocket needs it, and a connection
// for each request passes on how fast its client reads.
type leader struct {
	Leader
	requests, downloads *http.Transport
	replaced            chan struct{} // closed when another core leads, or the door ends

	mu     sync.Mutex
	conns  map[*conn]struct{}
	closed bool
}

func newLeader(at Leader, config *tls.Config) *leader {
	l := &leader{Leader: at, conns: make(map[*conn]struct{}), replaced: make(chan struct{})}
	config = config.Clone()
	config.NextProtos = []string{"http/1.1"}
	config.DynamicRecordSizingDisabled = true // small records are for browsers; each is a system call
	if host, _, err := net.SplitHostPort(at.Addr); err == nil && config.ServerName == "" {
		config.ServerName = host
	}
	l.requests, l.downloads = l.transport(config, 0), l.transport(config, downloadBuffer)
	return l
}

func (l *leader) transport(config *tls.Config, readBuffer int) *http.Transport {
	return &http.Transport{
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return l.dial(ctx, config, readBuffer)
		},
		MaxIdleConnsPerHost: 256,
		IdleConnTimeout:     90 * time.Second, // less than the core's, which would close a connection in use
		DisableCompression:  true,             // bodies pass as they are
		ReadBufferSize:      8 << 10,
		WriteBufferSize:     8 << 10,
	}
}

func (l *leader) dial(ctx context.Context, config *tls.Config, readBuffer int) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var dialer net.Dialer
	tcp, err := dialer.DialContext(ctx, "tcp", l.Addr)
	if err != nil {
		return nil, err
	}
	if readBuffer > 0 {
		_ = tcp.(*net.TCPConn).SetReadBuffer(readBuffer) // on an error the kernel's own size applies
	}
	secure := tls.Client(tcp, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		tcp.Close()
		return nil, err
	}
	c := &conn{Conn: secure, tcp: tcp, of: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		tcp.Close()
		return nil, net.ErrClosed
	}
	l.conns[c] = struct{}{}
	return c, nil
}

// transportFor returns the transport for a request.
func (l *leader) transportFor(download bool) *http.Transport {
	if download {
		return l.downloads
	}
	return l.requests
}

// retire closes unused connections now, and all others after retireTimeout.
func (l *leader) retire() {
	close(l.replaced)
	l.requests.CloseIdleConnections()
	l.downloads.CloseIdleConnections()
	time.AfterFunc(retireTimeout, l.close)
}

// close ends all connections, also those of WebSockets.
func (l *leader) close() {
	l.mu.Lock()
	l.closed = true
	conns := l.conns
	l.conns = nil
	l.mu.Unlock()
	for c := range conns {
		c.tcp.Close() // TLS would wait for a stuck peer
	}
}

func (l *leader) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// A conn is a connection to a core. It counts writes, so that the door knows whether the core may
// have received a part of a request.
type conn struct {
	net.Conn
	tcp    net.Conn
	of     *leader
	writes atomic.Int64
}

func (c *conn) Write(p []byte) (int, error) {
	c.writes.Add(1) // before: a write that fails may have sent some bytes
	return c.Conn.Write(p)
}

func (c *conn) Close() error {
	c.of.mu.Lock()
	delete(c.of.conns, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
