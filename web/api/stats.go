package api

import (
	"context"
	"net/http"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/web/access"
)

func (a *api) registerStats() {
	register(a, operation{id: "get-stats", reach: access.List, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/stats", role: fleet.RoleViewer,
		summary: "Show the fleet at a glance"}, a.getStats)
}

// Limits of a time span.
const (
	defaultLookBack = 24 * time.Hour
	maxStretches    = 1000
)

type statsInput struct {
	Since  time.Time `query:"since" doc:"How far calls and presence look back. Default: a day"`
	StepMs int64     `query:"step_ms" minimum:"1000" maximum:"604800000" default:"3600000" doc:"Length of the periods by which calls are counted"`
}

type statsView struct {
	Devices  int            `json:"devices" doc:"In service"`
	Presence PresenceCounts `json:"presence" doc:"Now"`
	Versions []countView    `json:"versions" nullable:"false" doc:"Most devices first"`
	Boards   []countView    `json:"boards" nullable:"false"`
	Chips    []countView    `json:"chips" nullable:"false"`
	Since    time.Time      `json:"since"`
	StepMs   int64          `json:"step_ms"`
	Calls    []callBucket   `json:"calls" nullable:"false" doc:"Over time, oldest first; periods without calls are omitted"`
	Reached  []sampleCounts `json:"presence_over_time" nullable:"false"`
}

type PresenceCounts struct {
	Online       int `json:"online"`
	Unresponsive int `json:"unresponsive"`
	UnknownEdge  int `json:"unknown_edge" doc:"The edge of a cluster that holds the connection is silent"`
	Offline      int `json:"offline"`
	Pending      int `json:"pending"`
	// In samples it is 0.
	Conversations int `json:"between_conversations" doc:"Offline devices that connect only during conversations; not counted in offline. 0 in presence_over_time"`
}

type sampleCounts struct {
	At time.Time `json:"at"`
	PresenceCounts
}

type countView struct {
	Value string `json:"value"`
	Count int    `json:"count"`
}

type callBucket struct {
	At        time.Time `json:"at"`
	Succeeded int       `json:"succeeded"`
	Failed    int       `json:"failed"`
}

func (a *api) getStats(ctx context.Context, _ fleet.Principal, in *statsInput) (*answer[statsView], error) {
	since, step, err := in.lookBack(time.Now())
	if err != nil {
		return nil, err
	}
	v := statsView{Since: utc(since), StepMs: in.StepMs}
	if err := a.countDevices(ctx, &v); err != nil {
		return nil, err
	}
	buckets, err := a.Stats.CallBuckets(ctx, "", since, step)
	if err != nil {
		return nil, err
	}
	v.Calls = listOf(buckets, func(b call.Bucket) callBucket {
		return callBucket{utc(b.At), b.Succeeded,
			b.Failed}
	}).Body.Items
	samples, err := a.Samples.PresenceSamples(ctx, since)
	if err != nil {
		return nil, err
	}
	v.Reached = listOf(samples, func(s fleet.PresenceSample) sampleCounts {
		return sampleCounts{utc(s.At), PresenceCounts{Online: s.Online, Unresponsive: s.Unresponsive,
			UnknownEdge: s.UnknownEdge, Offline: s.Offline, Pending: s.Pending}}
	}).Body.Items
	return answerWith(v), nil
}

func (in *statsInput) lookBack(now time.Time) (time.Time, time.Duration, error) {
	since, step := in.Since, time.Duration(in.StepMs)*time.Millisecond
	if since.IsZero() {
		since = now.Add(-min(defaultLookBack, maxStretches*step))
	}
	if since.After(now) || now.Sub(since)/step > maxStretches {
		return since, step, fleet.Refuse(fleet.ErrInvalid, "invalid_since", "steps", 1000).At("query.since")
	}
	return since, step, nil
}

func (a *api) countDevices(ctx context.Context, v *statsView) error {
	counts, err := a.Devices.CountByFields(ctx, fleet.Query{}, "presence", "version", "board", "chip")
	if err != nil {
		return err
	}
	p := fleet.PresenceOf(counts[0])
	v.Devices = p.Joined() + p.Pending + p.Between
	v.Presence = PresenceCounts{Online: p.Online, Unresponsive: p.Unresponsive, UnknownEdge: p.UnknownEdge,
		Offline: p.Offline, Pending: p.Pending, Conversations: p.Between}
	for i, to := range []*[]countView{&v.Versions, &v.Boards, &v.Chips} {
		*to = listOf(counts[i+1], func(c fleet.DeviceCount) countView { return countView(c) }).Body.Items
	}
	return nil
}
