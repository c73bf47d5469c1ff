package lease

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
)

// A row is the lease in a database that can be unavailable.
type row struct {
	mu    sync.Mutex
	lease Lease
	away  bool
	until time.Time
	// reasons of the terms
	reasons []Reason
}

var errAway = errors.New("the database is away")

func (r *row) access(f func()) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.away {
		return errAway
	}
	f()
	return nil
}

func (r *row) Current(context.Context) (l Lease, err error) {
	err = r.access(func() {
		l = r.lease
		l.Left = time.Until(r.until)
	})
	return l, err
}

func (r *row) Replace(_ context.Context, over Lease, why Reason, by uuid.UUID, h Holder) (l Lease, ok bool, err error) {
	err = r.access(func() {
		if ok = r.lease.same(over); ok {
			r.lease = Lease{Term: r.lease.Term + 1, Incarnation: by, Holder: h, Since: time.Now(), RenewedAt: time.Now()}
			r.until = time.Now().Add(Length)
			r.reasons = append(r.reasons, why)
		}
		l = r.lease
	})
	return l, ok, err
}

func (r *row) Renew(_ context.Context, incarnation uuid.UUID) (ok bool, err error) {
	err = r.access(func() {
		if ok = r.lease.Incarnation == incarnation; ok {
			r.lease.RenewedAt, r.until = time.Now(), time.Now().Add(Length)
		}
	})
	return ok, err
}

func (r *row) Release(_ context.Context, incarnation uuid.UUID) error {
	return r.access(func() {
		if r.lease.Incarnation == incarnation {
			r.lease.Released, r.until = true, time.Now()
		}
	})
}

func (r *row) Close() {}

func (r *row) setAway(away bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.away = away
}

// keeper returns a keeper on another machine, whose process cannot be checked.
func (r *row) keeper(name string) *Keeper { return r.keeperWith(name, Options{}) }

func (r *row) keeperWith(name string, o Options) *Keeper {
	return NewKeeper(r, Holder{Host: name, PID: 1, Version: "1"}, o)
}

// run runs the keeper until stop is called; stop returns the result of Run.
func run(k *Keeper) (stop func() error, ended <-chan error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	return func() error { cancel(); return <-done }, done
}

func acquire(t *testing.T, k *Keeper, wantTerm int) {
	t.Helper()
	if l, err := k.Acquire(t.Context()); err != nil || l.Term != wantTerm || !k.Held() {
		t.Fatalf("Acquire = term %d, %v, held %v; want term %d", l.Term, err, k.Held(), wantTerm)
	}
}

func TestOneHolderAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &row{}
		first, second := r.keeper("first"), r.keeper("second")
		acquire(t, first, 1)
		stop, _ := run(first)
		time.Sleep(time.Hour)
		began := time.Now()
		var held *HeldError
		if _, err := second.Acquire(t.Context()); !errors.As(err, &held) || held.By.Host != "first" {
			t.Errorf("a second holder: %v", err)
		}
		if waited := time.Since(began); waited > RenewEvery+look {
			t.Errorf("refused after %v", waited)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if first.Held() {
			t.Error("held after it was released")
		}
		began = time.Now()
		acquire(t, second, 2)
		if waited := time.Since(began); waited != 0 {
			t.Errorf("a released lease was waited for: %v", waited)
		}
	})
}

// A process waits at most the length of a lease for a holder that died, even if a migration
// then takes long.
func TestDeadHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &row{}
		acquire(t, r.keeper("first"), 1)
		time.Sleep(time.Hour) // the holder may be alive while the database was unavailable
		began := time.Now()
		var waited time.Duration
		acquire(t, r.keeperWith("second", Options{Prepare: func(context.Context) error {
			waited = time.Since(began)
			time.Sleep(time.Minute)
			return nil
		}}), 2)
		if waited < Length || waited > Length+look || time.Since(began) != waited+time.Minute {
			t.Errorf("waited %v, with the migration %v", waited, time.Since(began))
		}
	})
}

// A process does not wait for a holder on this machine that has ended.
func TestEndedProcess(t *testing.T) {
	if machine() == "" {
		t.Skip("this system does not name its boot")
	}
	this := ThisProcess("n", "1")
	if this.gone() {
		t.Error("this process is gone")
	}
	reused := this
	reused.Process += "0" // started later
	absent := this
	absent.PID = 1 << 30
	for _, h := range []Holder{reused, absent} {
		if !h.gone() {
			t.Errorf("%+v is not gone", h)
		}
	}
	elsewhere, unknown := absent, absent
	elsewhere.Process, unknown.Process = "another/1", ""
	for _, h := range []Holder{elsewhere, unknown} {
		if h.gone() {
			t.Errorf("%+v is gone", h)
		}
	}
}

// While the database is unavailable, the holder makes no calls after the length of the lease.
// When the database is back, the holder continues in the same term if it was not replaced.
func TestDatabaseAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &row{}
		k := r.keeper("first")
		acquire(t, k, 1)
		stop, _ := run(k)
		ctx, end := context.WithCancel(t.Context())
		leads := make(chan context.Context, 10)
		led := make(chan error, 1)
		go func() {
			led <- k.Lead(ctx, func(ctx context.Context) error {
				leads <- ctx
				<-ctx.Done()
				return nil
			})
		}()
		sure := <-leads
		r.setAway(true)
		<-sure.Done()
		if !errors.Is(context.Cause(sure), errUnsure) || !k.Held() {
			t.Errorf("at the first renewal that failed: %v, held %v", context.Cause(sure), k.Held())
		}
		time.Sleep(Length)
		if k.Held() {
			t.Error("held after the length of the lease")
		}
		time.Sleep(time.Hour)
		if len(leads) != 0 {
			t.Error("led while the database was away")
		}
		r.setAway(false)
		sure = <-leads
		if !k.Held() || sure.Err() != nil || r.lease.Term != 1 {
			t.Errorf("once the database is back: held %v, %v, term %d", k.Held(), sure.Err(), r.lease.Term)
		}
		end()
		if err := errors.Join(<-led, stop()); err != nil {
			t.Error(err)
		}
	})
}

func TestReplacedHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &row{}
		k := r.keeper("first")
		acquire(t, k, 1)
		_, ended := run(k)
		r.mu.Lock()
		r.lease = Lease{Term: 2, Incarnation: uuid.New(), Holder: Holder{Host: "second"}}
		r.mu.Unlock()
		var taken *TakenError
		if err := <-ended; !errors.As(err, &taken) || !strings.Contains(err.Error(), "second") {
			t.Errorf("a holder that was replaced ended with %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_ = k.Lead(ctx, func(context.Context) error {
			t.Error("it still leads")
			return nil
		})
	})
}

// Lead returns the result of run.
func TestLeadReturns(t *testing.T) {
	r := &row{}
	k := r.keeper("first")
	acquire(t, k, 1)
	want := errors.New("no more")
	for range 2 {
		if err := k.Lead(t.Context(), func(context.Context) error { return want }); !errors.Is(err, want) {
			t.Errorf("error %v", err)
		}
	}
}
