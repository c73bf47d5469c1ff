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

// logAccess logs every request at debug level. It omits queries and shortens paths that contain
// secrets.
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

// recoverPanics is [RecoverPanics] of the server.
func (s *Server) recoverPanics(next http.Handler) http.Handler { return RecoverPanics(s.o.Log, next) }

// RecoverPanics turns a panic of next into an error page and a log entry.
func RecoverPanics(log *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			v := recover()
			if v == nil {
				return
			}
			if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(v)
			}
			log.Error("panic", "path", request.Redact(r.URL.Path), "request", request.ID(w), "panic", v, "stack",
				string(debug.Stack()))
			http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
		}()
		next.ServeHTTP(w, r)
	})
}
