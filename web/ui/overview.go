package ui

import (
	"context"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
)

// An Overview is the first page: the health of the fleet, and the decisions that wait for an
// operator. GET [PathHome].
type Overview struct {
	Fleet     int // devices in service; 0 shows how to add the first
	Alerts    AlertsNow
	Now       PresenceNow
	Presence  []fleet.PresenceSample // the last 24 h, oldest first
	Calls     []call.Bucket          // the last 24 h, oldest first
	Step      time.Duration          // width of a bucket
	From, To  time.Time              // span of the charts, with data or without
	Versions  []fleet.DeviceCount    // largest first
	Boards    []fleet.DeviceCount
	Adoption  AdoptionChart // the last 30 days
	Needs     Attention
	Failures  []CallRow
	Running   []FanOutRow
	Campaigns []CampaignRow // open campaigns
	Setup     Setup
}

// refresh returns after how many seconds the script fetches the page again: charts may wait, the
// first device may not.
func (v Overview) refresh() string {
	if v.Fleet == 0 {
		return "5"
	}
	return "60"
}

// PresenceNow counts devices by presence; a live stream sends it as a patch.
type PresenceNow struct {
	Online, Unresponsive, UnknownEdge, Offline, Pending int
	Conversations                                       int // offline, but connect for conversations
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

// worse returns the worse of two tones of counts.
func worse(a, b tone) tone {
	rank := []tone{toneNone, toneWarn, toneBad}
	if slices.Index(rank, b) > slices.Index(rank, a) {
		return b
	}
	return a
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

// A chart is the data from which the script draws it; the table next to it has the same figures.
type chart struct {
	X      []int64  `json:"x"` // Unix seconds
	From   int64    `json:"from"`
	To     int64    `json:"to"`
	Time   string   `json:"time"`
	Series []series `json:"series"`
	Step   int64    `json:"step,omitempty"`  // seconds between bars; 0 draws areas
	Links  []string `json:"links,omitempty"` // link of a click at X[i]
}

type series struct {
	Label  string `json:"label"`
	Tone   tone   `json:"tone"`
	Values []int  `json:"values"`
}

func (c chart) json() string {
	b, _ := json.Marshal(c) // only numbers and strings
	return string(b)
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

// edgesWereSilent reports whether the chart has devices at silent edges.
func (v Overview) edgesWereSilent() bool {
	return v.Now.UnknownEdge > 0 ||
		slices.ContainsFunc(v.Presence, func(s fleet.PresenceSample) bool { return s.UnknownEdge > 0 })
}

func (v Overview) presenceChart(ctx context.Context) chart {
	c := chart{Time: t(ctx, "chart.time"), From: v.begin().Unix(), To: v.To.Unix(), Series: []series{
		{Label: t(ctx, "state.online"), Tone: toneGood},
		{Label: t(ctx, "state.unresponsive"), Tone: toneNone},
		{Label: t(ctx, "state.offline"), Tone: toneNone},
		{Label: t(ctx, "state.unknown_edge"), Tone: toneWarn},
	}}
	// An area has the colour of its worst state, also after that state has ended, and ends with the
	// values of the tiles.
	now := fleet.PresenceSample{At: v.To, Online: v.Now.Online, Unresponsive: v.Now.Unresponsive,
		UnknownEdge: v.Now.UnknownEdge, Offline: v.Now.Offline}
	for _, s := range append(slices.Clone(v.Presence), now) {
		p := PresenceNow{Online: s.Online, Unresponsive: s.Unresponsive, UnknownEdge: s.UnknownEdge, Offline: s.Offline}
		c.Series[2].Tone = worse(c.Series[2].Tone, p.tone(fleet.PresenceOffline))
		c.Series[1].Tone = worse(c.Series[1].Tone, p.tone(fleet.PresenceUnresponsive))
		c.X = append(c.X, s.At.Unix())
		for i, n := range []int{s.Online, s.Unresponsive, s.Offline, s.UnknownEdge} {
			c.Series[i].Values = append(c.Series[i].Values, n)
		}
	}
	if !v.edgesWereSilent() {
		c.Series = c.Series[:3]
	}
	return c
}

func (v Overview) callChart(ctx context.Context) chart {
	c := chart{Time: t(ctx, "chart.time"), From: v.begin().Truncate(v.Step).Unix(), To: v.To.Unix(),
		Step: int64(v.Step.Seconds()), Series: []series{
			{Label: t(ctx, "chart.succeeded"), Tone: toneGood},
			{Label: t(ctx, "chart.failed"), Tone: toneBad},
		}}
	for _, b := range v.Calls {
		c.X = append(c.X, b.At.Unix())
		c.Links = append(c.Links, v.bucketURL(ctx, b))
		c.Series[0].Values = append(c.Series[0].Values, b.Succeeded)
		c.Series[1].Values = append(c.Series[1].Values, b.Failed)
	}
	if !slices.ContainsFunc(c.Series[1].Values, func(n int) bool { return n > 0 }) {
		c.Series[1].Tone = toneNone // no call failed
	}
	return c
}

// bucketURL returns the list of the calls of a bucket, with times in the viewer's zone, as in the
// list's filter.
func (v Overview) bucketURL(ctx context.Context, b call.Bucket) string {
	const local = "2006-01-02T15:04"
	zone := page(ctx).Zone
	q := url.Values{"since": {b.At.In(zone).Format(local)}, "until": {b.At.Add(v.Step).In(zone).Format(local)}}
	return PathCalls + "?" + q.Encode()
}
