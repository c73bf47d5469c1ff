// Package web serves everything that shares fleetd's HTTP address: it mounts the console,
// REST, the MCP server and what devices ask for, and puts the same middleware before
// them all.
//
// It knows neither pages nor operations, and no rule of the fleet. Each request has its
// own goroutine; the package holds no lock.
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
	Console      func(chi.Router) // pages, and the answer for unknown addresses
	CloseStreams func()           // ends the live streams of pages, which never finish. May be nil
	API          http.Handler     // mounted at /api/v1; it authenticates for itself. May be nil
	MCP          http.Handler     // mounted at /mcp; it authenticates for itself. nil: fleetd has no MCP server
	DeviceRoutes func(chi.Router) // what devices ask for: no sign-in, no browser's rules. May be nil

	// ConnContext is that of the HTTP server; what devices ask for may want the connection. May be nil.
	ConnContext func(ctx context.Context, c net.Conn) context.Context
	// ConnState is that of the HTTP server. May be nil.
	ConnState func(c net.Conn, state http.ConnState)

	// TrustedProxies lists from where X-Forwarded-For is believed, besides from this machine.
	TrustedProxies []netip.Prefix

	Log *slog.Logger
}

// Bounds of a request's time, unless its routes have their own. The answer to a
// request of the API waits for a device.
const (
	arrivalTimeout = 30 * time.Second
	answerTimeout  = call.MaxTimeout + 2*time.Minute
)

// drainTimeout is what requests in flight get when the server stops: a call
// that a page waits for is on record and goes on without its page.
const drainTimeout = 5 * time.Second

// A Server answers all requests to one address.
type Server struct {
	o       Options
	handler http.Handler
}

// New makes a server.
func New(o Options) *Server {
	s := &Server{o: o}
	s.handler = s.mount()
	return s
}

// mount puts together everything that shares the address. Devices and programs come
// without a browser's cookies and headers, so its rules are the console's alone.
func (s *Server) mount() http.Handler {
	r := chi.NewRouter()
	r.Use(outcome.RetryLater, hurryRest, s.behindProxies, middleware.GetHead, request.WithID, s.logAccess,
		s.recoverPanics)
	if s.o.DeviceRoutes != nil {
		r.Group(func(r chi.Router) {
			// Wi-Fi at the far end of a building; uploads have their own pace.
			r.Use(request.Deadlines(arrivalTimeout, 10*time.Minute))
			s.o.DeviceRoutes(r)
		})
	}
	if s.o.API != nil {
		r.Mount("/api/v1", s.o.API) // with the deadlines of Run
	}
	if s.o.MCP != nil { // with the deadlines of Run; streams lift them
		for _, pattern := range []string{"/mcp", "/mcp/*", "/.well-known/oauth-protected-resource",
			"/.well-known/oauth-protected-resource/*"} {
			r.Handle(pattern, s.o.MCP)
		}
	}
	s.o.Console(r)
	return r
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
		ConnContext:       s.o.ConnContext,
		ConnState:         s.o.ConnState,
		ErrorLog:          slog.NewLogLogger(s.o.Log.Handler(), slog.LevelDebug),
	}
	if s.o.CloseStreams != nil {
		srv.RegisterOnShutdown(s.o.CloseStreams)
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
		srv.Close() // those that are still waiting have had their time
	}
	return nil
}
