package i18n

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// Number formats n with groups of three digits, in both languages.
func Number(_ Lang, n int64) string {
	s := strconv.FormatInt(n, 10)
	first := 0
	if n < 0 {
		first = 1
	}
	for i := len(s) - 3; i > first; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Percent formats a share of 0..1. A share above zero never reads 0 %, and a share below one never
// reads 100 %.
func Percent(_ Lang, share float64) string {
	p := math.Round(share * 100)
	switch {
	case share > 0 && p < 1:
		return "<1%"
	case share < 1 && p > 99:
		return ">99%"
	}
	return strconv.Itoa(int(p)) + "%"
}

// Bytes formats a size in the units that memory is sold in.
func Bytes(_ Lang, n int64) string {
	const unit = 1024
	f, i := float64(n), 0
	for ; f >= unit && i < 4; i++ {
		f /= unit
	}
	prec := 1
	if i == 0 || f >= 100 {
		prec = 0
	}
	return strconv.FormatFloat(f, 'f', prec, 64) + " " + [...]string{"B", "KiB", "MiB", "GiB", "TiB"}[i]
}

// DecibelMilliwatts formats a signal strength, with a minus as wide as a digit.
func DecibelMilliwatts(_ Lang, n int) string {
	return strings.Replace(strconv.Itoa(n), "-", "−", 1) + " dBm"
}

// Celsius formats a temperature to a tenth of a degree.
func Celsius(_ Lang, degrees float64) string {
	return strings.Replace(strconv.FormatFloat(degrees, 'f', 1, 64), "-", "−", 1) + " °C"
}

// DateTime formats a time to the second, in the zone of t.
func DateTime(l Lang, t time.Time) string {
	if l == Chinese {
		return t.Format("2006年1月2日 15:04:05")
	}
	return t.Format("2 Jan 2006, 15:04:05")
}

// Date formats the day of t.
func Date(l Lang, t time.Time) string {
	if l == Chinese {
		return t.Format("2006年1月2日")
	}
	return t.Format("2 Jan 2006")
}

// Day formats the day of t without its year, for the axis of a chart.
func Day(l Lang, t time.Time) string {
	if l == Chinese {
		return t.Format("1月2日")
	}
	return t.Format("2 Jan")
}

// Clock formats a time of day to the millisecond, for timelines within a call.
func Clock(_ Lang, t time.Time) string { return t.Format("15:04:05.000") }

// Duration formats d in its one or two leading units.
func Duration(l Lang, d time.Duration) string {
	switch d = max(d, 0); {
	case d > 0 && d < time.Millisecond:
		return Text(l, "duration.under_ms")
	case d < time.Second:
		return Text(l, "duration.ms", "n", strconv.Itoa(int(d.Milliseconds())))
	case d < 10*time.Second:
		return Text(l, "duration.s", "n", seconds(d.Round(10*time.Millisecond)))
	case d < time.Minute:
		return Text(l, "duration.s", "n", seconds(d.Round(100*time.Millisecond)))
	case d < time.Hour:
		return pair(l, "min", int(d.Minutes()), "s", int(d.Seconds())%60)
	case d < 24*time.Hour:
		return pair(l, "h", int(d.Hours()), "min", int(d.Minutes())%60)
	}
	return pair(l, "d", int(d.Hours())/24, "h", int(d.Hours())%24)
}

// seconds divides once: d.Seconds adds the seconds to their fraction, which gives
// 1.6800000000000002 for 1.68.
func seconds(d time.Duration) string {
	return strconv.FormatFloat(float64(d.Milliseconds())/1000, 'f', -1, 64)
}

func pair(l Lang, big string, n int, small string, rest int) string {
	if rest == 0 {
		return Text(l, "duration."+big, "n", n)
	}
	return Text(l, "duration."+big+"_"+small, big, n, small, rest)
}

// Relative formats the distance of t from now, in its leading unit. The script does the same with
// the same messages (see JSKeys) as time passes.
func Relative(l Lang, t, now time.Time) string {
	if d := now.Sub(t); d < 0 {
		return leading(l, "time.in.", -d)
	}
	return leading(l, "time.ago.", now.Sub(t))
}

// Lasting formats how long a state that began at t has lasted.
func Lasting(l Lang, t, now time.Time) string { return leading(l, "time.for.", max(now.Sub(t), 0)) }

func leading(l Lang, side string, d time.Duration) string {
	switch {
	case d < 5*time.Second:
		return Text(l, "time.now")
	case d < time.Minute:
		return Text(l, side+"s", "n", int(d.Seconds()))
	case d < time.Hour:
		return Text(l, side+"min", "n", int(d.Minutes()))
	case d < 48*time.Hour:
		return Text(l, side+"h", "n", int(d.Hours()))
	}
	return Text(l, side+"d", "n", int(d.Hours()/24))
}

// JSKeys are the messages that the browser's script needs.
var JSKeys = []string{
	"time.now", "time.ago.s", "time.ago.min", "time.ago.h", "time.ago.d",
	"time.in.s", "time.in.min", "time.in.h", "time.in.d",
	"time.for.s", "time.for.min", "time.for.h", "time.for.d",
	"js.copied", "js.selected", "js.selected_all", "js.new", "js.unanswered", "js.calls", "js.stale", "js.database",
}
