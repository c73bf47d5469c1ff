package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/httprate"
	"github.com/gorilla/websocket"
	"golang.org/x/time/rate"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/endpoint"
)

const (
	// Limits per minute for one address, or one /64 of IPv6, as for the WebSockets of boards.
	// Loopback is not limited: a reverse proxy connects from there.
	dialsPerMinute     = 1200
	badTokensPerMinute = 60

	dialEvery = time.Second // between connections of one endpoint, after the first few
	dialBurst = 10

	maxConsumers = 16 // connected to one endpoint
)

// endpointVersions are the versions of MCP that a provider is asked for. A server that does not
// know a version answers with one that it knows; if it refuses, it is asked for the next one when
// it connects again.
var endpointVersions = []string{"2025-11-25", "2024-11-05"}

// Caller makes the calls of consumers.
type Caller interface {
	Make(ctx context.Context, r call.Request) (fleet.Call, error)
	Offered(ctx context.Context, p fleet.Principal, id fleet.DeviceID) (fleet.Device, []fleet.Tool, error)
}

// Texts turns outcomes into text for the model of a consumer.
type Texts interface {
	Call(c fleet.Call) string // why a call has no result
	Error(err error) string   // why no call was made
}

// EndpointsOptions configures [Endpoints]. Host, Authenticate, Calls and Texts are required.
type EndpointsOptions struct {
	Host         *Host
	Authenticate func(kind endpoint.TokenKind, secret string) (endpoint.Endpoint, error)
	Calls        Caller
	Texts        Texts
	// PingEvery is the interval of WebSocket pings. A peer that is silent for three of them is
	// disconnected. Default: 20s
	PingEvery time.Duration
	Log       *slog.Logger
}

// Endpoints accepts the WebSockets of endpoints: those of providers, whose sessions the host
// holds, and those of consumers.
type Endpoints struct {
	o                EndpointsOptions
	log              *slog.Logger
	upgrader         websocket.Upgrader
	dials, badTokens *httprate.RateLimiter
	serving          sync.WaitGroup

	mu      sync.Mutex
	stopped bool
	known   map[string]*dialled // by name; also of endpoints that were deleted
}

var _ endpoint.Runner = (*Endpoints)(nil)

// A dialled endpoint. The lock of its Endpoints guards its fields.
type dialled struct {
	unit      *unit
	wanted    *endpoint.Endpoint // nil after it was deleted
	pace      *rate.Limiter
	version   int // index of the version to ask for
	pending   *dial
	current   *dial
	consumers map[*consumer]struct{}
	status    endpoint.Status

	saving sync.Mutex // the device is not retired while a connection begins
}

// A dial is one connection of a provider.
type dial struct {
	socket *socket // nil before the upgrade
	token  endpoint.Hash
	addr   string
	ended  time.Time // when fleetd ended it; zero while it is open, or if the peer ended it
	reason fleet.Reason
	done   chan struct{}
	s      *session // once it has answered initialize
	stored bool     // its device is on record as online
}

// NewEndpoints returns what accepts endpoints.
func NewEndpoints(o EndpointsOptions) *Endpoints {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.PingEvery = cmp.Or(o.PingEvery, 20*time.Second)
	quiet := httprate.WithResponseHeaders(httprate.ResponseHeaders{})
	e := &Endpoints{o: o, log: o.Log, known: map[string]*dialled{},
		dials:     httprate.NewRateLimiter(dialsPerMinute, time.Minute, quiet),
		badTokens: httprate.NewRateLimiter(badTokensPerMinute, time.Minute, quiet)}
	// Any origin: the token is in the address, and no cookie counts. Libraries for boards send
	// origins of their own.
	e.upgrader = websocket.Upgrader{HandshakeTimeout: 5 * time.Second, ReadBufferSize: 1024, WriteBufferSize: 1024,
		WriteBufferPool: new(sync.Pool), CheckOrigin: func(*http.Request) bool { return true },
		Subprotocols: []string{"mcp"}} // the TypeScript SDK requires its own
	return e
}

// Routes mounts the WebSockets, with and without the last slash of their paths.
func (e *Endpoints) Routes(r chi.Router) {
	for _, cut := range []string{"", "/"} {
		r.Get(strings.TrimSuffix(endpoint.ProviderPath, cut), e.ServeProvider)
		r.Get(strings.TrimSuffix(endpoint.ConsumerPath, cut), e.ServeConsumer)
	}
}

// Run waits until ctx ends, and then ends all connections.
func (e *Endpoints) Run(ctx context.Context) error {
	<-ctx.Done()
	e.mu.Lock()
	e.stopped = true
	for _, d := range e.known {
		d.endAll(fleet.Because("endpoint_stopped"), websocket.CloseGoingAway)
	}
	e.mu.Unlock()
	e.serving.Wait()
	return nil
}

// of returns the entry of an endpoint. The caller holds mu.
func (e *Endpoints) of(name string) *dialled {
	d := e.known[name]
	if d == nil {
		d = &dialled{unit: e.o.Host.unit(endpoint.DeviceOf(name), fleet.DeviceEndpoint),
			pace: rate.NewLimiter(rate.Every(dialEvery), dialBurst), consumers: map[*consumer]struct{}{}}
		d.unit.mu.Lock()
		d.unit.log = func(level, text string) {
			e.log.Debug("endpoint reports", "endpoint", name, "level", level, "text", text)
		}
		d.unit.listed = func() { e.listed(d) }
		d.unit.mu.Unlock()
		e.known[name] = d
	}
	return d
}

// ApplyEndpoints implements [endpoint.Runner].
func (e *Endpoints) ApplyEndpoints(list []endpoint.Endpoint) {
	e.mu.Lock()
	defer e.mu.Unlock()
	defined := make(map[string]bool, len(list))
	for _, wanted := range list {
		defined[wanted.Name] = true
		d := e.of(wanted.Name)
		before := d.wanted
		d.wanted = &wanted
		if before != nil && before.Version == wanted.Version && before.CreatedAt.Equal(wanted.CreatedAt) {
			continue
		}
		d.apply(before)
	}
	for name, d := range e.known {
		if defined[name] || d.wanted == nil {
			continue
		}
		d.wanted = nil
		open := d.endAll(fleet.Because("endpoint_revoked"), websocket.ClosePolicyViolation)
		e.serving.Go(func() { e.retire(name, d, open) })
	}
}

// apply makes changed settings effective. The caller holds the lock.
func (d *dialled) apply(before *endpoint.Endpoint) {
	w := d.wanted
	if w.Disabled {
		d.endAll(fleet.Because("endpoint_disabled"), websocket.ClosePolicyViolation)
	}
	for _, open := range []*dial{d.pending, d.current} {
		if open != nil && open.token != w.Provider.Hash {
			open.finish(fleet.Because("endpoint_revoked"), websocket.ClosePolicyViolation)
		}
	}
	for c := range d.consumers {
		if c.token != w.Consumer.Hash {
			c.end()
		}
	}
	d.unit.mu.Lock()
	d.unit.offers, d.unit.audience = w.Offers, w.Audience
	d.unit.mu.Unlock()
	again := before != nil && (before.Audience != w.Audience || !reflect.DeepEqual(before.Tools, w.Tools))
	if again && d.current != nil && d.current.s != nil {
		d.current.s.listAgain()
	}
}

// endAll ends all connections and returns those of providers. The caller holds the lock.
func (d *dialled) endAll(reason fleet.Reason, code int) (open []*dial) {
	for _, dial := range []*dial{d.pending, d.current} {
		if dial != nil {
			dial.finish(reason, code)
			open = append(open, dial)
		}
	}
	for c := range d.consumers {
		c.end()
	}
	return open
}

// finish ends a connection at once: no call is sent any more. The caller holds the lock.
func (d *dial) finish(reason fleet.Reason, code int) {
	if !d.ended.IsZero() {
		return
	}
	d.ended, d.reason = time.Now().UTC(), reason
	if d.s != nil {
		d.s.stopFor(endCauses[reason.Code])
	}
	if d.socket != nil {
		go d.socket.close(code, closeTexts[reason.Code])
	}
}

// closeTexts are the reasons in close frames, which are for logs of providers.
var closeTexts = map[string]string{
	"endpoint_replaced": "another connection of this endpoint replaced this one",
	"endpoint_revoked":  "the token was revoked",
	"endpoint_disabled": "the endpoint is disabled",
	"endpoint_stopped":  "fleetd stops",
}

// endCauses are the reasons in records of the presence.
var endCauses = map[string]fleet.Cause{
	"endpoint_replaced": {Reason: fleet.Because(fleet.CauseReplaced), Text: "replaced by a newer connection"},
	"endpoint_revoked":  {Reason: fleet.Because(fleet.CauseRevoked), Text: "the token was revoked"},
	"endpoint_disabled": {Reason: fleet.Because(fleet.CauseDisabled), Text: "the endpoint was disabled"},
	"endpoint_stopped":  {Reason: fleet.Because(fleet.CauseStopping), Text: "fleetd was stopped"},
}

// retire retires the device of an endpoint that was deleted, after its connections have ended.
func (e *Endpoints) retire(name string, d *dialled, open []*dial) {
	for _, dial := range open {
		<-dial.done
	}
	d.saving.Lock()
	defer d.saving.Unlock()
	e.mu.Lock()
	back := d.wanted != nil
	e.mu.Unlock()
	if back {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := e.o.Host.o.Devices.RetireProgram(ctx, endpoint.DeviceOf(name)); err != nil {
		e.log.Warn("device of a deleted endpoint not retired", "endpoint", name, "err", err)
	}
}

// EndpointStatus implements [endpoint.Runner].
func (e *Endpoints) EndpointStatus(name string) endpoint.Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	d := e.known[name]
	if d == nil {
		return endpoint.Status{}
	}
	st := d.status
	st.Consumers = len(d.consumers)
	switch c := d.current; {
	case c == nil:
	case !c.ended.IsZero(): // its serve has yet to leave
		st.Ended, st.EndedAt = c.reason, c.ended
	case c.stored:
		info := c.s.server()
		st.Connected, st.Since, st.Address = true, c.s.At, c.addr
		st.ServerName, st.ServerVersion, st.Protocol = info.Name, info.Version, c.s.protocol()
	}
	return st
}

// ServeProvider accepts the WebSocket of a program that is an MCP server.
func (e *Endpoints) ServeProvider(w http.ResponseWriter, r *http.Request) {
	found, addr, ok := e.authenticate(w, r, endpoint.Provider)
	if !ok {
		return
	}
	d, open, status, text := e.admit(found, addr)
	if open == nil {
		e.refuse(w, r, found.Name, status, text)
		return
	}
	ws, err := e.upgrader.Upgrade(w, r, nil)
	if err != nil { // Upgrade has replied
		e.leave(d, open, err)
		return
	}
	s := newSocket(ws, maxMessage, e.o.PingEvery, func(text string) { d.unit.note("warning", "not a message: "+text) })
	e.mu.Lock()
	open.socket = s
	ended := open.ended
	e.mu.Unlock()
	if !ended.IsZero() {
		s.close(websocket.ClosePolicyViolation, closeTexts[open.reason.Code])
		e.leave(d, open, nil)
		return
	}
	go e.serve(found, d, open)
}

// authenticate replies to a request without a valid token, and reports whether it may go on.
func (e *Endpoints) authenticate(w http.ResponseWriter, r *http.Request, kind endpoint.TokenKind) (
	found endpoint.Endpoint, addr string, ok bool) {
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	if !websocket.IsWebSocketUpgrade(r) {
		header.Set("Connection", "Upgrade")
		header.Set("Upgrade", "websocket")
		http.Error(w, "This is a WebSocket address of a fleetd server, for MCP endpoints.", http.StatusUpgradeRequired)
		return found, "", false
	}
	if addr, _, _ = net.SplitHostPort(r.RemoteAddr); addr == "" {
		addr = r.RemoteAddr
	}
	if limited(w, r, e.dials, addr) {
		e.refuse(w, r, "", http.StatusTooManyRequests, "too many attempts from this address; try again in a minute")
		return found, addr, false
	}
	secret := r.URL.Query().Get("token")
	if scheme, bearer, _ := strings.Cut(r.Header.Get("Authorization"), " "); secret == "" &&
		strings.EqualFold(scheme, "Bearer") {
		secret = strings.TrimSpace(bearer)
	}
	found, err := e.o.Authenticate(kind, secret)
	switch {
	case errors.Is(err, endpoint.ErrDisabled):
		e.refuse(w, r, found.Name, http.StatusForbidden, "this endpoint is disabled; an administrator can enable it")
		return found, addr, false
	case err != nil:
		status, text := http.StatusUnauthorized, fmt.Sprintf("the token is missing, unknown or revoked; "+
			"ask an administrator of fleetd for a %s token of the endpoint", kind)
		if limited(w, r, e.badTokens, addr) {
			status, text = http.StatusTooManyRequests, "too many wrong tokens from this address; try again in a minute"
		}
		e.refuse(w, r, "", status, text)
		return found, addr, false
	}
	return found, addr, true
}

// limited counts the attempt and reports whether the address has exceeded the limit.
func limited(w http.ResponseWriter, r *http.Request, l *httprate.RateLimiter, addr string) bool {
	ip, err := netip.ParseAddr(addr)
	return err == nil && !ip.IsLoopback() && l.OnLimit(w, r, httprate.CanonicalizeIP(addr))
}

// refuse replies to an attempt. The query, which has the token, is not logged.
func (e *Endpoints) refuse(w http.ResponseWriter, r *http.Request, name string, status int, text string) {
	e.log.Debug("connection of an endpoint refused", "endpoint", name, "remote", r.RemoteAddr, "status", status)
	http.Error(w, text, status)
}

// admit registers a connection of a provider. It returns nil and the reply if it is refused.
func (e *Endpoints) admit(found endpoint.Endpoint, addr string) (d *dialled, open *dial, status int, text string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	d = e.of(found.Name)
	switch {
	case e.stopped:
		return d, nil, http.StatusServiceUnavailable, "fleetd stops"
	case d.wanted == nil || d.wanted.Disabled || d.wanted.Provider.Hash != found.Provider.Hash:
		return d, nil, http.StatusUnauthorized, "the token was revoked"
	case !d.pace.Allow():
		return d, nil, http.StatusTooManyRequests, "this endpoint connects too often; wait a second before each attempt"
	case d.wanted.Second == endpoint.Refuse && (d.current != nil || d.pending != nil):
		d.status.Refused++
		return d, nil, http.StatusConflict, "another program is connected with this token; " +
			"each program needs an endpoint of its own"
	}
	if d.pending != nil {
		d.status.Replaced++
		d.pending.finish(fleet.Because("endpoint_replaced"), websocket.CloseNormalClosure)
	}
	open = &dial{token: found.Provider.Hash, addr: addr, done: make(chan struct{})}
	d.pending = open
	d.status.Connections++
	e.serving.Add(1)
	return d, open, 0, ""
}

// leave records the end of a connection.
func (e *Endpoints) leave(d *dialled, open *dial, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if d.pending == open {
		d.pending = nil
	}
	if d.current == open {
		d.current = nil
	}
	reason := open.reason
	switch {
	case !open.ended.IsZero():
	case open.s != nil && open.s.isHung():
		reason = fleet.Because("endpoint_hung")
	case errors.Is(err, errInitialize):
		reason = fleet.Because("endpoint_initialize", "detail", fleet.CleanText(err.Error(), 300))
	case err == nil, errors.Is(err, io.EOF):
		reason = fleet.Because("endpoint_closed")
	default:
		reason = fleet.Because("endpoint_broke", "detail", fleet.CleanText(err.Error(), 300))
	}
	d.status.Ended, d.status.EndedAt = reason, time.Now().UTC()
	close(open.done)
	e.serving.Done()
}

// serve serves the connection of a provider until it ends.
func (e *Endpoints) serve(found endpoint.Endpoint, d *dialled, open *dial) {
	err := e.converse(found, d, open)
	open.socket.close(websocket.CloseNormalClosure, "")
	e.log.Info("endpoint disconnected", "endpoint", found.Name, "remote", open.addr, "err", err)
	e.leave(d, open, err)
}

func (e *Endpoints) converse(found endpoint.Endpoint, d *dialled, open *dial) error {
	ctx := open.socket.life
	e.mu.Lock()
	version := endpointVersions[d.version]
	e.mu.Unlock()
	s, err := d.unit.connectAs(ctx, []string{version}, func() (source, error) {
		return source{transport: open.socket, name: "endpoint", address: open.addr, findsDead: true,
			silent: open.socket.silent.Load,
			close:  func() { _ = open.socket.Close() }}, nil
	})
	if err != nil {
		if _, answered := jsonrpcError(err); answered {
			e.mu.Lock()
			d.version = (d.version + 1) % len(endpointVersions)
			e.mu.Unlock()
		}
		return err
	}
	if err := e.begin(ctx, d, open, s); err != nil {
		s.close()
		return err
	}
	info := s.server()
	e.log.Info("endpoint connected", "endpoint", found.Name, "remote", open.addr, "server", info.Name,
		"version", info.Version, "protocol", s.protocol())
	<-s.lost
	return s.failed
}

// begin makes a connection the endpoint's, and ends the one before it.
func (e *Endpoints) begin(ctx context.Context, d *dialled, open *dial, s *session) error {
	d.saving.Lock()
	defer d.saving.Unlock()
	e.mu.Lock()
	if !open.ended.IsZero() {
		e.mu.Unlock()
		return errors.New("the connection ended before it was ready")
	}
	open.s = s
	d.pending = nil
	before := d.current
	d.current = open
	e.mu.Unlock()
	_, err := s.begin(ctx) // from here on calls go to this connection
	e.mu.Lock()
	defer e.mu.Unlock()
	open.stored = err == nil
	if before != nil {
		d.status.Replaced++
		before.finish(fleet.Because("endpoint_replaced"), websocket.CloseNormalClosure)
	}
	return err
}

// ListChanged notifies the consumers of an endpoint that its tools may be others.
func (e *Endpoints) ListChanged(id fleet.DeviceID) {
	name, ok := strings.CutPrefix(string(id), fleet.EndpointPrefix)
	if !ok {
		return
	}
	e.mu.Lock()
	d := e.known[name]
	e.mu.Unlock()
	if d != nil {
		e.listed(d)
	}
}

// listed notifies consumers that the tools may be others.
func (e *Endpoints) listed(d *dialled) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range d.consumers {
		c.listChanged()
	}
}
