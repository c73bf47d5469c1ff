package ui

import (
	"context"
	"math"
	"net/url"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/telemetry"
)

// A HealthRange is a time span of the health page, in steps that a phone can still show as separate
// points.
type HealthRange struct {
	Name       string // "" for one that an operator chose
	Span, Step time.Duration
	To         time.Time // its end; zero: now
}

// HealthRanges are all ranges, shortest first.
var HealthRanges = []HealthRange{
	{Name: "1h", Span: time.Hour, Step: telemetry.VitalsStep},
	{Name: "24h", Span: 24 * time.Hour, Step: 2 * telemetry.VitalsStep},
	{Name: "7d", Span: 7 * 24 * time.Hour, Step: time.Hour},
	{Name: "30d", Span: 30 * 24 * time.Hour, Step: 6 * time.Hour},
}

// ParseHealthRange returns the range with that name, or a default: a day, or an hour for a device
// that is too new for a day.
func ParseHealthRange(name string, age time.Duration) HealthRange {
	for _, r := range HealthRanges {
		if r.Name == name {
			return r
		}
	}
	if age < 2*time.Hour {
		return HealthRanges[0]
	}
	return HealthRanges[1]
}

// leastHealthSpan is the shortest time that has a few points.
const leastHealthSpan = 4 * telemetry.VitalsStep

// ChosenHealthRange returns the range between two times, or the shortest one around a shorter time.
// History that is older than some days has steps of an hour.
func ChosenHealthRange(from, to, now time.Time) HealthRange {
	if short := leastHealthSpan - to.Sub(from); short > 0 && !to.Before(from) {
		from, to = from.Add(-short/2), earlier(to.Add(short/2), now)
		from = earlier(from, to.Add(-leastHealthSpan))
	}
	r := HealthRange{Span: to.Sub(from), Step: HealthRanges[len(HealthRanges)-1].Step, To: to}
	for _, named := range HealthRanges {
		if r.Span <= named.Span*3/2 {
			r.Step = named.Step
			break
		}
	}
	if now.Sub(from) > telemetry.VitalsStepsKept {
		r.Step = max(r.Step, time.Hour)
	}
	return r
}

// HealthTrends is the health of a device over time.
type HealthTrends struct {
	Device    fleet.DeviceID
	Shown     bool // the device sends reports
	Range     HealthRange
	First     time.Time // when fleetd first saw the device
	To        time.Time
	Heartbeat time.Duration
	Points    []telemetry.VitalsPoint // oldest first
}

func (v HealthTrends) path() string { return DevicePath(v.Device, "health") }

func (v HealthTrends) rangeURL(r HealthRange) string {
	return v.path() + "?" + url.Values{"range": {r.Name}}.Encode()
}

// chosen returns the times of a range that an operator chose, for the fields.
func (v HealthTrends) chosen(ctx context.Context) (from, to string) {
	if v.Range.Name != "" {
		return "", ""
	}
	s, zone := v.span(), page(ctx).Zone
	return s.from.In(zone).Format(localMinute), s.to.In(zone).Format(localMinute)
}

func (v HealthTrends) span() timeSpan { return timeSpan{v.To.Add(-v.Range.Span), v.To} }

// reach returns the longest silence that does not count as a gap.
func (v HealthTrends) reach() time.Duration { return max(v.Range.Step*3/2, v.Range.Step+2*v.Heartbeat) }

// all returns the charts with data.
func (v HealthTrends) all(ctx context.Context) (drawn []trend) {
	for _, c := range []trend{v.memory(ctx), v.signal(ctx), v.temperature(ctx), v.reconnects(ctx)} {
		if c.drawable() {
			drawn = append(drawn, c)
		}
	}
	return drawn
}

// at returns the time of point i in the chart: the beginning of its step, but not before the device
// was first seen.
func (v HealthTrends) at(i int) time.Time {
	if at := v.Points[i].At; at.After(v.First) {
		return at
	}
	return v.First
}

// restarts returns the times at which the device restarted. A point has the time of the beginning
// of its step, and the uptime at its end.
func (v HealthTrends) restarts() (all []time.Time) {
	for i, p := range v.Points {
		if !p.Restarted {
			continue
		}
		end := p.At
		if v.Range.Step > 0 && p.At.Equal(p.At.Truncate(v.Range.Step)) { // the latest report is not a whole step
			end = p.At.Add(v.Range.Step)
		}
		if end.After(v.To) {
			end = v.To
		}
		at := end.Add(-p.Uptime)
		if i > 0 && at.Before(v.Points[i-1].At) {
			at = v.Points[i-1].At
		}
		all = append(all, at)
	}
	return all
}

// trend returns the common part of the page's charts; values returns the values of a point, text
// its description.
func (v HealthTrends) trend(id, title, unit string, values func(i int) []float64, text func(i int) string) trend {
	c := trend{id: "trend-" + id, title: title, unit: unit, span: v.span(), zoom: v.path(), reach: v.reach(), marks: v.restarts()}
	for i := range v.Points {
		c.readings = append(c.readings, reading{at: v.at(i), values: values(i), text: text(i)})
	}
	return c
}

// say returns the text under the pointer: the time, the values, and whether the device restarted.
func (v HealthTrends) say(ctx context.Context, i int, what string) string {
	said := exact(ctx, v.at(i)) + "\n" + what
	if v.Points[i].Restarted {
		said += "\n" + t(ctx, "health.restarted")
	}
	return said
}

func (v HealthTrends) memory(ctx context.Context) trend {
	unit, size := memoryUnit(v.Points)
	c := v.trend("heap", t(ctx, "health.trend.heap"), unit, func(i int) []float64 {
		p := v.Points[i]
		return []float64{positive(p.HeapFree) / size, positive(p.HeapMin) / size, positive(p.HeapLargest) / size}
	}, func(i int) string {
		p := v.Points[i]
		return v.say(ctx, i, t(ctx, "health.trend.heap_say", "free", memory(ctx, p.HeapFree), "min", memory(ctx, p.HeapMin),
			"largest", memory(ctx, p.HeapLargest)))
	})
	c.lines = []trendLine{
		{"line-1", t(ctx, "health.heap"), ""}, {"line-2", t(ctx, "health.heap_min"), ""},
		{"line-3", t(ctx, "health.heap_largest"), ""},
	}
	if n := len(v.Points); n > 0 {
		p := v.Points[n-1]
		c.lines[0].last, c.lines[1].last, c.lines[2].last = memory(ctx, p.HeapFree), memory(ctx, p.HeapMin),
			memory(ctx, p.HeapLargest)
	}
	_, hi := c.bounds()
	c.axis = niceAxis(0, max(hi, 1), 4)
	return c.described(ctx)
}

// memoryUnit returns the unit that makes the axis labels short.
func memoryUnit(points []telemetry.VitalsPoint) (name string, size float64) {
	for _, p := range points {
		if p.HeapFree > 4<<20 {
			return "MiB", 1 << 20
		}
	}
	return "KiB", 1 << 10
}

// memory formats an amount of memory, or a dash if it was not reported.
func memory(ctx context.Context, n int64) string {
	if n <= 0 {
		return "–"
	}
	return bytesText(ctx, n)
}

// positive returns NaN for values that the board could not measure.
func positive(n int64) float64 {
	if n <= 0 {
		return math.NaN()
	}
	return float64(n)
}

func (v HealthTrends) signal(ctx context.Context) trend {
	c := v.trend("rssi", t(ctx, "health.signal"), "dBm", func(i int) []float64 {
		if r := v.Points[i].RSSI; r != nil {
			return []float64{float64(*r)}
		}
		return []float64{math.NaN()}
	}, func(i int) string {
		r := v.Points[i].RSSI
		if r == nil {
			return v.say(ctx, i, t(ctx, "health.trend.none"))
		}
		key, _ := signal(*r)
		return v.say(ctx, i, t(ctx, "health.trend.signal_say", "dbm", dBm(ctx, *r), "word", t(ctx, key)))
	})
	c.lines = []trendLine{{"line-1", t(ctx, "health.trend.lowest"), ""}}
	if n := len(v.Points); n > 0 && v.Points[n-1].RSSI != nil {
		c.lines[0].last = dBm(ctx, *v.Points[n-1].RSSI)
	}
	c.axis = axis{-100, -20, 20}
	return c.described(ctx)
}

func (v HealthTrends) temperature(ctx context.Context) trend {
	c := v.trend("temperature", t(ctx, "health.temperature"), "°C", func(i int) []float64 {
		if d := v.Points[i].Temperature; d != nil {
			return []float64{*d}
		}
		return []float64{math.NaN()}
	}, func(i int) string {
		d := v.Points[i].Temperature
		if d == nil {
			return v.say(ctx, i, t(ctx, "health.trend.none"))
		}
		return v.say(ctx, i, celsius(ctx, *d))
	})
	c.lines = []trendLine{{"line-1", t(ctx, "health.trend.highest"), ""}}
	if n := len(v.Points); n > 0 && v.Points[n-1].Temperature != nil {
		c.lines[0].last = celsius(ctx, *v.Points[n-1].Temperature)
	}
	lo, hi := c.bounds()
	c.axis = niceAxis(min(lo, 20), max(hi, 60), 4)
	return c.described(ctx)
}

// uptime rises from each start.
func (v HealthTrends) uptime(ctx context.Context) trend {
	c := v.trend("uptime", t(ctx, "health.trend.uptime"), "",
		func(i int) []float64 { return []float64{v.Points[i].Uptime.Hours()} },
		func(i int) string { return v.say(ctx, i, duration(ctx, v.Points[i].Uptime)) })
	c.lines = []trendLine{{"line-1", c.title, ""}}
	if n := len(v.Points); n > 0 && v.Points[n-1].Uptime > 0 {
		c.lines[0].last = duration(ctx, v.Points[n-1].Uptime)
	}
	lo, hi := c.bounds()
	c.axis = niceAxis(min(lo, 0), max(hi, 1), 4)
	return c
}

// reconnects are shown by step, although the device counts from its start.
func (v HealthTrends) reconnects(ctx context.Context) trend {
	lost := v.lostConnections()
	c := v.trend("reconnects", t(ctx, "health.trend.reconnects"), "",
		func(i int) []float64 { return []float64{float64(lost[i])} },
		func(i int) string { return v.say(ctx, i, t(ctx, "health.trend.reconnects_say", "n", lost[i])) })
	c.bars = true
	total := int64(0)
	for _, n := range lost {
		total += n
	}
	c.lines = []trendLine{{"line-bar", t(ctx, "health.trend.in_all"), count(ctx, total)}}
	_, hi := c.bounds()
	c.axis = niceAxis(0, max(hi, 4), 4)
	return c.described(ctx)
}

// lostConnections returns the number of lost connections in each step.
func (v HealthTrends) lostConnections() []int64 {
	lost := make([]int64, len(v.Points))
	for i, p := range v.Points[min(1, len(v.Points)):] {
		before := v.Points[i].Reconnects
		if p.Restarted || p.Reconnects < before {
			before = 0
		}
		lost[i+1] = p.Reconnects - before
	}
	return lost
}

// bounds returns the minimum and maximum of all lines.
func (c trend) bounds() (lo, hi float64) {
	lo, hi = math.Inf(1), math.Inf(-1)
	for _, r := range c.readings {
		for _, v := range r.values {
			if !math.IsNaN(v) {
				lo, hi = min(lo, v), max(hi, v)
			}
		}
	}
	return lo, hi
}

// described returns the chart with a description of its content.
func (c trend) described(ctx context.Context) trend {
	lo, hi := c.bounds()
	c.desc = t(ctx, "health.trend.desc", "from", c.span.from, "to", c.span.to, "low", figure(lo), "high", figure(hi),
		"unit", c.unit)
	return c
}

// sparks returns the trends that one line can show, each scaled to its own minimum and maximum.
func (v HealthTrends) sparks(ctx context.Context) (all []trend) {
	for _, c := range []trend{v.memory(ctx), v.signal(ctx), v.uptime(ctx)} {
		if !c.drawable() || c.lines[0].last == "" {
			continue
		}
		c.lines, c.readings = c.lines[:1], firstLine(c.readings)
		lo, hi := c.bounds()
		c.axis = axis{lo - (hi-lo)/8 - 1, hi + (hi-lo)/8 + 1, hi - lo + 2}
		all = append(all, c)
	}
	return all
}

func firstLine(readings []reading) []reading {
	first := make([]reading, len(readings))
	for i, r := range readings {
		first[i] = reading{at: r.at, values: r.values[:1]}
	}
	return first
}
