package catalogue

import (
	"math"
	"time"
)

// Buckets of a [Histogram]: bucket i holds durations of 2^(i/8) up to 2^((i+1)/8) milliseconds, the
// first one also shorter ones and the last one also longer ones. The last begins at 70 minutes.
const (
	bucketsPerDoubling = 8
	Buckets            = 22*bucketsPerDoubling + 1
)

// MaxError is the greatest relative error of [Histogram.Quantile] for durations of at least a
// millisecond: half a bucket, 2^(1/16) - 1.
const MaxError = 0.0443

// A Histogram counts durations in buckets whose widths grow with them. The zero value is empty.
// Histograms add up, so hours make days and versions make a fleet.
type Histogram struct {
	counts map[int]int64
	total  int64
}

// Bucket returns the bucket of a duration.
func Bucket(d time.Duration) int {
	ms := float64(d) / float64(time.Millisecond)
	if ms < 1 {
		return 0
	}
	return min(int(math.Floor(math.Log2(ms)*bucketsPerDoubling)), Buckets-1)
}

// Observe counts a duration.
func (h *Histogram) Observe(d time.Duration) { h.AddBucket(Bucket(d), 1) }

// AddBucket adds a count to a bucket.
func (h *Histogram) AddBucket(bucket int, n int64) {
	if n <= 0 || bucket < 0 || bucket >= Buckets {
		return
	}
	if h.counts == nil {
		h.counts = make(map[int]int64)
	}
	h.counts[bucket] += n
	h.total += n
}

// Add adds the counts of another histogram.
func (h *Histogram) Add(o *Histogram) {
	for bucket, n := range o.counts {
		h.AddBucket(bucket, n)
	}
}

// Count returns the number of durations.
func (h *Histogram) Count() int64 { return h.total }

// Quantile returns a duration that differs by at most [MaxError] from the one below which the share q
// of all durations lies: the ceil(q·n)th shortest of n. It returns 0 for an empty histogram.
func (h *Histogram) Quantile(q float64) time.Duration {
	bucket, ok := h.bucketOf(q)
	if !ok {
		return 0
	}
	return boundary(float64(bucket) + 0.5)
}

// bucketOf returns the bucket with the quantile.
func (h *Histogram) bucketOf(q float64) (int, bool) {
	rank := max(int64(math.Ceil(q*float64(h.total))), 1)
	for bucket, seen := 0, int64(0); bucket < Buckets; bucket++ {
		if seen += h.counts[bucket]; seen >= rank {
			return bucket, true
		}
	}
	return 0, false
}

// boundary returns the duration at a position on the scale of buckets.
func boundary(at float64) time.Duration {
	return time.Duration(math.Exp2(at/bucketsPerDoubling) * float64(time.Millisecond))
}

// MinSamples is the least number of answers from which a timeout is suggested: the 99th percentile of
// fewer is hardly more than their maximum.
const MinSamples = 100

// Limits of suggested timeouts.
const (
	minSuggested = time.Second
	maxSuggested = 5 * time.Minute // the longest timeout of a call
)

// SuggestedTimeout returns a timeout for calls of a tool with this usage: twice the upper end of the
// bucket with the 99th percentile, rounded up, at least a second. It returns 0 if fewer than
// [MinSamples] answers are known, or if more than one sent call in a hundred timed out: then the
// answers do not show how long the device takes.
func (u *Usage) SuggestedTimeout() time.Duration {
	if u.Latency.Count() < MinSamples || u.TimedOut*100 > u.Sent() {
		return 0
	}
	bucket, _ := u.Latency.bucketOf(0.99)
	d := 2 * boundary(float64(bucket)+1)
	step := 500 * time.Millisecond
	if d > 10*time.Second {
		step = 5 * time.Second
	}
	d = (d + step - 1) / step * step
	return min(max(d, minSuggested), maxSuggested)
}
