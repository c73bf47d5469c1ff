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
// collecting. So a small process may grow by roomy, a large one by half, and
// one that carries many calls by more, for as long as it does.
const (
	roomy           = 64 << 20
	leastGCPercent  = 50
	busyGCPercent   = 250
	mostGCPercent   = 400
	gcPercentChange = 10 // smaller changes are not worth stopping the world

	paceEvery  = 500 * time.Millisecond
	busyRate   = 200              // messages from devices a second
	quietAfter = 20 * time.Second // a busy process takes a breath now and then
)

// gcPercent is the collector's setting for so many bytes in use.
func gcPercent(inUse uint64, busy bool) int {
	percent := max(leastGCPercent, min(mostGCPercent, int(100*roomy/max(inUse, 1))))
	if busy {
		return max(percent, busyGCPercent)
	}
	return percent
}

// A pacer keeps the collector's setting in step with the process's size and
// work, unless GOGC in the environment says what is wanted.
type pacer struct {
	percent  int
	messages int64     // so far, at the last look
	busyTill time.Time // zero while quiet
	samples  [2]metrics.Sample
}

func newPacer() *pacer {
	p := &pacer{percent: 100}
	p.samples[0].Name = "/gc/heap/live:bytes"
	p.samples[1].Name = "/memory/classes/heap/stacks:bytes"
	return p
}

// work notes how many messages came so far, and reports whether the process is
// busy and whether it has just ceased to be.
func (p *pacer) work(messages int64, now time.Time) (busy, over bool) {
	came := messages - p.messages
	p.messages = messages
	was := !p.busyTill.IsZero()
	if came >= int64(busyRate*paceEvery/time.Second) {
		p.busyTill = now.Add(quietAfter)
	} else if was && now.After(p.busyTill) {
		p.busyTill = time.Time{}
	}
	busy = !p.busyTill.IsZero()
	return busy, was && !busy
}

// adjust is called every paceEvery.
func (p *pacer) adjust(messages int64, now time.Time) {
	busy, over := p.work(messages, now)
	if os.Getenv("GOGC") != "" {
		return
	}
	metrics.Read(p.samples[:])
	want := gcPercent(p.samples[0].Value.Uint64()+p.samples[1].Value.Uint64(), busy)
	if d := want - p.percent; d >= gcPercentChange || d <= -gcPercentChange {
		debug.SetGCPercent(want)
		p.percent = want
	}
	if over {
		returnMemory()
	}
}
