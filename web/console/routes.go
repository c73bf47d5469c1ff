package console

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"fleetd/fleet"
	"fleetd/fleet/heavy"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/i18n"
	"fleetd/web/request"
	"fleetd/web/static"
	"fleetd/web/ui"
)

// consoleModels is the declaration of every console route about language models: only operators,
// who are people, sign in.
const consoleModels = fleet.ModelsNever

// table returns every route of the console. Every change is a POST; the test of permissions walks
// this table.
func (s *Server) table() []pages.Route {
	table := slices.Concat(s.ownRoutes(), s.undoRoutes(), s.findRoutes(), s.placeRoutes(), s.apiRoutes())
	for _, room := range s.rooms.all() {
		table = append(table, room.Routes()...)
	}
	return table
}

// ownRoutes are the pages that belong to no room: the sign-in, the overview, and those of a browser.
func (s *Server) ownRoutes() []pages.Route {
	const anyone, viewer, admin = fleet.Role(""), fleet.RoleViewer, fleet.RoleAdmin
	const get, post = http.MethodGet, http.MethodPost
	return []pages.Route{
		{Method: get, Pattern: ui.PathSignIn, Role: anyone, Reach: access.Own, Page: s.showSignIn},
		{Method: post, Pattern: ui.PathSignIn, Role: anyone, Reach: access.Own, Raw: s.signIn},
		{Method: post, Pattern: ui.PathSignOut, Role: anyone, Reach: access.Own, Page: s.signOut},
		{Method: post, Pattern: ui.PathPreferences, Role: anyone, Reach: access.Own, Raw: s.setPreferences},

		{Method: get, Pattern: ui.PathHome, Role: viewer, Reach: access.List, Page: s.showOverview},
		{Method: get, Pattern: ui.PathHelp, Role: viewer, Reach: access.Own, Page: s.showHelp},
		{Method: get, Pattern: ui.PathStyleguide, Role: admin, Reach: access.Own, Page: s.showStyleguide},
		{Method: post, Pattern: ui.PathEquivalent, Role: viewer, Reach: access.Own, Page: s.showEquivalent},
		{Method: get, Pattern: ui.PathEvents, Role: viewer, Reach: access.List, Raw: s.streamEvents},
	}
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
		if !t.Reach.Valid() {
			panic("the route " + t.Method + " " + t.Pattern + " declares no reach")
		}
		r.Method(t.Method, t.Pattern, s.admit(t, s.paced(t, limited(t, s.confirming(t, s.answerer(t))))))
	}
	s.leadToForms(r, table)
	r.NotFound(s.notFound)
	r.MethodNotAllowed(s.methodNotAllowed)
}

func (s *Server) answerer(t pages.Route) http.HandlerFunc {
	if t.Raw != nil {
		return t.Raw
	}
	return s.Serve(t.Page)
}

// paced limits a route's heavy work to its viewer's share, before the body of the request is read.
func (s *Server) paced(t pages.Route, next http.HandlerFunc) http.HandlerFunc {
	if !t.Heavy.Valid() {
		panic("the route " + t.Method + " " + t.Pattern + " declares work that is not known")
	}
	if t.Heavy == heavy.None {
		return next
	}
	return func(w http.ResponseWriter, r *http.Request) {
		done, err := s.Heavy.Begin(r.Context(), pages.ViewerOf(r.Context()).Actor(), t.Heavy)
		if err != nil {
			s.Fail(w, r, err)
			return
		}
		defer done()
		next(w, r)
	}
}

// limited holds a request to the size and time of its route.
func limited(t pages.Route, next http.HandlerFunc) http.HandlerFunc {
	limit := t.Body
	if limit == 0 {
		limit = pages.FormBytes
	}
	return func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, limit)
		if t.Wait > 0 {
			request.Extend(w, time.Minute, t.Wait)
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
	p.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.Fail(w, r, errCrossOrigin) }))
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
	return strings.Contains(r.Header.Get("Accept"), "html") || pages.FromHTMX(r)
}

// anyPage is the route of an address without a page: any signed-in operator may learn that it does
// not exist.
var anyPage = pages.Route{Role: fleet.RoleViewer, Reach: access.Own}

// notFound sends people a page, visitors without a session the sign-in, and devices and programs
// JSON.
func (s *Server) notFound(w http.ResponseWriter, r *http.Request) {
	if forDevices(r.URL.Path) || !readsPages(r) {
		noSuchAddress(w, r)
		return
	}
	s.admit(anyPage, func(w http.ResponseWriter, r *http.Request) { s.Fail(w, r, pages.ErrNoPage) })(w, r)
}

// methodNotAllowed does not redirect devices to the sign-in: their addresses are secrets, and the
// redirect would pass them on.
func (s *Server) methodNotAllowed(w http.ResponseWriter, r *http.Request) {
	if forDevices(r.URL.Path) {
		http.Error(w, http.StatusText(http.StatusMethodNotAllowed), http.StatusMethodNotAllowed)
		return
	}
	s.admit(anyPage, func(w http.ResponseWriter, r *http.Request) {
		page := ui.Failure(pages.InLanguage(r.Context()), http.StatusMethodNotAllowed, "method_not_allowed", "")
		s.Render(w, r, pages.Answer{Status: http.StatusMethodNotAllowed, Page: page.Page(), Whole: true})
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

var errCrossOrigin = fleet.Refuse(fleet.ErrForbidden, "cross_origin")

// noSuchAddress responds to a program that requested an address without a page. OAuth clients show
// error_description to their user.
func noSuchAddress(w http.ResponseWriter, r *http.Request) {
	e := fleet.Refuse(fleet.ErrNotFound, "no_address", "path", request.Redact(r.URL.Path))
	body := map[string]any{"title": http.StatusText(http.StatusNotFound), "status": http.StatusNotFound}
	if forOAuth(r.URL.Path) {
		e = fleet.Refuse(fleet.ErrNotFound, "no_authorization_server")
		body["error"], body["error_description"] = "invalid_request", i18n.ErrorDetail(e)
	}
	body["code"], body["detail"] = e.Code, i18n.ErrorDetail(e)
	data, _ := json.Marshal(body) // only texts and a number
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(http.StatusNotFound)
	_, _ = w.Write(data) // the client may have gone
}
