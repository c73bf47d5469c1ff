// Package device serves what devices ask for over HTTP: the boot poll, the
// question whether they were let in, firmware, the exchange of pictures and core
// dumps for a call, and the questions of cameras.
//
// Devices are crude clients: they want exactly status 200, an explicit
// Content-Length and short bodies, and no redirects. All that they send is
// foreign text; it is cleaned and bounded here.
//
// It does not decide who may join or what is installed: packages enrolment and
// firmware do. A request runs on its own goroutine; one more looks at connections
// that devices are given time to close ([Lingerer]). Its lock guards their queue.
package device

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/httprate"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/firmware"
	"fleetd/fleet/picture"
	"fleetd/fleet/telemetry"
)

// Enrolments is what is needed of [enrolment.Service].
type Enrolments interface {
	Known(id fleet.DeviceID) bool
	Activate(id fleet.DeviceID, clientID string) bool
	Prove(ctx context.Context, p enrolment.SerialProof) enrolment.ProofOutcome
}

// BootPolls is what is needed of [enrolment.BootPolls].
type BootPolls interface {
	Answer(ctx context.Context, p enrolment.BootPoll) (body []byte, err error)
}

// Snapshots is what is needed of [picture.Service].
type Snapshots interface {
	Receive(ctx context.Context, token string, body func() (io.Reader, error)) (picture.Snapshot, error)
	FetchPreview(ctx context.Context, token string) ([]byte, error)
	Photo(ctx context.Context, device fleet.DeviceID, question string, picture io.Reader) (picture.Photo, error)
}

// CoreDumps is what is needed of [telemetry.CoreDumps].
type CoreDumps interface {
	Receive(ctx context.Context, token string, body func() (io.Reader, error)) (telemetry.CoreDump, error)
}

// Options configures a [Handler]. The services are required.
type Options struct {
	Enrolments Enrolments
	BootPolls  BootPolls
	Snapshots  Snapshots
	CoreDumps  CoreDumps           // nil: none is accepted
	Downloads  *firmware.Downloads // nil: no firmware is served
	// VisionTokens authenticate cameras. nil: their pictures are not accepted.
	VisionTokens VisionTokens
	VoiceCodes   VoiceCodes       // nil: devices show no codes of voice servers
	WebSocket    http.HandlerFunc // of devices that talk over it; nil: none do
	Explainer    Explainer        // answers questions about pictures; nil: they are kept, and the caller looks at them
	Log          *slog.Logger
	Now          func() time.Time // default: time.Now

	// UnknownPerMinute bounds the polls of devices that are not enrolled, per
	// address, or /64 of IPv6; a whole site can share one. Loopback is not bounded: it is where
	// a reverse proxy or a simulator speaks from. Default: 1,200.
	UnknownPerMinute int

	// BodyTimeout bounds how long the body of a boot poll or an activation takes to
	// arrive: it has some kilobytes, and its sender has proved nothing. Default: 10s.
	BodyTimeout time.Duration

	// UploadPace is how fast pictures and core dumps have to arrive.
	UploadPace Pace
}

// A Handler serves devices.
type Handler struct {
	o       Options
	unknown *httprate.RateLimiter
	stats   stats

	badTokens, cameras *httprate.RateLimiter
	photos             chan struct{} // places of pictures that are being handled

	placeTimeout, stallTimeout time.Duration // of downloads
}

// New makes a handler; mount it with [Handler.Routes].
func New(o Options) *Handler {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.BodyTimeout == 0 {
		o.BodyTimeout = 10 * time.Second
	}
	o.UploadPace = o.UploadPace.withDefaults()
	if o.UnknownPerMinute == 0 {
		o.UnknownPerMinute = 1200
	}
	quiet := httprate.WithResponseHeaders(httprate.ResponseHeaders{}) // devices read none
	return &Handler{o: o,
		unknown:   httprate.NewRateLimiter(o.UnknownPerMinute, time.Minute, quiet),
		badTokens: httprate.NewRateLimiter(badTokensPerMinute, time.Minute, quiet),
		cameras:   httprate.NewRateLimiter(photosPerMinute, time.Minute, quiet),
		photos:    make(chan struct{}, photosAtOnce),

		placeTimeout: placeTimeout, stallTimeout: stallTimeout}
}

// Routes adds the handler's routes to r. They must stand outside of all that
// expects a browser or a token.
func (h *Handler) Routes(r chi.Router) {
	r.Group(h.routes)
	if h.o.WebSocket != nil {
		r.Get(enrolment.WebSocketPath, h.o.WebSocket)
		r.Get(strings.TrimSuffix(enrolment.WebSocketPath, "/"), h.o.WebSocket)
	}
}

func (h *Handler) routes(r chi.Router) {
	r.Use(lingers)
	for _, path := range []string{"/xiaozhi/ota", "/xiaozhi/ota/"} {
		r.Get(path, h.poll)
		r.Post(path, h.soon(h.poll))
	}
	r.Post("/xiaozhi/ota/activate", h.soon(h.activate))
	r.Post("/u/{token}", h.steady(h.receiveUpload))
	if h.o.VisionTokens != nil {
		r.Post(picture.VisionPath, h.steady(h.explain))
	}
	r.Get("/d/{token}/preview.jpg", h.sendPreview)
	r.Get("/d/{token}/firmware.bin", h.sendFirmware)
	r.Head("/d/{token}/firmware.bin", h.describeFirmware)
}

// soon gives the body of a request little time to arrive.
func (h *Handler) soon(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		until := time.Now().Add(h.o.BodyTimeout)
		_ = http.NewResponseController(w).SetReadDeadline(until) // not every writer is a connection's
		next(w, r)
	}
}

// send writes a short answer in one piece, with its length: devices read no
// chunked answers reliably.
func send(w http.ResponseWriter, status int, mediaType string, body []byte) {
	header := w.Header()
	header.Set("Content-Type", mediaType)
	header.Set("Content-Length", strconv.Itoa(len(body)))
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	w.Write(body) // an error means that the device has gone: there is no one to report it to
}

func remoteAddr(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	return host
}

// limited reports whether an unknown device has to wait, and if so answers it
// with 429.
func (h *Handler) limited(w http.ResponseWriter, r *http.Request, addr string) bool {
	if ip, err := netip.ParseAddr(addr); err == nil && ip.IsLoopback() {
		return false
	}
	if !h.unknown.OnLimit(w, r, httprate.CanonicalizeIP(addr)) {
		return false
	}
	sendError(w, http.StatusTooManyRequests, "too many unknown devices from this address; try again in a minute")
	return true
}
