package fleet

import (
	"context"
	"time"

	"github.com/google/uuid"
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
}

// LoginStore keeps logins.
type LoginStore interface {
	// AddLogin also notes the operator's latest sign-in.
	AddLogin(ctx context.Context, l Login) error
	Login(ctx context.Context, id uuid.UUID, now time.Time) (Login, error) // ErrNotFound if it has ended
	// Logins lists those of an operator that have not ended, the latest used first.
	Logins(ctx context.Context, operator uuid.UUID, now time.Time) ([]Login, error)
	TouchLogin(ctx context.Context, id uuid.UUID, at time.Time, address string) error
	DeleteLogin(ctx context.Context, id uuid.UUID) error // without an audit entry: the operator left
	EndLogin(ctx context.Context, by Principal, operator, id uuid.UUID) error
	// EndLogins ends all but one, and reports how many.
	EndLogins(ctx context.Context, by Principal, operator, except uuid.UUID) (int, error)
}

// Bounds of logins.
const (
	maxAgent   = 300         // bytes of a User-Agent that are kept
	touchEvery = time.Minute // at most, what is known of a login is written
)

// OpenLogin notes that an operator signed in.
func (s *Operators) OpenLogin(ctx context.Context, o Operator, lifetime time.Duration, address, agent string) (Login,
	error) {
	now := s.now()
	l := Login{ID: uuid.Must(uuid.NewV7()), Operator: o.ID, CreatedAt: now, SeenAt: now, ExpiresAt: now.Add(lifetime),
		Address: CleanText(address, 80), Agent: CleanText(agent, maxAgent)}
	return l, s.store.AddLogin(ctx, l)
}

// LoggedIn returns the login and its operator, or [ErrNotFound] if it has ended.
func (s *Operators) LoggedIn(ctx context.Context, id uuid.UUID) (Login, Operator, error) {
	l, err := s.store.Login(ctx, id, s.now())
	if err != nil {
		return Login{}, Operator{}, err
	}
	o, err := s.store.Operator(ctx, l.Operator)
	return l, o, err
}

// Seen notes a request of a login.
func (s *Operators) Seen(ctx context.Context, l Login, address string) error {
	now, address := s.now(), CleanText(address, 80)
	if now.Sub(l.SeenAt) < touchEvery && l.Address == address {
		return nil
	}
	return s.store.TouchLogin(ctx, l.ID, now, address)
}

// CloseLogin notes that the operator signed out.
func (s *Operators) CloseLogin(ctx context.Context, id uuid.UUID) error {
	return s.store.DeleteLogin(ctx, id)
}

// mayEnd returns nil if the principal may see the operator's logins and end them:
// an admin anyone's, an operator their own.
func mayEnd(by Principal, operator uuid.UUID) error {
	if by.Kind == KindOperator && by.ID == operator.String() {
		return nil
	}
	return by.mayManage("end_sessions")
}

// Logins lists where the operator is signed in, the latest used first.
func (s *Operators) Logins(ctx context.Context, by Principal, operator uuid.UUID) ([]Login, error) {
	if err := mayEnd(by, operator); err != nil {
		return nil, err
	}
	return s.store.Logins(ctx, operator, s.now())
}

// EndLogin signs the operator out of one browser, from its next request on.
func (s *Operators) EndLogin(ctx context.Context, by Principal, operator, id uuid.UUID) error {
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
func (s *Operators) EndLogins(ctx context.Context, by Principal, operator, except uuid.UUID) (int, error) {
	if err := mayEnd(by, operator); err != nil {
		return 0, err
	}
	n, err := s.store.EndLogins(ctx, by, operator, except)
	if err == nil {
		s.changes.Add(1)
	}
	return n, err
}
