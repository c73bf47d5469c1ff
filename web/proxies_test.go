package web_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/go-chi/chi/v5"

	"fleetd/web"
)

// Every part of the server sees the same address: the client of the nearest untrusted proxy or,
// without proxies, the peer of the socket.
func TestClientAddress(t *testing.T) {
	tests := []struct {
		name, peer string
		forwarded  []string
		want       string
	}{
		{"no proxy", "192.0.2.7:1234", nil, "192.0.2.7:1234"},
		{"a claim", "192.0.2.7:1234", []string{"198.51.100.9"}, "192.0.2.7:1234"},
		{"a proxy on this machine", "127.0.0.1:1234", []string{"198.51.100.9"}, "198.51.100.9:1234"},
		{"a proxy on this machine, IPv6", "[::1]:1234", []string{"2001:db8::9"}, "[2001:db8::9]:1234"},
		{"a trusted proxy", "10.0.0.1:1234", []string{"198.51.100.9"}, "198.51.100.9:1234"},
		{"mapped", "[::ffff:10.0.0.1]:1234", []string{"::ffff:198.51.100.9"}, "198.51.100.9:1234"},
		{"a claim before it", "10.0.0.1:1234", []string{"127.0.0.1, 203.0.113.5, 198.51.100.9"}, "198.51.100.9:1234"},
		{"two proxies", "10.0.0.1:1234", []string{"203.0.113.5, 198.51.100.9, 10.0.0.2"}, "198.51.100.9:1234"},
		{"two headers", "10.0.0.1:1234", []string{"203.0.113.5", "198.51.100.9,10.0.0.2"}, "198.51.100.9:1234"},
		{"only proxies", "10.0.0.1:1234", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3:1234"},
		{"with ports", "10.0.0.1:1234", []string{"198.51.100.9:555"}, "198.51.100.9:1234"},
		{"with ports, IPv6", "10.0.0.1:1234", []string{"[2001:db8::9]:555"}, "[2001:db8::9]:1234"},
		{"no address", "10.0.0.1:1234", []string{"198.51.100.9, unknown"}, "10.0.0.1:1234"},
		{"empty", "10.0.0.1:1234", []string{""}, "10.0.0.1:1234"},
	}
	var got string
	s := web.New(web.Options{Console: noPages, Log: slog.New(slog.DiscardHandler),
		TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")},
		DeviceRoutes: func(r chi.Router) {
			r.Get("/who", func(_ http.ResponseWriter, r *http.Request) { got = r.RemoteAddr })
		},
	})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodGet, "/who", nil)
			r.RemoteAddr = tt.peer
			for _, f := range tt.forwarded {
				r.Header.Add("X-Forwarded-For", f)
			}
			s.ServeHTTP(httptest.NewRecorder(), r)
			if got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

func noPages(chi.Router) {}

func FuzzClientAddress(f *testing.F) {
	f.Add("198.51.100.9, [2001:db8::9]:555,10.0.0.1")
	var got string
	s := web.New(web.Options{Console: noPages, Log: slog.New(slog.DiscardHandler),
		DeviceRoutes: func(r chi.Router) {
			r.Get("/who", func(_ http.ResponseWriter, r *http.Request) { got = r.RemoteAddr })
		}})
	f.Fuzz(func(t *testing.T, forwarded string) {
		r := httptest.NewRequest(http.MethodGet, "/who", nil)
		r.RemoteAddr = "127.0.0.1:1234"
		r.Header["X-Forwarded-For"] = []string{forwarded}
		s.ServeHTTP(httptest.NewRecorder(), r)
		if _, err := netip.ParseAddrPort(got); err != nil {
			t.Errorf("%q became %q", forwarded, got)
		}
	})
}
