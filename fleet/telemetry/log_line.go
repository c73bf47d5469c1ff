package telemetry

import (
	"encoding/json"
	"fleetd/fleet"
	"slices"
	"time"
)

// LogLevels are the levels of a device's log, most urgent first.
var LogLevels = []string{"error", "warn", "info", "debug", "verbose"}

// LogSilent is the level at which a device logs nothing.
const LogSilent = "none"

// A LogLine is one line of a device's log: foreign text, cleaned and bounded.
type LogLine struct {
	Seq    uint64        // order in which fleetd got it, ever rising
	Number uint32        // the device's own count of its lines
	Uptime time.Duration // of the device, when it wrote the line
	Level  string        // one of LogLevels
	Tag    string        // the part of the firmware that wrote it
	Text   string
}

// same reports whether two lines of equal number are one.
func (l LogLine) same(o LogLine) bool { return l.Uptime == o.Uptime && l.Text == o.Text }

// A LogReport is a piece of a device's log: the answer of [fleet.ToolLogsTail], or
// the params of notifications/log.
type LogReport struct {
	Lines   []LogLine
	Next    uint32 // the number to go on from
	Dropped int64  // lines that it had no room to keep until it could send them
}

// Bounds of what a device says in its log.
const (
	maxLogText   = 512 // bytes
	maxLogTag    = 32
	maxLogReport = 200 // lines; the firmware sends 100 at most
)

// readLogReport takes what is understood and leaves out the rest.
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
