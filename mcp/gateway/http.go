package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-chi/httprate"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/fleet"
	"fleetd/fleet/origin"
	"fleetd/fleet/outcome"
)

// Where the gateway is mounted.
const (
	prefix         = "/mcp"
	metadataPrefix = "/.well-known/oauth-protected-resource"
)

// Limits of a request.
const (
	maxBody     = 1 << 20 // a campaign may name its devices one by one
	bodyTimeout = 10 * time.Second
)

// firstStateless is the first protocol version without sessions.
const firstStateless = "2026-07-28"

// A caller is the principal that makes a request, or has a session.
type caller struct {
	by     atomic.Pointer[fleet.Principal] // of the latest request
	from   atomic.Pointer[origin.Origin]   // of the latest request; nil if it came over no HTTP
	token  string                          // its id
	server *mcp.Server
	only   fleet.DeviceID // whose server it is, of a plug-in or an endpoint; "" for others
	slot   *slot          // receives the session of an initialize; nil without one
}

type callerKey struct{}

func callerOf(ctx context.Context) *caller {
	c, _ := ctx.Value(callerKey{}).(*caller)
	return c
}

// sends records who sends the next message of the caller's session, and from where.
func (c *caller) sends(request *caller) {
	c.by.Store(request.by.Load())
	c.from.Store(request.from.Load())
}

// ServeHTTP serves /mcp and the paths below it, and the metadata of RFC 9728.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h["X-Content-Type-Options"], h["Cache-Control"] = noSniff, noStore
	if rest, ok := strings.CutPrefix(r.URL.Path, metadataPrefix); ok {
		g.serveMetadata(w, r, rest)
		return
	}
	if e := g.checkSource(r); e != nil {
		g.refuse(w, http.StatusForbidden, e)
		return
	}
	by, ok := g.authenticate(w, r)
	if !ok {
		return
	}
	rest, old := strings.CutSuffix(r.URL.Path, "/sse")
	c := &caller{token: by.ID}
	c.by.Store(&by)
	from := origin.FromRequest(r)
	c.from.Store(&from)
	var err error
	c.server, c.only, err = g.serverFor(fleet.WithScope(r.Context(), by), by, strings.TrimPrefix(rest, prefix))
	if err != nil {
		g.fail(w, err)
		return
	}
	if old {
		g.serveOld(w, r, c)
		return
	}
	switch r.Method {
	case http.MethodPost:
		g.servePost(w, r, c)
	case http.MethodGet, http.MethodDelete:
		id := r.Header.Get(sessionHeader)
		if id == "" { // a client without a session tests whether it can get pushes
			h.Set("Allow", "POST")
			g.refuse(w, http.StatusMethodNotAllowed, fleet.Refuse(fleet.ErrInvalid, "mcp_no_session"))
			return
		}
		g.serveSession(w, r, c, id, nil)
	default:
		h.Set("Allow", "GET, POST, DELETE")
		g.refuse(w, http.StatusMethodNotAllowed, fleet.Refuse(fleet.ErrInvalid, "method_not_allowed", "method",
			r.Method))
	}
}

// Header values of every answer.
var noSniff, noStore = []string{"nosniff"}, []string{"no-store"}

const (
	sessionHeader = "Mcp-Session-Id"
	versionHeader = "Mcp-Protocol-Version"
)

// servePost handles messages: usual calls, messages of a session, an initialize that may
// open one, and all others without a session.
func (g *Gateway) servePost(w http.ResponseWriter, r *http.Request, c *caller) {
	body, status, e := readBody(w, r)
	if e != nil {
		g.refuse(w, status, e)
		return
	}
	if g.serveUsual(w, r, c, body) {
		return
	}
	if e := oneValue(body); e != nil {
		g.refuse(w, http.StatusBadRequest, e)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if id := r.Header.Get(sessionHeader); id != "" {
		g.serveSession(w, r, c, id, body)
		return
	}
	version := r.Header.Get(versionHeader)
	if version < firstStateless && opensSession(body) {
		if c.slot = g.sessions.reserve(c, r.URL.Path); c.slot != nil {
			defer c.slot.settle()
			g.stateful.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, c)))
			return
		}
	}
	ctx := context.WithValue(r.Context(), callerKey{}, c)
	switch {
	case version >= firstStateless && bytes.Contains(body, []byte(`"subscriptions/listen"`)):
		g.serveStream(w, r.WithContext(ctx), c, g.sse)
	case bytes.Contains(body, []byte(`progressToken`)), bytes.Contains(body, []byte(`logLevel`)):
		g.sse.ServeHTTP(w, r.WithContext(ctx))
	default:
		g.json.ServeHTTP(w, r.WithContext(ctx))
	}
}

// opensSession reports whether the body is an initialize.
func opensSession(body []byte) bool {
	if !bytes.Contains(body, []byte(`"initialize"`)) {
		return false
	}
	var m struct{ Method string }
	return json.Unmarshal(body, &m) == nil && m.Method == "initialize"
}

// readBody reads the whole body before anything acts on it.
func readBody(w http.ResponseWriter, r *http.Request) (data []byte, status int, e *fleet.Error) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout))
	var err error
	if n := r.ContentLength; n > 0 && n <= 64<<10 {
		data = make([]byte, n)
		_, err = io.ReadFull(r.Body, data)
	} else {
		data, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	}
	if err == nil {
		return data, 0, nil
	}
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return nil, http.StatusRequestEntityTooLarge,
			fleet.Refuse(fleet.ErrInvalid, "body_too_large.body", "limit", maxBody>>10)
	}
	return nil, http.StatusBadRequest, fleet.Refuse(fleet.ErrInvalid, "broken_body.time", "timeout_ms", bodyTimeout)
}

// oneValue refuses a body in which anything follows the first JSON value: the SDK reads
// only the first, and the client would mistake its answer for the answer to all. Invalid
// JSON is left to the SDK.
func oneValue(body []byte) *fleet.Error {
	d := json.NewDecoder(bytes.NewReader(body))
	var first json.RawMessage
	if d.Decode(&first) != nil || len(bytes.TrimLeft(body[d.InputOffset():], " \t\r\n")) == 0 {
		return nil
	}
	return fleet.Refuse(fleet.ErrInvalid, "mcp_many_values")
}

// serveStream serves a response that stays open. It has no deadline except one for each
// write, and counts against the token's limit. It ends when the gateway closes, and soon
// after the token is revoked or gets other rights.
func (g *Gateway) serveStream(w http.ResponseWriter, r *http.Request, c *caller, next http.Handler) {
	if !g.sessions.openStream(c.token) {
		w.Header().Set("Retry-After", "10")
		g.refuse(w, http.StatusTooManyRequests, fleet.Refuse(fleet.ErrTooMany, "too_many_streams", "limit", maxStreams))
		return
	}
	defer g.sessions.closeStream(c.token)
	ctx, cancel := g.o.Authority.Follow(r.Context(), *c.by.Load())
	defer cancel()
	defer context.AfterFunc(g.life, cancel)()
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Time{})
	_ = rc.SetWriteDeadline(time.Time{})
	next.ServeHTTP(&streamWriter{w, rc}, r.WithContext(ctx))
}

// writeTimeout is how long a client may take to accept one event.
const writeTimeout = 10 * time.Second

// A streamWriter bounds the time of each write, and not of the whole response.
type streamWriter struct {
	http.ResponseWriter
	rc *http.ResponseController
}

func (w *streamWriter) Write(b []byte) (int, error) {
	_ = w.rc.SetWriteDeadline(time.Now().Add(writeTimeout))
	return w.ResponseWriter.Write(b)
}

func (w *streamWriter) Flush() {
	_ = w.rc.SetWriteDeadline(time.Now().Add(writeTimeout))
	_ = w.rc.Flush()
}

// Unwrap is for [http.ResponseController].
func (w *streamWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// checkSource refuses requests of other sites' pages, and host names that were made to
// resolve to this machine (DNS rebinding). A request over the loopback interface must
// name that interface, or the public URL's host, which a proxy on this machine passes on.
func (g *Gateway) checkSource(r *http.Request) *fleet.Error {
	if origin := r.Header.Get("Origin"); origin != "" && !strings.EqualFold(origin, g.public.Scheme+"://"+g.public.Host) {
		return fleet.Refuse(fleet.ErrForbidden, "mcp_origin", "origin", origin, "want",
			g.public.Scheme+"://"+g.public.Host)
	}
	local, _ := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if local != nil && local.IP.IsLoopback() && !isLoopback(r.Host) && !strings.EqualFold(r.Host, g.public.Host) {
		return fleet.Refuse(fleet.ErrForbidden, "mcp_host", "host", r.Host, "want", g.public.Host)
	}
	return nil
}

func isLoopback(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	return strings.EqualFold(name, "localhost") || net.ParseIP(name).IsLoopback()
}

// authenticate returns the principal of the request's token, or writes a refusal and
// returns false.
func (g *Gateway) authenticate(w http.ResponseWriter, r *http.Request) (fleet.Principal, bool) {
	scheme, secret, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	err := error(fleet.Refuse(fleet.ErrForbidden, "token_missing"))
	if ok && strings.EqualFold(scheme, "Bearer") {
		var by fleet.Principal
		if by, err = g.o.Operators.Authenticate(r.Context(), strings.TrimSpace(secret)); err == nil {
			return by, true
		}
	}
	if !errors.Is(err, fleet.ErrForbidden) {
		g.fail(w, err)
		return fleet.Principal{}, false
	}
	challenge := `Bearer resource_metadata="` + g.public.String() + metadataPrefix + prefix + `"`
	if ok {
		challenge += `, error="invalid_token"`
	}
	w.Header().Set("WWW-Authenticate", challenge)
	host, _, noPort := net.SplitHostPort(r.RemoteAddr)
	if noPort != nil {
		host = r.RemoteAddr
	}
	if g.failures.OnLimit(w, r, httprate.CanonicalizeIP(host)) {
		g.refuse(w, http.StatusTooManyRequests, fleet.Refuse(fleet.ErrTooMany, "too_many_attempts.token"))
	} else {
		g.refuse(w, http.StatusUnauthorized, outcome.Of(err).Refusal)
	}
	return fleet.Principal{}, false
}

// serveMetadata describes where clients get a token (RFC 9728). There is no authorization
// server: an administrator creates tokens.
func (g *Gateway) serveMetadata(w http.ResponseWriter, r *http.Request, path string) {
	w.Header().Set("Access-Control-Allow-Origin", "*") // it is public, and contains no secret
	if path == "" {
		path = prefix
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET")
		g.refuse(w, http.StatusMethodNotAllowed, fleet.Refuse(fleet.ErrInvalid, "method_not_allowed", "method",
			r.Method))
		return
	}
	if path != prefix && !strings.HasPrefix(path, prefix+"/") || len(path) > 200 {
		g.refuse(w, http.StatusNotFound, fleet.Refuse(fleet.ErrNotFound, "not_found"))
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"resource": g.public.String() + path, "resource_name": "fleetd",
		"bearer_methods_supported": []string{"header"}})
}

// fail answers with an error of a service.
func (g *Gateway) fail(w http.ResponseWriter, err error) {
	o := outcome.Of(err)
	if o.Refusal == nil {
		g.log.Error("MCP request failed", "err", err)
		o.Refusal = fleet.Refuse(fleet.ErrUnavailable, "unavailable")
	}
	if o.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(o.RetryAfter))
	}
	g.refuse(w, o.Status, o.Refusal)
}

// refuse answers a request before it reaches the protocol.
func (g *Gateway) refuse(w http.ResponseWriter, status int, e *fleet.Error) {
	writeJSON(w, status, map[string]any{"code": e.Code, "detail": g.o.Texts.Error(e)})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	data, _ := json.Marshal(v)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(status)
	_, _ = w.Write(data) // the client may be gone
}
