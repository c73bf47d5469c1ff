package fleettest

import (
	"testing"
	"time"
)

// Eventually waits until done returns true, and fails the test after three minutes: on a busy
// machine everything takes long. Use it where a test has no event to wait for.
func Eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	EventuallyWithin(t, 3*time.Minute, what, done)
}

// EventuallyWithin is [Eventually] with another limit. The pauses between checks grow from two
// milliseconds to fifty.
func EventuallyWithin(t testing.TB, limit time.Duration, what string, done func() bool) {
	t.Helper()
	began := time.Now()
	for pause := 2 * time.Millisecond; !done(); pause = min(pause+pause/4, 50*time.Millisecond) {
		if time.Since(began) > limit {
			t.Fatalf("waited %v in vain: %s", limit, what)
		}
		time.Sleep(pause)
	}
}
