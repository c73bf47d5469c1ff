package ui

import (
	"context"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/alert"
	trends "fleetd/fleet/trend"
)

// PathStyleguide is a page of all components: GET, for developers of the console.
const PathStyleguide = "/styleguide"

// A StyleguidePage shows every component in every state, with the same content at any time, so that
// a test compares it with stored pictures. Its texts are samples and in English only.
type StyleguidePage struct{}

var styleguideMoment = time.Date(2026, time.November, 21, 9, 41, 0, 0, time.UTC)

// styleguideStack is counts of a day.
func styleguideStack(strip bool) stackChart {
	from := styleguideMoment.Add(-24 * time.Hour).Truncate(time.Hour)
	c := stackChart{id: "styleguide-calls", title: "Calls by outcome", span: timeSpan{from, from.Add(24 * time.Hour)},
		step: time.Hour, strip: strip, layers: []stackLayer{{class: "fill-good", label: "Succeeded"},
			{class: "fill-warn", label: "Tool error"}, {class: "fill-bad", label: "No answer"}}}
	if strip {
		c.id = "styleguide-strip"
	}
	for i := range 24 {
		c.times = append(c.times, from.Add(time.Duration(i)*time.Hour))
		for layer, n := range []int{20 + i*i%23, i % 5, i % 3} {
			c.layers[layer].counts = append(c.layers[layer].counts, n)
		}
	}
	return c
}

func styleguidePresence() PresenceNow {
	return PresenceNow{Online: 4702, Unresponsive: 31, Offline: 287, Pending: 8}
}

// styleguideAlerts has an alert of each look. Their times are a day ago, so that the page's text is always the same.
func styleguideAlerts() []AlertCard {
	began := time.Now().Add(-25 * time.Hour)
	anna := fleet.Principal{Kind: fleet.KindOperator, Name: "anna", Role: fleet.RoleOperator}
	card := func(kind alert.Kind, severity alert.Severity, p fleet.Params) AlertCard {
		return AlertCard{MayAct: true, MaySilence: true,
			Alert: alert.Alert{Kind: kind, Severity: severity, State: alert.Open, Params: p, Began: began}}
	}
	bad := card(alert.OnlineDropped, alert.Bad, fleet.Params{"n": 1307, "now": 74, "before": 99})
	warning := card(alert.DiskLow, alert.Warning, fleet.Params{"name": "/var/lib/fleetd", "percent": 8,
		"free_bytes": int64(3 << 30)})
	taken := card(alert.CrashLoop, alert.Warning, fleet.Params{"n": 4, "restarts": 5, "span_ms": time.Hour})
	taken.Alert.State, taken.Alert.AckedBy, taken.Alert.AckedAt, taken.Alert.Note = alert.Acknowledged, anna, &began,
		"new speakers"
	silenced := card(alert.DevicesOffline, alert.Warning, fleet.Params{"n": 40, "span_ms": 24 * time.Hour})
	silenced.Silenced, silenced.Alert.Silence = true, &alert.Silence{By: anna, Reason: "building closed",
		Until: styleguideMoment}
	return []AlertCard{bad, warning, taken, silenced}
}

// styleguideStates are states that chips show, by tone.
var styleguideStates = []string{"succeeded", "online", "completed", "sent", "running", "pending_device", "unknown", "refused",
	"unresponsive", "tool_error", "timed_out", "pending", "offline", "canceled"}

// styleguideLine is a trend for a spark.
func styleguideLine(ctx context.Context) trend {
	c := trend{id: "styleguide-line", title: "Memory", axis: niceAxis(0, 200, 4),
		span: timeSpan{styleguideMoment.Add(-24 * time.Hour), styleguideMoment}, reach: 2 * time.Hour,
		lines: []trendLine{{class: "line-1", label: "Free", last: "127 KiB"}}}
	for i := range 48 {
		at := c.span.from.Add(time.Duration(i) * 30 * time.Minute)
		c.readings = append(c.readings, reading{at: at, values: []float64{float64(120 + 40*(i%7)/7)}})
	}
	return c
}

// styleguideDashboard is figures of a week with an event of each kind.
func styleguideDashboard(ctx context.Context) dashChart {
	const day = 24 * time.Hour
	to := styleguideMoment.Truncate(day)
	f := trends.Figures{Span: trends.Span{From: to.Add(-28 * day), To: to, Step: day}, Since: to.Add(-28 * day),
		Events: []trends.Event{{At: to.Add(-20 * day), Kind: trends.EventRelease, Name: "2.4.0"},
			{At: to.Add(-14 * day), Kind: trends.EventCampaign, Name: "spring"},
			{At: to.Add(-6 * day), Kind: trends.EventStart, Name: "core-1"}}}
	online, offline := trends.Series{Key: "online"}, trends.Series{Key: "offline"}
	for i := range 28 {
		f.Hours = append(f.Hours, 24)
		online.Values = append(online.Values, float64(4700+i*i%90))
		offline.Values = append(offline.Values, float64(200+i*i%60))
	}
	f.Series = map[trends.Metric][]trends.Series{trends.Devices: {online, offline}}
	return DashboardsPage{Figures: f, List: ListURL{Path: PathDashboards}}.chart(ctx, trends.Devices)
}
