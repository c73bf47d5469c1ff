package forms

import (
	"net/url"
	"strconv"
	"strings"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/alert"
)

// Alerts holds the settings of alerts as typed: the fields KIND.enabled, KIND.percent, KIND.span
// and KIND.count of each condition, then open_after, end_after and settle.
type Alerts struct {
	Rows                        []AlertRow
	OpenAfter, EndAfter, Settle string
}

// An AlertRow is one condition. Fields that it does not use are empty.
type AlertRow struct {
	Condition            alert.Condition
	Enabled              bool
	Percent, Span, Count string
}

// Name returns the name of a field of the row.
func (r AlertRow) Name(field string) string { return string(r.Condition.Kind) + "." + field }

// FillAlerts returns the form of the settings.
func FillAlerts(s alert.Settings) Alerts {
	f := Alerts{OpenAfter: Span(s.OpenAfter), EndAfter: Span(s.EndAfter), Settle: Span(s.Settle)}
	for _, c := range alert.Conditions {
		t := s.Thresholds[c.Kind]
		r := AlertRow{Condition: c, Enabled: t.Enabled}
		if c.Most.Percent > 0 {
			r.Percent = strconv.Itoa(t.Percent)
		}
		if c.Most.Span > 0 {
			r.Span = Span(t.Span)
		}
		if c.Most.Count > 0 {
			r.Count = strconv.Itoa(t.Count)
		}
		f.Rows = append(f.Rows, r)
	}
	return f
}

// PostedAlerts returns the form as posted.
func PostedAlerts(v url.Values) Alerts {
	f := Alerts{OpenAfter: v.Get("open_after"), EndAfter: v.Get("end_after"), Settle: v.Get("settle")}
	for _, c := range alert.Conditions {
		r := AlertRow{Condition: c}
		r.Enabled = v.Get(r.Name("enabled")) != ""
		r.Percent, r.Span, r.Count = v.Get(r.Name("percent")), v.Get(r.Name("span")), v.Get(r.Name("count"))
		f.Rows = append(f.Rows, r)
	}
	return f
}

// Read reads the form.
func (f Alerts) Read() (c alert.SettingsChange, err error) {
	c.Thresholds = make(map[alert.Kind]alert.Threshold)
	for _, r := range f.Rows {
		t := alert.Threshold{Enabled: r.Enabled}
		most := r.Condition.Most
		for _, n := range []struct {
			to    *int
			used  bool
			text  string
			field string
		}{{&t.Percent, most.Percent > 0, r.Percent, "percent"}, {&t.Count, most.Count > 0, r.Count, "count"}} {
			if !n.used {
				continue
			}
			if *n.to, err = wholeNumber(n.text, n.field); err != nil {
				return c, err
			}
		}
		if most.Span > 0 {
			if t.Span, err = readSpan(r.Span, r.Name("span")); err != nil {
				return c, err
			}
		}
		c.Thresholds[r.Condition.Kind] = t
	}
	for _, w := range []struct {
		to    **time.Duration
		text  string
		field string
	}{{&c.OpenAfter, f.OpenAfter, "open_after"}, {&c.EndAfter, f.EndAfter, "end_after"}, {&c.Settle, f.Settle, "settle"}} {
		d, err := readSpan(w.text, w.field)
		if err != nil {
			return c, err
		}
		*w.to = &d
	}
	return c, nil
}

// units of a span, longest first.
var units = []struct {
	name string
	d    time.Duration
}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}}

// Span formats a duration as queries do: 90s, 15m, 24h, 21d.
func Span(d time.Duration) string {
	for _, u := range units {
		if d >= u.d && d%u.d == 0 {
			return strconv.FormatInt(int64(d/u.d), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(d/time.Second), 10) + "s"
}

func readSpan(text, field string) (time.Duration, error) {
	text = strings.ToLower(strings.ReplaceAll(text, " ", ""))
	for _, u := range units {
		if number, ok := strings.CutSuffix(text, u.name); ok {
			if n, err := strconv.Atoi(number); err == nil && n >= 0 && n <= 1_000_000 {
				return time.Duration(n) * u.d, nil
			}
		}
	}
	return 0, fleet.Refuse(fleet.ErrInvalid, "invalid_span", "value", text).At(field)
}
