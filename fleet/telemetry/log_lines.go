package telemetry

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"fleetd/fleet"
)

// LogLevels are the levels of a device's log, most urgent first.
var LogLevels = []string{"error", "warn", "info", "debug", "verbose"}

// LogSilent is the level at which a device logs nothing.
const LogSilent = "none"

// A LogLine is one line of a device's log: untrusted text, cleaned and bounded.
type LogLine struct {
	Seq    uint64        // order of arrival at fleetd, always increasing
	Number uint32        // the device's own count of its lines
	Uptime time.Duration // of the device, when it wrote the line
	Level  string        // one of LogLevels
	Tag    string        // the part of the firmware that wrote the line
	Text   string
}

// same reports whether two lines with the same number are the same line.
func (l LogLine) same(o LogLine) bool { return l.Uptime == o.Uptime && l.Text == o.Text }

// A LogReport is a piece of a device's log: the answer to [fleet.ToolLogsTail], or the params
// of notifications/log.
type LogReport struct {
	Lines   []LogLine
	Next    uint32 // the number of the line after these
	Dropped int64  // lines that the device discarded for lack of room before it could send them
}

// Bounds of a device's log.
const (
	maxLogText   = 512 // bytes
	maxLogTag    = 32
	maxLogReport = 200 // lines; the firmware sends 100 at most
)

// readLogReport parses a report, and omits the parts that it cannot parse.
func readLogReport(raw json.RawMessage) (LogReport, bool) {
	var wire struct {
		Lines []struct {
			N     uint32 `json:"n"`
			T     int64  `json:"t"` // ms
			Level string `json:"level"`
			Tag   string `json:"tag"`
			Text  string `json:"text"`
		} `json:"lines"`
		Next    uint32 `json:"next"`
		Dropped int64  `json:"dropped"`
	}
	if json.Unmarshal(raw, &wire) != nil || len(wire.Lines) > maxLogReport {
		return LogReport{}, false
	}
	report := LogReport{Next: wire.Next, Dropped: max(wire.Dropped, 0)}
	for _, l := range wire.Lines {
		level := l.Level
		if !slices.Contains(LogLevels, level) {
			level = "info"
		}
		report.Lines = append(report.Lines,
			LogLine{Number: l.N, Uptime: time.Duration(min(max(l.T, 0), 1<<40)) * time.Millisecond,
				Level: level, Tag: fleet.CleanText(l.Tag, maxLogTag), Text: fleet.CleanText(l.Text, maxLogText)})
	}
	return report, true
}

// MaxLogLines bounds the stored lines of a device.
const MaxLogLines = 1000

// logBuffer is the end of a device's log, as far as fleetd received it, in the device's order.
type logBuffer struct {
	lines []LogLine
	seq   uint64
	// generation changes when lines change other than by additions at the end: followers must
	// re-read all lines.
	generation uint64
}

// add merges lines. Some may be in the buffer already, and older lines may come after newer
// ones if an operator requests earlier lines. end is the number of the device's next line.
func (b *logBuffer) add(lines []LogLine, end uint32) (added bool) {
	if b.restarted(lines, end) {
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

// restarted reports whether the lines come from another log than the lines in the buffer: a device
// that lost power counts from the beginning. Lines that were sent twice do not count as a restart.
func (b *logBuffer) restarted(lines []LogLine, end uint32) bool {
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
	var later []LogLine
	for _, l := range b.lines {
		if l.Seq > seq {
			later = append(later, l)
		}
	}
	return later
}
