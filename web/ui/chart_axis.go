package ui

import (
	"context"
	"math"
	"strconv"
	"time"

	"fleetd/web/i18n"
)

// An axis runs from low to high and has a tick at every step.
type axis struct{ low, high, step float64 }

// niceAxis returns an axis that contains lo and hi, with about n steps of 1, 2 or 5 times a power
// of ten.
func niceAxis(lo, hi float64, n int) axis {
	raw := max(hi-lo, 1e-9) / float64(n)
	size := math.Pow(10, math.Floor(math.Log10(raw)))
	step := 10 * size
	for _, f := range []float64{1, 2, 5} {
		if f*size >= raw*.999 {
			step = f * size
			break
		}
	}
	return axis{math.Floor(lo/step) * step, math.Ceil(hi/step) * step, step}
}

func (a axis) share(v float64) float64 {
	return min(max((v-a.low)/(a.high-a.low), 0), 1)
}

// A tickMark is a labelled position on an axis.
type tickMark struct{ at, label, anchor string }

// ticks returns the positions on the vertical axis, from the top.
func (a axis) ticks() (all []tickMark) {
	for v := a.high; v > a.low-a.step/2; v -= a.step {
		all = append(all, tickMark{at: percent(1 - a.share(v)), label: figure(v)})
	}
	return all
}

// figure formats a number with no more digits than it needs.
func figure(v float64) string {
	return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64)
}

// A timeSpan is the time that a chart shows.
type timeSpan struct{ from, to time.Time }

func (s timeSpan) share(at time.Time) float64 {
	return min(max(float64(at.Sub(s.from))/float64(s.to.Sub(s.from)), 0), 1)
}

// tickStep returns the distance between labels, which fit side by side on a phone.
func (s timeSpan) tickStep() time.Duration {
	const day = 24 * time.Hour
	for _, step := range []time.Duration{
		15 * time.Second, time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute,
		time.Hour, 3 * time.Hour, 6 * time.Hour, day, 2 * day, 7 * day,
	} {
		if s.to.Sub(s.from)/step <= 4 {
			return step
		}
	}
	return 30 * day
}

// ticks returns round times of the viewer's day within the span.
func (s timeSpan) ticks(ctx context.Context) (all []tickMark) {
	p, step := page(ctx), s.tickStep()
	last := s.to.In(p.Zone)
	midnight := time.Date(last.Year(), last.Month(), last.Day(), 0, 0, 0, 0, p.Zone)
	for at := midnight.Add(last.Sub(midnight).Truncate(step)); at.After(s.from); at = at.Add(-step) {
		label := at.Format("15:04")
		if step < time.Minute {
			label = at.Format("15:04:05")
		} else if step >= 24*time.Hour {
			label = i18n.Day(p.Lang, at)
		}
		all = append(all, tickMark{at: percent(s.share(at)), label: label, anchor: anchored(s.share(at))})
	}
	return all
}

// anchored keeps a label within its chart.
func anchored(share float64) string {
	switch {
	case share < .05:
		return "start"
	case share > .95:
		return "end"
	}
	return "middle"
}
