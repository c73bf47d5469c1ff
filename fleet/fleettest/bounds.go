package fleettest

import (
	"os"
	"testing"
	"time"
)

// Within fails a test if something took longer than limit and FLEETD_BOUNDS is set, as in
// "make bench". Otherwise other programs may use the processor, so it only logs the time.
func Within(t testing.TB, what string, took, limit time.Duration) {
	t.Helper()
	if os.Getenv("FLEETD_BOUNDS") != "" && took > limit {
		t.Errorf("%s took %v, %v at most", what, took, limit)
		return
	}
	t.Logf("%s took %v (%v at most)", what, took, limit)
}

// Bounded reports whether [Within] fails tests. If it does not, a test need not repeat a pure
// measurement.
func Bounded() bool { return os.Getenv("FLEETD_BOUNDS") != "" }
