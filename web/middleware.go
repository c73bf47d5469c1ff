package web

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/go-chi/chi/v5/middleware"

	"fleetd/web/ui"
)

const requestIDHeader = "X-Request-Id"

// withRequestID numbers the request, so that an error page can be found in the log.
func withRequestID(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header()[requestIDHeader] = []string{newRequestID()}
		next.ServeHTTP(w, r)
	})
}

// newRequestID returns 60 random bits in base32. They name a request in the log
// and are no secret.
func newRequestID() string {
	const digits = "abcdefghijklmnopqrstuvwxyz234567"
	var id [12]byte
	for i, bits := 0, rand.Uint64(); i < len(id); i, bits = i+1, bits>>5 {
		id[i] = digits[bits&31]
	}
	return string(id[:])
}

// requestID is the number of the request that w answers. It is kept in the
// header alone: a context would cost each request a copy of itself.
func requestID(w http.ResponseWriter) string { return w.Header().Get(requestIDHeader) }

// logAccess notes every request, if the log is that detailed. Queries are left
// out, and paths that are secrets are shortened.
func (s *Server) logAccess(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.Log.Enabled(r.Context(), slog.LevelDebug) {
			next.ServeHTTP(w, r)
			return
		}
		began := time.Now()
		ww := middleware.NewWrapResponseWriter(w, r.ProtoMajor)
		defer func() {
			s.Log.Debug("request", "method", r.Method, "path", redact(r.URL.Path), "status", ww.Status(), "bytes",
				ww.BytesWritten(), "took", time.Since(began), "from", clientIP(r), "request", requestID(w))
		}()
		next.ServeHTTP(ww, r)
	})
}

// redact hides the one-time token of an address made for a device.
func redact(path string) string {
	for _, prefix := range []string{"/u/", "/d/"} {
		if rest, ok := strings.CutPrefix(path, prefix); ok {
			_, name, _ := strings.Cut(rest, "/")
			return strings.TrimSuffix(prefix+"…/"+name, "/")
		}
	}
	return path
}

// recoverPanics turns a mistake of ours into an error page and a log line.
func (s *Server) recoverPanics(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			v := recover()
			if v == nil {
				return
			}
			if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(v)
			}
			s.Log.Error("panic", "path", redact(r.URL.Path), "request", requestID(w), "panic", v, "stack",
				string(debug.Stack()))
			http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
		}()
		next.ServeHTTP(w, r)
	})
}

// deadlines bounds how long a request may take to arrive and its answer to
// leave. Each group of routes has its own; the connection is shared by them all.
func deadlines(read, write time.Duration) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			extend(w, read, write)
			next.ServeHTTP(w, r)
		})
	}
}

// extend gives the request more time from now on. A writer without deadlines
// is a test's.
func extend(w http.ResponseWriter, read, write time.Duration) {
	c := http.NewResponseController(w)
	now := time.Now()
	_ = c.SetReadDeadline(now.Add(read))
	_ = c.SetWriteDeadline(now.Add(write))
}

// restTimeout is how long the part of a body may take that the handler did not read.
const restTimeout = 5 * time.Second

// hurryRest bounds how long net/http waits for what a handler did not read of a body:
// it reads up to 256 KiB before it uses the connection again.
func hurryRest(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r)
		if r.ContentLength != 0 {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(restTimeout))
		}
	})
}

// protectBrowsers sets what keeps a page from being used against its reader.
func protectBrowsers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", ui.CSP)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Permissions-Policy", "camera=(), microphone=(), geolocation=(), serial=()")
		next.ServeHTTP(w, r)
	})
}
