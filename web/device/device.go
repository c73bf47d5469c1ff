// Package device serves the HTTP requests of devices: the boot poll, the activation check,
// firmware, the exchange of pictures and core dumps for a call, and the questions of cameras.
//
// Devices are simple clients: they need exactly status 200, an explicit Content-Length and short
// bodies, and follow no redirects. All text that they send is untrusted; this package cleans and
// bounds it.
//
// It does not decide which devices may join or what they install: packages enrolment and firmware
// do. A request runs on its own goroutine; one more checks the connections that devices are given
// time to close ([Lingerer]). Its lock guards their queue.
package device

import (
	"cmp"
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
	"fleetd/web/request"
)

// Enrolments is the part of [enrolment.Service] that the handler uses.
type Enrolments interface {
	Known(id fleet.DeviceID) bool
	Activate(id fleet.DeviceID, clientID string) bool
	Prove(ctx context.Context, p enrolment.SerialProof) enrolment.ProofOutcome
}

// BootPolls is the part of [enrolment.BootPolls] that the handler uses.
type BootPolls interface {
	Answer(ctx context.Context, p enrolment.BootPoll) (body []byte, err error)
}

// Snapshots is the part of [picture.Service] that the handler uses.
type Snapshots interface {
	Receive(ctx context.Context, token string, body func() (io.Reader, error)) (picture.Snapshot, error)
	FetchPreview(ctx context.Context, token string) ([]byte, error)
	Photo(ctx context.Context, device fleet.DeviceID, question string, picture io.Reader) (picture.Photo, error)
}

// CoreDumps is the part of [telemetry.CoreDumps] that the handler uses.
type CoreDumps interface {
	Receive(ctx context.Context, token string, body func() (io.Reader, error)) (telemetry.CoreDump, error)
}

// Options configures a [Handler]. The services are required.
type Options struct {
	Enrolments Enrolments
	BootPolls  BootPolls
	Snapshots  Snapshots
	CoreDumps  CoreDumps           // nil: core dumps are not accepted
	Downloads  *firmware.Downloads // nil: no firmware is served
	// ReadingEdge returns the edge that passed a request on and can read images from S3, or "". With
	// nil, the handler sends all images.
	ReadingEdge func(ctx context.Context) string
	// VisionTokens authenticates cameras. With nil, their pictures are not accepted.
	VisionTokens VisionTokens
	VoiceCodes   VoiceCodes       // nil: devices show no codes of voice servers
	WebSocket    http.HandlerFunc // serves devices that use WebSocket; nil: none do
	Explainer    Explainer        // answers questions about pictures; nil: pictures are only stored for the caller
	Log          *slog.Logger
	Now          func() time.Time // default: time.Now

	// UnknownPerMinute bounds the polls of devices that are not enrolled, per IPv4 address or /64
	// of IPv6; a whole site can share one address. Loopback is not bounded, because reverse proxies
	// and simulators connect from it. Default: 1,200.
	UnknownPerMinute int

	// BodyTimeout bounds how long the body of a boot poll or an activation may take to arrive: it
	// is a few kilobytes from an unauthenticated sender. Default: 10s.
	BodyTimeout time.Duration

	// UploadPace is the pace at which pictures and core dumps have to arrive. Default: a byte each
	// 10s, 2,048 bytes a second, 90s for all.
	UploadPace request.Pace
}

// A Handler serves devices.
type Handler struct {
	o       Options
	unknown *httprate.RateLimiter
	stats   stats

	badTokens, cameras *httprate.RateLimiter
	photos             chan struct{} // slots for pictures in progress

	placeTimeout, stallTimeout time.Duration // of downloads
}

// New returns a handler; mount it with [Handler.Routes].
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
	o.UploadPace = paceOr(o.UploadPace)
	if o.UnknownPerMinute == 0 {
		o.UnknownPerMinute = 1200
	}
	quiet := httprate.WithResponseHeaders(httprate.ResponseHeaders{}) // devices do not read the headers
	return &Handler{o: o,
		unknown:   httprate.NewRateLimiter(o.UnknownPerMinute, time.Minute, quiet),
		badTokens: httprate.NewRateLimiter(badTokensPerMinute, time.Minute, quiet),
		cameras:   httprate.NewRateLimiter(photosPerMinute, time.Minute, quiet),
		photos:    make(chan struct{}, photosAtOnce),

		placeTimeout: placeTimeout, stallTimeout: stallTimeout}
}

// Routes adds the handler's routes to r. Mount them outside of middleware that expects a browser or
// a token.
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

// paceOr returns p with the pace of a device's modem where p has none.
func paceOr(p request.Pace) request.Pace {
	return request.Pace{Stall: cmp.Or(p.Stall, 10*time.Second), Rate: cmp.Or(p.Rate, 2<<10),
		Whole: cmp.Or(p.Whole, 90*time.Second)} // devices with weak Wi-Fi
}

// steady enforces the pace on the body of an upload, including the part that next does not read:
// net/http reads up to 256 KiB of it before it responds.
func (h *Handler) steady(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		r.Body = h.o.UploadPace.Body(w, r.Body)
		next(w, r)
	}
}

// soon sets a short deadline for the body of a request.
func (h *Handler) soon(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		until := time.Now().Add(h.o.BodyTimeout)
		_ = http.NewResponseController(w).SetReadDeadline(until) // some writers have no connection
		next(w, r)
	}
}

// send writes a short response in one piece, with its length, because devices do not read chunked
// responses reliably.
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

// limited reports whether an unknown device has to wait. If so, it responds with 429.
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
