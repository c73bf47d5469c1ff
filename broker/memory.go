package broker

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// Setting a connection up takes its goroutines deep into decoders, and their
// stacks grow to 16 or 32 KB. An idle connection needs a tenth of that, but
// stacks shrink only when the collector runs, by half at a time, and a broker
// that has gone quiet after a storm gives it no cause to run. So it is made to.
const (
	stormSize    = 500             // connections since the last time that make it worth the while
	settleEvery  = 4 * time.Second // between looks; a storm is over when none came in between
	settlePasses = 3               // 32 KB to 4 KB
)

// A settler notices the end of a storm.
type settler struct {
	seen, settled int64 // connects so far: at the last look, and when memory was last returned
}

// over reports whether a storm has ended, given the connects so far.
func (s *settler) over(connects int64) bool {
	quiet := connects == s.seen
	s.seen = connects
	if !quiet || connects-s.settled < stormSize {
		return false
	}
	s.settled = connects
	return true
}

// returnMemory takes some 100 ms of the processor for 10,000 connections.
func returnMemory() {
	for range settlePasses {
		debug.FreeOSMemory()
	}
}

// Between two collections the heap may grow by a share of what is in use,
// stacks included: with Go's 100 % an idle fleet would take twice the memory
// that it needs, and a small busy one would spend a fifth of its time
// collecting. So a small process may grow by roomy, and a large one by half.
const (
	roomy           = 64 << 20
	leastGCPercent  = 50
	mostGCPercent   = 400
	gcPercentChange = 10 // smaller changes are not worth stopping the world
)

// gcPercent is the collector's setting for so many bytes in use.
func gcPercent(inUse uint64) int {
	return max(leastGCPercent, min(mostGCPercent, int(100*roomy/max(inUse, 1))))
}

// A pacer keeps the collector's setting in step with the process's size, unless
// GOGC in the environment says what is wanted.
type pacer struct {
	percent int
	samples [2]metrics.Sample
}

func newPacer() *pacer {
	p := &pacer{percent: 100}
	p.samples[0].Name = "/gc/heap/live:bytes"
	p.samples[1].Name = "/memory/classes/heap/stacks:bytes"
	return p
}

func (p *pacer) adjust() {
	if os.Getenv("GOGC") != "" {
		return
	}
	metrics.Read(p.samples[:])
	want := gcPercent(p.samples[0].Value.Uint64() + p.samples[1].Value.Uint64())
	if d := want - p.percent; d >= gcPercentChange || d <= -gcPercentChange {
		debug.SetGCPercent(want)
		p.percent = want
	}
}
