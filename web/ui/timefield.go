package ui

import (
	"cmp"
	"context"
	"encoding/json"
	"strings"
	"time"
)

// A timeInput is a field for a date and a time; package forms reads it.
type timeInput struct {
	Name, Label string
	Value       string // as in the address or as typed
	Day         bool   // a date without a time
	Ahead       bool   // presets are in the future
	Required    bool
	Invalid     string // aria-invalid; "" for none
	Zone        string // if it is not the viewer's
}

func (f timeInput) kind() string {
	if f.Day {
		return "day"
	}
	return "moment"
}

func (f timeInput) zone(ctx context.Context) string { return cmp.Or(f.Zone, page(ctx).Zone.String()) }

// text is the value without the T between date and time, which addresses have.
func (f timeInput) text() string { return strings.Replace(f.Value, "T", " ", 1) }

func (f timeInput) placeholder() string {
	if f.Day {
		return "YYYY-MM-DD"
	}
	return "YYYY-MM-DD hh:mm"
}

func (f timeInput) pattern() string {
	const day = `\d{4}-\d{1,2}-\d{1,2}`
	if f.Day {
		return day
	}
	return day + `([ T]\d{1,2}:\d{2}(:\d{2})?(\.\d+)?(Z|[+\-]\d{2}:\d{2})?)?`
}

// presets returns pairs of a distance from now in ms and its text, as JSON.
func (f timeInput) presets(ctx context.Context) string {
	pairs := [][2]any{}
	if !f.Day {
		side, sign := "ago", int64(-1)
		if f.Ahead {
			side, sign = "in", 1
		}
		for _, d := range []struct {
			key  string
			span time.Duration
			n    int
		}{{"h", time.Hour, 1}, {"h", 24 * time.Hour, 24}, {"d", 7 * 24 * time.Hour, 7}} {
			pairs = append(pairs, [2]any{sign * d.span.Milliseconds(), t(ctx, "time."+side+"."+d.key, "n", d.n)})
		}
	}
	b, _ := json.Marshal(pairs) // numbers and strings
	return string(b)
}
