package server

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestAdminAddressAnswersForItsOwnHost(t *testing.T) {
	a := &adminServer{reg: prometheus.NewRegistry(), hosts: []string{"fleetd.internal"}}
	s := httptest.NewServer(a.handler())
	defer s.Close()
	for host, want := range map[string]int{"": 200, "localhost": 200, "LOCALHOST:9464": 200, "127.0.0.1:1": 200,
		"[::1]:9464": 200, "fleetd.internal:9464": 200, "evil.example": 421, "evil.example:9464": 421,
		"127.0.0.1.evil.example": 421, "203.0.113.1:9464": 421, "localhost.evil.example": 421} {
		for _, path := range []string{"/metrics", "/healthz", "/debug/pprof/"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = host
			resp, err := s.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("%s for %q: %d, want %d", path, host, resp.StatusCode, want)
			}
		}
	}
}
