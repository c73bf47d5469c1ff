package edge

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/go-chi/httprate"
	"github.com/gorilla/websocket"

	"fleetd/broker/dialect"
	"fleetd/broker/link"
	"fleetd/fleet"
)

// Devices that are configured for it talk over a WebSocket instead of MQTT and UDP (protocol 5).
// They open it when a person starts a conversation, and close it with the conversation. While it
// is open it is the device's connection: calls, tools and presence work as for a device on MQTT,
// with the same code.

const (
	// Limits per minute for one address, or one /64 of IPv6. A whole site can share an address.
	// Loopback is not limited: a reverse proxy or a simulator connects from there.
	dialsPerMinute     = 1200
	badTokensPerMinute = 60
)

// sockets is the set of open WebSockets.
type sockets struct {
	dials, badTokens *httprate.RateLimiter
	upgrader         websocket.Upgrader
	serving          sync.WaitGroup

	mu      sync.Mutex
	stopped bool
	open    map[*socket]struct{}
}

func (all *sockets) init() {
	quiet := httprate.WithResponseHeaders(httprate.ResponseHeaders{}) // devices read no rate-limit headers
	all.dials = httprate.NewRateLimiter(dialsPerMinute, time.Minute, quiet)
	all.badTokens = httprate.NewRateLimiter(badTokensPerMinute, time.Minute, quiet)
	all.upgrader = websocket.Upgrader{HandshakeTimeout: 5 * time.Second, WriteBufferSize: 2048,
		WriteBufferPool: new(sync.Pool), CheckOrigin: func(*http.Request) bool { return true }} // see ServeWebSocket
	all.open = make(map[*socket]struct{})
}

// enter registers the socket and reports whether it may be served. It returns false while the
// edge stops.
func (all *sockets) enter(s *socket) bool {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.stopped {
		return false
	}
	all.open[s] = struct{}{}
	all.serving.Add(1)
	return true
}

func (all *sockets) leave(s *socket) {
	all.mu.Lock()
	delete(all.open, s)
	all.mu.Unlock()
	all.serving.Done()
}

func (all *sockets) stop() {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.stopped = true
}

func (all *sockets) closeAll() {
	all.mu.Lock()
	defer all.mu.Unlock()
	for s := range all.open {
		_ = s.ws.NetConn().Close()
	}
}

func (all *sockets) len() int64 {
	all.mu.Lock()
	defer all.mu.Unlock()
	return int64(len(all.open))
}

// ServeWebSocket accepts a device's WebSocket. The device names itself in headers, and proves its
// identity with the token of its latest boot poll. r.RemoteAddr is the device's address.
func (e *Edge) ServeWebSocket(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	if len(r.Header.Values("Origin")) > 0 { // a browser sends it, and could send no token, but might try
		e.refuseSocket(w, r, http.StatusForbidden, "origin", "this address is for devices; browsers are refused")
		return
	}
	if !websocket.IsWebSocketUpgrade(r) {
		header.Set("Connection", "Upgrade")
		header.Set("Upgrade", "websocket")
		http.Error(w, "This is the WebSocket address of a fleetd server, for devices.", http.StatusUpgradeRequired)
		return
	}
	addr := hostOf(r.RemoteAddr)
	if e.limited(w, r, e.sockets.dials, addr) {
		e.refuseSocket(w, r, http.StatusTooManyRequests, "too_many_dials", "too many attempts from this address")
		return
	}
	id, err := fleet.ParseBoardID(r.Header.Get("Device-Id"))
	if err != nil {
		e.refuseSocket(w, r, http.StatusBadRequest, "device_id",
			"Device-Id header missing or invalid; want a MAC address such as a0:85:e3:11:22:33")
		return
	}
	if e.draining.Load() != nil {
		header.Set("Retry-After", "1")
		e.refuseSocket(w, r, http.StatusServiceUnavailable, refusedDrains, "this edge is being drained; use another one")
		return
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		token = ""
	}
	if !e.gate.TryAcquire(1) {
		e.refuseSocket(w, r, http.StatusServiceUnavailable, "full", "too many connections")
		return
	}
	if s := e.admitSocket(w, r, id, addr, strings.TrimSpace(token)); s != nil {
		go e.serveAdmitted(s)
		return
	}
	e.gate.Release(1)
}

// admitSocket upgrades the request of a device that the core admits. Otherwise it replies to the
// request and returns nil.
func (e *Edge) admitSocket(w http.ResponseWriter, r *http.Request, id fleet.DeviceID, addr, token string) *socket {
	c := &connection{edge: e, dialect: dialect.XiaozhiWebSocket(), lost: make(chan struct{})}
	s := newSocket(c, r.Header.Get("Protocol-Version"))
	c.carrier = s
	q := link.Connect{Device: id, ClientID: strings.TrimSpace(r.Header.Get("Client-Id")), Password: []byte(token),
		Transport: link.WebSocket, RemoteAddr: addr}
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		q.LocalHost = hostOf(local.String())
	}
	if err := c.open(q); err != nil {
		switch why := refusal(err); {
		case why == link.RefusedLater:
			w.Header().Set("Retry-After", "10")
			e.refuseSocket(w, r, http.StatusServiceUnavailable, string(why), "this device cannot be admitted now; try again")
		case why == link.RefusedTooOften:
			e.refuseSocket(w, r, http.StatusTooManyRequests, string(why), "too many attempts from this device")
		default:
			status := http.StatusUnauthorized
			if e.limited(w, r, e.sockets.badTokens, addr) {
				status = http.StatusTooManyRequests
			}
			e.refuseSocket(w, r, status, string(why),
				"the token does not match Device-Id and Client-Id, or is no longer valid")
		}
		return nil
	}
	ws, err := e.sockets.upgrader.Upgrade(w, r, nil)
	if err != nil { // Upgrade has replied
		e.stats.refuse("malformed_upgrade")
		c.core.Closed(false, link.CauseOf(fleet.CauseSocketError, err.Error(), "detail", "upgrade").Cause)
		return nil
	}
	s.attach(ws)
	return s
}

// serveAdmitted serves one WebSocket until it ends, unless the edge stops.
func (e *Edge) serveAdmitted(s *socket) {
	defer e.gate.Release(1)
	if !e.sockets.enter(s) {
		s.c.core.Closed(false, link.ErrStopping.Cause)
		_ = s.ws.Close()
		return
	}
	defer e.sockets.leave(s)
	e.serveSocket(s)
}

// limited counts the attempt and reports whether the address has exceeded the limit.
func (e *Edge) limited(w http.ResponseWriter, r *http.Request, l *httprate.RateLimiter, addr string) bool {
	ip, err := netip.ParseAddr(addr)
	return err == nil && !ip.IsLoopback() && l.OnLimit(w, r, httprate.CanonicalizeIP(addr))
}

// refuseSocket replies to an attempt, counts it and logs it occasionally.
func (e *Edge) refuseSocket(w http.ResponseWriter, r *http.Request, status int, reason, text string) {
	e.stats.refuse(reason)
	device := fleet.CleanText(r.Header.Get("Device-Id"), 64)
	if ok, skipped := e.refusals.allow(device+reason, time.Now()); ok {
		e.log.Warn("WebSocket refused", "device", device, "remote", hostOf(r.RemoteAddr), "reason", reason,
			"not_logged", skipped)
	}
	http.Error(w, text, status)
}

// serveSocket serves one WebSocket until it ends.
func (e *Edge) serveSocket(s *socket) {
	c := s.c
	written := make(chan struct{})
	go func() { defer close(written); s.write() }()
	var err error
	defer func() {
		if p := recover(); p != nil {
			e.stats.panics.Add(1)
			e.log.Error("connection ended by a panic", "listener", "ws", "panic", p, "stack", stack())
			err = errPanic
		}
		c.end(err)
		<-written
	}()
	c.establish()
	c.establishedNow()
	err = s.read()
	if c.clean = closedByDevice(err) && !c.hasEnded(); c.clean && c.conversation != nil {
		c.conversation.End(fleet.EndedByDevice)
	}
}

// closedByDevice reports whether the device closed its socket, with or without a close frame.
func closedByDevice(err error) bool {
	_, closed := errors.AsType[*websocket.CloseError](err)
	return closed
}
