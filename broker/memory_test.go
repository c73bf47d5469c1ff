package broker

import "testing"

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

func TestGCPercentFollowsTheSize(t *testing.T) {
	for inUse, want := range map[uint64]int{0: mostGCPercent, 16 << 20: mostGCPercent, 64 << 20: 100, 300 << 20: leastGCPercent} {
		if got := gcPercent(inUse); got != want {
			t.Errorf("%d MiB in use: %d %%, want %d %%", inUse>>20, got, want)
		}
	}
}
