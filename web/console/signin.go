package console

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/attempts"
	"fleetd/fleet/operator"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/request"
	"fleetd/web/ui"
)

func (s *Server) showSignIn(r *http.Request) (pages.Answer, error) {
	next := pages.LocalPath(r.URL.Query().Get("next"))
	if pages.ViewerOf(r.Context()).Operator != nil {
		return pages.GoTo(next)
	}
	return pages.Show(ui.SignInPage{Next: next}.Page())
}

func (s *Server) signIn(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimSpace(r.PostFormValue("name"))
	page := ui.SignInPage{Next: pages.LocalPath(r.PostFormValue("next")), Name: name}
	try, err := s.signInTry(r, name)
	if err != nil {
		s.Fail(w, r, err)
		return
	}
	keys := try.Keys()
	if !s.Attempts.Begin(keys...) {
		page.Slow = true
		w.Header().Set("Retry-After", "60")
		s.Render(w, r, pages.Answer{Status: http.StatusTooManyRequests, Page: page.Page(), Whole: true})
		return
	}
	o, err := s.Operators.SignIn(r.Context(), name, r.PostFormValue("password"))
	if errors.Is(err, fleet.ErrForbidden) {
		s.Log.Warn("sign-in refused", "name", fleet.CleanText(name, 60), "from", request.ClientIP(r))
		if err := s.Attempts.Failed(r.Context(), keys...); err != nil {
			s.Fail(w, r, err)
			return
		}
		page.Failed = true
		s.Render(w, r, pages.Answer{Status: http.StatusUnprocessableEntity, Page: page.Page(), Whole: true})
		return
	}
	if err == nil {
		s.Attempts.Succeeded(keys...)
		err = s.openSession(r, o)
	}
	if err != nil {
		s.Fail(w, r, err)
		return
	}
	pages.KeepBrowser(w, r)
	s.Log.Info("signed in", "operator", o.Name, "from", request.ClientIP(r))
	http.Redirect(w, r, page.Next, http.StatusSeeOther)
}

// signInTry returns a try to sign in. A browser counts as known only for the operator in its
// cookie.
func (s *Server) signInTry(r *http.Request, name string) (attempts.Password, error) {
	try := attempts.Password{Name: name, Address: request.ClientIP(r)}
	known, err := s.Operators.KnownBrowser(r.Context(), pages.Cookie(r, s.browserCookie()))
	if errors.Is(err, fleet.ErrNotFound) {
		return try, nil
	}
	if err != nil {
		return try, err
	}
	o, err := s.Operators.ByName(r.Context(), name)
	if err == nil && o.ID == known.Operator {
		try.Browser = known.ID.String()
	}
	if errors.Is(err, fleet.ErrNotFound) {
		err = nil
	}
	return try, err
}

// checkPassword returns errOldPassword unless the password is the signed-in operator's. Its tries are
// counted separately, so that others cannot use them up.
func (s *Server) checkPassword(ctx context.Context, o operator.Operator, password string) error {
	keys := attempts.Password{Browser: "session of " + o.ID.String()}.Keys()
	if !s.Attempts.Begin(keys...) {
		return errTooManyPasswords
	}
	_, err := s.Operators.SignIn(ctx, o.Name, password)
	switch {
	case err == nil:
		s.Attempts.Succeeded(keys...)
	case errors.Is(err, fleet.ErrForbidden):
		if err = s.Attempts.Failed(ctx, keys...); err == nil {
			err = errOldPassword
		}
	}
	return err
}

func (s *Server) signOut(r *http.Request) (pages.Answer, error) {
	session := s.sessions.Token(r.Context())
	if err := s.closeLogin(r.Context()); err != nil {
		return pages.Answer{}, err
	}
	if err := s.sessions.Destroy(r.Context()); err != nil {
		return pages.Answer{}, err
	}
	if session != "" {
		s.streams.end(session)
	}
	return pages.GoTo(ui.PathSignIn)
}

// admit refuses requests without the role that the route requires. A visitor without a session
// signs in and then returns to the page; the body of a POST is lost, and the response does not
// disclose whether the page exists.
func (s *Server) admit(t pages.Route, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v := pages.ViewerOf(r.Context())
		if t.Role == "" {
			next(w, r)
			return
		}
		if v.Operator == nil {
			askToSignIn(w, r)
			return
		}
		role, err := s.roleFor(r, t, v.Actor())
		if err == nil && !role.Allows(t.Role) {
			err = fleet.Refuse(fleet.ErrForbidden, "forbidden.request", "request", r.Method+" "+r.URL.Path,
				"need", t.Role, "actor", v.Operator.Name, "role", cmp.Or(role, fleet.RoleViewer))
		}
		if err == nil {
			err = consoleModels.Admit(v.Actor(), r.Method+" "+r.URL.Path)
		}
		if err != nil {
			s.Fail(w, r, err)
			return
		}
		next(w, r)
	}
}

// roleFor returns the viewer's role on what the route reaches: on the device or devices in the
// address. A device hidden from the viewer is not found.
func (s *Server) roleFor(r *http.Request, t pages.Route, p fleet.Principal) (fleet.Role, error) {
	role := t.Reach.RoleOf(p)
	if p.Scope == nil || !role.Allows(t.Role) {
		return role, nil
	}
	ctx := r.Context()
	switch campaign, fanOut := chi.URLParam(r, "campaign"), chi.URLParam(r, "fanout"); {
	case t.Reach == access.Device:
		id, err := pages.DeviceID(r)
		if err != nil {
			return "", err
		}
		d, err := s.Devices.Known(ctx, id)
		if err == nil && !p.Sees(d) {
			err = fleet.ErrNotFound
		}
		return p.RoleOn(d), err
	case t.Reach == access.Audience && campaign+fanOut != "":
		find := s.eventSources().FanOut
		if campaign != "" {
			find = s.eventSources().Campaign
		}
		id, err := uuid.Parse(campaign + fanOut)
		if err != nil {
			return "", pages.ErrNoPage
		}
		return p.RoleOnAll(ctx, func(ctx context.Context) error { return find(ctx, id) })
	}
	return role, nil
}

func askToSignIn(w http.ResponseWriter, r *http.Request) {
	back := r.URL.RequestURI()
	if pages.FromHTMX(r) {
		if u, err := url.Parse(r.Header.Get("HX-Current-URL")); err == nil {
			back = u.RequestURI()
		}
	} else if r.Method != http.MethodGet {
		back = ""
	}
	location := ui.PathSignIn
	if back = pages.LocalPath(back); back != ui.PathHome {
		location += "?" + url.Values{"next": {back}}.Encode()
	}
	switch {
	case r.Header.Get("Accept") == "text/event-stream":
		http.Error(w, "sign in first", http.StatusUnauthorized)
	case pages.FromHTMX(r):
		w.Header().Set("HX-Redirect", location)
		w.WriteHeader(http.StatusUnauthorized)
	default:
		http.Redirect(w, r, location, http.StatusSeeOther)
	}
}

var (
	errOldPassword      = fleet.Refuse(fleet.ErrInvalid, "wrong_password")
	errTooManyPasswords = fleet.Refuse(fleet.ErrTooMany, "too_many_attempts.passwords")
)
