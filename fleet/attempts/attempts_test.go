package attempts_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"fleetd/fleet/attempts"
)

func TestPasswords(t *testing.T) {
	now := time.Date(2026, 11, 23, 9, 0, 0, 0, time.UTC)
	l := attempts.New(attempts.Options{Now: func() time.Time { return now }})
	guess := func(name, address, browser string) bool {
		return l.Begin(attempts.Password{Name: name, Address: address, Browser: browser}.Keys()...)
	}
	count := func(n int, name string, address func(i int) string) (passed int) {
		for i := range n {
			if guess(name, address(i), "") {
				passed++
			}
		}
		return passed
	}
	one := func(int) string { return "192.0.2.7" }
	if n := count(100, "admin", one); n != 10 {
		t.Errorf("%d guesses passed from one network, want 10", n)
	}
	if guess(" ADMIN ", "192.0.2.200", "") {
		t.Error("another address of the network, and other spelling, passed")
	}
	if !guess("admin", "198.51.100.1", "") || !guess("admin", "", "b1") {
		t.Error("another network, or a known browser, was refused")
	}
	now = now.Add(time.Minute)
	if n := count(100, "admin", one); n != 1 {
		t.Errorf("%d more guesses passed after a minute, want 1", n)
	}

	// Many names from one network.
	now = now.Add(time.Hour)
	names := 0
	for i := range 100 {
		if guess(fmt.Sprint("name", i), fmt.Sprintf("2001:db8::%x", i), "") {
			names++
		}
	}
	if names != 20 {
		t.Errorf("%d names passed from one network, want 20", names)
	}

	// Many networks, one name: slowed, but the known browser gets in.
	now = now.Add(time.Hour)
	everywhere := func(i int) string { return fmt.Sprintf("10.%d.%d.1", i/250, i%250) }
	if n := count(1000, "admin", everywhere); n != 60 {
		t.Errorf("%d guesses passed from many networks, want 60", n)
	}
	if guess("admin", "203.0.113.9", "") {
		t.Error("a new network passed while many guess")
	}
	try := attempts.Password{Name: "admin", Address: "203.0.113.9", Browser: "b1"}.Keys()
	for range 50 {
		if !l.Begin(try...) {
			t.Fatal("a known browser was refused, though each of its tries succeeded")
		}
		l.Succeeded(try...)
	}
	for range 10 {
		l.Begin(try...)
	}
	if l.Begin(try...) {
		t.Error("a known browser may guess for ever")
	}
}

func TestNetwork(t *testing.T) {
	for address, want := range map[string]string{"192.0.2.7": "192.0.2.0/24", "::ffff:192.0.2.9": "192.0.2.0/24",
		"2001:db8:1:2:3::4": "2001:db8:1:2::/64", "fe80::1%eth0": "fe80::/64", "pipe": "pipe"} {
		if got := attempts.Network(address); got != want {
			t.Errorf("Network(%s) = %s, want %s", address, got, want)
		}
	}
}

// A lostStore records nothing.
type lostStore struct{}

var errLost = errors.New("the database is away")

func (lostStore) FailedTries(context.Context) ([]attempts.Count, error)        { return nil, errLost }
func (lostStore) AddFailedTries(ctx context.Context, _ []attempts.Count) error { return errLost }

// A try that cannot be recorded counts in memory, and its caller hears of the error.
func TestNotRecorded(t *testing.T) {
	l := attempts.New(attempts.Options{Store: lostStore{}})
	if err := l.Load(t.Context()); !errors.Is(err, errLost) {
		t.Errorf("loading: %v", err)
	}
	key := attempts.Key{Bound: &attempts.Bound{Name: "b", Burst: 1, Each: time.Hour}, Subject: "s"}
	if !l.Begin(key) {
		t.Fatal("the first try was refused")
	}
	if err := l.Failed(t.Context(), key); !errors.Is(err, errLost) {
		t.Errorf("recording: %v", err)
	}
	if l.Begin(key) {
		t.Error("the try did not count")
	}
}
