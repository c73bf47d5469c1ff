package collector

import (
	"testing"
	"time"
)

func TestSettlerWaitsForTheEndOfAStorm(t *testing.T) {
	var s settler
	for _, step := range []struct {
		connects int64
		over     bool
	}{
		{0, false}, {stormSize - 1, false}, {stormSize - 1, false}, // too few to matter
		{stormSize, false}, {2 * stormSize, false}, // still coming
		{2 * stormSize, true}, {2 * stormSize, false}, // over, once
		{2*stormSize + 10, false}, {2*stormSize + 10, false}, // a few stragglers
		{4 * stormSize, false}, {4 * stormSize, true}, // the next storm
	} {
		if got := s.over(step.connects); got != step.over {
			t.Errorf("after %d connects: over %v, want %v", step.connects, got, step.over)
		}
	}
}

func TestGCPercentFollowsSizeAndWork(t *testing.T) {
	for _, tt := range []struct {
		inUse       uint64
		quiet, busy int
	}{
		{0, mostGCPercent, mostGCPercent},
		{16 << 20, mostGCPercent, mostGCPercent},
		{64 << 20, 100, busyGCPercent},
		{300 << 20, leastGCPercent, busyGCPercent},
	} {
		if quiet, busy := gcPercent(tt.inUse, false), gcPercent(tt.inUse, true); quiet != tt.quiet || busy != tt.busy {
			t.Errorf("%d MiB in use: %d %%, busy %d %%; want %d %%, %d %%", tt.inUse>>20, quiet, busy, tt.quiet, tt.busy)
		}
	}
}

func TestPacerNoticesWorkAndItsEnd(t *testing.T) {
	p, now := newPacer(), time.Now()
	for _, step := range []struct {
		messages   int64
		later      time.Duration
		busy, over bool
	}{
		{10, paceEvery, false, false},
		{1000, paceEvery, true, false},
		{1001, paceEvery, true, false}, // a pause
		{1001, quietAfter, false, true},
		{1001, paceEvery, false, false},
	} {
		now = now.Add(step.later)
		if busy, over := p.work(step.messages, now); busy != step.busy || over != step.over {
			t.Errorf("after %d messages: busy %v, over %v; want %v, %v", step.messages, busy, over, step.busy, step.over)
		}
	}
}
