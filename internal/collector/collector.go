// Package collector adjusts Go's garbage collector to what a fleetd process does: a process that is
// small, or carries many calls, gets more room to grow between two collections than a large idle
// one, and the memory that a storm of connections needed is returned to the system after it.
package collector

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// Setting up a connection takes its goroutines deep into decoders, and their stacks grow to 16 or
// 32 KB. An idle connection needs a tenth of that, but stacks shrink only when the collector
// runs, by half at a time, and the collector has no reason to run in a broker that is quiet after
// a storm. The broker therefore runs it.
const (
	stormSize    = 500             // new connections that make a collection worthwhile
	settleEvery  = 4 * time.Second // between checks; a storm is over when a check finds no new connection
	settlePasses = 3               // shrinks 32 KB to 4 KB
)

// A settler detects the end of a storm of connections.
type settler struct {
	seen, settled int64 // number of CONNECTs at the last check, and when memory was last returned
}

// over reports whether a storm has ended, given the number of CONNECTs so far.
func (s *settler) over(connects int64) bool {
	quiet := connects == s.seen
	s.seen = connects
	if !quiet || connects-s.settled < stormSize {
		return false
	}
	s.settled = connects
	return true
}

// returnMemory returns unused stack memory to the system. It takes some 100 ms of processor time
// for 10,000 connections.
func returnMemory() {
	for range settlePasses {
		debug.FreeOSMemory()
	}
}

// Between two collections the heap may grow by a percentage of the memory in use, stacks
// included. With Go's 100 % an idle fleet would use twice the memory that it needs, and a small
// busy one would spend a fifth of its time collecting. A small process may therefore grow by
// roomy, a large one by half, and one that carries many calls by more while it does.
const (
	roomy           = 64 << 20
	leastGCPercent  = 50
	busyGCPercent   = 250
	mostGCPercent   = 400
	gcPercentChange = 10 // smaller changes do not justify stopping the world

	paceEvery  = 500 * time.Millisecond
	busyRate   = 200              // messages from devices a second
	quietAfter = 20 * time.Second // a busy process has short pauses
)

// gcPercent returns the collector's setting for the bytes in use.
func gcPercent(inUse uint64, busy bool) int {
	percent := max(leastGCPercent, min(mostGCPercent, int(100*roomy/max(inUse, 1))))
	if busy {
		return max(percent, busyGCPercent)
	}
	return percent
}

// A pacer adjusts the collector's setting to the process's size and load, unless the environment
// sets GOGC.
type pacer struct {
	percent  int
	messages int64     // received up to the last check
	busyTill time.Time // zero while quiet
	samples  [2]metrics.Sample
}

func newPacer() *pacer {
	p := &pacer{percent: 100}
	p.samples[0].Name = "/gc/heap/live:bytes"
	p.samples[1].Name = "/memory/classes/heap/stacks:bytes"
	return p
}

// work records how many messages have been received, and reports whether the process is busy and
// whether it has just stopped being busy.
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

// A Load counts what a process has done since its start.
type Load struct {
	Messages func() int64 // received from devices
	Connects func() int64 // accepted
}

// Run adjusts the collector until ctx ends.
func Run(ctx context.Context, load Load) error {
	settle := time.NewTicker(settleEvery)
	defer settle.Stop()
	pace := time.NewTicker(paceEvery)
	defer pace.Stop()
	var storms settler
	pacer := newPacer()
	for {
		select {
		case now := <-pace.C:
			pacer.adjust(load.Messages(), now)
		case <-settle.C:
			if storms.over(load.Connects()) {
				returnMemory()
			}
		case <-ctx.Done():
			return nil
		}
	}
}
