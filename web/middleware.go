package web

import (
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/go-chi/chi/v5/middleware"

	"fleetd/web/request"
)

// logAccess notes every request, if the log is that detailed. Queries are left
// out, and paths that are secrets are shortened.
func (s *Server) logAccess(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.o.Log.Enabled(r.Context(), slog.LevelDebug) {
			next.ServeHTTP(w, r)
			return
		}
		began := time.Now()
		ww := middleware.NewWrapResponseWriter(w, r.ProtoMajor)
		defer func() {
			s.o.Log.Debug("request", "method", r.Method, "path", request.Redact(r.URL.Path), "status", ww.Status(), "bytes",
				ww.BytesWritten(), "took", time.Since(began), "from", request.ClientIP(r), "request", request.ID(w))
		}()
		next.ServeHTTP(ww, r)
	})
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
			s.o.Log.Error("panic", "path", request.Redact(r.URL.Path), "request", request.ID(w), "panic", v, "stack",
				string(debug.Stack()))
			http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
		}()
		next.ServeHTTP(w, r)
	})
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
