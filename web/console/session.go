package console

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/alexedwards/scs/v2"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/operator"
	"fleetd/web/request"
	"fleetd/web/ui"
)

// Keys of a session.
const (
	sessionLogin      = "login"      // id
	sessionCredential = "credential" // identifies the password of the sign-in
	sessionFlash      = "flash"
)

const sessionLifetime = 7 * 24 * time.Hour

// newSessions creates the manager without scs.New, which would start a store with a goroutine that
// never ends.
func (s *Server) newSessions(https bool) *scs.SessionManager {
	m := &scs.SessionManager{
		Lifetime:         sessionLifetime,
		Store:            s.Sessions,
		Codec:            scs.GobCodec{},
		HashTokenInStore: true, // the table is not enough to sign in
		ErrorFunc:        s.fail,
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
		Agent: r.UserAgent(), Browser: cookie(r, s.browserCookie())})
	if err != nil {
		return err
	}
	viewerOf(ctx).newBrowser = secret
	s.sessions.Put(ctx, sessionLogin, l.ID.String())
	s.sessions.Put(ctx, sessionCredential, credential(o))
	return nil
}

// browserCookie returns the name of the cookie that marks browsers in which operators have signed
// in.
func (s *Server) browserCookie() string {
	return strings.TrimSuffix(s.sessions.Cookie.Name, "session") + "browser"
}

// keepBrowser sets the cookie that marks a known browser, after a sign-in.
func (s *Server) keepBrowser(w http.ResponseWriter, r *http.Request) {
	if secret := viewerOf(r.Context()).newBrowser; secret != "" {
		http.SetCookie(w, &http.Cookie{Name: s.browserCookie(), Value: secret, Path: "/", HttpOnly: true,
			MaxAge: int(operator.BrowserLifetime / time.Second), SameSite: http.SameSiteStrictMode,
			Secure: s.sessions.Cookie.Secure})
	}
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

// flash stores the outcome of an act for the next page.
func (s *Server) flash(ctx context.Context, f ui.Flash) {
	b, _ := json.Marshal(f) // of strings and a bool
	s.sessions.Put(ctx, sessionFlash, string(b))
}

func (s *Server) takeFlash(ctx context.Context) *ui.Flash {
	if !s.sessions.Exists(ctx, sessionFlash) {
		return nil
	}
	var f ui.Flash
	if json.Unmarshal([]byte(s.sessions.PopString(ctx, sessionFlash)), &f) != nil {
		return nil
	}
	return &f
}

// waitingFor counts the devices that wait for the viewer's decision.
func (s *Server) waitingFor(ctx context.Context, now time.Time) int {
	if _, narrow := fleet.ScopeOf(ctx); !narrow {
		return s.waiting.get(s.Enrolments, now)
	}
	all, err := s.Enrolments.WaitingInScope(ctx)
	if err != nil {
		return 0 // the page itself shows the error
	}
	return len(all)
}

// A waitingCount caches for a moment how many devices wait for a decision, because every page shows
// the number.
type waitingCount struct {
	mu sync.Mutex
	at time.Time
	n  int
}

func (c *waitingCount) get(e *enrolment.Service, now time.Time) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if age := now.Sub(c.at); age < 0 || age > time.Second {
		c.at, c.n = now, len(e.Waiting())
	}
	return c.n
}
