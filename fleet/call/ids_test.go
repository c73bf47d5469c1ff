package call

import (
	"bytes"
	"testing"
	"time"
)

// The order of ids is the order of calls, also of many calls in one instant, after the clock was
// set back as well. The time in an id is the time of the call.
func TestIDsAreInOrder(t *testing.T) {
	var ids idSequence
	later := time.Date(2026, 11, 28, 12, 0, 0, 999_999_999, time.UTC)
	for _, tt := range []struct {
		name string
		at   time.Time
	}{
		{"now", later},
		{"set back by seconds", later.Add(-30 * time.Second)},
		{"set back by hours", later.Add(-3 * time.Hour)},
		{"right again", later},
	} {
		last := ids.next(tt.at)
		for n := range 10_000 {
			id := ids.next(tt.at)
			if bytes.Compare(last[:], id[:]) >= 0 {
				t.Fatalf("%s: call %d has the id %s after %s", tt.name, n, id, last)
			}
			last = id
		}
		seconds, nanoseconds := last.Time().UnixTime()
		if off := time.Unix(seconds, nanoseconds).Sub(tt.at); off.Abs() > callIDSlack {
			t.Errorf("%s: the time in the id is off by %v", tt.name, off)
		}
		if last.Version() != 7 || last.Variant() != 1 {
			t.Errorf("%s: %s is of version %d, variant %d", tt.name, last, last.Version(), last.Variant())
		}
	}
}
