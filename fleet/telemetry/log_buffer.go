package telemetry

import (
	"cmp"
	"slices"
)

// MaxLogLines bounds the lines that are kept of a device.
const MaxLogLines = 1000

// A logBuffer is the end of a device's log, as far as fleetd got it, in the
// device's own order.
type logBuffer struct {
	lines []LogLine
	seq   uint64
	// generation changes when lines are no longer only added at the end: who
	// followed has to read all again.
	generation uint64
}

// add merges lines: some may be here already, and older ones may come after
// newer ones, when an operator asks for what was before. end is the number
// that the device's next line will have.
func (b *logBuffer) add(lines []LogLine, end uint32) (added bool) {
	if b.beganAnew(lines, end) {
		b.lines, b.generation = nil, b.generation+1
	}
	for _, l := range lines {
		added = b.insert(l) || added
	}
	if over := len(b.lines) - MaxLogLines; over > 0 {
		b.lines = slices.Delete(b.lines, 0, over)
	}
	return added
}

func (b *logBuffer) find(number uint32) (int, bool) {
	return slices.BinarySearchFunc(b.lines, number, func(l LogLine, n uint32) int { return cmp.Compare(l.Number, n) })
}

// beganAnew reports whether the lines come from another log than those that
// are here: a device that lost power counts from the beginning. What is sent
// twice is no such sign.
func (b *logBuffer) beganAnew(lines []LogLine, end uint32) bool {
	fresh := false
	for _, l := range lines {
		i, found := b.find(l.Number)
		if found && !b.lines[i].same(l) {
			return true
		}
		fresh = fresh || !found
	}
	return fresh && len(b.lines) > 0 && end <= b.lines[len(b.lines)-1].Number
}

func (b *logBuffer) insert(l LogLine) bool {
	i, found := b.find(l.Number)
	if found {
		return false
	}
	if i < len(b.lines) {
		b.generation++
	}
	b.seq++
	l.Seq = b.seq
	b.lines = slices.Insert(b.lines, i, l)
	return true
}

// after returns the lines that came after seq.
func (b *logBuffer) after(seq uint64) []LogLine {
	var news []LogLine
	for _, l := range b.lines {
		if l.Seq > seq {
			news = append(news, l)
		}
	}
	return news
}
