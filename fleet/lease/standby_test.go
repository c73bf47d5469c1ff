package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
)

// A standby is a keeper that stands by in a goroutine.
type standby struct {
	*Keeper
	cancel context.CancelFunc
	done   chan error // from Acquire
	term   int
	at     time.Time // when Acquire returned
	events []string  // what Options.Waiting was called with
}

func (r *row) standby(t *testing.T, name string, o Options) *standby {
	t.Helper()
	s := &standby{done: make(chan error, 1)}
	o.Standby = true
	o.Waiting = func(holder Lease, away bool) {
		s.events = append(s.events, fmt.Sprintf("%s, away %v", holder.Host, away))
	}
	s.Keeper = r.keeperWith(name, o)
	ctx, cancel := context.WithCancel(t.Context())
	s.cancel = cancel
	go func() {
		l, err := s.Acquire(ctx)
		s.term, s.at = l.Term, time.Now()
		s.done <- err
	}()
	synctest.Wait()
	return s
}

func (s *standby) waits() bool {
	synctest.Wait()
	return len(s.done) == 0
}

// A standby waits however long, and leads as soon as the holder has released the lease. Of
// two, one leads, and the other waits for that one.
func TestStandby(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &row{}
		first := r.keeper("first")
		acquire(t, first, 1)
		stop, _ := run(first)
		second, third := r.standby(t, "second", Options{}), r.standby(t, "third", Options{})
		time.Sleep(time.Hour)
		if !second.waits() || !third.waits() {
			t.Fatal("a standby did not wait")
		}
		began := time.Now()
		if err := stop(); err != nil {
			t.Error(err)
		}
		time.Sleep(look)
		leads, other := second, third
		if second.waits() {
			leads, other = third, second
		}
		if leads.waits() || !other.waits() {
			t.Fatalf("after the release, second waits: %v, third: %v", second.waits(), third.waits())
		}
		if err := <-leads.done; err != nil || leads.term != 2 || leads.at.Sub(began) > look || !leads.Held() {
			t.Errorf("%v, term %d after %v, held %v", err, leads.term, leads.at.Sub(began), leads.Held())
		}
		stop, _ = run(leads.Keeper)
		time.Sleep(10 * time.Minute)
		if want := []string{"first, away false", leads.holder.Host + ", away false"}; !other.waits() ||
			!slices.Equal(other.events, want) {
			t.Errorf("the other one waited for %q, want %q", other.events, want)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if err := <-other.done; err != nil || other.term != 3 {
			t.Errorf("%v, term %d", err, other.term)
		}
		if want := []Reason{First, Released, Released}; !slices.Equal(r.reasons, want) {
			t.Errorf("reasons %q, want %q", r.reasons, want)
		}
	})
}

// A standby replaces a silent holder when the length of the lease has passed since it last
// changed, however long the standby has waited.
func TestStandbyOfASilentHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &row{}
		first := r.keeper("first")
		acquire(t, first, 1)
		ctx, freeze := context.WithCancel(t.Context())
		go func() {
			for ctx.Err() == nil {
				_, _ = r.Renew(ctx, first.incarnation)
				time.Sleep(RenewEvery)
			}
		}()
		second := r.standby(t, "second", Options{})
		time.Sleep(10 * time.Minute)
		freeze()
		held, err := r.Current(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := <-second.done; err != nil {
			t.Fatal(err)
		}
		if took := second.at.Sub(held.RenewedAt); took < Length || took > Length+2*look {
			t.Errorf("took %v since the last renewal", took)
		}
		if want := []Reason{First, Silent}; !slices.Equal(r.reasons, want) {
			t.Errorf("reasons %q, want %q", r.reasons, want)
		}
	})
}

// A standby waits while the database is unavailable, and then gives the holder the length of a
// lease to renew it.
func TestStandbyWithoutDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &row{}
		first := r.keeper("first")
		acquire(t, first, 1)
		stop, _ := run(first)
		second := r.standby(t, "second", Options{})
		time.Sleep(time.Minute)
		r.setAway(true)
		time.Sleep(10 * time.Minute)
		if !second.waits() {
			t.Fatalf("while the database was away: %v", <-second.done)
		}
		r.setAway(false)
		time.Sleep(10 * time.Minute)
		if !second.waits() {
			t.Fatal("a holder was replaced that renewed its lease after the outage")
		}
		r.setAway(true)
		time.Sleep(time.Minute)
		if err := stop(); err == nil {
			t.Error("the lease was released without a database")
		}
		r.setAway(false)
		back := time.Now()
		if err := <-second.done; err != nil {
			t.Fatal(err)
		}
		if took := second.at.Sub(back); took < Length || took > Length+renewRetry+2*look {
			t.Errorf("took %v after the outage", took)
		}
		want := []string{"first, away false", "first, away true", "first, away false", "first, away true",
			"first, away false"}
		if !slices.Equal(second.events, want) {
			t.Errorf("waited for %q, want %q", second.events, want)
		}
	})
}

// A standby that could not serve the database ends: at once, when the holder changes, and when
// it would lead. An unavailable database does not end it.
func TestUnfitStandby(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unfit := &UnfitError{errors.New("another key")}
		var verdict atomic.Pointer[error]
		set := func(err error) { verdict.Store(&err) }
		o := Options{Check: func(context.Context) error { return *verdict.Load() }}
		r := &row{}
		first := r.keeper("first")
		acquire(t, first, 1)
		stop, _ := run(first)
		set(unfit)
		if err := <-r.standby(t, "second", o).done; !errors.Is(err, unfit) {
			t.Errorf("at its start: %v", err)
		}
		set(nil)
		second, third := r.standby(t, "second", o), r.standby(t, "third", o)
		set(errAway)
		if err := stop(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if !second.waits() || !third.waits() {
			t.Error("ended because a check was not possible")
		}
		set(unfit)
		if err := errors.Join(<-second.done, <-third.done); !errors.Is(err, unfit) {
			t.Errorf("when it would lead: %v", err)
		}
		if r.lease.Term != 1 {
			t.Error("it took the lease")
		}

		set(nil)
		fourth := r.keeper("fourth")
		acquire(t, fourth, 2)
		stop, _ = run(fourth)
		fifth := r.standby(t, "fifth", o)
		set(unfit)
		time.Sleep(time.Minute)
		if !fifth.waits() {
			t.Error("ended without a change of the holder")
		}
		r.mu.Lock()
		r.lease = Lease{Term: 3, Incarnation: uuid.New(), Holder: Holder{Host: "sixth"}, RenewedAt: time.Now()}
		r.mu.Unlock()
		if err := <-fifth.done; !errors.Is(err, unfit) {
			t.Errorf("when the holder changed: %v", err)
		}
		var taken *TakenError
		if err := stop(); err != nil && !errors.As(err, &taken) {
			t.Error(err)
		}
	})
}

// A database that is slow when a standby starts does not end it. The check is made again as soon as
// the database answers.
func TestSlowCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unfit := &UnfitError{errors.New("another key")}
		r := &row{}
		first := r.keeper("first")
		acquire(t, first, 1)
		stop, _ := run(first)
		var checks atomic.Int64
		slow := func(ctx context.Context, then error) error {
			if checks.Add(1)%2 == 1 {
				<-ctx.Done()
				return errors.New("no PostgreSQL server answers")
			}
			return then
		}
		well := r.standby(t, "well", Options{Check: func(ctx context.Context) error { return slow(ctx, nil) }})
		time.Sleep(time.Minute)
		if n := checks.Load(); !well.waits() || n != 2 {
			t.Errorf("waits: %t, after %d checks", well.waits(), n)
		}
		bad := r.standby(t, "bad", Options{Check: func(ctx context.Context) error { return slow(ctx, unfit) }})
		if err := <-bad.done; !errors.Is(err, unfit) {
			t.Error(err)
		}
		wrong := errors.New("the server runs PostgreSQL 9")
		other := r.standby(t, "other", Options{Check: func(context.Context) error { return wrong }})
		if err := <-other.done; !errors.Is(err, wrong) {
			t.Errorf("another error of the first check: %v", err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if err := <-well.done; err != nil {
			t.Error(err)
		}
	})
}

// lossy loses the answer to the first Replace.
type lossy struct {
	*row
	lost bool
}

func (r *lossy) Replace(ctx context.Context, over Lease, why Reason, by uuid.UUID, h Holder) (Lease, bool, error) {
	l, ok, err := r.row.Replace(ctx, over, why, by, h)
	if !r.lost {
		r.lost = true
		return Lease{}, false, errAway
	}
	return l, ok, err
}

// A standby whose answer of the database was lost does not wait for itself.
func TestLostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &lossy{row: &row{lease: Lease{Term: 1, Incarnation: uuid.New(), Released: true}}}
		k := NewKeeper(r, Holder{Host: "second"}, Options{Standby: true})
		began := time.Now()
		l, err := k.Acquire(t.Context())
		if err != nil || l.Term != 3 || time.Since(began) > time.Second {
			t.Errorf("term %d, %v after %v", l.Term, err, time.Since(began))
		}
		if want := []Reason{Released, Released}; !slices.Equal(r.reasons, want) {
			t.Errorf("reasons %q, want %q", r.reasons, want)
		}
	})
}

func TestStandbyEndsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &row{}
		acquire(t, r.keeper("first"), 1)
		second := r.standby(t, "second", Options{})
		began := time.Now()
		second.cancel()
		if err := <-second.done; !errors.Is(err, context.Canceled) || time.Since(began) != 0 {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}
