package attempts_test

import (
	"fmt"
	"testing"
	"time"

	"fleetd/web/attempts"
)

func TestLimiter(t *testing.T) {
	now := time.Date(2026, 11, 23, 9, 0, 0, 0, time.UTC)
	l := attempts.New(func() time.Time { return now })
	guess := func(name, address, browser string) bool {
		return l.Begin(attempts.Try{Name: name, Address: address, Browser: browser})
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
	try := attempts.Try{Name: "admin", Address: "203.0.113.9", Browser: "b1"}
	for range 50 {
		if !l.Begin(try) {
			t.Fatal("a known browser was refused, though each of its tries succeeded")
		}
		l.Succeeded(try)
	}
	for range 10 {
		l.Begin(try)
	}
	if l.Begin(try) {
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
