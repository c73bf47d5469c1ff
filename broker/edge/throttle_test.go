package edge

import (
	"strconv"
	"testing"
	"time"
)

func TestThrottleIsBounded(t *testing.T) {
	var th throttle
	at := time.Now()
	allowed := 0
	for i := range 3 * throttleKeys {
		if ok, _ := th.allow(strconv.Itoa(i), at); ok {
			allowed++
		}
	}
	if allowed != throttleKeys || len(th.last) != throttleKeys {
		t.Errorf("%d lines allowed, %d keys kept, want %d", allowed, len(th.last), throttleKeys)
	}
	ok, skipped := th.allow("new", at.Add(throttleEvery))
	if !ok || skipped != 2*throttleKeys || len(th.last) != 1 {
		t.Errorf("an hour later: %v, %d skipped, %d keys", ok, skipped, len(th.last))
	}
}
