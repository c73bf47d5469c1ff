package device

import (
	"net/http"
	"strings"

	"fleetd/fleet/picture"
)

// Serves reports whether the path is one of [Handler.Routes], except that of the WebSocket.
func Serves(path string) bool {
	for _, prefix := range []string{"/xiaozhi/ota/", "/u/", "/d/", picture.VisionPath} {
		if strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return path == "/xiaozhi/ota"
}

// AtEdge is for requests of devices that next passes to another process: it does for the device's
// connection, which ends here, what the [Handler] does for a connection that it sees. The device
// closes first ([Lingerer]), a download occupies little of the kernel's memory, and a broken
// download drops what is unsent. The server uses [WithConn].
func AtEdge(next http.Handler) http.Handler {
	return lingers(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := socketOf(r.Context())
		if s == nil || !IsDownload(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		s.SetWriteBuffer(sendBuffer) // on an error the kernel's own size applies
		complete := false
		defer func() {
			if !complete { // next panicked with http.ErrAbortHandler
				s.SetLinger(0)
			}
		}()
		next.ServeHTTP(w, r)
		complete = true
	}))
}

// IsDownload reports whether the path is that of a file for a device.
func IsDownload(path string) bool { return strings.HasPrefix(path, "/d/") }
