package ui

import (
	"context"
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

// An AdoptionChart is the spread of versions over time, as stacked areas: a [trend] whose lines lie on each other.
type AdoptionChart struct {
	history.Adoption
	ID    string
	Title string
	Brief bool // without figures, which are on the page of the history
}

// maxStack is the number of areas; further versions are among the others.
const maxStack = 4

// drawable reports whether there are devices at any moment.
func (c AdoptionChart) drawable() bool { return c.high() > 0 && len(c.Times) > 1 }

// layers returns the areas from the bottom up.
func (c AdoptionChart) layers(ctx context.Context) (layers []stackLayer) {
	others := c.Others
	for i, s := range c.Series {
		if i < maxStack {
			l := stackLayer{class: "stack-" + strconv.Itoa(i), label: s.Version, counts: s.Counts}
			if s.Version == "" {
				l.label = t(ctx, "overview.unknown")
			}
			layers = append(layers, l)
			continue
		}
		others = sumCounts(others, s.Counts)
	}
	if others != nil {
		layers = append(layers, stackLayer{class: "stack-others", label: t(ctx, "history.others"), counts: others})
	}
	return layers
}

func sumCounts(a, b []int) []int {
	sum := make([]int, len(b))
	copy(sum, a)
	for i, n := range b {
		sum[i] += n
	}
	return sum
}

type stackLayer struct {
	class, label string
	counts       []int
}

func (l stackLayer) last() int { return l.counts[len(l.counts)-1] }

// high returns the most devices at any moment.
func (c AdoptionChart) high() (high int) {
	for i := range c.Times {
		n := 0
		if c.Others != nil {
			n = c.Others[i]
		}
		for _, s := range c.Series {
			n += s.Counts[i]
		}
		high = max(high, n)
	}
	return high
}

// trend returns the axes of the chart.
func (c AdoptionChart) trend() trend {
	return trend{id: c.ID, title: c.Title, axis: niceAxis(0, float64(max(c.high(), 4)), 4),
		span: timeSpan{c.Times[0], c.Times[len(c.Times)-1]}}
}

// upTo returns the devices of the layers up to n at moment i.
func upTo(layers []stackLayer, n, i int) (sum int) {
	for _, l := range layers[:n+1] {
		sum += l.counts[i]
	}
	return sum
}

// area returns the outline of the layers up to n, down to zero: what lies below is drawn over it.
func (c AdoptionChart) area(chart trend, layers []stackLayer, n int) string {
	var b strings.Builder
	last := -1
	for i := range c.Times {
		high := upTo(layers, n, i)
		if i > 0 && i < len(c.Times)-1 && high == last && high == upTo(layers, n, i+1) {
			continue // in the middle of a level line
		}
		b.WriteString("ML"[min(i, 1):][:1] + strconv.Itoa(int(chart.x(c.Times[i]))) + " " + coord(chart.y(float64(high))))
		last = high
	}
	return b.String() + "V" + strconv.Itoa(plotHigh) + "H0Z"
}

// strips returns the part of the plot for each moment, with its figures.
func (c AdoptionChart) strips(ctx context.Context, chart trend, layers []stackLayer) []strip {
	chart.reach = 3 * c.Times[1].Sub(c.Times[0])
	for i, at := range c.Times {
		text := exact(ctx, at)
		for j := len(layers) - 1; j >= 0; j-- {
			if n := layers[j].counts[i]; n > 0 {
				text += "\n" + layers[j].label + ": " + num(ctx, n)
			}
		}
		chart.readings = append(chart.readings, reading{at: at, values: []float64{0}, text: text})
	}
	return chart.strips()
}

// rows returns the moments of the table.
func (c AdoptionChart) rows() (rows []int) {
	const most = 10
	step := (len(c.Times) + most - 1) / most
	for i := len(c.Times) - 1; i >= 0; i -= step {
		rows = append(rows, i)
	}
	return rows
}
