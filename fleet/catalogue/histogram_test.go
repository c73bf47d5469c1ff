package catalogue

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A quantile differs from the exact one by at most the stated error, also after histograms were added.
func TestQuantileError(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		durations := rapid.SliceOfN(rapid.Int64Range(int64(time.Millisecond), int64(time.Hour)), 1, 300).Draw(r, "durations")
		if rapid.Bool().Draw(r, "short") {
			for i := range durations {
				durations[i] = int64(time.Millisecond) + durations[i]%int64(200*time.Millisecond)
			}
		}
		var parts [3]Histogram
		for i, d := range durations {
			parts[i%3].Observe(time.Duration(d))
		}
		var h Histogram
		for i := range parts {
			h.Add(&parts[i])
		}
		slices.Sort(durations)
		for _, q := range []float64{0, 0.01, 0.5, 0.9, 0.99, 1} {
			exact := durations[max(int(math.Ceil(q*float64(len(durations)))), 1)-1]
			got := h.Quantile(q)
			if off := math.Abs(float64(got)/float64(exact) - 1); off > MaxError {
				r.Fatalf("quantile %v of %d is %v, got %v: %.4f off", q, len(durations), time.Duration(exact), got, off)
			}
		}
		if h.Count() != int64(len(durations)) {
			r.Fatalf("%d counted of %d", h.Count(), len(durations))
		}
	})
}

func TestSuggestedTimeout(t *testing.T) {
	usage := func(n int, d time.Duration, timedOut int64) Usage {
		u := Usage{Succeeded: int64(n), TimedOut: timedOut}
		for range n {
			u.Latency.Observe(d)
		}
		return u
	}
	for _, tt := range []struct {
		name string
		Usage
		least, most time.Duration
	}{
		{"no calls", Usage{}, 0, 0},
		{"too few answers", usage(MinSamples-1, time.Second, 0), 0, 0},
		{"quick", usage(MinSamples, 20*time.Millisecond, 0), time.Second, time.Second},
		{"a second", usage(1000, time.Second, 0), 2 * time.Second, 3 * time.Second},
		{"slow", usage(1000, 20*time.Second, 0), 40 * time.Second, 50 * time.Second},
		{"beyond the limit", usage(1000, time.Hour, 0), 5 * time.Minute, 5 * time.Minute},
		{"one in a hundred times out", usage(990, time.Second, 10), 2 * time.Second, 3 * time.Second},
		{"more time out", usage(980, time.Second, 20), 0, 0},
	} {
		if got := tt.SuggestedTimeout(); got < tt.least || got > tt.most || got%(500*time.Millisecond) != 0 {
			t.Errorf("%s: %v, want %v to %v", tt.name, got, tt.least, tt.most)
		}
	}
	var mixed Usage // the slowest of 200 does not count, the slowest 4 do
	for i := range 200 {
		d := 100 * time.Millisecond
		if i < 4 {
			d = 3 * time.Second
		}
		mixed.Latency.Observe(d)
	}
	mixed.Succeeded = 200
	if got := mixed.SuggestedTimeout(); got < 6*time.Second {
		t.Errorf("the 99th percentile is 3 s, and %v is suggested", got)
	}
}

func TestExtremeDurations(t *testing.T) {
	var h Histogram
	for _, d := range []time.Duration{-time.Second, 0, time.Nanosecond, 1 << 62} {
		h.Observe(d)
	}
	h.AddBucket(-1, 1)
	h.AddBucket(Buckets, 1)
	h.AddBucket(3, -1)
	if h.Count() != 4 || h.Quantile(0.5) > 2*time.Millisecond || h.Quantile(1) < time.Hour {
		t.Errorf("%d counted, median %v, maximum %v", h.Count(), h.Quantile(0.5), h.Quantile(1))
	}
	if got := new(Histogram).Quantile(0.5); got != 0 {
		t.Errorf("the median of nothing is %v", got)
	}
}
