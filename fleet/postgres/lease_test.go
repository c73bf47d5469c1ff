package postgres_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/lease"
	"fleetd/fleet/postgres"
	"fleetd/fleet/postgres/pgtest"
)

func newLeases(t *testing.T, url string) *postgres.Leases {
	t.Helper()
	l, err := postgres.NewLeases(url)
	check(t, err)
	t.Cleanup(l.Close)
	return l
}

func TestLease(t *testing.T) {
	ctx, l := t.Context(), newLeases(t, pgtest.URL(t))
	none, err := l.Current(ctx)
	if err != nil || none != (lease.Lease{}) {
		t.Fatalf("a new database has %+v, %v", none, err)
	}
	holder := lease.Holder{Node: "n", Host: "h", PID: 7, Process: "m/1", Version: "v"}
	one, two := uuid.New(), uuid.New()
	first, ok, err := l.Replace(ctx, none, lease.First, one, holder)
	if err != nil || !ok || first.Term != 1 || first.Incarnation != one || first.Holder != holder || first.Released ||
		first.Left <= 0 || first.Left > lease.Length {
		t.Fatalf("the first lease is %+v, %v, %v", first, ok, err)
	}
	if _, ok, err = l.Replace(ctx, none, lease.First, two, holder); err != nil || ok {
		t.Errorf("a lease was replaced that was not looked at: %v, %v", ok, err)
	}
	if ok, err := l.Renew(ctx, one); err != nil || !ok {
		t.Errorf("not renewed: %v, %v", ok, err)
	}
	if _, ok, err = l.Replace(ctx, first, lease.Silent, two, holder); err != nil || ok {
		t.Errorf("a lease was replaced that was renewed meanwhile: %v, %v", ok, err)
	}
	check(t, l.Release(ctx, one))
	over, err := l.Current(ctx)
	if err != nil || !over.Released || over.Left > 0 || over.Term != 1 {
		t.Errorf("the released lease is %+v, %v", over, err)
	}
	second, ok, err := l.Replace(ctx, over, lease.Released, two, holder)
	if err != nil || !ok || second.Term != 2 || second.Released {
		t.Errorf("the second lease is %+v, %v, %v", second, ok, err)
	}
	if ok, err := l.Renew(ctx, one); err != nil || ok {
		t.Errorf("renewed by the holder before: %v, %v", ok, err)
	}
	check(t, l.Release(ctx, one))
	if now, err := l.Current(ctx); err != nil || now.Released {
		t.Errorf("released by the holder before: %v", err)
	}
	if none, err = newLeases(t, pgtest.Empty(t)).Current(ctx); err != nil || none.Term != 0 {
		t.Errorf("a database without tables has %+v, %v", none, err)
	}
}

// Each term is on record with the reason and its end, which is the release or the begin of the
// next term. A term is never used again, and the record is bounded.
func TestLeaseTerms(t *testing.T) {
	ctx, url := t.Context(), pgtest.URL(t)
	l, store, db := newLeases(t, url), postgres.New(testDBAt(t, url), postgres.Options{}), testDBAt(t, url)
	holder := lease.Holder{Node: "n", Host: "h", PID: 7, Process: "m/1", Version: "v"}
	replace := func(over lease.Lease, why lease.Reason) lease.Lease {
		t.Helper()
		now, ok, err := l.Replace(ctx, over, why, uuid.New(), holder)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		return now
	}
	terms := func() []lease.Term {
		t.Helper()
		all, err := store.LeaseTerms(ctx, 10*lease.KeptTerms)
		check(t, err)
		return all
	}
	first := replace(lease.Lease{}, lease.First)
	if _, ok, err := l.Replace(ctx, lease.Lease{}, lease.First, uuid.New(), holder); err != nil || ok {
		t.Fatal(ok, err)
	}
	want := lease.Term{Term: 1, Incarnation: first.Incarnation, Node: "n", Host: "h", Version: "v", Since: first.Since.UTC(),
		Reason: lease.First}
	if all := terms(); len(all) != 1 || all[0] != want {
		t.Fatalf("terms %+v, want %+v", all, want)
	}
	check(t, l.Release(ctx, first.Incarnation))
	released, err := l.Current(ctx)
	check(t, err)
	ended := terms()[0].Ended
	if ended == nil || !ended.After(first.Since) {
		t.Fatalf("the released term ended %v", ended)
	}
	second := replace(released, lease.Released)
	third := replace(second, lease.Silent)
	all := terms()
	if len(all) != 3 || all[0].Ended != nil || all[1].Ended == nil || !all[1].Ended.Equal(third.Since) ||
		!all[2].Ended.Equal(*ended) || all[0].Reason != lease.Silent || all[1].Reason != lease.Released {
		t.Fatalf("terms %+v", all)
	}

	// A term is not used again.
	_, err = db.Exec(ctx, `DELETE FROM lease`)
	check(t, err)
	if again := replace(lease.Lease{}, lease.First); again.Term != 4 {
		t.Errorf("after the lease was deleted, term %d, want 4", again.Term)
	}

	_, err = db.Exec(ctx, `INSERT INTO lease_terms (term, incarnation, node, host, version, since, reason)
		SELECT n, gen_random_uuid(), '', '', '', now(), 'gone' FROM generate_series(5, 2000) AS n`)
	check(t, err)
	last, err := l.Current(ctx)
	check(t, err)
	if last = replace(last, lease.Gone); last.Term != 2001 {
		t.Errorf("term %d, want 2001", last.Term)
	}
	if all := terms(); len(all) != lease.KeptTerms || all[0].Term != 2001 {
		t.Errorf("%d terms, the latest %+v", len(all), all[0])
	}
}

// The statements of a lease holder end before the next holder begins, even a statement that
// waits; after that it cannot write.
func TestOpenForAHolder(t *testing.T) {
	ctx, url := t.Context(), pgtest.URL(t)
	l := newLeases(t, url)
	first, _, err := l.Replace(ctx, lease.Lease{}, lease.First, uuid.New(), lease.Holder{})
	check(t, err)
	old, err := l.Open(ctx, first)
	check(t, err)
	t.Cleanup(old.Close)
	store := postgres.New(old, postgres.Options{})
	run(t, store)
	check(t, store.InsertCall(ctx, newCall("before", fleet.CallSucceeded))) // opens a session of its writers
	other := testDBAt(t, url)
	lock, err := other.Begin(ctx)
	check(t, err)
	_, err = lock.Exec(ctx, `LOCK TABLE audit_entries IN EXCLUSIVE MODE`)
	check(t, err)
	hangs := make(chan error, 1)
	go func() {
		_, err := old.Exec(ctx, `DELETE FROM audit_entries`)
		hangs <- err
	}()
	fleettest.Eventually(t, "the statement waits", func() bool {
		var n int
		check(t, other.QueryRow(ctx, `SELECT count(*) FROM pg_locks WHERE NOT granted`).Scan(&n))
		return n > 0
	})

	second, ok, err := l.Replace(ctx, first, lease.Gone, uuid.New(), lease.Holder{})
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	db, err := newLeases(t, url).Open(ctx, second)
	check(t, err)
	t.Cleanup(db.Close)
	select {
	case err := <-hangs:
		if err == nil {
			t.Error("a statement of the term before was carried out")
		}
	case <-time.After(10 * time.Second):
		t.Error("a statement of the term before still waits")
	}
	check(t, lock.Rollback(ctx))
	late := newCall("after", fleet.CallSucceeded)
	if err := store.InsertCall(ctx, late); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("a call of the term before: %v", err)
	}
	if _, err := old.Exec(ctx, `DELETE FROM audit_entries`); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("the term before can write: %v", err)
	}
	now := postgres.New(db, postgres.Options{})
	check(t, now.InsertCall(ctx, newCall("now", fleet.CallSucceeded)))
	if c, err := now.Call(ctx, late.ID); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("a call of the term before is on record: %+v, %v", c, err)
	}
}
