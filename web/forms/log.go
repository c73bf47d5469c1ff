package forms

import (
	"net/url"
	"slices"
	"strings"

	"fleetd/fleet/telemetry"
)

// A LogFilter selects lines that are at least as urgent as Level and contain Text.
type LogFilter struct{ Level, Text string }

// NewLogFilter reads the filter from an address. It ignores an unknown level.
func NewLogFilter(q url.Values) LogFilter {
	f := LogFilter{Level: q.Get("level"), Text: strings.TrimSpace(q.Get("q"))}
	if !slices.Contains(telemetry.LogLevels, f.Level) {
		f.Level = ""
	}
	return f
}

// Values returns the filter as the parameters of an address.
func (f LogFilter) Values() url.Values {
	v := url.Values{}
	if f.Level != "" {
		v.Set("level", f.Level)
	}
	if f.Text != "" {
		v.Set("q", f.Text)
	}
	return v
}

// Pick returns the lines that match.
func (f LogFilter) Pick(lines []telemetry.LogLine) []telemetry.LogLine {
	if f == (LogFilter{}) {
		return lines
	}
	most, text := slices.Index(telemetry.LogLevels, f.Level), strings.ToLower(f.Text)
	var picked []telemetry.LogLine
	for _, l := range lines {
		if (most < 0 || slices.Index(telemetry.LogLevels, l.Level) <= most) &&
			(strings.Contains(strings.ToLower(l.Text), text) || strings.Contains(strings.ToLower(l.Tag), text)) {
			picked = append(picked, l)
		}
	}
	return picked
}
