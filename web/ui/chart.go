package ui

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// A trend is a line chart drawn by the server: lines with a common unit over time, with gaps where
// nothing was reported. It needs no JavaScript; the value under the pointer is the title of the
// strip there.
//
// The lines are in a box of plotWide by plotHigh units that is stretched to the available space;
// labels are outside of it, positioned by percent, and therefore keep their size at every width.
type trend struct {
	id, title, unit string
	desc            string // description for screen readers
	axis            axis
	span            timeSpan
	zoom            string        // page that shows the time below a drag; "" for none
	reach           time.Duration // more distant readings are not joined
	lines           []trendLine
	bars            bool // the first line is drawn as bars, one per reading
	readings        []reading
	marks           []time.Time // restarts
}

// zoomScript shows the time below a drag over a chart.
const zoomScript = "zoom.js"

const (
	plotWide = 1000
	plotHigh = 100
)

// A trendLine is one quantity of a trend.
type trendLine struct {
	class, label string
	last         string // its newest value, with the unit
}

// A reading is the values of one moment: one per line, NaN for none.
type reading struct {
	at     time.Time
	values []float64
	text   string // text under the pointer
}

// drawable reports whether there is anything to draw.
func (c trend) drawable() bool {
	for _, r := range c.readings {
		for _, v := range r.values {
			if !math.IsNaN(v) {
				return true
			}
		}
	}
	return false
}

func (c trend) x(at time.Time) float64 { return plotWide * c.span.share(at) }

func (c trend) y(v float64) float64 { return plotHigh * (1 - c.axis.share(v)) }

// joined reports whether line n is continuous between the reading before i and the reading at i.
func (c trend) joined(i, n int) bool {
	return i > 0 && !math.IsNaN(c.readings[i-1].values[n]) && c.readings[i].at.Sub(c.readings[i-1].at) <= c.reach
}

// path draws line n. An isolated reading is a dot: a line of zero length with round ends.
func (c trend) path(n int) string {
	var b strings.Builder
	for i, r := range c.readings {
		switch v := r.values[n]; {
		case math.IsNaN(v):
		case c.joined(i, n):
			b.WriteString("L" + c.point(r.at, v))
		default:
			b.WriteString("M" + c.point(r.at, v) + "h0")
		}
	}
	return b.String()
}

// band fills the space between the lines n and m where both have values.
func (c trend) band(n, m int) string {
	var b strings.Builder
	var there, back []string
	closeRun := func() {
		if len(there) > 1 {
			b.WriteString("M" + strings.Join(there, "L") + "L" + strings.Join(back, "L") + "Z")
		}
		there, back = nil, nil
	}
	for i, r := range c.readings {
		if !c.joined(i, n) || !c.joined(i, m) {
			closeRun()
		}
		if !math.IsNaN(r.values[n]) && !math.IsNaN(r.values[m]) {
			there = append(there, c.point(r.at, r.values[n]))
			back = append([]string{c.point(r.at, r.values[m])}, back...)
		}
	}
	closeRun()
	return b.String()
}

func (c trend) point(at time.Time, v float64) string { return coord(c.x(at)) + " " + coord(c.y(v)) }

// A strip is the part of the plot where the pointer selects one reading.
type strip struct{ x, width, barX, barWidth, y, height, text string }

// strips divides the plot among the readings, at the middle between two, and leaves gaps empty.
func (c trend) strips() []strip {
	all := make([]strip, len(c.readings))
	for i, r := range c.readings {
		left, right := r.at.Add(-c.reach/3), r.at.Add(c.reach/3)
		if i > 0 {
			left = later(left, middle(c.readings[i-1].at, r.at))
		}
		if i+1 < len(c.readings) {
			right = earlier(right, middle(r.at, c.readings[i+1].at))
		}
		from, to := c.x(left), c.x(right)
		all[i] = strip{x: coord(from), width: coord(max(to-from, 1)), text: r.text}
		if v := r.values[0]; c.bars && !math.IsNaN(v) && v > 0 {
			all[i].barX, all[i].barWidth = coord(from+(to-from)*.15), coord(max((to-from)*.7, 1))
			all[i].y, all[i].height = coord(c.y(v)), coord(plotHigh-c.y(v))
		}
	}
	return all
}

func middle(a, b time.Time) time.Time { return a.Add(b.Sub(a) / 2) }

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// coord formats a coordinate to a tenth of a unit: less than a pixel.
func coord(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }

func percent(share float64) string { return coord(100*share) + "%" }
