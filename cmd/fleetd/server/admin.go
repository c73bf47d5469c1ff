package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"fleetd/fleet/lease"
	"fleetd/fleet/outcome"
)

// An adminServer serves the monitoring of the process: it listens on loopback by
// default, and requires no credentials.
type adminServer struct {
	ready atomic.Bool                     // set while all parts run
	waits atomic.Pointer[string]          // why the process stands by; nil if it does not
	probe func(ctx context.Context) error // returns why requests cannot be served now
	reg   *prometheus.Registry
	hosts []string // host names that it accepts besides its own address
}

func (a *adminServer) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", a.readyz)
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.reg, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /debug/pprof/", pprof.Index) // without cmdline: flags can contain passwords
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return outcome.RetryLater(a.ownHost(mux))
}

// ownHost refuses requests for another host. A foreign page whose host name was
// made to resolve to this address could otherwise read the answers (DNS
// rebinding).
func (a *adminServer) ownHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		host = strings.ToLower(strings.Trim(host, "[]"))
		ip, err := netip.ParseAddr(host)
		local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		own := host == "localhost" || err == nil && (ip.IsLoopback() || sameIP(local, ip)) ||
			slices.ContainsFunc(a.hosts, func(h string) bool { return strings.EqualFold(h, host) })
		if !own {
			http.Error(w, "unknown host; use localhost, or start fleetd with --admin-host",
				http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// sameIP reports whether a connection arrived at the address.
func sameIP(local net.Addr, ip netip.Addr) bool {
	if local == nil {
		return false
	}
	ap, err := netip.ParseAddrPort(local.String())
	return err == nil && ap.Addr().Unmap().WithZone("") == ip.Unmap().WithZone("")
}

// standBy records for which process this one stands by, and whether the database is away.
func (a *adminServer) standBy(holder lease.Lease, away bool) {
	text := fmt.Sprintf("standing by: %s has served the database since %s (term %d)", holder.Holder,
		holder.Since.UTC().Format(time.DateTime+" UTC"), holder.Term)
	if away {
		text += "; the database does not answer"
	}
	a.waits.Store(&text)
}

// standingBy is 1 while the process stands by, and else 0.
func (a *adminServer) standingBy() float64 {
	if a.waits.Load() == nil {
		return 0
	}
	return 1
}

// readyz reports whether this server should receive traffic.
func (a *adminServer) readyz(w http.ResponseWriter, r *http.Request) {
	if !a.ready.Load() {
		reason := "starting or stopping"
		if waits := a.waits.Load(); waits != nil {
			reason = *waits
		}
		http.Error(w, reason, http.StatusServiceUnavailable)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
	defer cancel()
	if err := a.probe(ctx); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write([]byte("ready\n"))
}

// run serves ln until ctx ends.
func (a *adminServer) run(ctx context.Context, ln net.Listener) error {
	srv := &http.Server{Handler: a.handler(), ReadHeaderTimeout: 5 * time.Second}
	context.AfterFunc(ctx, func() { _ = srv.Close() })
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
