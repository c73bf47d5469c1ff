package ui

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"fleetd/fleet"
	trends "fleetd/fleet/trend"
	"fleetd/web/i18n"
)

// PathDashboards has figures over time. GET range, or from and to (RFC 3339; a time of the viewer's zone leads to the
// address with the same time in UTC), and of: see [trends.Question]. The address has the whole view.
const PathDashboards = "/dashboards"

// A DashboardsPage is the figures of a group of devices over a range of time.
type DashboardsPage struct {
	List    ListURL
	Now     time.Time
	Problem string // why there are no figures; "" if there are
	Figures trends.Figures
	Choices trends.Choices
	Scoped  bool   // "" means the devices of the viewer's scope, and not the fleet
	Query   string // selects the devices of the group in lists; ok only if Listed
	Listed  bool   // lists of devices can be filtered to the group
	// FromText and ToText are what the fields of the form have.
	FromText, ToText string
}

// dashParts is the number of parts of a metric that have a colour of their own.
const dashParts = 8

func (v DashboardsPage) of() string { return v.List.Get("of") }

// rangeName returns the name of the chosen range; "" if there are times.
func (v DashboardsPage) rangeName() string {
	if v.List.Get("from") != "" {
		return ""
	}
	return cmp.Or(v.List.Get("range"), trends.DefaultRange)
}

// rangeURL returns the page with a range that ends now.
func (v DashboardsPage) rangeURL(name string) string {
	values := url.Values{"range": {name}}
	if of := v.of(); of != "" {
		values.Set("of", of)
	}
	return PathDashboards + "?" + values.Encode()
}

// offered reports whether the chosen group is one of those to choose from.
func (v DashboardsPage) offered() bool {
	kind, value, _ := strings.Cut(v.of(), ":")
	switch kind {
	case "filter":
		return slices.ContainsFunc(v.Choices.Filters, func(f fleet.Filter) bool { return f.Name == value })
	case "board":
		return slices.Contains(v.Choices.Boards, value)
	case "version":
		return slices.Contains(v.Choices.Versions, value)
	case "tag":
		return slices.Contains(v.Choices.Tags, value)
	}
	return v.of() == ""
}

// firstFigures is when a group without figures has its first ones: some minutes after the present hour.
func (v DashboardsPage) firstFigures() time.Time {
	return v.Now.Truncate(time.Hour).Add(time.Hour + 6*time.Minute)
}

// A dashChart is one metric, as stacked columns, or as lines.
type dashChart struct {
	page   DashboardsPage
	metric trends.Metric
	times  []time.Time
	layers []dashLayer // from the bottom up
	axis   axis
	totals []float64 // of each step; NaN if unknown
	share  bool      // columns are shares of the total
}

// A dashLayer is a part of a metric.
type dashLayer struct {
	class, label string
	foreign      bool // the label is a text of a device
	values       []float64
	url          string // the list of what it counts; "" if no list has just that
}

// charts returns the charts of the page.
func (v DashboardsPage) charts(ctx context.Context) []dashChart {
	all := make([]dashChart, len(trends.Metrics))
	for i, m := range trends.Metrics {
		all[i] = v.chart(ctx, m)
	}
	return all
}

func (v DashboardsPage) chart(ctx context.Context, m trends.Metric) dashChart {
	c := dashChart{page: v, metric: m, times: v.Figures.Times(), share: m == trends.Versions || m == trends.Boards}
	series := v.Figures.Series[m]
	if order := dashOrders[m]; order != nil {
		series = slices.Clone(series)
		slices.SortStableFunc(series, func(a, b trends.Series) int {
			return cmp.Compare(placeIn(order, a.Key), placeIn(order, b.Key))
		})
	}
	if !m.OfState() {
		series = slices.DeleteFunc(slices.Clone(series), func(s trends.Series) bool {
			return !slices.ContainsFunc(s.Values, func(n float64) bool { return n > 0 })
		})
	}
	for i, s := range trends.Largest(series, max(dashParts, len(dashOrders[m]))) {
		c.layers = append(c.layers, c.layer(ctx, i, s))
	}
	c.totals = make([]float64, len(c.times))
	high := 0.0
	for i := range c.times {
		if len(c.layers) == 0 || math.IsNaN(c.layers[0].values[i]) {
			c.totals[i] = math.NaN()
			continue
		}
		for _, l := range c.layers {
			c.totals[i] += l.values[i]
		}
		high = max(high, c.totals[i])
	}
	switch {
	case c.lines():
		lo, hi := -70.0, -60.0
		for _, l := range c.layers {
			for _, n := range l.values {
				if !math.IsNaN(n) {
					lo, hi = min(lo, n), max(hi, n)
				}
			}
		}
		c.axis = niceAxis(lo, hi, 4)
	case c.share:
		c.axis = axis{0, 100, 25}
	default:
		c.axis = niceAxis(0, max(high, 4), 4)
	}
	return c
}

// Orders of parts that have a meaning of their own, from the bottom up, and their colours.
var (
	dashOrders = map[trends.Metric][]string{
		trends.Devices:  {"online", "unresponsive", "unknown_edge", trends.KeyBetween, "offline", "pending"},
		trends.Outcomes: {"succeeded", "tool_error", "timed_out", "unknown", "refused", "invalid", "offline", "canceled"},
		trends.Signal:   {trends.KeyMedian, trends.KeyTenth},
	}
	dashClasses = map[string]string{"online": "dash-good", "unresponsive": "dash-warn", "unknown_edge": "dash-busy",
		trends.KeyBetween: "dash-1", "offline": "dash-none", "pending": "dash-others", "succeeded": "dash-good",
		"tool_error": "dash-bad", "timed_out": "dash-warn", "unknown": "dash-busy", "refused": "dash-5", "invalid": "dash-2",
		"canceled": "dash-others", trends.KeyMedian: "line-1", trends.KeyTenth: "line-2", "panic": "dash-bad",
		"watchdog": "dash-warn", "brownout": "dash-busy"}
)

// placeIn returns the place of a key in an order; others come last.
func placeIn(order []string, key string) int {
	if i := slices.Index(order, key); i >= 0 {
		return i
	}
	return len(order)
}

// layer returns a part of the metric with its name.
func (c dashChart) layer(ctx context.Context, i int, s trends.Series) dashLayer {
	l := dashLayer{class: "dash-" + strconv.Itoa(i%dashParts), label: s.Key, values: s.Values}
	if s.Key == trends.KeyOthers {
		l.class, l.label = "dash-others", t(ctx, "dashboards.others")
		return l
	}
	switch c.metric {
	case trends.Devices, trends.Outcomes:
		l.label = t(ctx, "state."+s.Key)
		l.class = cmp.Or(dashClasses[s.Key], "dash-0")
	case trends.Crashes:
		l.label, l.class = t(ctx, "health.reset."+s.Key), dashClasses[s.Key]
	case trends.Signal:
		l.label, l.class = t(ctx, "dashboards.signal."+s.Key), dashClasses[s.Key]
	case trends.Connections, trends.Conversations:
		l.label = t(ctx, "dashboards.total")
	default:
		if l.foreign = s.Key != ""; !l.foreign {
			l.label = t(ctx, "overview.unknown")
		}
	}
	l.url = c.partURL(ctx, s.Key)
	return l
}

func (c dashChart) lines() bool { return c.metric == trends.Signal }

func (c dashChart) id() string { return "dash-" + string(c.metric) }

func (c dashChart) title(ctx context.Context) string { return t(ctx, "dashboards."+string(c.metric)) }

// unit returns the unit of the axis.
func (c dashChart) unit(ctx context.Context) string {
	switch {
	case c.lines():
		return "dBm"
	case c.share:
		return "%"
	case c.metric.OfState():
		return t(ctx, "dashboards.unit.devices")
	}
	return t(ctx, "dashboards.unit."+c.stepName())
}

// stepName returns the name of the step: hour, 3h, day or week.
func (c dashChart) stepName() string {
	switch c.page.Figures.Step {
	case time.Hour:
		return "hour"
	case 3 * time.Hour:
		return "3h"
	case 24 * time.Hour:
		return "day"
	}
	return "week"
}

// drawable reports whether there is anything to draw: of events, one.
func (c dashChart) drawable() bool {
	return slices.ContainsFunc(c.layers, func(l dashLayer) bool {
		return slices.ContainsFunc(l.values, func(n float64) bool { return n > 0 || c.lines() && !math.IsNaN(n) })
	})
}

// empty returns why the chart has nothing to draw.
func (c dashChart) empty(ctx context.Context) string {
	if c.metric.OfState() && !c.lines() || !slices.ContainsFunc(c.page.Figures.Hours, func(n int) bool { return n > 0 }) {
		return t(ctx, "dashboards.not_counted", "at", c.page.firstFigures())
	}
	return t(ctx, "dashboards.none."+string(c.metric))
}

// labels returns the labels of the time axis that fit side by side on a phone.
func (c dashChart) labels(ctx context.Context) (kept []tickMark) {
	const most = 4
	all := c.span().ticks(ctx) // the latest first
	if len(all) > 1 && all[0].anchor == "end" && tickShare(all[0])-tickShare(all[1]) < 30 {
		all = all[1:] // it is moved to the left
	}
	for i := 0; i < len(all); i += (len(all) + most - 1) / most {
		kept = append(kept, all[i])
	}
	return kept
}

// tickShare returns the position of a label in percent.
func tickShare(tick tickMark) float64 {
	share, _ := strconv.ParseFloat(strings.TrimSuffix(tick.at, "%"), 64)
	return share
}

func (c dashChart) span() timeSpan { return timeSpan{c.page.Figures.From, c.page.Figures.To} }

func (c dashChart) x(at time.Time) float64 { return plotWide * c.span().share(at) }

func (c dashChart) y(v float64) float64 { return plotHigh * (1 - c.axis.share(v)) }

// scaled returns a value in the unit of the axis.
func (c dashChart) scaled(v float64, i int) float64 {
	if !c.share {
		return v
	}
	if c.totals[i] == 0 {
		return 0
	}
	return 100 * v / c.totals[i]
}

// columns draws a layer on top of those below it.
func (c dashChart) columns(layer int) string {
	gap := 0.0
	if !c.metric.OfState() {
		gap = .12 * plotWide / float64(len(c.times))
	}
	var b strings.Builder
	for i, at := range c.times {
		v := c.layers[layer].values[i]
		if math.IsNaN(v) || v <= 0 {
			continue
		}
		below := 0.0
		for _, l := range c.layers[:layer] {
			below += l.values[i]
		}
		left, right := coord(c.x(at)+gap), coord(c.x(at.Add(c.page.Figures.Step))-gap)
		low, high := coord(c.y(c.scaled(below, i))), coord(c.y(c.scaled(below+v, i)))
		b.WriteString("M" + left + " " + low + "V" + high + "H" + right + "V" + low + "Z")
	}
	return b.String()
}

// line draws a layer as a line through the middles of the steps.
func (c dashChart) line(layer int) string {
	var b strings.Builder
	joined := false
	for i, at := range c.times {
		v := c.layers[layer].values[i]
		if math.IsNaN(v) {
			joined = false
			continue
		}
		point := coord(c.x(at.Add(c.page.Figures.Step/2))) + " " + coord(c.y(v))
		if joined {
			b.WriteString("L" + point)
		} else {
			b.WriteString("M" + point + "h0")
		}
		joined = true
	}
	return b.String()
}

// A dashStep is the part of the plot of one step: what the pointer shows there, and where a click leads.
type dashStep struct{ x, width, text, url string }

func (c dashChart) steps(ctx context.Context) []dashStep {
	width := coord(plotWide / float64(len(c.times)))
	all := make([]dashStep, 0, len(c.times))
	for i, at := range c.times {
		if math.IsNaN(c.totals[i]) {
			continue
		}
		text := c.stepText(ctx, i)
		for j := len(c.layers) - 1; j >= 0; j-- {
			if v := c.layers[j].values[i]; v != 0 {
				text += "\n" + c.layers[j].label + ": " + c.value(ctx, v)
				if c.share {
					text += " (" + i18n.Percent(page(ctx).Lang, v/c.totals[i]) + ")"
				}
			}
		}
		all = append(all, dashStep{coord(c.x(at)), width, text, c.stepURL(ctx, i)})
	}
	return all
}

// stepText names a step: days and weeks are those of UTC, as the figures are. If only a part of a step is counted, it
// says how many hours are.
func (c dashChart) stepText(ctx context.Context, i int) string {
	text := exact(ctx, c.times[i])
	if c.page.Figures.Daily() {
		text = i18n.Date(page(ctx).Lang, c.times[i].UTC()) + " UTC"
	}
	if n := c.page.Figures.Hours[i]; n < int(c.page.Figures.Step/time.Hour) && c.page.Figures.Step > time.Hour {
		text += " (" + t(ctx, "dashboards.partial", "n", n) + ")"
	}
	return text
}

// value formats a number; an average has one decimal below ten.
func (c dashChart) value(ctx context.Context, v float64) string {
	switch {
	case math.IsNaN(v):
		return "–"
	case c.lines():
		return dBm(ctx, int(v))
	case v < 10 && v != math.Trunc(v):
		return figure(v)
	}
	return num(ctx, int(math.Round(v)))
}

// figure is the number in the legend: of events their sum, of a state its latest value.
func (c dashChart) figure(ctx context.Context, l dashLayer) string {
	sum, latest := 0.0, math.NaN()
	for _, v := range l.values {
		if !math.IsNaN(v) {
			sum, latest = sum+v, v
		}
	}
	if c.metric.OfState() {
		return c.value(ctx, latest)
	}
	return c.value(ctx, sum)
}

// rows returns the steps of the table that have figures, the newest first.
func (c dashChart) rows() (rows []int) {
	for i := len(c.times) - 1; i >= 0; i-- {
		if !math.IsNaN(c.totals[i]) {
			rows = append(rows, i)
		}
	}
	return rows
}

// between adds a time to the filter of a list: in the viewer's zone, as the fields of the list have it, unless that
// names another moment, because clocks were set back.
func between(ctx context.Context, q url.Values, from, to time.Time) url.Values {
	const local = "2006-01-02T15:04"
	zone := page(ctx).Zone
	for name, at := range map[string]time.Time{"since": from, "until": to} {
		text := at.In(zone).Format(local)
		if back, err := time.ParseInLocation(local, text, zone); err != nil || !back.Equal(at) {
			text = at.UTC().Format(time.RFC3339)
		}
		q.Set(name, text)
	}
	return q
}

// listURL returns the list of what a step or a part counts between two moments; "" if no list has just that.
func (c dashChart) listURL(ctx context.Context, q url.Values, from, to time.Time) string {
	if to.After(c.page.Now) {
		to = c.page.Now.Truncate(time.Minute)
	}
	switch path := dashLists[c.metric]; {
	case path == PathHistory && c.page.Listed && to.After(c.page.Figures.Since):
		terms := strings.TrimSpace(c.page.Query + " " + q.Get("q"))
		v := url.Values{"at": {to.In(page(ctx).Zone).Format(HistoryTime)}}
		if terms != "" {
			v.Set("q", terms)
		}
		return path + "?" + v.Encode()
	case path != "" && path != PathHistory && c.page.of() == "":
		if path == PathAudit {
			q.Set("kind", "connection")
		}
		return path + "?" + between(ctx, q, from, to).Encode()
	}
	return ""
}

// dashLists are the lists of what metrics count.
var dashLists = map[trends.Metric]string{
	trends.Devices: PathHistory, trends.Versions: PathHistory, trends.Boards: PathHistory,
	trends.Connections: PathAudit, trends.Outcomes: PathCalls, trends.Tools: PathCalls,
	trends.Conversations: PathConversations,
}

func (c dashChart) stepURL(ctx context.Context, i int) string {
	return c.listURL(ctx, url.Values{}, c.times[i], c.times[i].Add(c.page.Figures.Step))
}

// partURL returns the list of what a part counts in the whole range or, of a state, at its end.
func (c dashChart) partURL(ctx context.Context, key string) string {
	q := url.Values{}
	switch c.metric {
	case trends.Devices:
		if key == trends.KeyBetween {
			return ""
		}
		q.Set("q", Term("presence", key))
	case trends.Versions, trends.Boards:
		if key == "" {
			return ""
		}
		q.Set("q", Term(map[trends.Metric]string{trends.Versions: "version", trends.Boards: "board"}[c.metric], key))
	case trends.Outcomes:
		q.Set("state", key)
	case trends.Tools:
		q.Set("tool", key)
	case trends.Connections, trends.Conversations:
	default:
		return ""
	}
	return c.listURL(ctx, q, c.page.Figures.From, c.page.Figures.To)
}

// A dashMark is the line of one or more events in a chart.
type dashMark struct {
	kind string // of the first
	path string
	text string
}

// marks returns the events as lines. Events at nearly the same place share one.
func (c dashChart) marks(ctx context.Context) (all []dashMark) {
	const near = plotWide / 100
	last := math.Inf(-1)
	for _, e := range c.page.Figures.Events {
		x := c.x(e.At)
		text := i18n.Unmarked(t(ctx, "dashboards.event_at", "at", e.At, "what", eventText(ctx, e)))
		if n := len(all); x-last < near {
			all[n-1].text += "\n" + text
			if all[n-1].kind == string(trends.EventStart) {
				all[n-1].kind = string(e.Kind)
			}
			continue
		}
		last = x
		all = append(all, dashMark{kind: string(e.Kind), path: fmt.Sprintf("M%s 0V%d", coord(x), plotHigh), text: text})
	}
	return all
}

func eventText(ctx context.Context, e trends.Event) string {
	return t(ctx, "dashboards.event."+string(e.Kind), "name", mark(shorten(e.Name, 60)))
}

// eventURL returns the page of what happened; "" for a start.
func eventURL(e trends.Event) string {
	switch e.Kind {
	case trends.EventRelease:
		return ReleasePath(e.ID.String())
	case trends.EventCampaign:
		return CampaignPath(e.ID.String())
	}
	return ""
}

// msOf returns a moment as scripts read it.
func msOf(at time.Time) string { return strconv.FormatInt(at.UnixMilli(), 10) }
