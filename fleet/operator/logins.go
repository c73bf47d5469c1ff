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

// A Login is an operator's session in one browser.
type Login struct {
	ID        uuid.UUID
	Operator  uuid.UUID
	CreatedAt time.Time
	SeenAt    time.Time // time of its latest request, to within a minute
	ExpiresAt time.Time
	Address   string // of its latest request
	Agent     string // User-Agent as the browser sent it

	ConfirmedAt time.Time // latest time at which the password was entered
	Browser     uuid.UUID // id of its [KnownBrowser]; [uuid.Nil] if none
}

// A KnownBrowser is a browser in which an operator has signed in. It outlives logins. It ends
// when the password changes, when the operator is disabled, and when one of its sessions is
// ended.
type KnownBrowser struct {
	ID        uuid.UUID
	Operator  uuid.UUID
	Hash      []byte // SHA-256 of the browser's secret
	ExpiresAt time.Time
}

// BrowserLifetime is how long a browser stays known after a sign-in.
const BrowserLifetime = 180 * 24 * time.Hour

// ConfirmedFor is how long an entered password is valid for acts that require a recent one.
const ConfirmedFor = 10 * time.Minute

// LoginStore stores logins.
type LoginStore interface {
	// AddLogin stores the login, the time of the operator's latest sign-in, and the browser
	// with the new hash.
	AddLogin(ctx context.Context, l Login, b KnownBrowser) error
	// KnownBrowser finds a browser by its hash, or returns ErrNotFound.
	KnownBrowser(ctx context.Context, hash []byte, now time.Time) (KnownBrowser, error)
	ConfirmLogin(ctx context.Context, id uuid.UUID, at time.Time) error
	Login(ctx context.Context, id uuid.UUID, now time.Time) (Login, error) // ErrNotFound if it has ended
	// Logins lists the active logins of an operator, most recently used first.
	Logins(ctx context.Context, operator uuid.UUID, now time.Time) ([]Login, error)
	TouchLogin(ctx context.Context, id uuid.UUID, at time.Time, address string) error
	DeleteLogin(ctx context.Context, id uuid.UUID) error // writes no audit entry: the operator signed out
	EndLogin(ctx context.Context, by fleet.Principal, operator, id uuid.UUID) error
	// EndLogins ends all but one and returns how many it ended.
	EndLogins(ctx context.Context, by fleet.Principal, operator, except uuid.UUID) (int, error)
}

// Limits of logins.
const (
	maxAgent   = 300         // stored bytes of a User-Agent
	touchEvery = time.Minute // minimum time between two writes of one login
)

// KnownBrowser returns the browser with this secret, or [fleet.ErrNotFound].
func (s *Service) KnownBrowser(ctx context.Context, secret string) (KnownBrowser, error) {
	if secret == "" || len(secret) > 100 {
		return KnownBrowser{}, fleet.ErrNotFound
	}
	hash := sha256.Sum256([]byte(secret))
	return s.store.KnownBrowser(ctx, hash[:], s.now())
}

// A SignedIn describes the browser of a sign-in.
type SignedIn struct {
	Address, Agent string
	Browser        string // the browser's previous secret, if any
}

// OpenLogin records a sign-in of an operator. It also returns the browser's new secret.
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

// EndIdle makes logins end after they had no request for the given time; 0 disables it. Call
// it before the service is used.
func (s *Service) EndIdle(after time.Duration) { s.idle = after }

// EndOf returns when the login ends if it has no further request.
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

// Confirmed reports whether the password was entered in this login within [ConfirmedFor].
func (s *Service) Confirmed(l Login) bool { return s.now().Sub(l.ConfirmedAt) < ConfirmedFor }

// ConfirmLogin records that the operator entered the password again.
func (s *Service) ConfirmLogin(ctx context.Context, id uuid.UUID) error {
	return s.store.ConfirmLogin(ctx, id, s.now())
}

// Seen records a request of a login.
func (s *Service) Seen(ctx context.Context, l Login, address string) error {
	now, address := s.now(), fleet.CleanText(address, 80)
	if now.Sub(l.SeenAt) < touchEvery && l.Address == address {
		return nil
	}
	return s.store.TouchLogin(ctx, l.ID, now, address)
}

// CloseLogin signs the operator out.
func (s *Service) CloseLogin(ctx context.Context, id uuid.UUID) error {
	return s.store.DeleteLogin(ctx, id)
}

// mayEnd returns nil if the principal may see and end the operator's logins: an admin may for
// everyone, an operator for themselves.
func mayEnd(by fleet.Principal, operator uuid.UUID) error {
	if by.Kind == fleet.KindOperator && by.ID == operator.String() {
		return nil
	}
	return mayManage(by, "end_sessions")
}

// Logins lists the operator's active logins, most recently used first.
func (s *Service) Logins(ctx context.Context, by fleet.Principal, operator uuid.UUID) ([]Login, error) {
	if err := mayEnd(by, operator); err != nil {
		return nil, err
	}
	list, err := s.store.Logins(ctx, operator, s.now())
	return slices.DeleteFunc(list, func(l Login) bool { return !s.now().Before(s.EndOf(l)) }), err
}

// EndLogin signs the operator out of one browser from its next request on.
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

// EndLogins signs the operator out of all browsers except one; [uuid.Nil] means no exception.
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
