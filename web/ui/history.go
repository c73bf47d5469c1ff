package ui

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/history"
)

// PathHistory is the fleet of a past moment. GET at, with (times of the viewer's zone), slide (0 to [SlideSteps]: a
// place in the history instead of at), q, field, limit, cursor.
const PathHistory = "/history"

// SlideSteps is the number of places of the slider over the history.
const SlideSteps = 1000

// HistoryTime is the layout of times in the addresses of the history.
const HistoryTime = "2006-01-02T15:04:05"

// A HistoryPage is what the fleet was at a moment and, if there is a second one, what changed between the two.
type HistoryPage struct {
	List       ListURL
	Begin, Now time.Time
	At         time.Time
	With       *time.Time // nil: no comparison
	Query      string
	Problem    string // why there is no answer; "" if there is
	Counts     history.Counts
	Rows       []history.Device
	Prev, Next string
	Adoption   AdoptionChart
	Diff       history.Diff
	Field      history.Field // of the changes that are listed; "" for all
	DiffFrom   time.Time     // the earlier of the two moments
	DiffTo     time.Time
	// AtText and WithText are what the fields of the form have: the address may have what is no time.
	AtText, WithText string
}

// slide returns where the slider stands.
func (v HistoryPage) slide() string {
	all := v.Now.Sub(v.Begin)
	if all <= 0 {
		return strconv.Itoa(SlideSteps)
	}
	return strconv.Itoa(min(max(int(SlideSteps*v.At.Sub(v.Begin)/all), 0), SlideSteps))
}

// narrowed returns the page with one more term in the filter.
func (v HistoryPage) narrowed(term string) string {
	return v.List.With("q", strings.TrimSpace(v.Query+" "+term))
}

// bars returns a breakdown of the moment; a bar narrows the filter to its devices.
func (v HistoryPage) bars(counts []fleet.DeviceCount, field string) []bar {
	all := bars(counts[:min(len(counts), historyBars)], field)
	for i := range all {
		if all[i].label != "" {
			all[i].url = v.narrowed(Term(field, all[i].label))
		}
	}
	return all
}

const historyBars = 8

// presence returns the counts by presence.
func (v HistoryPage) presence() []presenceCount {
	var now PresenceNow
	for _, c := range v.Counts.Presence {
		switch fleet.Presence(c.Value) {
		case fleet.PresenceOnline:
			now.Online = c.Count
		case fleet.PresenceUnresponsive:
			now.Unresponsive = c.Count
		case fleet.PresenceUnknownEdge:
			now.UnknownEdge = c.Count
		case fleet.PresenceOffline:
			now.Offline = c.Count
		case fleet.PresencePending:
			now.Pending = c.Count
		}
	}
	return now.counts()
}

// changedFields are the fields with changes.
func (v HistoryPage) changedFields() (fields []history.Field) {
	for _, f := range history.Fields {
		if v.Diff.Counts[f] > 0 || f == v.Field {
			fields = append(fields, f)
		}
	}
	return fields
}

// A changeLine is one difference of a device: what it was and what it became.
type changeLine struct {
	field       history.Field
	before      string
	after       string
	added, gone []string // tools
}

// changeLines returns what differs.
func changeLines(ctx context.Context, c history.Change) (lines []changeLine) {
	for _, f := range c.Fields {
		l := changeLine{field: f, added: c.ToolsAdded, gone: c.ToolsRemoved}
		if f != history.FieldTools {
			l.added, l.gone = nil, nil
		}
		if c.Before != nil && c.After != nil {
			l.before, l.after = fieldText(ctx, *c.Before, f), fieldText(ctx, *c.After, f)
		}
		lines = append(lines, l)
	}
	return lines
}

func fieldText(ctx context.Context, d history.Device, f history.Field) string {
	switch f {
	case history.FieldName:
		return d.Name
	case history.FieldBoard:
		return d.Board
	case history.FieldVersion:
		return d.Version
	case history.FieldTags:
		return strings.Join(d.Tags, ", ")
	case history.FieldHold:
		return d.HoldReason
	case history.FieldTools:
		return t(ctx, "history.n_tools", "n", d.ToolsCount)
	case history.FieldEnrolment:
		return t(ctx, "history.enrolment."+string(d.Enrolment))
	case history.FieldPresence:
		return t(ctx, "state."+string(d.Presence))
	}
	return ""
}

// An AdoptionChart is the spread of versions over time.
type AdoptionChart struct {
	history.Adoption
	ID    string
	Title string
}

// maxStack is the number of areas; further versions are among the others.
const maxStack = 4

// named returns the versions that have an area: those of most devices now.
func (c AdoptionChart) named() (named []string) {
	all := slices.Clone(c.Series)
	slices.SortStableFunc(all, func(a, b history.Series) int {
		return cmp.Compare(b.Counts[len(b.Counts)-1], a.Counts[len(a.Counts)-1])
	})
	for _, s := range all[:min(maxStack, len(all))] {
		named = append(named, s.Version)
	}
	return named
}

// drawable reports whether there are devices at any moment.
func (c AdoptionChart) drawable() bool { return c.stack(context.Background()).drawable() }

// stack returns the chart: the areas from the bottom up.
func (c AdoptionChart) stack(ctx context.Context) stackChart {
	s := stackChart{id: c.ID, title: c.Title, times: c.Times}
	if len(c.Times) > 0 {
		s.span = timeSpan{c.Times[0], c.Times[len(c.Times)-1]}
	}
	others, named := c.Others, c.named()
	for _, series := range c.Series {
		if slices.Contains(named, series.Version) {
			s.layers = append(s.layers, stackLayer{class: "stack-" + strconv.Itoa(len(s.layers)), label: versionName(ctx, series.Version),
				counts: series.Counts})
			continue
		}
		others = sumCounts(others, series.Counts)
	}
	if others != nil {
		s.layers = append(s.layers, stackLayer{class: "stack-others", label: t(ctx, "history.others"), counts: others})
	}
	return s
}

func sumCounts(a, b []int) []int {
	sum := make([]int, len(b))
	copy(sum, a)
	for i, n := range b {
		sum[i] += n
	}
	return sum
}

// A bar is one row of a breakdown: a share of the largest, as a link.
type bar struct {
	label string
	url   string // "" if no query selects these devices
	count int
	width string // percent of the longest bar
}

func bars(counts []fleet.DeviceCount, field string) []bar {
	most := 1
	for _, c := range counts {
		most = max(most, c.Count)
	}
	out := make([]bar, len(counts))
	for i, c := range counts {
		out[i] = bar{label: c.Value, count: c.Count, width: strconv.FormatFloat(100*float64(c.Count)/float64(most), 'f', 1,
			64)}
		if c.Value != "" {
			out[i].url = QueryPath(Term(field, c.Value))
		}
	}
	return out
}
