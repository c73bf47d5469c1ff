// Package request holds what every HTTP request has: an id, the address of its client, deadlines,
// and a path that may contain a secret.
//
// It depends on no page and no operation, and holds no state.
package request

import (
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"time"
)

// Header is the response header that carries the id of the request.
const Header = "X-Request-Id"

// WithID gives each request an id, so that an error page can be found in the log.
func WithID(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header()[Header] = []string{newID()}
		next.ServeHTTP(w, r)
	})
}

// newID returns 60 random bits in base32. An id identifies a request in the log and is not a
// secret.
func newID() string {
	const digits = "abcdefghijklmnopqrstuvwxyz234567"
	var id [12]byte
	for i, bits := 0, rand.Uint64(); i < len(id); i, bits = i+1, bits>>5 {
		id[i] = digits[bits&31]
	}
	return string(id[:])
}

// ID returns the id of the request that w responds to. Only the header stores it: a context would
// cost each request a copy of itself.
func ID(w http.ResponseWriter) string { return w.Header().Get(Header) }

// Redact removes the one-time token from a path that was issued to a device.
func Redact(path string) string {
	for _, prefix := range []string{"/u/", "/d/"} {
		if rest, ok := strings.CutPrefix(path, prefix); ok {
			_, name, _ := strings.Cut(rest, "/")
			return strings.TrimSuffix(prefix+"…/"+name, "/")
		}
	}
	return path
}

// ClientIP returns the address of the client, without its port.
func ClientIP(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// Extend sets new deadlines for a request, counted from now. Only writers of tests have no
// deadlines.
func Extend(w http.ResponseWriter, read, write time.Duration) {
	c := http.NewResponseController(w)
	now := time.Now()
	_ = c.SetReadDeadline(now.Add(read))
	_ = c.SetWriteDeadline(now.Add(write))
}

// Deadlines bounds how long a request may take to arrive and its response to leave. Each group of
// routes has its own deadlines; all groups share the connection.
func Deadlines(read, write time.Duration) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			Extend(w, read, write)
			next.ServeHTTP(w, r)
		})
	}
}

// pageTimeout is how long a reader may take for a part of a long response.
const pageTimeout = time.Minute

// Progress returns a function that sends what was written of a long response, and gives the reader time for the next
// part. A response of any length is served while its reader keeps up.
func Progress(w http.ResponseWriter) func() error {
	c := http.NewResponseController(w)
	return func() error {
		_ = c.SetWriteDeadline(time.Now().Add(pageTimeout)) // writers of tests have no deadlines
		return c.Flush()
	}
}

// restTimeout bounds how long the unread rest of a request body may take to arrive.
const restTimeout = 5 * time.Second

// HurryRest bounds how long net/http waits for the part of a body that the handler did not read:
// net/http reads up to 256 KiB of it before it reuses the connection.
func HurryRest(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r)
		if r.ContentLength != 0 {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(restTimeout))
		}
	})
}
