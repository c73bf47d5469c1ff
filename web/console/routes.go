package console

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/heavy"
	"fleetd/fleet/picture"
	"fleetd/web/access"
	"fleetd/web/request"
	"fleetd/web/static"
	"fleetd/web/ui"
)

// Limits of a request's body.
const (
	formBytes   = 64 << 10
	uploadBytes = picture.MaxSnapshotBytes + formBytes
)

// A route is one address of the console: its permissions, its subject and its handler. Routes
// without a role are open to all.
type route struct {
	method, pattern string
	role            fleet.Role
	reach           access.Reach
	page            handler          // returns a page, or
	raw             http.HandlerFunc // writes the response itself
	body            int64            // bytes; 0 means formBytes
	wait            time.Duration    // additional time for the response
	heavy           heavy.Work       // its cost
	confirm         bool             // requires the password again, see [Server.confirming]
}

// consoleModels is the declaration of every console route about language models: only operators,
// who are people, sign in.
const consoleModels = fleet.ModelsNever

// table returns every route of the console. Every change is a POST; the test of permissions walks
// this table.
func (s *Server) table() []route {
	const anyone, viewer, operator, admin = fleet.Role(""), fleet.RoleViewer, fleet.RoleOperator, fleet.RoleAdmin
	const get, post = http.MethodGet, http.MethodPost
	device := ui.PathDevices + "/{device}"
	aCall := ui.PathCalls + "/{call}"
	fanOut := ui.PathFanOuts + "/{fanout}"
	return slices.Concat(s.firmwareRoutes(), s.flashRoutes(), s.campaignRoutes(), s.healthRoutes(), s.logRoutes(),
		s.enrolmentRoutes(), s.replaceRoutes(), s.keyRoutes(), s.filterRoutes(), s.policyRoutes(), s.upstreamRoutes(),
		s.approvalRoutes(), s.alertRoutes(), s.operatorRoutes(), s.webhookRoutes(), s.logStreamRoutes(), s.redactionRoutes(),
		s.systemRoutes(), s.clusterRoutes(),
		s.pluginRoutes(), s.endpointRoutes(), s.mqtt5Routes(), s.findRoutes(), s.auditRoutes(), s.recordRoutes(),
		s.bulkRoutes(), s.fileRoutes(), s.scheduleRoutes(),
		s.completeRoutes(), s.catalogueRoutes(), s.historyRoutes(), s.dashboardRoutes(), s.pictureRoutes(), s.undoRoutes(),
		s.apiRoutes(),
		s.placeRoutes(), s.changeRoutes(),
		[]route{
			{method: get, pattern: ui.PathSignIn, role: anyone, reach: access.Own, page: s.showSignIn},
			{method: post, pattern: ui.PathSignIn, role: anyone, reach: access.Own, raw: s.signIn},
			{method: post, pattern: ui.PathSignOut, role: anyone, reach: access.Own, page: s.signOut},
			{method: post, pattern: ui.PathPreferences, role: anyone, reach: access.Own, raw: s.setPreferences},

			{method: get, pattern: ui.PathHome, role: viewer, reach: access.List, page: s.showOverview},
			{method: get, pattern: ui.PathHelp, role: viewer, reach: access.Own, page: s.showHelp},
			{method: get, pattern: ui.PathStyleguide, role: admin, reach: access.Own, page: s.showStyleguide},
			{method: post, pattern: ui.PathEquivalent, role: viewer, reach: access.Own, page: s.showEquivalent},
			{method: get, pattern: ui.PathEvents, role: viewer, reach: access.List, raw: s.streamEvents},

			{method: get, pattern: ui.PathDevices, role: viewer, reach: access.List, page: s.listDevices},
			{method: get, pattern: device, role: viewer, reach: access.Device, page: s.showDevice},
			{method: get, pattern: device + "/tools", role: viewer, reach: access.Device, page: s.showTools},
			{method: get, pattern: device + "/tools/{tool}", role: viewer, reach: access.Device, page: s.showTools},
			{method: post, pattern: device + "/tools/{tool}", role: operator, reach: access.Device,
				page: s.callTool, body: uploadBytes,
				wait: call.MaxTimeout + 2*time.Minute},
			{method: post, pattern: device + "/tools/{tool}/pin", role: admin, reach: access.Fleet, page: s.pinTool,
				confirm: true},
			{method: post, pattern: device + "/tools/{tool}/release", role: admin, reach: access.Fleet,
				page: s.releaseTool, confirm: true},
			{method: post, pattern: device + "/tools/{tool}/unpin", role: admin, reach: access.Fleet,
				page: s.unpinTool, confirm: true},
			{method: get, pattern: device + "/activity", role: viewer, reach: access.Device, page: s.showActivity},
			{method: get, pattern: device + "/firmware", role: viewer, reach: access.Device, page: s.showFirmware},
			{method: get, pattern: device + "/facts", role: viewer, reach: access.Device, page: s.showFacts},
			{method: get, pattern: device + "/name", role: operator, reach: access.Device, page: s.showName},
			{method: post, pattern: device + "/edit", role: operator, reach: access.Device, page: s.editDevice},
			{method: post, pattern: device + "/hold", role: operator, reach: access.Device, page: s.holdDevice},
			{method: post, pattern: device + "/release", role: operator, reach: access.Device, page: s.releaseDevice},
			{method: post, pattern: device + "/approve", role: operator, reach: access.Device, page: s.approveDevice},
			{method: post, pattern: device + "/reject", role: operator, reach: access.Device, page: s.rejectDevice},
			{method: post, pattern: device + "/resolve-conflict", role: operator, reach: access.Device,
				page: s.resolveConflict},
			{method: post, pattern: device + "/retire", role: admin, reach: access.Device, page: s.retireDevice},

			{method: get, pattern: ui.PathClaim, role: viewer, reach: access.List, page: s.showClaim},
			{method: post, pattern: ui.PathClaim, role: operator, reach: access.Record, page: s.claimDevice},

			{method: get, pattern: ui.PathCalls, role: viewer, reach: access.List, page: s.listCalls},
			{method: get, pattern: ui.PathCallsExport, role: viewer, reach: access.List, raw: s.exportCalls,
				wait: 2 * time.Minute, heavy: heavy.Export},
			{method: get, pattern: aCall, role: viewer, reach: access.Record, page: s.showCall},
			{method: post, pattern: aCall + "/interrupt", role: operator, reach: access.Record, page: s.interruptCall},
			{method: post, pattern: aCall + "/cancel", role: operator, reach: access.Record, page: s.cancelCall},
			{method: get, pattern: ui.PathConversations, role: viewer, reach: access.List, page: s.listConversations},
			{method: get, pattern: ui.PathConversations + "/{conversation}", role: viewer, reach: access.Record,
				page: s.showConversation},
			{method: get, pattern: aCall + "/images/{n}", role: viewer, reach: access.Record, raw: s.sendCallImage},
			{method: get, pattern: "/snapshots/{snapshot}", role: viewer, reach: access.Record, raw: s.sendSnapshot},

			{method: get, pattern: ui.PathFanOuts, role: viewer, reach: access.List, page: s.listFanOuts},
			{method: get, pattern: ui.PathFanOutNew, role: operator, reach: access.Audience, page: s.planFanOut,
				heavy: heavy.Preview},
			{method: post, pattern: ui.PathFanOuts, role: operator, reach: access.Audience, page: s.createFanOut,
				heavy: heavy.Preview},
			{method: get, pattern: fanOut, role: viewer, reach: access.Audience, page: s.showFanOut},
			{method: get, pattern: fanOut + "/answers.csv", role: viewer, reach: access.Audience, raw: s.sendAnswers,
				wait: 2 * time.Minute, heavy: heavy.Export},
			{method: post, pattern: fanOut + "/cancel", role: operator, reach: access.Audience, page: s.cancelFanOut},

			{method: get, pattern: ui.PathSettings, role: viewer, reach: access.Own, page: s.showSettings},
			{method: post, pattern: ui.PathSettings + "/tokens", role: admin, reach: access.Fleet,
				page: s.createToken, confirm: true},
			{method: post, pattern: ui.PathSettings + "/tokens/{token}/revoke", role: admin, reach: access.Fleet,
				page: s.revokeToken, confirm: true},
		})
}

// Routes adds the pages, their assets, and the response for unknown addresses.
func (s *Server) Routes(r chi.Router) {
	page := request.Deadlines(30*time.Second, time.Minute)
	r.With(page, protectBrowsers).Handle(static.Prefix+"*", static.Handler())
	r.Group(func(r chi.Router) {
		r.Use(page)
		s.pages(r)
	})
}

func (s *Server) pages(r chi.Router) {
	r.Use(protectBrowsers, middleware.Compress(4, "text/html"), s.refuseCrossOrigin(s.public), s.sessions.LoadAndSave,
		s.withViewer)
	table := s.table()
	for _, t := range table {
		if !t.reach.Valid() {
			panic("the route " + t.method + " " + t.pattern + " declares no reach")
		}
		r.Method(t.method, t.pattern, s.admit(t, s.paced(t, limited(t, s.confirming(t, s.answerer(t))))))
	}
	s.leadToForms(r, table)
	r.NotFound(s.notFound)
	r.MethodNotAllowed(s.methodNotAllowed)
}

func (s *Server) answerer(t route) http.HandlerFunc {
	if t.raw != nil {
		return t.raw
	}
	return s.serve(t.page)
}

// paced limits a route's heavy work to its viewer's share, before the body of the request is read.
func (s *Server) paced(t route, next http.HandlerFunc) http.HandlerFunc {
	if !t.heavy.Valid() {
		panic("the route " + t.method + " " + t.pattern + " declares work that is not known")
	}
	if t.heavy == heavy.None {
		return next
	}
	return func(w http.ResponseWriter, r *http.Request) {
		done, err := s.Heavy.Begin(r.Context(), viewerOf(r.Context()).actor(), t.heavy)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		defer done()
		next(w, r)
	}
}

// limited holds a request to the size and time of its route.
func limited(t route, next http.HandlerFunc) http.HandlerFunc {
	limit := t.body
	if limit == 0 {
		limit = formBytes
	}
	return func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, limit)
		if t.wait > 0 {
			request.Extend(w, time.Minute, t.wait)
		}
		next(w, r)
	}
}

// refuseCrossOrigin prevents pages of other sites from acting in an operator's name. It also trusts
// the public URL, because behind a proxy the Host may differ from the browser's.
func (s *Server) refuseCrossOrigin(public *url.URL) func(http.Handler) http.Handler {
	p := http.NewCrossOriginProtection()
	if err := p.AddTrustedOrigin(public.Scheme + "://" + public.Host); err != nil {
		s.Log.Warn("public URL not trusted as an origin", "err", err)
	}
	p.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.fail(w, r, errCrossOrigin) }))
	return p.Handler
}

// forDevices reports whether the address is one for devices or programs, not a page.
func forDevices(path string) bool {
	for _, prefix := range []string{"/xiaozhi/", "/u/", "/d/", "/vision/", "/api/", "/mcp", "/.well-known/"} {
		if strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return forOAuth(path)
}

// forOAuth reports whether OAuth clients look here for an authorization server. They follow
// redirects, and would report a page as broken JSON.
func forOAuth(path string) bool {
	return path == "/register" || path == "/authorize" || path == "/token" ||
		strings.HasPrefix(path, "/.well-known/oauth-") || strings.HasPrefix(path, "/.well-known/openid-")
}

// readsPages reports whether the request came from a browser, which lists HTML in Accept, or from
// htmx. Programs accept JSON, or anything.
func readsPages(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "html") || fromHTMX(r)
}

// anyPage is the route of an address without a page: any signed-in operator may learn that it does
// not exist.
var anyPage = route{role: fleet.RoleViewer, reach: access.Own}

// notFound sends people a page, visitors without a session the sign-in, and devices and programs
// JSON.
func (s *Server) notFound(w http.ResponseWriter, r *http.Request) {
	if forDevices(r.URL.Path) || !readsPages(r) {
		noSuchAddress(w, r)
		return
	}
	s.admit(anyPage, func(w http.ResponseWriter, r *http.Request) { s.fail(w, r, errNoPage) })(w, r)
}

// methodNotAllowed does not redirect devices to the sign-in: their addresses are secrets, and the
// redirect would pass them on.
func (s *Server) methodNotAllowed(w http.ResponseWriter, r *http.Request) {
	if forDevices(r.URL.Path) {
		http.Error(w, http.StatusText(http.StatusMethodNotAllowed), http.StatusMethodNotAllowed)
		return
	}
	s.admit(anyPage, func(w http.ResponseWriter, r *http.Request) {
		page := ui.Failure(inLanguage(r.Context()), http.StatusMethodNotAllowed, "method_not_allowed", "")
		s.render(w, r, answer{status: http.StatusMethodNotAllowed, page: page.Page(), whole: true})
	})(w, r)
}

// protectBrowsers sets the headers that protect a page's reader.
func protectBrowsers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", ui.CSP)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Permissions-Policy", "camera=(), microphone=(), geolocation=(), serial=()")
		next.ServeHTTP(w, r)
	})
}
