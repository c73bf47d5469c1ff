package bus

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"golang.org/x/time/rate"
)

const (
	// maxPayload bounds one message, in bytes.
	maxPayload = 4 << 20
	// maxPending bounds what waits for one client that reads slowly, in bytes.
	// The server then closes its connection.
	maxPending = 64 << 20
	// maxClients and maxSubs bound what nodes and strangers can make the server
	// hold: connections, and subscriptions of one connection.
	maxClients = 4096
	maxSubs    = 1000
	// startTimeout bounds the start of the server.
	startTimeout = 10 * time.Second
)

// ServerOptions configures a [Server].
type ServerOptions struct {
	Identity *Identity // of a core
	// Listen is the address for connections of nodes, as "10.0.0.1:4222". The
	// next port is for other servers. Port 0 selects two free ports.
	Listen string
	// Advertise is the address by which nodes and other servers can reach Listen,
	// if it differs. The port after it must lead to the port after that of Listen.
	Advertise string
	// Routes are the addresses on which the servers of the other cores listen
	// (their Listen or Advertise). One that is reachable is enough, since servers
	// introduce each other. The list may contain this server.
	Routes []string
	// Log is where warnings go, those of nats-server included. Default: none.
	Log *slog.Logger
}

// A Server is the NATS server in a core. The servers of all cores form one
// cluster: a message to any of them reaches the subscribers of all.
type Server struct {
	ns     *server.Server
	secret string // proves a connection within the process
	addr   string
	forget func() bool // ends the wait for the end of the context
}

// StartServer starts a server. It runs until ctx ends or Close is called.
func StartServer(ctx context.Context, o ServerOptions) (*Server, error) {
	if o.Identity.Role != Core {
		return nil, fmt.Errorf("the node %s has the role %s: only a %s runs a server of the bus", o.Identity.Name,
			o.Identity.Role, Core)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	host, port, err := splitAddress(o.Listen)
	if err != nil {
		return nil, err
	}
	if port != 0 {
		return start(ctx, o, host, port)
	}
	for range 100 { // another process may take a port between the search and the start
		if port, err = freePorts(host); err != nil {
			continue
		}
		var s *Server
		if s, err = start(ctx, o, host, port); err == nil {
			return s, nil
		}
	}
	return nil, err
}

func start(ctx context.Context, o ServerOptions, host string, port int) (*Server, error) {
	s := &Server{secret: rand.Text(), addr: net.JoinHostPort(host, strconv.Itoa(port))}
	opts := &server.Options{
		ServerName: o.Identity.Name,
		Host:       host,
		Port:       port,
		NoSigs:     true,

		// The handshake comes first, so that a stranger learns nothing from the
		// INFO message and cannot change it on its way.
		TLS:               true,
		TLSVerify:         true,
		TLSConfig:         o.Identity.ServerTLS(),
		TLSHandshakeFirst: true,
		TLSTimeout:        4, // seconds, as AuthTimeout
		AuthTimeout:       4,

		CustomClientAuthentication: &authenticator{o.Identity.Cluster, s.secret, o.Log},
		NoSystemAccount:            true,

		PingInterval:  pingInterval,
		MaxPingsOut:   maxPings,
		MaxPayload:    maxPayload,
		MaxPending:    maxPending,
		MaxConn:       maxClients,
		MaxSubs:       maxSubs,
		WriteDeadline: writeTimeout,
		Cluster: server.ClusterOpts{
			Name:        string(o.Identity.Cluster),
			Host:        host,
			Port:        port + 1,
			TLSConfig:   routeTLS(o.Identity),
			TLSTimeout:  4,
			AuthTimeout: 4,
			NoAdvertise: o.Advertise == "", // what a node was given is better than all addresses of this machine
			PoolSize:    1,                 // there is one account
			Compression: server.CompressionOpts{Mode: server.CompressionOff},
		},
	}
	if o.Advertise != "" {
		host, port, err := splitAddress(o.Advertise)
		if err != nil {
			return nil, err
		}
		opts.ClientAdvertise = net.JoinHostPort(host, strconv.Itoa(port))
		opts.Cluster.Advertise = net.JoinHostPort(host, strconv.Itoa(port+1))
	}
	for _, route := range o.Routes {
		host, port, err := splitAddress(route)
		if err != nil {
			return nil, err
		}
		opts.Routes = append(opts.Routes, &url.URL{Scheme: "nats-route", Host: net.JoinHostPort(host, strconv.Itoa(port+1))})
	}
	ns, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("the server of the bus does not start: %w", err)
	}
	failed := make(chan string, 1)
	ns.SetLoggerV2(newLogger(o.Log, failed), false, false, false)
	s.ns = ns
	go ns.Start()
	if err := s.ready(ctx, failed); err != nil {
		s.Close()
		return nil, fmt.Errorf("the server of the bus does not start (it uses port %d for nodes and %d for other servers): %w",
			port, port+1, err)
	}
	s.forget = context.AfterFunc(ctx, ns.Shutdown)
	return s, nil
}

// ready waits until the server has its ports.
func (s *Server) ready(ctx context.Context, failed <-chan string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		select {
		case reason := <-failed:
			return errors.New(reason)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
			if s.ns.ReadyForConnections(time.Millisecond) {
				return nil
			}
		}
	}
}

// routeTLS is for connections between servers, in both directions.
func routeTLS(id *Identity) *tls.Config {
	c := id.ServerTLS(Core)
	client := id.ClientTLS()
	c.GetClientCertificate, c.RootCAs, c.ServerName = client.GetClientCertificate, client.RootCAs, client.ServerName
	return c
}

// Addr returns the address on which the server listens.
func (s *Server) Addr() string { return s.addr }

// Routes returns the number of connected servers.
func (s *Server) Routes() int { return s.ns.NumRoutes() }

// Clients returns the number of connections of nodes, those of this process
// included.
func (s *Server) Clients() int { return s.ns.NumClients() }

// Close closes all connections and waits until the server has stopped.
func (s *Server) Close() {
	if s.forget != nil {
		s.forget()
	}
	s.ns.Shutdown()
	s.ns.WaitForShutdown()
}

// An authenticator decides what a connection may publish and subscribe to.
type authenticator struct {
	cluster Cluster
	secret  string
	log     *slog.Logger
}

// Check implements [server.Authentication]. The TLS handshake has verified the
// certificate. A connection within the process has none, and knows the secret.
func (a *authenticator) Check(c server.ClientAuthentication) bool {
	cs := c.GetTLSConnectionState()
	if cs == nil && subtle.ConstantTimeCompare([]byte(c.GetOpts().Token), []byte(a.secret)) == 1 {
		c.RegisterUser(&server.User{Username: string(Core), Permissions: a.permissions(Node{Role: Core})})
		return true
	}
	node, err := PeerOf(cs)
	if err != nil {
		a.log.Warn("a connection to the bus is refused", "address", c.RemoteAddress(), "err", err)
		return false
	}
	c.RegisterUser(&server.User{Username: node.Name, Permissions: a.permissions(node)})
	return true
}

func (a *authenticator) permissions(n Node) *server.Permissions {
	if n.Role == Core {
		all := &server.SubjectPermission{Allow: []string{a.cluster.all()}}
		return &server.Permissions{Publish: all, Subscribe: all}
	}
	return &server.Permissions{
		Publish: &server.SubjectPermission{Allow: []string{a.cluster.subject("up", "*", n.Name), a.cluster.Node(n.Name)}},
		Subscribe: &server.SubjectPermission{Allow: []string{a.cluster.Term(), a.cluster.Edges(),
			a.cluster.Down(n.Name)}},
	}
}

// splitAddress parses host:port. The port after it must exist, too.
func splitAddress(address string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(address)
	if err == nil {
		port, err = strconv.Atoi(text)
	}
	if err != nil || port < 0 || port >= 65535 {
		return "", 0, fmt.Errorf("%q is not an address for the bus: use host:port, with a port below 65535", address)
	}
	return host, port, nil
}

// freePorts returns a free port whose successor is free, too.
func freePorts(host string) (int, error) {
	first, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return 0, err
	}
	defer first.Close()
	port := first.Addr().(*net.TCPAddr).Port
	second, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port+1)))
	if err != nil {
		return 0, err
	}
	return port, second.Close()
}

// A logger passes on what nats-server logs. Strangers can cause its warnings,
// so there are at most 20 at once and one a second.
type logger struct {
	log    *slog.Logger
	limit  *rate.Limiter
	kinds  sync.Map // of texts: format to *rate.Sometimes
	failed chan<- string
	once   sync.Once
}

// often reports whether texts of this kind are logged too often: a route to a core that is stopped
// fails once a second.
func (l *logger) often(format string) bool {
	kind, _ := l.kinds.LoadOrStore(format, &rate.Sometimes{First: 3, Interval: time.Minute})
	often := true
	kind.(*rate.Sometimes).Do(func() { often = false })
	return often
}

func newLogger(log *slog.Logger, failed chan<- string) *logger {
	return &logger{log: log, limit: rate.NewLimiter(1, 20), failed: failed}
}

func (l *logger) write(level slog.Level, format string, v []any) {
	if level > slog.LevelDebug && (l.often(format) || !l.limit.Allow()) {
		level = slog.LevelDebug
	}
	if l.log.Enabled(context.Background(), level) {
		l.log.Log(context.Background(), level, "NATS server", "text", strings.TrimSpace(fmt.Sprintf(format, v...)))
	}
}

// The levels are lower than nats-server's: its notices and warnings repeat the
// configuration, and its errors are mostly those of the other side.
func (l *logger) Noticef(format string, v ...any) { l.write(slog.LevelDebug, format, v) }
func (l *logger) Debugf(format string, v ...any)  { l.write(slog.LevelDebug, format, v) }
func (l *logger) Tracef(format string, v ...any)  { l.write(slog.LevelDebug, format, v) }
func (l *logger) Warnf(format string, v ...any)   { l.write(slog.LevelDebug, format, v) }
func (l *logger) Errorf(format string, v ...any)  { l.write(slog.LevelWarn, format, v) }

// Fatalf reports why the server does not start. nats-server expects that it ends
// the process.
func (l *logger) Fatalf(format string, v ...any) {
	l.once.Do(func() { l.failed <- fmt.Sprintf(format, v...) })
}
