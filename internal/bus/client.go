package bus

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/time/rate"
)

// The wait before another round over all servers grows from firstWait to maxWait.
const (
	firstWait = 100 * time.Millisecond
	maxWait   = 3 * time.Second
)

// dialTimeout bounds one attempt to connect, handshakes included.
const dialTimeout = 4 * time.Second

// ConnectOptions configures [Connect]. Exactly one of Embedded, Servers and URL
// says where to connect to.
type ConnectOptions struct {
	Identity *Identity
	Embedded *Server  // the server in this process
	Servers  []string // host:port of the cores' servers, in any order
	// URL is that of an existing NATS cluster, as
	// "nats://user:password@10.0.0.5:4222,tls://nats.example.com". TLS accepts the
	// cluster's CA and those of the system.
	URL string
	// Log is where changes of the connection go. Default: none.
	Log *slog.Logger
	// OnState is called when the connection is made or lost, and for each failed
	// attempt to make it. Calls come one at a time, in order.
	OnState func(State)
	// OnError is called for what goes wrong on a connection that stays: messages
	// refused by the server for lack of permission, and messages dropped because a
	// subscription is slow ([nats.ErrSlowConsumer]).
	OnError func(error)
}

// neededPayload is how long messages may be that the nodes exchange, which is the default of NATS servers.
const neededPayload = 1 << 20

// A State is that of a connection.
type State struct {
	Connected bool
	Server    string // address of the server, without password; empty if it is unknown
	Err       error  // why there is no connection; nil if it was closed here
}

// Connect returns a connection that reconnects for ever, with jitter, until ctx
// ends or it is closed. It returns after the first attempt, successful or not.
// While there is no connection, publishing fails at once; subscriptions are made
// again once there is one.
func Connect(ctx context.Context, o ConnectOptions) (*nats.Conn, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	where, err := o.servers()
	if err != nil {
		return nil, err
	}
	w := &watcher{o: o, failures: rate.Sometimes{First: 1, Interval: time.Minute}}
	options := []nats.Option{
		nats.Name(o.Identity.Name),
		nats.NoEcho(),
		nats.PingInterval(pingInterval),
		nats.MaxPingsOutstanding(maxPings),
		nats.Timeout(dialTimeout),
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(), // the certificate may be renewed
		nats.CustomReconnectDelay(w.wait),
		nats.ReconnectBufSize(-1), // what was published before a loss must not arrive after it
		nats.FlusherTimeout(writeTimeout),
		nats.ReconnectOnFlusherError(),
		nats.PermissionErrOnSubscribe(true),
		nats.CustomInboxPrefix(o.Identity.Cluster.inbox(o.Identity.Name)),
		nats.ConnectHandler(w.connected),
		nats.ReconnectHandler(w.connected),
		nats.DisconnectErrHandler(w.lost),
		nats.ReconnectErrHandler(w.lost),
		nats.ErrorHandler(w.failed),
	}
	nc, err := nats.Connect(where, append(options, o.transport()...)...)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to the bus: %w", err)
	}
	if most := nc.MaxPayload(); nc.IsConnected() && most < neededPayload {
		nc.Close()
		return nil, fmt.Errorf("the NATS servers accept messages of at most %d bytes, but the nodes need %d: set max_payload"+
			" to 1MB or more in their configuration", most, neededPayload)
	}
	w.nc.Store(nc)
	forget := context.AfterFunc(ctx, nc.Close)
	nc.SetClosedHandler(func(*nats.Conn) { forget() })
	return nc, nil
}

// servers returns the list of servers as package nats expects it.
func (o *ConnectOptions) servers() (string, error) {
	given := 0
	for _, is := range []bool{o.Embedded != nil, len(o.Servers) > 0, o.URL != ""} {
		if is {
			given++
		}
	}
	switch {
	case given != 1:
		return "", errors.New("give exactly one of an embedded server, the servers of the cores, and the URL of a NATS cluster")
	case o.Embedded != nil:
		return "", nil
	case o.URL != "":
		return o.URL, checkURLs(o.URL)
	}
	var urls []string
	for _, address := range o.Servers {
		if _, _, err := splitAddress(address); err != nil {
			return "", err
		}
		urls = append(urls, "tls://"+address)
	}
	return strings.Join(urls, ","), nil
}

// checkURLs checks the list of an existing NATS cluster. Its errors do not quote
// it, nor what package url says about it: both may contain a password.
func checkURLs(list string) error {
	for i, text := range strings.Split(list, ",") {
		u, err := url.Parse(strings.TrimSpace(text))
		if err != nil || u.Hostname() == "" || u.Scheme != "nats" && u.Scheme != "tls" {
			return fmt.Errorf("number %d of the URLs of the NATS cluster is not valid: use nats://user:password@host:4222 or tls://...,"+
				" with special characters of the password percent-encoded", i+1)
		}
	}
	return nil
}

func (o *ConnectOptions) transport() []nats.Option {
	switch {
	case o.Embedded != nil:
		return []nats.Option{nats.InProcessServer(o.Embedded.ns), nats.Token(o.Embedded.secret)}
	case o.URL == "":
		return []nats.Option{nats.Secure(o.Identity.ClientTLS()), nats.TLSHandshakeFirst()}
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	roots.AddCert(o.Identity.ca)
	return []nats.Option{func(opts *nats.Options) error { // unlike [nats.Secure], this does not require TLS
		opts.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots,
			GetClientCertificate: o.Identity.clientCertificate}
		return nil
	}}
}

// A watcher reports the states of one connection.
type watcher struct {
	o  ConnectOptions
	nc atomic.Pointer[nats.Conn] // set once Connect returns

	mu       sync.Mutex // held while OnState runs
	failures rate.Sometimes
}

func (w *watcher) connected(nc *nats.Conn) {
	s := State{Connected: true, Server: nc.ConnectedUrlRedacted()}
	if w.o.Embedded != nil {
		s.Server = w.o.Embedded.Addr()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failures = rate.Sometimes{First: 1, Interval: time.Minute}
	w.o.Log.Info("connected to the bus", "server", s.Server)
	if _, err := nc.TLSConnectionState(); err != nil && w.o.Embedded == nil {
		w.o.Log.Warn("the connection to the bus is not encrypted: whoever reads the network reads all messages and can send"+
			" some; use tls://", "server", s.Server)
	}
	if most := nc.MaxPayload(); most < neededPayload {
		w.o.Log.Error("the NATS servers accept shorter messages than the nodes need: set max_payload to 1MB or more in their"+
			" configuration", "max_payload", most, "needed", neededPayload)
	}
	if w.o.OnState != nil {
		w.o.OnState(s)
	}
}

// lost is called when the connection is lost, and when an attempt fails.
func (w *watcher) lost(nc *nats.Conn, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	err = w.explain(err)
	if err != nil {
		w.failures.Do(func() { w.o.Log.Warn("no connection to the bus; trying again", "err", err) })
	}
	if w.o.OnState != nil {
		w.o.OnState(State{Err: err})
	}
}

// explain says which side refuses the other's certificate.
func (w *watcher) explain(err error) error {
	if w.o.URL != "" {
		return err
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return fmt.Errorf("the server is no core of the cluster %s: %w", w.o.Identity.Cluster, err)
	}
	if remote, ok := errors.AsType[*net.OpError](err); ok && remote.Op == "remote error" { // an alert of TLS
		return fmt.Errorf("the server refuses the certificate of this node, and its log has the reason: %w", err)
	}
	return err
}

// wait returns how long to wait before the next round over all servers. Package
// nats does not report attempts that a server refuses after the handshake, for
// example because of the certificate; their error is found here.
func (w *watcher) wait(round int) time.Duration {
	if nc := w.nc.Load(); nc != nil && nc.LastError() != nil {
		w.lost(nc, nc.LastError())
	}
	d := min(firstWait<<min(round, 10), maxWait)
	return d/2 + rand.N(d/2)
}

// failed is called for errors on a connection that stays.
func (w *watcher) failed(_ *nats.Conn, sub *nats.Subscription, err error) {
	subject := ""
	if sub != nil {
		subject = sub.Subject
	}
	w.o.Log.Warn("error on the bus", "subject", subject, "err", err)
	if w.o.OnError != nil {
		w.o.OnError(err)
	}
}
