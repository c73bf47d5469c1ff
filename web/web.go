// Package web serves the console: pages for people, their live streams, and
// the frame in which the REST API and the endpoints for devices hang.
//
// A handler reads the request, asks the services of package fleet, and answers
// with a component of package ui or an error. One adapter renders; it alone
// knows how an error becomes a status and a page. The routes are in one
// table (routes.go) with the role that each needs.
//
// It knows no SQL, no broker and no rule of the fleet. A live stream runs on the
// goroutine of its request and ends with it, or when the server stops; pages with
// several counts read them at the same time. Each lock guards one small cache or
// the list of open streams.
package web

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/alexedwards/scs/v2"
	"github.com/go-chi/chi/v5"

	"fleetd/fleet"
	"fleetd/fleet/alert"
	"fleetd/fleet/audit"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/firmware"
	"fleetd/fleet/heavy"
	"fleetd/fleet/operator"
	"fleetd/fleet/picture"
	"fleetd/fleet/policy"
	"fleetd/fleet/telemetry"
	"fleetd/fleet/upstream"
	"fleetd/fleet/webhook"
	"fleetd/web/ui"
)

// Options configures a [Server]. All but API, MCP, DeviceRoutes, OTAURL, Heavy,
// Version, System, Log and Now are required.
type Options struct {
	Devices   *fleet.Devices
	Calls     *call.Service
	FanOuts   *call.FanOuts
	Firmware  *firmware.Service
	Campaigns *campaign.Service
	Approvals *call.Approvals
	Webhooks  *webhook.Service
	Upstreams *upstream.Service
	Alerts    *alert.Service
	// DatabaseAway is since when the database has not answered; zero while it does. nil: it always does.
	DatabaseAway func() time.Time
	Enrolments   *enrolment.Service
	Rules        *enrolment.Rules
	Presences    *fleet.Presences
	Operators    *operator.Service
	Filters      *fleet.Filters
	ToolPins     *policy.ToolPins
	Policies     *policy.Service
	Tester       *policy.Tester
	Serials      *enrolment.Serials
	Keys         *enrolment.SigningKeys
	Snapshots    *picture.Service
	Pictures     picture.Store // what is known of the pictures
	Stats        call.StatsStore
	Samples      fleet.PresenceStore // the console only reads its samples
	Reports      Reports             // what devices report about themselves
	CoreDumps    *telemetry.CoreDumps
	Logs         *telemetry.Logs
	Audit        audit.Store
	Events       *fleet.Events

	Conversations fleet.ConversationStore
	Talking       *fleet.OpenConversations // nil: no device is shown in conversation

	Sessions scs.CtxStore // of signed-in operators
	// Authority follows what operators may do: live pages end soon after that ends, or
	// is something else.
	Authority interface {
		Follow(ctx context.Context, p fleet.Principal) (context.Context, context.CancelFunc)
	}

	Heavy *heavy.Limits // default: some that no other part shares

	API          http.Handler     // mounted at /api/v1; it authenticates for itself
	MCP          http.Handler     // mounted at /mcp; it authenticates for itself. nil: fleetd has no MCP server
	DeviceRoutes func(chi.Router) // what devices ask for: no sign-in, no browser's rules
	// ConnContext is that of the HTTP server; what devices ask for may want the connection. May be nil.
	ConnContext func(ctx context.Context, c net.Conn) context.Context
	// ConnState is that of the HTTP server. May be nil.
	ConnState func(c net.Conn, state http.ConnState)

	// TrustedProxies lists from where X-Forwarded-For is believed, besides from this machine.
	TrustedProxies []netip.Prefix

	PublicURL     string // as people and devices reach fleetd; https makes cookies Secure
	NetworkURL    string // as boards could reach fleetd if it listened to them; "" unless PublicURL is [LocalOnly]
	OTAURL        string // to paste into a device; default: PublicURL and /xiaozhi/ota/
	EnrolmentMode fleet.EnrolmentMode
	MarkProofs    bool // a proof of a serial number marks a request and does not let in
	Version       string
	System        []ui.SystemFact // about this process, for the settings page
	Report        SystemReporter  // for the page about it

	Log *slog.Logger
	Now func() time.Time // default: time.Now
}

// A SystemReporter says how this fleetd runs.
type SystemReporter func(ctx context.Context) (fleet.SystemReport, error)

// A Server is the console with everything that shares its address.
type Server struct {
	Options
	handler      http.Handler
	sessions     *scs.SessionManager
	streams      *streams
	limits       limits
	waiting      waitingCount
	summaries    summaryCache
	filterCounts filterCounts
	progress     progresses
	started      time.Time
}

// drainTimeout is what requests in flight get when the server stops: a call
// that a page waits for is on record and goes on without its page.
const drainTimeout = 5 * time.Second

// New makes a server. It fails if PublicURL is not an http or https URL.
func New(o Options) (*Server, error) {
	public, err := url.Parse(o.PublicURL)
	if err != nil || public.Host == "" || (public.Scheme != "http" && public.Scheme != "https") {
		return nil, fmt.Errorf("the public URL %q cannot be used: write http://host:port or https://host", o.PublicURL)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Heavy == nil {
		o.Heavy = &heavy.Limits{}
	}
	if o.OTAURL == "" {
		o.OTAURL = otaURL(o.PublicURL)
	}
	s := &Server{Options: o, streams: newStreams(), limits: newLimits(o.Now), started: o.Now().UTC()}
	s.sessions = s.newSessions(public.Scheme == "https")
	s.handler = s.routes(public)
	return s, nil
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// Run serves on ln until ctx is cancelled, then gives requests in flight
// [drainTimeout] to finish. An orderly stop returns nil.
func (s *Server) Run(ctx context.Context, ln net.Listener) error {
	srv := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       arrivalTimeout, // net/http sets both deadlines for each request anyway, at no extra cost
		WriteTimeout:      answerTimeout,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		ConnContext:       s.ConnContext,
		ConnState:         s.ConnState,
		ErrorLog:          slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
	}
	srv.RegisterOnShutdown(s.streams.close) // they never finish by themselves
	drained := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() { drained <- drain(ctx, srv) })
	defer stop()
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("console: %w", err)
	}
	return <-drained
}

func drain(ctx context.Context, srv *http.Server) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	if err := srv.Shutdown(ctx); err != nil {
		srv.Close() // those that are still waiting have had their time
	}
	return nil
}

func (s *Server) now() time.Time { return s.Now().UTC() }

func otaURL(public string) string { return strings.TrimSuffix(public, "/") + "/xiaozhi/ota/" }

// LocalOnly reports whether the address is one that a machine has for itself alone.
func LocalOnly(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}
