// Package trend has the figures of dashboards: how many devices were online, what they ran, and what happened to them,
// over a range of time, for the fleet or for a group of its devices.
//
// It counts nothing itself: a [Store] has counted each hour and each day ahead, for the fleet, for boards, versions and
// tags, and for the devices that match a saved filter or a scope. So a group has figures from the hour on in which
// fleetd began to count it, and a device counts for the groups that it belonged to in that hour. A principal with a
// scope gets the figures of the scope, and those of saved filters within it.
//
// Times are UTC, and so are days. The package has no goroutine and no lock.
package trend

import (
	"context"
	"slices"
	"strings"
	"time"

	"fleetd/fleet"
)

// A Metric is a quantity that is counted, by keys.
type Metric string

const (
	Devices       Metric = "devices"       // by presence, at the end of each hour
	Versions      Metric = "versions"      // devices by the version that they run
	Boards        Metric = "boards"        // devices by board
	Crashes       Metric = "crashes"       // by the reason that the device reported
	Connections   Metric = "connections"   // that devices made
	Signal        Metric = "signal"        // reception in dBm: its median, and what a tenth of the devices do not reach
	Outcomes      Metric = "outcomes"      // calls by state
	Tools         Metric = "tools"         // calls by tool
	Conversations Metric = "conversations" // that devices began
)

// Metrics lists the metrics, in the order in which they are shown.
var Metrics = []Metric{Devices, Versions, Boards, Signal, Connections, Crashes, Outcomes, Tools, Conversations}

// OfState reports whether the metric counts what is so at a moment; others count events. Of a longer time it is the
// average of the hours.
func (m Metric) OfState() bool {
	return m == Devices || m == Versions || m == Boards || m == Signal
}

// ofCalls reports whether the metric counts calls.
func (m Metric) ofCalls() bool { return m == Outcomes || m == Tools }

// Keys with a meaning of their own.
const (
	KeyOthers = "\x01" // the sum of the keys beyond the largest
	KeyMedian = "median"
	KeyTenth  = "weakest_tenth"
	// KeyBetween counts devices that connect only for conversations, while they are offline.
	KeyBetween = string(fleet.CountedBetween)
)

// CrashReasons are the reasons of a restart that count as a crash.
var CrashReasons = []string{"panic", "watchdog", "brownout"}

// A GroupKind is a kind of [Group].
type GroupKind string

const (
	WholeFleet GroupKind = "fleet"
	OfBoard    GroupKind = "board"
	OfVersion  GroupKind = "version"
	OfTag      GroupKind = "tag"
	OfQuery    GroupKind = "query" // the text of a saved filter, or of a scope
)

// A Group is a set of devices with figures.
type Group struct {
	Kind  GroupKind
	Value string
}

// A Range is a length of time that ends now, by name.
type Range struct {
	Name string
	Long time.Duration
}

const day = 24 * time.Hour

// Ranges lists the ranges, shortest first.
var Ranges = []Range{{"24h", day}, {"7d", 7 * day}, {"30d", 30 * day}, {"90d", 90 * day}, {"1y", 365 * day}}

// DefaultRange is the range of a question without one.
const DefaultRange = "7d"

// Times for which figures are kept.
const (
	HoursKept = 90 * day
	DaysKept  = 400 * day
)

// A Span is a time in equal steps. Steps of a day or more begin at midnight UTC, steps of a week on Mondays.
type Span struct {
	From, To time.Time
	Step     time.Duration
}

// maxHourly is the longest time that is shown in less than days.
const maxHourly = 14 * day

// newSpan returns the span of a time, in the step that gives at most 120 points. It begins and ends with a whole step.
func newSpan(from, to time.Time) Span {
	s := Span{Step: 7 * day}
	switch long := to.Sub(from); {
	case long <= 2*day:
		s.Step = time.Hour
	case long <= maxHourly:
		s.Step = 3 * time.Hour
	case long <= 120*day:
		s.Step = day
	}
	s.From = from.UTC().Truncate(s.Step) // the zero time was a Monday
	if s.To = to.UTC().Truncate(s.Step); s.To.Before(to) {
		s.To = s.To.Add(s.Step)
	}
	return s
}

// Times returns the beginnings of the steps.
func (s Span) Times() []time.Time {
	times := make([]time.Time, 0, s.To.Sub(s.From)/s.Step)
	for at := s.From; at.Before(s.To); at = at.Add(s.Step) {
		times = append(times, at)
	}
	return times
}

// Daily reports whether the figures are those of whole days.
func (s Span) Daily() bool { return s.Step >= day }

// A Row is what is stored of a metric for an hour or a day: counts by key, in parallel. Hours is the number of hours
// that it has the sum of.
type Row struct {
	Metric Metric
	At     time.Time
	Hours  int
	Keys   []string
	Counts []int64
}

// A Store has the figures.
type Store interface {
	// TrendRows returns the rows of a group, by metric and time, and from when on it has figures: the zero time if it has
	// none yet. It fails with [fleet.ErrInvalid] if the devices of the group cannot be counted.
	TrendRows(ctx context.Context, g Group, s Span, metrics []Metric) ([]Row, time.Time, error)
	// TrendHours counts the hours of each step that have figures, from since on.
	TrendHours(ctx context.Context, s Span, since time.Time) ([]int, error)
	// TrendGroups lists the groups of a kind that have figures, the largest first.
	TrendGroups(ctx context.Context, kind GroupKind) ([]string, error)
	// TrendEvents lists the latest [MaxEvents] events of a range, oldest first.
	TrendEvents(ctx context.Context, s Span, kinds []EventKind) ([]Event, error)
}

// Filters finds the saved filters that exist for the principal of the context.
type Filters interface {
	Filters(ctx context.Context) ([]fleet.Filter, error)
	FilterByName(ctx context.Context, name string) (fleet.Filter, error)
}

// A Question selects figures.
type Question struct {
	// Of names the group: "" (the fleet or, with a scope, the scope), board:X, version:X, tag:X or filter:NAME.
	Of       string
	Range    string    // "": DefaultRange, unless there is From
	From, To time.Time // zero To: now
	Metrics  []Metric  // none: all
}

// Figures answer a question.
type Figures struct {
	Span
	// Since is from when on the group has figures; the zero time if it has none yet.
	Since time.Time
	// Hours is the number of hours of each step that are counted.
	Hours  []int
	Series map[Metric][]Series
	// Events are what may explain a change of the figures, oldest first.
	Events []Event
}

// A Series is one key of a metric. A value is NaN if it is unknown.
type Series struct {
	Key    string
	Values []float64
}

// Largest returns the n series with the largest values, and the sum of all others as one with the key [KeyOthers].
func Largest(all []Series, n int) []Series {
	var others *Series
	kept := make([]Series, 0, n+1)
	for _, s := range all { // the largest are first
		if s.Key != KeyOthers && len(kept) < n {
			kept = append(kept, s)
			continue
		}
		if others == nil {
			others = &Series{KeyOthers, slices.Clone(s.Values)}
			continue
		}
		for i, v := range s.Values {
			others.Values[i] += v
		}
	}
	if others != nil {
		kept = append(kept, *others)
	}
	return kept
}

// parseGroup reads the name of a group that is not a filter.
func parseGroup(of string) (Group, error) {
	if of == "" {
		return Group{Kind: WholeFleet}, nil
	}
	kind, value, _ := strings.Cut(of, ":")
	g := Group{GroupKind(kind), value}
	if g.Kind != OfBoard && g.Kind != OfVersion && g.Kind != OfTag || value == "" || len(value) > 200 ||
		fleet.CleanText(value, 200) != value {
		return g, fleet.Refuse(fleet.ErrInvalid, "invalid_trend_group", "value", fleet.CleanText(of, 200)).At("of")
	}
	return g, nil
}
