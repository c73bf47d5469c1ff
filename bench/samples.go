package main

import (
	"cmp"
	"runtime"
	"slices"
	"time"
)

// samples are the durations of one measurement.
type samples []time.Duration

// percentile returns the p-th percentile; 0 without samples. It sorts.
func (s samples) percentile(p float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	slices.Sort(s)
	return s[min(len(s)-1, int(float64(len(s))*p/100))]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// median returns the median of values; 0 without any.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	v := slices.Sorted(slices.Values(values))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

// A reading is one closed-loop measurement.
type reading struct {
	Calls     float64
	PerSecond float64
	P50, P99  float64 // milliseconds
	Failed    int
	Error     error            // of one failed call
	Each      map[string]usage // usage per call, by process; nil if it was not counted
	Foreign   float64          // share of the machine that other processes used
}

// A variant is one way to make calls.
type variant struct {
	do        func(worker int) error
	calls     int // calls that do makes at a time, 1 except for fan-outs
	processes []process
	stop      func()
	rig       *rig // nil without fleetd
}

// measure runs a closed loop and reads the usage of the processes.
func (v variant) measure(n int, d time.Duration) reading {
	begin, before, busyBefore := time.Now(), usages(v.processes), busy()
	r := closedLoop(n, d, v.do)
	took, after, used := time.Since(begin), usages(v.processes), busy()-busyBefore
	r.Calls, r.PerSecond = r.Calls*float64(v.calls), r.PerSecond*float64(v.calls)
	r.Each = make(map[string]usage)
	for name := range after {
		r.Each[name] = after[name].each(before[name], max(1, r.Calls))
		used -= after[name].cpu() - before[name].cpu()
	}
	r.Foreign = max(0, used/float64(took.Microseconds())/float64(runtime.NumCPU()))
	return r
}

// closedLoop runs do on n workers for d. Each worker waits for its answer
// before its next call.
func closedLoop(n int, d time.Duration, do func(worker int) error) reading {
	type result struct {
		times  samples
		failed int
		err    error
	}
	results := make(chan result, n)
	begin := time.Now()
	deadline := begin.Add(d)
	for w := range n {
		go func() {
			var r result
			for time.Now().Before(deadline) {
				start := time.Now()
				if err := do(w); err != nil {
					r.failed++
					r.err = err
					continue
				}
				r.times = append(r.times, time.Since(start))
			}
			results <- r
		}()
	}
	var all samples
	var total reading
	for range n {
		r := <-results
		all = append(all, r.times...)
		total.Failed += r.failed
		total.Error = cmp.Or(total.Error, r.err)
	}
	total.Calls = float64(len(all))
	total.PerSecond = total.Calls / time.Since(begin).Seconds()
	total.P50, total.P99 = ms(all.percentile(50)), ms(all.percentile(99))
	return total
}
