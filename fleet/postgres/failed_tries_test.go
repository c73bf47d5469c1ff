package postgres_test

import (
	"testing"
	"time"

	"fleetd/fleet/attempts"
	"fleetd/fleet/postgres"
)

// The process that comes next continues with the counts, whatever its clock says.
func TestFailedTries(t *testing.T) {
	ctx, db := t.Context(), testDB(t)
	s := postgres.New(db, postgres.Options{})
	key := []byte("0123456789abcdef0123456789abcdef")
	next := func(key []byte, ahead time.Duration) *attempts.Limiter {
		l := attempts.New(attempts.Options{Store: s, Key: key, Now: func() time.Time { return time.Now().Add(ahead) }})
		check(t, l.Load(ctx))
		return l
	}
	hour := attempts.Bound{Name: "one an hour", Burst: 5, Each: time.Hour}
	minute := attempts.Bound{Name: "one a minute", Burst: 5, Each: time.Minute}
	slow, quick := attempts.Key{Bound: &hour, Subject: "ann"}, attempts.Key{Bound: &minute, Subject: "ann"}
	l := next(key, 0)
	for i := range 4 {
		if !l.Begin(slow, quick) {
			t.Fatalf("try %d is refused", i+1)
		}
		check(t, l.Failed(ctx, slow, quick))
	}
	if !l.Begin(slow, quick) {
		t.Fatal("the fifth try is refused")
	}
	l.Succeeded(slow, quick)
	if _, err := db.Exec(ctx, `UPDATE failed_tries SET at = at - interval '90 seconds'`); err != nil {
		t.Fatal(err)
	}
	passes := func(l *attempts.Limiter, k attempts.Key) (n int) {
		for l.Begin(k) {
			n++
		}
		return n
	}
	for _, ahead := range []time.Duration{0, -10 * time.Minute, 10 * time.Minute} {
		if n := passes(next(key, ahead), slow); n != 1 {
			t.Errorf("clock %v ahead: %d more tries, want 1", ahead, n)
		}
		if n := passes(next(key, ahead), quick); n != 2 {
			t.Errorf("clock %v ahead: %d more tries after 90 s, want 2", ahead, n)
		}
	}
	if n := passes(next([]byte("another"), 0), slow); n != 5 {
		t.Errorf("with another key: %d tries, want 5", n)
	}
	l = next(key, 0)
	check(t, l.Failed(ctx, quick)) // it falls first
	var tries float64
	if err := db.QueryRow(ctx, `SELECT tries FROM failed_tries WHERE bound = $1`, minute.Name).Scan(&tries); err != nil ||
		tries < 3.4 || tries > 3.6 {
		t.Errorf("%v tries are on record (%v), want 3.5", tries, err)
	}
	check(t, s.DeleteExpired(ctx, now().Add(2*time.Hour)))
	if all, err := s.FailedTries(ctx); len(all) != 0 || err != nil {
		t.Errorf("after hours: %v, %v", all, err)
	}
}
