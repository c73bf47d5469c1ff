// Package web serves everything that shares fleetd's HTTP address: it mounts the console, REST, the
// MCP server and the routes of devices, with the same middleware for all of them.
//
// It contains no pages, no operations and no rules of the fleet. Each request has its own
// goroutine; the package holds no lock.
package web

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"fleetd/fleet/call"
	"fleetd/fleet/outcome"
	"fleetd/web/request"
)

// Options configures a [Server]. Console and Log are required.
type Options struct {
	Console      func(chi.Router) // pages, and the response for unknown addresses
	CloseStreams func()           // ends live streams, which never finish. May be nil
	API          http.Handler     // mounted at /api/v1; authenticates its own requests. May be nil
	MCP          http.Handler     // mounted at /mcp; authenticates its own requests. nil: fleetd has no MCP server
	DeviceRoutes func(chi.Router) // routes of devices: no sign-in, no browser rules. May be nil

	// EndpointRoutes are the WebSockets of programs that dial in. May be nil.
	EndpointRoutes func(chi.Router)

	// ConnContext is the ConnContext of the HTTP server; routes of devices may need the connection.
	// May be nil.
	ConnContext func(ctx context.Context, c net.Conn) context.Context
	// ConnState is the ConnState of the HTTP server. May be nil.
	ConnState func(c net.Conn, state http.ConnState)

	// TrustedProxies lists the networks whose X-Forwarded-For is believed, besides this machine.
	TrustedProxies []netip.Prefix

	Log *slog.Logger
}

// Time limits of a request, unless its routes set their own. A response of the API waits for a
// device.
const (
	arrivalTimeout = 30 * time.Second
	answerTimeout  = call.MaxTimeout + 2*time.Minute
)

// drainTimeout is how long requests in flight may take when the server stops. A call that a page
// waits for is recorded and continues without its page.
const drainTimeout = 5 * time.Second

// A Server serves all requests to one address.
type Server struct {
	o       Options
	handler http.Handler
}

// New returns a server.
func New(o Options) *Server {
	s := &Server{o: o}
	s.handler = s.mount()
	return s
}

// mount combines everything that shares the address. Devices and programs send no browser cookies
// or headers, so the rules for browsers apply to the console alone.
func (s *Server) mount() http.Handler {
	r := chi.NewRouter()
	r.Use(outcome.RetryLater, request.HurryRest, request.Proxies(s.o.TrustedProxies).Unwrap, middleware.GetHead,
		request.WithID, s.logAccess, s.recoverPanics)
	if s.o.DeviceRoutes != nil {
		r.Group(func(r chi.Router) {
			// Wi-Fi at the far end of a building; uploads have their own pace.
			r.Use(request.Deadlines(arrivalTimeout, 10*time.Minute))
			s.o.DeviceRoutes(r)
		})
	}
	if s.o.EndpointRoutes != nil {
		r.Group(s.o.EndpointRoutes)
	}
	if s.o.API != nil {
		r.Mount("/api/v1", s.o.API) // uses the deadlines of Run
	}
	if s.o.MCP != nil { // uses the deadlines of Run; streams lift them
		for _, pattern := range []string{"/mcp", "/mcp/*", "/.well-known/oauth-protected-resource",
			"/.well-known/oauth-protected-resource/*"} {
			r.Handle(pattern, s.o.MCP)
		}
	}
	s.o.Console(r)
	return r
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// Run serves on ln until ctx is cancelled, then gives requests in flight
// [drainTimeout] to finish. An orderly stop returns nil.
func (s *Server) Run(ctx context.Context, ln net.Listener) error {
	return Serve(ctx, ln, ServeOptions{Handler: s, ConnContext: s.o.ConnContext, ConnState: s.o.ConnState,
		CloseStreams: s.o.CloseStreams, Log: s.o.Log})
}

// CloseStreams ends live streams. Run does it at the stop.
func (s *Server) CloseStreams() {
	if s.o.CloseStreams != nil {
		s.o.CloseStreams()
	}
}

// ServeOptions configures [Serve]. Handler and Log are required.
type ServeOptions struct {
	Handler      http.Handler
	ConnContext  func(ctx context.Context, c net.Conn) context.Context
	ConnState    func(c net.Conn, state http.ConnState)
	CloseStreams func() // called at the stop; ends requests that never finish
	Log          *slog.Logger
}

// Serve serves on ln with the limits that all HTTP listeners of fleetd share. It ends as
// [Server.Run] does.
func Serve(ctx context.Context, ln net.Listener, o ServeOptions) error {
	srv := &http.Server{
		Handler:           o.Handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       arrivalTimeout, // net/http sets both deadlines for each request anyway, at no extra cost
		WriteTimeout:      answerTimeout,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		ConnContext:       o.ConnContext,
		ConnState:         o.ConnState,
		ErrorLog:          slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
	}
	if o.CloseStreams != nil {
		srv.RegisterOnShutdown(o.CloseStreams)
	}
	drained := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() { drained <- drain(ctx, srv) })
	defer stop()
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("HTTP server: %w", err)
	}
	return <-drained
}

func drain(ctx context.Context, srv *http.Server) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	if err := srv.Shutdown(ctx); err != nil {
		srv.Close() // requests that are still waiting have had their time
	}
	return nil
}
