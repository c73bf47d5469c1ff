package authority_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"fleetd/fleet"
	"fleetd/fleet/authority"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/operator"
	"fleetd/fleet/postgres"
	"fleetd/fleet/postgres/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, pgtest.LeakOption()) }

var admin = fleet.Principal{Kind: fleet.KindSystem, Name: "fleetd", Role: fleet.RoleAdmin}

// A world has the operators of two processes on one database, and the authority of the first
// process.
type world struct {
	store     *postgres.Store
	ours      *operator.Service
	others    *operator.Service
	authority *authority.Service
	reads     atomic.Int64
	broken    atomic.Bool
}

var errAway = errors.New("the database is away")

func (w *world) PrincipalNow(ctx context.Context, p fleet.Principal, now time.Time) (fleet.Principal, error) {
	w.reads.Add(1)
	if w.broken.Load() {
		return fleet.Principal{}, errAway
	}
	return w.store.PrincipalNow(ctx, p, now)
}

func newWorld(t *testing.T, maxAge time.Duration) *world {
	w := &world{store: postgres.New(pgtest.New(t), postgres.Options{})}
	w.ours, w.others = operator.New(w.store), operator.New(w.store)
	w.authority = authority.New(authority.Options{Store: w, Changes: w.ours.Changes, MaxAge: maxAge})
	return w
}

func (w *world) token(t *testing.T, scope string) (operator.Token, fleet.Principal) {
	t.Helper()
	made, _, err := w.ours.NewToken(t.Context(), admin, operator.TokenRequest{Name: "script", Role: fleet.RoleOperator,
		Scope: scope})
	if err != nil {
		t.Fatal(err)
	}
	return made, made.Principal()
}

func TestRevocationInThisProcessCountsAtOnce(t *testing.T) {
	w := newWorld(t, time.Hour)
	made, p := w.token(t, "tag:lab")
	for range 3 {
		now, err := w.authority.PrincipalNow(t.Context(), fleet.Principal{Kind: p.Kind, ID: p.ID, Name: p.Name})
		if err != nil || !now.SameAccess(p) {
			t.Fatalf("PrincipalNow = %+v, %v, want %+v", now, err, p)
		}
	}
	if n := w.reads.Load(); n != 1 {
		t.Errorf("three questions cost %d reads, want 1", n)
	}
	if err := w.ours.Revoke(t.Context(), admin, made.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := w.authority.PrincipalNow(t.Context(), p); !errors.Is(err, fleet.ErrActorGone) {
		t.Errorf("after the revocation: %v, want %v", err, fleet.ErrActorGone)
	}
}

func TestRevocationElsewhereCountsAfterMaxAge(t *testing.T) {
	w := newWorld(t, time.Nanosecond)
	made, p := w.token(t, "")
	if _, err := w.authority.PrincipalNow(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := w.others.Revoke(t.Context(), admin, made.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := w.authority.PrincipalNow(t.Context(), p); !errors.Is(err, fleet.ErrActorGone) {
		t.Errorf("after the revocation: %v, want %v", err, fleet.ErrActorGone)
	}
}

func TestUnreadableRightsAreNoAnswer(t *testing.T) {
	w := newWorld(t, time.Nanosecond)
	_, p := w.token(t, "")
	w.broken.Store(true)
	if _, err := w.authority.PrincipalNow(t.Context(), p); !errors.Is(err, errAway) || errors.Is(err, fleet.ErrActorGone) {
		t.Errorf("while the database is away: %v, want %v", err, errAway)
	}
}

func TestPrincipalsWithoutRowStay(t *testing.T) {
	w := newWorld(t, time.Nanosecond)
	if now, err := w.authority.PrincipalNow(t.Context(), admin); err != nil || !now.Same(admin) {
		t.Errorf("the system = %+v, %v", now, err)
	}
}

func TestFollowEnds(t *testing.T) {
	tests := []struct {
		name   string
		change func(t *testing.T, w *world, o operator.Operator)
		cause  error
	}{
		{"disabled", func(t *testing.T, w *world, o operator.Operator) {
			if err := w.others.SetDisabled(t.Context(), admin, o.ID, true); err != nil {
				t.Fatal(err)
			}
		}, fleet.ErrActorGone},
		{"narrowed", func(t *testing.T, w *world, o operator.Operator) {
			access := operator.Access{Role: fleet.RoleOperator, Scope: "tag:lab"}
			if err := w.others.SetAccess(t.Context(), admin, o.ID, access); err != nil {
				t.Fatal(err)
			}
		}, authority.ErrChanged},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, 10*time.Millisecond)
			o, err := w.ours.Create(t.Context(), admin, operator.Request{Name: "bob", Password: "long enough, surely",
				Access: operator.Access{Role: fleet.RoleOperator}})
			if err != nil {
				t.Fatal(err)
			}
			ctx, end := w.authority.Follow(t.Context(), o.Principal())
			defer end()
			w.broken.Store(true) // does not end the context
			before := w.reads.Load()
			fleettest.Eventually(t, "the rights were read twice", func() bool { return w.reads.Load() >= before+2 })
			w.broken.Store(false)
			if ctx.Err() != nil {
				t.Fatalf("ended while nothing changed: %v", context.Cause(ctx))
			}
			tt.change(t, w, o)
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, tt.cause) {
				t.Errorf("cause = %v, want %v", cause, tt.cause)
			}
		})
	}
}
