package door

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"fleetd/web"
	"fleetd/web/device"
)

// The headers between an edge and a core. The edge removes the first one from requests of clients;
// the core believes it because of the edge's certificate.
const (
	// edgeHeader has the scheme, address and local address of the client's connection, and the term
	// of the leader that the request is for, separated by spaces. For a download, [readsS3] or
	// [failsS3] may follow. More fields may follow.
	edgeHeader = "Fleetd-Edge"
	// notHandledHeader is in the response to a request that the core did not handle.
	notHandledHeader = "Fleetd-Not-Handled"
)

// aboutClient returns the first fields of the [edgeHeader].
func aboutClient(r *http.Request) string {
	scheme, local := "http", "-"
	if r.TLS != nil {
		scheme = "https"
	}
	if addr, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		local = addr.AddrPort().String()
	}
	return scheme + " " + r.RemoteAddr + " " + local
}

// InternalOptions configures an [Internal]. All but Own, Tunnels, Left and CloseStreams are required.
type InternalOptions struct {
	Handler http.Handler // serves the clients' requests
	Own     http.Handler // serves the edges' own requests, by [Question.Name] as path. May be nil
	// Tunnels serve the connections that edges open with [Door.Tunnel], by name. A function returns when
	// the tunnel has ended.
	Tunnels map[string]func(edge string, conn net.Conn)
	TLS     *tls.Config // has the core's certificate; only certificates that ClientCAs signed are accepted

	// Peer returns the name of the node with this certificate. It returns an error unless the node
	// is an edge or a core of this cluster.
	Peer func(*tls.ConnectionState) (name string, err error)

	// Term returns the term in which this core leads, or 0 if it does not lead or is not ready.
	Term func() int64

	// Left is called when a connection that an edge keeps open for as long as it runs has ended. Its
	// process has probably ended, or a proxy between them. May be nil.
	Left func(edge string)

	CloseStreams func() // ends event streams at the stop. May be nil
	Log          *slog.Logger
}

// An Internal serves requests that edges pass on. Its handler sees the client's address and scheme,
// as if the client had connected to it; [EdgeOf] returns the edge. Another handler serves what edges ask
// for themselves.
type Internal struct {
	o        InternalOptions
	stopping atomic.Bool
	life     context.Context // of Run

	attending atomic.Int64
	failedS3  rate.Sometimes
}

// NewInternal returns the core's side of doors.
func NewInternal(o InternalOptions) *Internal {
	return &Internal{o: o, life: context.Background(), failedS3: rate.Sometimes{First: 1, Interval: time.Minute}}
}

// lameTime is how long a core that stops answers that it handles no requests, before it closes
// connections: an edge cannot know whether a request met a connection that was being closed.
const lameTime = time.Second

// Run serves on ln, with TLS, until ctx ends. Requests in flight have the seconds that [web.Serve]
// gives them. An orderly stop returns nil.
func (i *Internal) Run(ctx context.Context, ln net.Listener) error {
	i.life = ctx
	config := i.o.TLS.Clone()
	config.ClientAuth = tls.RequireAndVerifyClientCert
	config.NextProtos = []string{"http/1.1"}
	config.DynamicRecordSizingDisabled = true // small records are for browsers; each is a system call
	ended, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer context.AfterFunc(ctx, func() {
		i.stopping.Store(true)
		time.AfterFunc(lameTime, end)
	})()
	return web.Serve(ended, tls.NewListener(ln, config), web.ServeOptions{Handler: i, ConnContext: device.WithConn,
		CloseStreams: i.o.CloseStreams, Log: i.o.Log})
}

// ServeHTTP serves a request of an edge.
func (i *Internal) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.TLS == nil {
		http.Error(w, "this address is for the edges of the cluster", http.StatusForbidden)
		return
	}
	edge, err := i.o.Peer(r.TLS)
	if err != nil {
		i.o.Log.Warn("request of a foreign node refused", "from", r.RemoteAddr, "err", err)
		w.Header().Set("Connection", "close")
		http.Error(w, "this address is for the edges of the cluster", http.StatusForbidden)
		return
	}
	if _, client := r.Header[edgeHeader]; !client {
		if r.URL.Path == attendPath {
			i.attend(w, r, edge)
		} else {
			i.serveOwn(w, r, edge)
		}
		return
	}
	about, ok := parseEdgeHeader(r.Header)
	if !ok {
		http.Error(w, "the header "+edgeHeader+" is invalid", http.StatusBadRequest)
		return
	}
	if !i.handles(w, about.term) {
		return
	}
	r.Header.Del(edgeHeader)
	if about.s3 == failsS3 {
		i.failedS3.Do(func() {
			i.o.Log.Warn("an edge cannot read from S3; this core sends the images: allow the edge to connect to the S3 server",
				"edge", edge)
		})
	}
	r = r.WithContext(&edgeContext{r.Context(), edge, about.local, about.s3 == readsS3})
	r.RemoteAddr, r.TLS = about.client, about.tls
	i.o.Handler.ServeHTTP(w, r)
}

type edgeFields struct {
	client string
	local  net.Addr
	tls    *tls.ConnectionState // nil: the client connected without TLS
	term   int64
	s3     string
}

func parseEdgeHeader(h http.Header) (f edgeFields, ok bool) {
	if len(h[edgeHeader]) != 1 {
		return f, false
	}
	scheme, rest, _ := strings.Cut(h[edgeHeader][0], " ")
	client, rest, _ := strings.Cut(rest, " ")
	local, rest, _ := strings.Cut(rest, " ")
	term, rest, _ := strings.Cut(rest, " ")
	f.s3, _, _ = strings.Cut(rest, " ")
	switch scheme {
	case "http":
	case "https":
		f.tls = clientTLS
	default:
		return f, false
	}
	if _, err := netip.ParseAddrPort(client); err != nil {
		return f, false
	}
	if local != "-" {
		addr, err := netip.ParseAddrPort(local)
		if err != nil {
			return f, false
		}
		f.local = net.TCPAddrFromAddrPort(addr)
	}
	var err error
	f.client = client
	f.term, err = strconv.ParseInt(term, 10, 64)
	return f, err == nil
}

// clientTLS is the TLS state of a client that connected to the edge with TLS. Only its presence
// means something.
var clientTLS = &tls.ConnectionState{Version: tls.VersionTLS13, HandshakeComplete: true}

type edgeKey struct{}

type readingKey struct{}

// EdgeOf returns the name of the edge that passed a request on, from the request's context; "" if
// the client connected to this process.
func EdgeOf(ctx context.Context) string {
	name, _ := ctx.Value(edgeKey{}).(string)
	return name
}

// ReadingEdge returns the name of the edge that passed a request on, if it can send the file that the
// request is for, with bytes that it reads from S3; otherwise "".
func ReadingEdge(ctx context.Context) string {
	name, _ := ctx.Value(readingKey{}).(string)
	return name
}

// An edgeContext is the context of a request that an edge passed on.
type edgeContext struct {
	context.Context
	edge  string
	local net.Addr
	reads bool // from S3, for this request
}

func (c *edgeContext) Value(key any) any {
	switch key {
	case edgeKey{}:
		return c.edge
	case readingKey{}:
		if !c.reads {
			return ""
		}
		return c.edge
	case http.LocalAddrContextKey:
		return c.local
	}
	return c.Context.Value(key)
}
