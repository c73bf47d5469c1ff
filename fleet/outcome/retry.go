package outcome

import (
	"bufio"
	"io"
	"net"
	"net/http"
)

// RetryLater sets Retry-After on each 503 response that lacks it. A handler responds with 503
// only if trying again helps.
func RetryLater(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(&laterWriter{w}, r)
	})
}

// retrySeconds is the default delay before a retry.
const retrySeconds = "2"

type laterWriter struct{ http.ResponseWriter }

func (w *laterWriter) WriteHeader(status int) {
	if h := w.Header(); status == http.StatusServiceUnavailable && h.Get("Retry-After") == "" {
		h.Set("Retry-After", retrySeconds)
	}
	w.ResponseWriter.WriteHeader(status)
}

// Optional interfaces of a ResponseWriter.

func (w *laterWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *laterWriter) ReadFrom(r io.Reader) (int64, error) { return io.Copy(w.ResponseWriter, r) }

func (w *laterWriter) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

func (w *laterWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(w.ResponseWriter).Hijack()
}
