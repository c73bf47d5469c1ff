// Package door is the HTTP side of an edge. The edge ends the connections of HTTP clients and
// passes their requests to the core that leads: pages, REST, MCP, boot polls, uploads, downloads,
// event streams and WebSockets. While no core leads, requests wait, within bounds.
//
// The door knows paths of devices, since boot polls come first and devices close their connections
// first. It knows no page, no operation and no rule of the fleet, and keeps no body in memory. It
// opens connections only to the address that its [LeaderSource] announces, with mutual TLS, and to the
// addresses in S3 that this core sends.
//
// It promises that a core executes no request twice. The door sends a request to a second core only
// if the first one has not received a byte of it, or has answered that it did not handle it. There
// is one exception: a GET or HEAD without a body is repeated, by the door once and by net/http on
// connections that it used before. In all other cases the client gets status 502 and the code
// outcome_unknown.
//
// [Internal] is the other end: the listener of a core for edges.
//
// Images in S3 are the exception to the passing: the core checks a download and gives the edge an
// address that is good for minutes, and the edge sends the bytes of S3 to the device. It reports its
// downloads to the core that leads each second and at their end.
//
// Each request has its own goroutine, and two more follow the leader and report downloads. The gate's
// lock guards the requests that wait, the lock of a leader its connections, the lock of the downloads
// what is reported of them.
package door

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"fleetd/fleet/enrolment"
	"fleetd/fleet/outcome"
	"fleetd/internal/bounded"
	"fleetd/web"
	"fleetd/web/device"
	"fleetd/web/request"
)

// Options configures a [Door]. Leader, TLS and Log are required.
type Options struct {
	Leader LeaderSource
	TLS    *tls.Config // for connections to the core; it has the edge's certificate and checks the core's

	// Devices serves the WebSockets of devices, which end at the edge. With nil the core serves
	// them, too.
	Devices http.Handler

	// S3 carries requests for images, without following redirects; see [S3Timeout]. With nil, the core
	// sends all images.
	S3 http.RoundTripper

	// Attend keeps a connection open at the leader, which then knows at once when this process dies.
	Attend bool

	// TrustedProxies lists the networks whose X-Forwarded-For is believed, besides this machine.
	TrustedProxies []netip.Prefix

	// ConnContext and ConnState are those of the HTTP server, as in [web.Options]. Devices close
	// their connections first only with [device.WithConn].
	ConnContext func(ctx context.Context, c net.Conn) context.Context
	ConnState   func(c net.Conn, state http.ConnState)

	// Expires returns when the certificate in TLS expires: later requests are refused, since no core
	// accepts a connection with it. Default: never.
	Expires func() time.Time

	HoldFor time.Duration // how long a request waits for a leader. Default: 10s
	MaxHeld int           // bounds the requests that wait, of 24 KiB each. Default: 4,096
	Node    string        // names this edge in the log
	Log     *slog.Logger
}

// knownDevices bounds the devices whose boot polls are preferred.
const knownDevices = 1 << 16

// A Door passes requests to the leader.
type Door struct {
	o       Options
	log     *slog.Logger
	gate    *gate
	proxy   *httputil.ReverseProxy
	handler http.Handler
	known   *bounded.Cache[string, struct{}] // Device-Ids whose boot polls were answered
	counts  [len(Kinds)]counts

	downloads *downloads

	life context.Context // ends when Run stops
	end  context.CancelFunc
}

// New returns a door; [Door.Run] opens it.
func New(o Options) *Door {
	o.HoldFor = cmp.Or(o.HoldFor, 10*time.Second)
	o.MaxHeld = cmp.Or(o.MaxHeld, 4096)
	d := &Door{o: o, log: o.Log.With("node", o.Node), gate: newGate(o.MaxHeld),
		known: bounded.New[string, struct{}](knownDevices), downloads: newDownloads(o.S3)}
	d.life, d.end = context.WithCancel(context.Background())
	d.proxy = &httputil.ReverseProxy{Rewrite: rewrite, Transport: (*carrier)(d), ErrorHandler: d.failed,
		BufferPool: &buffers{}, ErrorLog: slog.NewLogLogger(d.log.Handler(), slog.LevelDebug)}
	pass := http.Handler(http.HandlerFunc(d.pass))
	atEdge := device.AtEdge(pass)
	var sockets http.Handler
	if o.Devices != nil {
		sockets = outcome.RetryLater(web.RecoverPanics(d.log, o.Devices))
	}
	d.handler = request.HurryRest(request.Proxies(o.TrustedProxies).Unwrap(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			switch {
			case sockets != nil && r.Method == http.MethodGet && isSocket(r.URL.Path):
				sockets.ServeHTTP(w, r)
			case device.Serves(r.URL.Path):
				atEdge.ServeHTTP(w, r)
			default:
				pass.ServeHTTP(w, r)
			}
		})))
	return d
}

func isSocket(path string) bool {
	return path == enrolment.WebSocketPath || path == strings.TrimSuffix(enrolment.WebSocketPath, "/")
}

// ServeHTTP passes the request on, or answers it if no core can.
func (d *Door) ServeHTTP(w http.ResponseWriter, r *http.Request) { d.handler.ServeHTTP(w, r) }

// Run serves on ln until ctx ends. Then it refuses the requests that wait, ends event streams, and
// gives other requests the seconds that [web.Serve] gives them. An orderly stop returns nil.
func (d *Door) Run(ctx context.Context, ln net.Listener) error {
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	var following sync.WaitGroup
	following.Go(func() { d.follow(life) })
	defer func() { stop(); following.Wait() }()
	reporting, end := context.WithCancel(life)
	var reports sync.WaitGroup
	reports.Go(func() { d.reportDownloads(reporting) })
	defer func() { // the last report says how the downloads ended that the stop cut
		end()
		reports.Wait()
	}()
	return web.Serve(ctx, ln, web.ServeOptions{Handler: d, ConnContext: d.o.ConnContext, ConnState: d.o.ConnState,
		Log: d.o.Log, CloseStreams: func() {
			d.gate.stop()
			d.end()
		}})
}

// follow uses the leaders that the source announces, until ctx ends.
func (d *Door) follow(ctx context.Context) {
	var present *leader
	var attending sync.WaitGroup
	var leaders []*leader // the last one is in use, unless no core leads; others end their requests
	defer func() {
		d.gate.open(nil)
		if present != nil {
			close(present.replaced)
		}
		attending.Wait()
		for _, l := range leaders {
			l.close()
		}
	}()
	for {
		at, changed := d.o.Leader.Leader()
		switch {
		case at.Addr == "":
			if d.gate.open(nil) {
				d.log.Warn("no core leads; requests wait")
			}
		case present == nil || at != present.Leader:
			if present != nil {
				present.retire()
			}
			leaders = slices.DeleteFunc(leaders, (*leader).isClosed)
			present = newLeader(at, d.o.TLS)
			leaders = append(leaders, present)
			d.gate.open(present)
			d.downloads.signal()
			if l := present; d.o.Attend {
				attending.Go(func() { attend(l) })
			}
			d.log.Info("requests go to the leader", "term", at.Term, "addr", at.Addr)
		default:
			d.gate.open(present)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
