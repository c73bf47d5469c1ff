package ui_test

import (
	"math"
	"slices"
	"time"

	"github.com/a-h/templ"

	"fleetd/fleet"
	"fleetd/fleet/trend"
	"fleetd/web/ui"
)

// dashboardFigures are a quarter of a year, with more parts than colours, a gap, and a day that is not over.
func dashboardFigures() trend.Figures {
	const day = 24 * time.Hour
	to := now.UTC().Truncate(day).Add(day)
	f := trend.Figures{Span: trend.Span{From: to.Add(-91 * day), To: to, Step: day}, Since: to.Add(-91 * day)}
	f.Hours = slices.Repeat([]int{24}, 91)
	f.Hours[90] = 9
	series := func(key string, high float64) trend.Series {
		s := trend.Series{Key: key}
		for i := range f.Hours {
			v := math.Round(high * (2 + math.Sin(float64(i)/9+high)) / 3)
			if i > 30 && i < 34 {
				v = math.NaN()
			}
			s.Values = append(s.Values, v)
		}
		return s
	}
	var versions []trend.Series
	for i, version := range []string{"2.4.0", "2.3.1", "", "2.3.0-rc.1+a-very-long-suffix-of-a-build", "2.2", "2.1", "2.0", "1.9", "1.8", "1.7"} {
		versions = append(versions, series(version, 9000/float64(i+1)))
	}
	for i, e := range []trend.Event{{Kind: trend.EventRelease, Name: "2.4.0"}, {Kind: trend.EventStart, Name: "core-1"},
		{Kind: trend.EventCampaign, Name: hostile[0]}} {
		e.At = to.Add(-time.Duration(60-20*i) * day)
		f.Events = append(f.Events, e)
	}
	f.Series = map[trend.Metric][]trend.Series{
		trend.Devices: {series("offline", 900), series("online", 98765), series("pending", 3), series(trend.KeyBetween, 90),
			series("unresponsive", 12), series("unknown_edge", 1)},
		trend.Versions:      versions,
		trend.Boards:        versions[:1],
		trend.Crashes:       {series("panic", 9), series("watchdog", 2), series("brownout", 4)},
		trend.Connections:   {series("", 1200)},
		trend.Signal:        {series(trend.KeyMedian, -61), series(trend.KeyTenth, -80)},
		trend.Outcomes:      {series("succeeded", 12000), series("timed_out", 200), series("pending_device", 2)},
		trend.Tools:         {series("self.audio_speaker.set_volume", 8000), series(trend.KeyOthers, 9)},
		trend.Conversations: nil,
	}
	return f
}

func dashboardsPage(of string, figures trend.Figures, problem string) templ.Component {
	return ui.DashboardsPage{List: list("/dashboards", "range=90d&of="+of), Now: now, Figures: figures, Problem: problem,
		Listed: true, Query: "tag:lab", Choices: trend.Choices{Boards: []string{"bread-compact-wifi"}, Versions: []string{"2.4.0"},
			Tags: []string{"lab"}, Filters: []fleet.Filter{{Name: "lab", Title: "The lab on the second floor, left"}}}}.Page()
}
