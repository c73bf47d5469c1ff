package outcome_test

import (
	"bufio"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"fleetd/fleet/outcome"
)

// Each 503 has a Retry-After; a handler's own value stays unchanged.
func TestRetryLater(t *testing.T) {
	for _, tt := range []struct {
		status      int
		given, want string
	}{{200, "", ""}, {404, "", ""}, {500, "", ""}, {429, "60", "60"}, {503, "", "2"}, {503, "10", "10"}} {
		w := httptest.NewRecorder()
		outcome.RetryLater(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if tt.given != "" {
				w.Header().Set("Retry-After", tt.given)
			}
			w.WriteHeader(tt.status)
		})).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		if got := w.Header().Get("Retry-After"); got != tt.want || w.Code != tt.status {
			t.Errorf("%d with %q: %d, Retry-After %q; want %q", tt.status, tt.given, w.Code, got, tt.want)
		}
	}
}

// Streams, copies and upgrades work behind RetryLater.
func TestRetryLaterKeepsTheWriter(t *testing.T) {
	s := httptest.NewServer(outcome.RetryLater(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/stream":
			_, _ = io.WriteString(w, "first\n")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		case "/copy":
			_, _ = io.Copy(w, strings.NewReader("copied"))
		case "/upgrade":
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsocket")
			conn.Close()
		}
	})))
	defer s.Close()
	for path, want := range map[string]string{"/stream": "first", "/copy": "copied", "/upgrade": "socket"} {
		resp, err := http.Get(s.URL + path)
		if err != nil {
			t.Fatal(path, err)
		}
		line, _ := bufio.NewReader(resp.Body).ReadString('\n')
		if strings.TrimSpace(line) != want {
			t.Errorf("%s: %q, want %q", path, line, want)
		}
		resp.Body.Close()
	}
}
