package operator_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/operator"
)

// oneToken is a store with one token. A read returns the token as it was when the read began.
type oneToken struct {
	operator.Store
	token   operator.Token
	reads   int
	reading func() // called while the token is read; may be nil
}

func (s *oneToken) TokenByHash(context.Context, []byte) (operator.Token, error) {
	t := s.token
	s.reads++
	if s.reading != nil {
		s.reading()
	}
	return t, nil
}

func (s *oneToken) TouchToken(context.Context, uuid.UUID, time.Time) error { return nil }

func (s *oneToken) RevokeToken(_ context.Context, _ fleet.Principal, _ uuid.UUID, at time.Time) error {
	s.token.RevokedAt = &at
	return nil
}

// A revoked token ends at once, even if a request is reading it.
func TestRevokedTokenIsNotKept(t *testing.T) {
	admin := fleet.Principal{Name: "ann", Role: fleet.RoleAdmin}
	store := &oneToken{token: operator.Token{ID: uuid.Max, Name: "script", Role: fleet.RoleViewer}}
	operators := operator.New(store)
	revoke := func() {
		if err := operators.Revoke(t.Context(), admin, uuid.Max); err != nil {
			t.Fatal(err)
		}
	}
	authenticate := func() error {
		_, err := operators.Authenticate(t.Context(), "flt_secret")
		return err
	}
	for range 3 {
		if err := authenticate(); err != nil || store.reads != 1 {
			t.Fatalf("a good token: %v after %d reads", err, store.reads)
		}
	}
	revoke()
	if err := authenticate(); !errors.Is(err, fleet.ErrForbidden) {
		t.Errorf("a token that is revoked: %v", err)
	}

	store.token.RevokedAt = nil
	operators = operator.New(store)
	store.reading = revoke
	_ = authenticate() // began before the revocation, so it may succeed
	if err := authenticate(); !errors.Is(err, fleet.ErrForbidden) {
		t.Errorf("a token that was revoked while it was read: %v", err)
	}
}

func TestExpiredTokenEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &oneToken{token: operator.Token{Role: fleet.RoleViewer}}
		operators := operator.New(store)
		soon := time.Now().Add(500 * time.Millisecond)
		store.token.ExpiresAt = &soon
		if _, err := operators.Authenticate(t.Context(), "flt_secret"); err != nil {
			t.Errorf("before the token expires: %v", err)
		}
		time.Sleep(time.Until(soon) + time.Millisecond)
		if _, err := operators.Authenticate(t.Context(), "flt_secret"); !errors.Is(err, fleet.ErrForbidden) {
			t.Errorf("after the token expired: %v", err)
		}
	})
}

// manyTokens is a store of tokens by hash.
type manyTokens struct {
	operator.Store
	tokens map[[32]byte]*operator.Token
}

func (s *manyTokens) TokenByHash(_ context.Context, hash []byte) (operator.Token, error) {
	if t := s.tokens[[32]byte(hash)]; t != nil {
		return *t, nil
	}
	return operator.Token{}, fleet.ErrNotFound
}

func (s *manyTokens) TouchToken(context.Context, uuid.UUID, time.Time) error { return nil }

func (s *manyTokens) RevokeToken(_ context.Context, _ fleet.Principal, id uuid.UUID, at time.Time) error {
	for _, t := range s.tokens {
		if t.ID == id {
			t.RevokedAt = &at
		}
	}
	return nil
}

// The used-up limit of a token is not reset because another token is revoked, or because many
// others are in use.
func TestRevokingClearsNoOtherLimiter(t *testing.T) {
	store := &manyTokens{tokens: make(map[[32]byte]*operator.Token)}
	add := func(secret string, perMinute int) uuid.UUID {
		id := uuid.Must(uuid.NewV7())
		store.tokens[sha256.Sum256([]byte(secret))] = &operator.Token{ID: id, Name: secret, Role: fleet.RoleViewer,
			PerMinute: perMinute}
		return id
	}
	add("flt_busy", 2)
	other := add("flt_other", 0)
	operators := operator.New(store)
	authenticate := func(secret string) error {
		_, err := operators.Authenticate(t.Context(), secret)
		return err
	}
	if err := authenticate("flt_other"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := authenticate("flt_busy"); err != nil {
			t.Fatal(err)
		}
	}
	if err := authenticate("flt_busy"); !errors.Is(err, fleet.ErrTooMany) {
		t.Fatalf("the third request of two a minute: %v", err)
	}
	if err := operators.Revoke(t.Context(), fleet.Principal{Name: "ann", Role: fleet.RoleAdmin}, other); err != nil {
		t.Fatal(err)
	}
	if err := authenticate("flt_busy"); !errors.Is(err, fleet.ErrTooMany) {
		t.Errorf("after another token was revoked: %v", err)
	}
	if err := authenticate("flt_other"); !errors.Is(err, fleet.ErrForbidden) {
		t.Errorf("the revoked token: %v", err)
	}
	for i := range 1100 {
		secret := fmt.Sprint("flt_", i)
		add(secret, 0)
		if err := authenticate(secret); err != nil {
			t.Fatal(err)
		}
	}
	if err := authenticate("flt_busy"); !errors.Is(err, fleet.ErrTooMany) {
		t.Errorf("after 1,100 others were used: %v", err)
	}
}
