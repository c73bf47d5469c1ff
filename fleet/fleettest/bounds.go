package fleettest

import (
	"os"
	"testing"
	"time"
)

// Within fails a test if something took longer than it may, where FLEETD_BOUNDS is
// set, as in "make bench". Elsewhere other programs may have the processor: there it
// only notes the time.
func Within(t testing.TB, what string, took, limit time.Duration) {
	t.Helper()
	if os.Getenv("FLEETD_BOUNDS") != "" && took > limit {
		t.Errorf("%s took %v, %v at most", what, took, limit)
		return
	}
	t.Logf("%s took %v (%v at most)", what, took, limit)
}

// Bounded reports whether [Within] judges, so that a test need not repeat what it
// only measures.
func Bounded() bool { return os.Getenv("FLEETD_BOUNDS") != "" }
