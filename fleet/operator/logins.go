package operator

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// A Login is a browser in which an operator is signed in.
type Login struct {
	ID        uuid.UUID
	Operator  uuid.UUID
	CreatedAt time.Time
	SeenAt    time.Time // of its latest request, to within a minute
	ExpiresAt time.Time
	Address   string // of its latest request
	Agent     string // User-Agent, as the browser put it

	ConfirmedAt time.Time // the password was entered, at the sign-in or since
	Browser     uuid.UUID // see [KnownBrowser]; [uuid.Nil] for none
}

// A KnownBrowser is one in which an operator was signed in. It outlives sign-ins,
// and ends with the password, with the operator, and with a session that is ended.
type KnownBrowser struct {
	ID        uuid.UUID
	Operator  uuid.UUID
	Hash      []byte // SHA-256 of the secret that the browser has
	ExpiresAt time.Time
}

// BrowserLifetime is how long a browser stays known after a sign-in.
const BrowserLifetime = 180 * 24 * time.Hour

// ConfirmedFor is how long an entered password is good for acts that ask for it.
const ConfirmedFor = 10 * time.Minute

// LoginStore keeps logins.
type LoginStore interface {
	// AddLogin also notes the operator's latest sign-in, and its browser with the new
	// hash.
	AddLogin(ctx context.Context, l Login, b KnownBrowser) error
	// KnownBrowser finds a browser by its hash, or fails with ErrNotFound.
	KnownBrowser(ctx context.Context, hash []byte, now time.Time) (KnownBrowser, error)
	ConfirmLogin(ctx context.Context, id uuid.UUID, at time.Time) error
	Login(ctx context.Context, id uuid.UUID, now time.Time) (Login, error) // ErrNotFound if it has ended
	// Logins lists those of an operator that have not ended, the latest used first.
	Logins(ctx context.Context, operator uuid.UUID, now time.Time) ([]Login, error)
	TouchLogin(ctx context.Context, id uuid.UUID, at time.Time, address string) error
	DeleteLogin(ctx context.Context, id uuid.UUID) error // without an audit entry: the operator left
	EndLogin(ctx context.Context, by fleet.Principal, operator, id uuid.UUID) error
	// EndLogins ends all but one, and reports how many.
	EndLogins(ctx context.Context, by fleet.Principal, operator, except uuid.UUID) (int, error)
}

// Bounds of logins.
const (
	maxAgent   = 300         // bytes of a User-Agent that are kept
	touchEvery = time.Minute // at most, what is known of a login is written
)

// KnownBrowser returns the browser with this secret, or [fleet.ErrNotFound].
func (s *Service) KnownBrowser(ctx context.Context, secret string) (KnownBrowser, error) {
	if secret == "" || len(secret) > 100 {
		return KnownBrowser{}, fleet.ErrNotFound
	}
	hash := sha256.Sum256([]byte(secret))
	return s.store.KnownBrowser(ctx, hash[:], s.now())
}

// A SignedIn is what a sign-in gives a browser.
type SignedIn struct {
	Address, Agent string
	Browser        string // the secret that the browser had, if any
}

// OpenLogin notes that an operator signed in. It also returns the secret that the
// browser is known by from now on.
func (s *Service) OpenLogin(ctx context.Context, o Operator, lifetime time.Duration, in SignedIn) (Login, string,
	error) {
	known, err := s.KnownBrowser(ctx, in.Browser)
	if err != nil && !errors.Is(err, fleet.ErrNotFound) {
		return Login{}, "", err
	}
	now := s.now()
	b := KnownBrowser{ID: uuid.Must(uuid.NewV7()), Operator: o.ID, ExpiresAt: now.Add(BrowserLifetime)}
	if err == nil && known.Operator == o.ID {
		b.ID = known.ID
	}
	secret := randomSecret()
	hash := sha256.Sum256([]byte(secret))
	b.Hash = hash[:]
	l := Login{ID: uuid.Must(uuid.NewV7()), Operator: o.ID, CreatedAt: now, SeenAt: now, ExpiresAt: now.Add(lifetime),
		Address: fleet.CleanText(in.Address, 80), Agent: fleet.CleanText(in.Agent, maxAgent), ConfirmedAt: now, Browser: b.ID}
	return l, secret, s.store.AddLogin(ctx, l, b)
}

// EndIdle ends logins that had no request for so long; 0 ends none. Call it before
// the service is used.
func (s *Service) EndIdle(after time.Duration) { s.idle = after }

// EndOf is when the login ends if it has no further request.
func (s *Service) EndOf(l Login) time.Time {
	if idle := l.SeenAt.Add(s.idle); s.idle > 0 && idle.Before(l.ExpiresAt) {
		return idle
	}
	return l.ExpiresAt
}

// LoggedIn returns the login and its operator, or [fleet.ErrNotFound] if it has ended.
func (s *Service) LoggedIn(ctx context.Context, id uuid.UUID) (Login, Operator, error) {
	l, err := s.store.Login(ctx, id, s.now())
	if err == nil && !s.now().Before(s.EndOf(l)) {
		err = fleet.ErrNotFound
	}
	if err != nil {
		return Login{}, Operator{}, err
	}
	o, err := s.store.Operator(ctx, l.Operator)
	return l, o, err
}

// Confirmed reports whether the password was entered in this login a short while
// ago.
func (s *Service) Confirmed(l Login) bool { return s.now().Sub(l.ConfirmedAt) < ConfirmedFor }

// ConfirmLogin notes that the operator entered the password again.
func (s *Service) ConfirmLogin(ctx context.Context, id uuid.UUID) error {
	return s.store.ConfirmLogin(ctx, id, s.now())
}

// Seen notes a request of a login.
func (s *Service) Seen(ctx context.Context, l Login, address string) error {
	now, address := s.now(), fleet.CleanText(address, 80)
	if now.Sub(l.SeenAt) < touchEvery && l.Address == address {
		return nil
	}
	return s.store.TouchLogin(ctx, l.ID, now, address)
}

// CloseLogin notes that the operator signed out.
func (s *Service) CloseLogin(ctx context.Context, id uuid.UUID) error {
	return s.store.DeleteLogin(ctx, id)
}

// mayEnd returns nil if the principal may see the operator's logins and end them:
// an admin anyone's, an operator their own.
func mayEnd(by fleet.Principal, operator uuid.UUID) error {
	if by.Kind == fleet.KindOperator && by.ID == operator.String() {
		return nil
	}
	return mayManage(by, "end_sessions")
}

// Logins lists where the operator is signed in, the latest used first.
func (s *Service) Logins(ctx context.Context, by fleet.Principal, operator uuid.UUID) ([]Login, error) {
	if err := mayEnd(by, operator); err != nil {
		return nil, err
	}
	list, err := s.store.Logins(ctx, operator, s.now())
	return slices.DeleteFunc(list, func(l Login) bool { return !s.now().Before(s.EndOf(l)) }), err
}

// EndLogin signs the operator out of one browser, from its next request on.
func (s *Service) EndLogin(ctx context.Context, by fleet.Principal, operator, id uuid.UUID) error {
	if err := mayEnd(by, operator); err != nil {
		return err
	}
	if err := s.store.EndLogin(ctx, by, operator, id); err != nil {
		return err
	}
	s.changes.Add(1)
	return nil
}

// EndLogins signs the operator out of all browsers but one; [uuid.Nil] excepts none.
func (s *Service) EndLogins(ctx context.Context, by fleet.Principal, operator, except uuid.UUID) (int, error) {
	if err := mayEnd(by, operator); err != nil {
		return 0, err
	}
	n, err := s.store.EndLogins(ctx, by, operator, except)
	if err == nil {
		s.changes.Add(1)
	}
	return n, err
}
