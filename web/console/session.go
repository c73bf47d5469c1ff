package console

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/alexedwards/scs/v2"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/operator"
	"fleetd/web/console/pages"
	"fleetd/web/request"
)

// Keys of a session.
const (
	sessionLogin      = "login"      // id
	sessionCredential = "credential" // identifies the password of the sign-in
)

const sessionLifetime = 7 * 24 * time.Hour

// newSessions creates the manager without scs.New, which would start a store with a goroutine that
// never ends.
func newSessions(store scs.CtxStore, https bool) *scs.SessionManager {
	m := &scs.SessionManager{
		Lifetime:         sessionLifetime,
		Store:            store,
		Codec:            scs.GobCodec{},
		HashTokenInStore: true, // the table is not enough to sign in
		Cookie: scs.SessionCookie{Name: "fleetd_session", Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode,
			Persist: true},
	}
	if https {
		m.Cookie.Name, m.Cookie.Secure = "__Host-fleetd_session", true
	}
	return m
}

// signedIn returns the operator and the login of the session, or nil without one. A session
// ends when its login ends, when the password that opened it changes, or when its operator is
// disabled.
func (s *Server) signedIn(ctx context.Context) (*operator.Operator, operator.Login, error) {
	id := s.loginID(ctx)
	if id == uuid.Nil {
		return nil, operator.Login{}, nil
	}
	l, o, err := s.Operators.LoggedIn(ctx, id)
	switch {
	case errors.Is(err, fleet.ErrNotFound):
		return nil, l, nil
	case err != nil:
		return nil, l, err
	case o.DisabledAt != nil || credential(o) != s.sessions.GetString(ctx, sessionCredential):
		return nil, l, nil
	}
	return &o, l, nil
}

// loginID returns the login of the session, or [uuid.Nil].
func (s *Server) loginID(ctx context.Context) uuid.UUID {
	id, _ := uuid.Parse(s.sessions.GetString(ctx, sessionLogin)) // "" before the sign-in
	return id
}

// openSession signs the operator in, under a new session id, because an attacker may have planted
// the old one.
func (s *Server) openSession(r *http.Request, o operator.Operator) error {
	ctx := r.Context()
	if err := s.sessions.RenewToken(ctx); err != nil {
		return err
	}
	if err := s.closeLogin(ctx); err != nil { // of an operator who was signed in here before
		return err
	}
	l, secret, err := s.Operators.OpenLogin(ctx, o, sessionLifetime, operator.SignedIn{Address: request.ClientIP(r),
		Agent: r.UserAgent(), Browser: pages.Cookie(r, s.browserCookie())})
	if err != nil {
		return err
	}
	pages.ViewerOf(ctx).NewBrowser = &http.Cookie{Name: s.browserCookie(), Value: secret, Path: "/", HttpOnly: true,
		MaxAge: int(operator.BrowserLifetime / time.Second), SameSite: http.SameSiteStrictMode,
		Secure: s.sessions.Cookie.Secure}
	s.sessions.Put(ctx, sessionLogin, l.ID.String())
	s.sessions.Put(ctx, sessionCredential, credential(o))
	return nil
}

// browserCookie returns the name of the cookie that marks browsers in which operators have signed
// in.
func (s *Server) browserCookie() string {
	return strings.TrimSuffix(s.sessions.Cookie.Name, "session") + "browser"
}

// closeLogin ends the login of the session, if there is one.
func (s *Server) closeLogin(ctx context.Context) error {
	id := s.loginID(ctx)
	if id == uuid.Nil {
		return nil
	}
	return s.Operators.CloseLogin(ctx, id)
}

// credential identifies a password without disclosing it.
func credential(o operator.Operator) string {
	sum := sha256.Sum256([]byte(o.PasswordHash))
	return hex.EncodeToString(sum[:8])
}
