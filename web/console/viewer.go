package console

import (
	"net/http"
	"net/url"
	"sync"
	"time"
	_ "time/tzdata"

	"fleetd/fleet"
	"fleetd/fleet/operator"
	"fleetd/fleet/origin"
	"fleetd/web/console/pages"
	"fleetd/web/i18n"
	"fleetd/web/request"
)

// small containers have no zone files

// Cookies with a browser's preferences. The script writes the zone.
const (
	cookieLang    = "fleetd_lang"
	cookieTheme   = "fleetd_theme"
	cookieDensity = "fleetd_density"
	cookieZone    = "fleetd_zone"
)

// withViewer identifies the viewer. An operator who was disabled, whose password has changed since,
// or whose session was ended, is signed out with the next request.
func (s *Server) withViewer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		operator, login, err := s.signedIn(r.Context())
		// An open live page alone does not count as use of the session.
		if operator != nil && err == nil && r.Header.Get("Accept") != "text/event-stream" {
			err = s.Operators.Seen(r.Context(), login, request.ClientIP(r))
		}
		v := &pages.Viewer{Operator: operator, Login: login, Lang: language(w, r, operator),
			Theme: pages.Cookie(r, cookieTheme), Density: pages.Cookie(r, cookieDensity), Zone: zone(r)}
		ctx := origin.With(pages.WithViewer(r.Context(), v), origin.FromRequest(r))
		r = r.WithContext(fleet.WithScope(ctx, v.Actor()))
		if err != nil {
			s.Fail(w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// language returns the language in the address, or else the browser's earlier choice, the
// operator's choice, or the browser's preference, in this order.
func language(w http.ResponseWriter, r *http.Request, operator *operator.Operator) i18n.Lang {
	if asked := r.URL.Query().Get("lang"); known(asked) {
		pages.SetPreference(w, r, cookieLang, asked)
		return i18n.Lang(asked)
	}
	choice := pages.Cookie(r, cookieLang)
	if operator != nil && !known(choice) {
		choice = operator.Locale
	}
	return i18n.Match(choice, r)
}

func known(lang string) bool {
	for _, l := range i18n.Langs {
		if lang == string(l) {
			return true
		}
	}
	return false
}

// zones caches the zones that browsers have sent, because reading a zone reads a file.
var zones sync.Map

// zone returns the browser's time zone; the very first page is in UTC.
func zone(r *http.Request) *time.Location {
	name, err := url.QueryUnescape(pages.Cookie(r, cookieZone))
	if err != nil || len(name) > 64 || name == "Local" {
		return time.UTC
	}
	if z, ok := zones.Load(name); ok {
		return z.(*time.Location)
	}
	z, err := time.LoadLocation(name)
	if err != nil {
		return time.UTC
	}
	zones.Store(name, z) // only existing names: a few hundred
	return z
}
