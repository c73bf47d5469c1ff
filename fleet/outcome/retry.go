package outcome

import (
	"bufio"
	"io"
	"net"
	"net/http"
)

// RetryLater sets Retry-After on each answer 503 that does not say when to try again:
// whoever answers so means that trying again will help.
func RetryLater(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(&laterWriter{w}, r)
	})
}

// retrySeconds is how soon to try again, if nothing better is known.
const retrySeconds = "2"

type laterWriter struct{ http.ResponseWriter }

func (w *laterWriter) WriteHeader(status int) {
	if h := w.Header(); status == http.StatusServiceUnavailable && h.Get("Retry-After") == "" {
		h.Set("Retry-After", retrySeconds)
	}
	w.ResponseWriter.WriteHeader(status)
}

// What handlers look for in a writer.

func (w *laterWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *laterWriter) ReadFrom(r io.Reader) (int64, error) { return io.Copy(w.ResponseWriter, r) }

func (w *laterWriter) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

func (w *laterWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(w.ResponseWriter).Hijack()
}
