package ui

import (
	"context"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
)

// An Overview is the first page: the health of the fleet, and the decisions that wait for an
// operator. GET [PathHome].
type Overview struct {
	Fleet    int // devices in service; 0 shows how to add the first
	Alerts   AlertsNow
	Now      PresenceNow
	Presence []fleet.PresenceSample // the last 24 h, oldest first
	Calls    []call.Bucket          // the last 24 h, oldest first
	Step     time.Duration          // width of a bucket
	From, To time.Time              // span of the charts, with data or without
	Versions []fleet.DeviceCount    // of boards, largest first
	Adoption AdoptionChart          // the last 30 days
	Needs    Attention
	UnderWay UnderWay
	Setup    Setup
	First    bool // no device has joined yet: the page shows Setup
}

// UnderWay is what changes many devices now; a live stream sends it as a patch.
type UnderWay struct {
	Campaigns []CampaignRow // open campaigns
	FanOuts   []FanOutRow   // running bulk calls
}

func (v UnderWay) empty() bool { return len(v.Campaigns)+len(v.FanOuts) == 0 }

// refresh returns after how many seconds the script fetches the page again: charts may wait, the
// first device may not.
func (v Overview) refresh() string {
	if v.First {
		return "5"
	}
	return "60"
}

// PresenceNow counts devices by presence; a live stream sends it as a patch.
type PresenceNow struct {
	Online, Unresponsive, UnknownEdge, Offline, Pending int
	Conversations                                       int // offline, but connect for conversations

	Within string // query of the devices that are counted; "" for all
}

// NewPresenceNow returns the counts of the devices that a query selects.
func NewPresenceNow(counts fleet.PresenceSample, within string) PresenceNow {
	return PresenceNow{Online: counts.Online, Unresponsive: counts.Unresponsive, UnknownEdge: counts.UnknownEdge,
		Offline: counts.Offline, Pending: counts.Pending, Conversations: counts.Between, Within: within}
}

// url returns the list of the counted devices that also match a query.
func (p PresenceNow) url(query string) string {
	return QueryPath(strings.TrimSpace(p.Within + " " + query))
}

// Joined returns the number of devices that were ever online, without those that are offline because they connect only
// for conversations.
func (p PresenceNow) Joined() int { return p.Online + p.Unresponsive + p.UnknownEdge + p.Offline }

// tone returns the tone of a count: zero is grey, half of the fleet offline is bad, a tenth is a
// warning.
func (p PresenceNow) tone(of fleet.Presence) tone {
	away := p.Offline + p.Unresponsive
	switch {
	case of == fleet.PresenceOnline && p.Online > 0:
		return toneGood
	case of == fleet.PresenceUnresponsive && p.Unresponsive > 0, of == fleet.PresenceOffline && p.Offline > 0:
		return shareTone(away, p.Joined())
	case of == fleet.PresenceUnknownEdge && p.UnknownEdge > 0:
		return toneWarn
	}
	return toneNone
}

// fill returns the class that colours a count in bars and charts.
func (p PresenceNow) fill(of fleet.Presence) string {
	switch {
	case of == fleet.PresenceOnline:
		return "fill-good"
	case of == fleet.PresencePending || of == fleet.CountedBetween:
		return "fill-none"
	case p.tone(of) == toneBad:
		return "fill-bad"
	case of == fleet.PresenceOffline:
		return "fill-off"
	}
	return "fill-warn"
}

// share returns which part of the fleet is online. It says 100 % only if all are.
func (p PresenceNow) share(ctx context.Context) string {
	return tenths(ctx, ratio(p.Online, p.Joined()))
}

// tenths formats a share in percent, rounded down to a tenth: 100 % means all.
func tenths(ctx context.Context, share float64) string {
	if share == 0 || share == 1 {
		return percentText(ctx, share)
	}
	return finePercent(math.Floor(1000*share+1e-9) / 1000)
}

// A barPart is a segment of a bar that is a thousand units wide.
type barPart struct{ class, x, width string }

// parts returns the segments of the bar, each wide enough to be seen.
func (p PresenceNow) parts() []barPart {
	all := p.counts()
	counts, classes := make([]int, len(all)), make([]string, len(all))
	for i, c := range all {
		counts[i], classes[i] = c.count, p.fill(c.presence)
	}
	return barParts(counts, classes)
}

// barParts divides a bar in proportion to the counts. A count above zero has at least a few units,
// and segments have a gap between them.
func barParts(counts []int, classes []string) (parts []barPart) {
	const whole, least, gap = 1000.0, 4.0, 2.0
	sum, shown := 0, 0
	for _, n := range counts {
		sum += n
		shown += min(n, 1)
	}
	x, free := 0.0, whole-float64(shown)*least-float64(max(shown-1, 0))*gap
	for i, n := range counts {
		if n == 0 {
			continue
		}
		width := least + free*float64(n)/float64(sum)
		parts = append(parts, barPart{classes[i], coord(x), coord(width)})
		x += width + gap
	}
	return parts
}

func shareTone(n, all int) tone {
	switch {
	case n > 0 && 2*n >= all:
		return toneBad
	case 10*n >= all && n > 0:
		return toneWarn
	}
	return toneNone
}

// Attention counts the decisions that wait for an operator; a live stream sends it as a patch.
type Attention struct {
	Claims    int // devices that show a code
	Calls     int // calls and fan-outs that need approval
	Approvals int // devices in the approval queue
	Conflicts int // devices whose id two units seem to use
	Holds     int
	Campaigns []CampaignNeed
}

// A CampaignNeed is a campaign that waits for an operator: for an approval, at a gate, or after a
// stop by a rule or by fleetd itself.
type CampaignNeed struct {
	ID, Name, Why string
}

// NewCampaignNeed returns the reason why a campaign needs an operator; ok is false if it needs
// none.
func NewCampaignNeed(c campaign.Campaign) (n CampaignNeed, ok bool) {
	n = CampaignNeed{ID: c.ID.String(), Name: c.Plan.Name}
	switch {
	case c.State == campaign.AwaitingApproval:
		n.Why = "approval"
	case c.State == campaign.Paused && c.PauseReason != campaign.PausedByWindow &&
		c.PauseReason != campaign.PausedByOperator:
		n.Why = string(c.PauseReason)
	}
	return n, n.Why != ""
}

func (a Attention) none() bool {
	return a.Calls+a.Claims+a.Approvals+a.Conflicts+a.Holds+len(a.Campaigns) == 0
}

// A needCount is a number of equal decisions, and the page where they are made.
type needCount struct {
	n        int
	key, url string
}

func (a Attention) counts() []needCount {
	return slices.DeleteFunc([]needCount{
		{a.Calls, "approvals.needs", PathApprovals},
		{a.Claims, "overview.claims", PathClaim},
		{a.Approvals, "overview.approvals", PathClaim},
		{a.Conflicts, "overview.conflicts", QueryPath("conflict")},
	}, func(c needCount) bool { return c.n == 0 })
}

type presenceCount struct {
	presence fleet.Presence
	count    int
}

func (p PresenceNow) counts() []presenceCount {
	all := []presenceCount{
		{fleet.PresenceOnline, p.Online}, {fleet.PresenceUnresponsive, p.Unresponsive},
		{fleet.PresenceOffline, p.Offline}, {fleet.PresencePending, p.Pending},
	}
	if p.UnknownEdge > 0 {
		all = slices.Insert(all, 2, presenceCount{fleet.PresenceUnknownEdge, p.UnknownEdge})
	}
	if p.Conversations > 0 {
		all = append(all, presenceCount{fleet.CountedBetween, p.Conversations})
	}
	return all
}

// query returns the query for the counted devices.
func (c presenceCount) query() string {
	if c.presence == fleet.CountedBetween {
		return Term("presence", string(fleet.PresenceOffline)) + " " + Term("transport", "ws")
	}
	return Term("presence", string(c.presence))
}

// begin returns the start of the charts: the first data, because a mostly empty axis is useless on
// a fleet's first day.
func (v Overview) begin() time.Time {
	begin := v.To.Add(-10 * time.Minute)
	if len(v.Presence) > 0 && v.Presence[0].At.Before(begin) {
		begin = v.Presence[0].At
	}
	if i := slices.IndexFunc(v.Calls, func(b call.Bucket) bool { return b.Succeeded+b.Failed > 0 }); i >= 0 &&
		v.Calls[i].At.Before(begin) {
		begin = v.Calls[i].At
	}
	if begin.Before(v.From) {
		return v.From
	}
	return begin
}

// Intervals of the strip of a day. Presence is sampled every minute, so shorter ones would be empty.
const (
	stripBars  = 96
	leastStrip = 2 * time.Minute
)

// presenceStack draws the last day. Each bar is the moment of its interval with the fewest devices
// online, so that a short outage is not averaged away; the last bar ends with the counts of now.
func (v Overview) presenceStack(ctx context.Context) stackChart {
	begin := v.begin()
	step := max(v.To.Sub(begin)/stripBars, leastStrip)
	c := stackChart{id: "presence-day", title: t(ctx, "overview.presence_day"), span: timeSpan{begin, v.To}, step: step,
		strip: true}
	last := int((v.To.Sub(begin) - 1) / step)
	worst := make([]*fleet.PresenceSample, last+1)
	for i := range v.Presence {
		s := &v.Presence[i]
		if n := min(int(s.At.Sub(begin)/step), last); n >= 0 && (worst[n] == nil || s.Online < worst[n].Online) {
			worst[n] = s
		}
	}
	worst[last] = &fleet.PresenceSample{At: v.To, Online: v.Now.Online, Unresponsive: v.Now.Unresponsive,
		UnknownEdge: v.Now.UnknownEdge, Offline: v.Now.Offline}
	states := []struct {
		presence fleet.Presence
		count    func(fleet.PresenceSample) int
	}{
		{fleet.PresenceOnline, func(s fleet.PresenceSample) int { return s.Online }},
		{fleet.PresenceUnresponsive, func(s fleet.PresenceSample) int { return s.Unresponsive }},
		{fleet.PresenceUnknownEdge, func(s fleet.PresenceSample) int { return s.UnknownEdge }},
		{fleet.PresenceOffline, func(s fleet.PresenceSample) int { return s.Offline }},
	}
	for _, state := range states {
		c.layers = append(c.layers, stackLayer{class: strings.Replace(PresenceNow{}.fill(state.presence), "good", "soft", 1),
			label: t(ctx, "state."+string(state.presence))})
	}
	for i, s := range worst {
		if s == nil { // a gap: fleetd did not run
			continue
		}
		c.times = append(c.times, begin.Add(time.Duration(i)*step))
		for j, state := range states {
			c.layers[j].counts = append(c.layers[j].counts, state.count(*s))
		}
	}
	c.layers = slices.DeleteFunc(c.layers, func(l stackLayer) bool { return l.sum() == 0 })
	return c
}

// callStack draws the calls of the last day by their outcome.
func (v Overview) callStack(ctx context.Context) stackChart {
	c := stackChart{id: "calls-day", title: t(ctx, "overview.calls"), span: timeSpan{v.begin().Truncate(v.Step), v.To},
		step: v.Step}
	for _, o := range callOutcomes {
		l := stackLayer{class: o.class, label: t(ctx, o.key), url: v.outcomeURL(ctx, o.states)}
		for _, b := range v.Calls {
			l.counts = append(l.counts, o.count(b))
		}
		c.layers = append(c.layers, l)
	}
	for _, b := range v.Calls {
		c.times = append(c.times, b.At)
		c.links = append(c.links, v.bucketURL(ctx, b))
	}
	if len(v.Calls) > 0 {
		c.layers = slices.DeleteFunc(c.layers, func(l stackLayer) bool { return l.sum() == 0 })
	}
	return c
}

// callOutcomes are the outcomes that the overview distinguishes, from the bottom of the bars up.
var callOutcomes = []struct {
	class, key string
	states     []fleet.CallState
	count      func(call.Bucket) int
}{
	{"fill-good", "chart.succeeded", []fleet.CallState{fleet.CallSucceeded},
		func(b call.Bucket) int { return b.Succeeded }},
	{"fill-off", "chart.not_executed", []fleet.CallState{fleet.CallRefused, fleet.CallInvalid, fleet.CallOffline,
		fleet.CallCanceled}, func(b call.Bucket) int { return b.Failed - b.ToolErrors - b.NoAnswer }},
	{"fill-warn", "chart.no_answer", []fleet.CallState{fleet.CallTimedOut, fleet.CallUnknown},
		func(b call.Bucket) int { return b.NoAnswer }},
	{"fill-bad", "chart.tool_error", []fleet.CallState{fleet.CallToolError},
		func(b call.Bucket) int { return b.ToolErrors }},
}

func (v Overview) callCount() (n int) {
	for _, b := range v.Calls {
		n += b.Succeeded + b.Failed
	}
	return n
}

// succeededShare returns the part of the calls that succeeded, rounded down.
func (v Overview) succeededShare(ctx context.Context) string {
	ok := 0
	for _, b := range v.Calls {
		ok += b.Succeeded
	}
	return tenths(ctx, ratio(ok, v.callCount()))
}

// versionLayers returns the most common versions, each with its colour, and the sum of all others.
func (v Overview) versionLayers(ctx context.Context) (layers []stackLayer) {
	others, named := 0, v.namedVersions()
	for _, c := range v.Versions {
		if !slices.Contains(named, c.Value) {
			others += c.Count
			continue
		}
		l := stackLayer{class: "stack-" + strconv.Itoa(len(layers)), label: versionName(ctx, c.Value), counts: []int{c.Count}}
		if c.Value != "" {
			l.url = QueryPath(Term("version", c.Value))
		}
		layers = append(layers, l)
	}
	if others > 0 {
		layers = append(layers, stackLayer{class: "stack-others", label: t(ctx, "history.others"), counts: []int{others}})
	}
	return layers
}

// namedVersions returns the versions that have a colour: those of the chart over time, if there is one.
func (v Overview) namedVersions() (named []string) {
	if v.Adoption.drawable() {
		return v.Adoption.named()
	}
	for _, c := range v.Versions[:min(maxStack, len(v.Versions))] {
		named = append(named, c.Value)
	}
	return named
}

func (v Overview) versionParts(ctx context.Context) []barPart {
	layers := v.versionLayers(ctx)
	counts, classes := make([]int, len(layers)), make([]string, len(layers))
	for i, l := range layers {
		counts[i], classes[i] = l.last(), l.class
	}
	return barParts(counts, classes)
}

// versionShare returns which part of the boards has the most common version.
func (v Overview) versionShare(ctx context.Context) string {
	all := 0
	for _, c := range v.Versions {
		all += c.Count
	}
	return tenths(ctx, ratio(v.Versions[0].Count, all))
}

// versionName returns a version, or the text for devices that reported none.
func versionName(ctx context.Context, version string) string {
	if version == "" {
		return t(ctx, "overview.unknown")
	}
	return version
}

// adoption draws the last 30 days in the colours of the bar above it.
func (v Overview) adoption(ctx context.Context) stackChart {
	c := v.Adoption.stack(ctx)
	c.strip, c.more = true, PathHistory+"#"+c.id
	colours := map[string]string{}
	for _, l := range v.versionLayers(ctx) {
		colours[l.label] = l.class
	}
	others := stackLayer{class: "stack-others", label: t(ctx, "history.others"), counts: make([]int, len(c.times))}
	var layers []stackLayer
	for _, l := range c.layers {
		if class, ok := colours[l.label]; ok && class != others.class {
			l.class = class
			layers = append(layers, l)
			continue
		}
		others.counts = sumCounts(others.counts, l.counts)
	}
	slices.SortFunc(layers, func(a, b stackLayer) int { return strings.Compare(a.class, b.class) })
	c.layers = layers
	if others.sum() > 0 {
		c.layers = append(c.layers, others)
	}
	return c
}

// callsURL returns the list of the calls that the chart counts.
func (v Overview) callsURL(ctx context.Context) string { return v.outcomeURL(ctx, nil) }

// outcomeURL returns the list of the calls of the chart's time with one of the states.
func (v Overview) outcomeURL(ctx context.Context, states []fleet.CallState) string {
	q := url.Values{"since": {v.From.In(page(ctx).Zone).Format(localMinute)}}
	var names []string
	for _, s := range states {
		names = append(names, string(s))
	}
	if names != nil {
		q.Set("state", strings.Join(names, ","))
	}
	return PathCalls + "?" + q.Encode()
}

// localMinute is the format of times in the filter of the calls, in the viewer's zone.
const localMinute = "2006-01-02T15:04"

// bucketURL returns the list of the calls of a bucket.
func (v Overview) bucketURL(ctx context.Context, b call.Bucket) string {
	zone := page(ctx).Zone
	q := url.Values{"since": {b.At.In(zone).Format(localMinute)}, "until": {b.At.Add(v.Step).In(zone).Format(localMinute)}}
	return PathCalls + "?" + q.Encode()
}
