package api

import (
	"context"
	"math"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/trend"
	"fleetd/web/access"
)

func (a *api) registerTrends() {
	register(a, operation{id: "get-trends", reach: access.List, models: fleet.ModelsNever,
		method: http.MethodGet, path: "/trends", role: fleet.RoleViewer, noun: "filter",
		summary: "Show figures over time: presence, versions, boards, reception, connections, crashes, calls, conversations",
		about: "Each hour is counted once it has ended, and each day (UTC) from its hours. A device counts for the groups that it belonged to in that hour. " +
			"A token with a scope gets the figures of its scope, or of a saved filter that repeats the scope; other groups are refused with 403 trend_outside_scope."},
		a.getTrends)
}

type getTrendsInput struct {
	Range   string         `query:"range" enum:"24h,7d,30d,90d,1y" doc:"A time that ends now. Default: 7d, unless there is from"`
	From    time.Time      `query:"from" doc:"Instead of range; at most 400 days before to"`
	To      time.Time      `query:"to" doc:"With from. Default: now"`
	Of      string         `query:"of" maxLength:"220" doc:"Whose figures: board:X, version:X, tag:X, or filter:NAME for a saved filter. Default: the fleet or, with a scope, the devices of the scope"`
	Metrics []trend.Metric `query:"metric" enum:"devices,versions,boards,signal,connections,crashes,outcomes,tools,conversations" maxItems:"9" doc:"List with commas. Default: all"`
}

// TrendsView is the answer to a question about figures over time.
type TrendsView struct {
	From    time.Time        `json:"from"`
	To      time.Time        `json:"to"`
	Step    int64            `json:"step_ms" doc:"An hour, 3 hours, a day or a week, by the length of the range: there are at most 121 steps"`
	Since   *time.Time       `json:"since" doc:"From when on there are figures; null: none yet"`
	Times   []time.Time      `json:"times" nullable:"false" doc:"The beginning of each step"`
	Hours   []int            `json:"hours" nullable:"false" doc:"Number of hours of each step that are counted"`
	Metrics []MetricView     `json:"metrics" nullable:"false"`
	Events  []trendEventView `json:"events" nullable:"false" doc:"What may explain a change, oldest first: the latest 100"`
}

// TransformSchema marks since as nullable.
func (TrendsView) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return orNull(s, "since")
}

// MetricView is a metric with its series.
type MetricView struct {
	Metric trend.Metric      `json:"metric" enum:"devices,versions,boards,signal,connections,crashes,outcomes,tools,conversations" doc:"devices: by presence; signal: dBm, as median and weakest_tenth; crashes: by reset reason; outcomes: calls by state; tools: calls by tool. The first four are averages of the hours of a step, the others sums"`
	Series []TrendSeriesView `json:"series" nullable:"false" doc:"Largest first"`
}

// TrendSeriesView is a part of a metric.
type TrendSeriesView struct {
	Key    string     `json:"key" doc:"Presence, version, board, reason, state or tool; empty: unknown, or of a metric without parts"`
	Others bool       `json:"others,omitempty" doc:"The sum of the keys beyond the largest 60 of an hour, and of tools that no device has listed"`
	Values []*float64 `json:"values" nullable:"false" doc:"At each of the times; null: unknown"`
}

func (a *api) getTrends(ctx context.Context, _ fleet.Principal, in *getTrendsInput) (*answer[TrendsView], error) {
	f, err := a.Trends.Figures(ctx, trend.Question{Of: in.Of, Range: in.Range, From: in.From, To: in.To,
		Metrics: in.Metrics})
	if err != nil {
		return nil, err
	}
	v := TrendsView{From: utc(f.From), To: utc(f.To), Step: f.Step.Milliseconds(), Times: f.Times(), Hours: f.Hours,
		Metrics: []MetricView{}, Events: viewed(f.Events, trendEvent)}
	if !f.Since.IsZero() {
		v.Since = ptr(utc(f.Since))
	}
	for _, m := range trend.Metrics {
		if series, ok := f.Series[m]; ok {
			v.Metrics = append(v.Metrics, MetricView{m, viewed(series, trendSeries)})
		}
	}
	return answerWith(v), nil
}

// trendEventView is something that happened in the range.
type trendEventView struct {
	At   time.Time       `json:"at"`
	Kind trend.EventKind `json:"kind" enum:"release,campaign,start" doc:"A release was created; a campaign was started; fleetd was started, or another core took over. With a scope only releases"`
	ID   *uuid.UUID      `json:"id" doc:"Of the release or the campaign; null of a start"`
	Name string          `json:"name" doc:"Version of the release, name of the campaign, node that was started"`
}

// TransformSchema implements [huma.SchemaTransformer].
func (trendEventView) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return orNull(s, "id")
}

func trendEvent(e trend.Event) trendEventView {
	v := trendEventView{At: e.At, Kind: e.Kind, Name: e.Name}
	if e.ID != uuid.Nil {
		v.ID = &e.ID
	}
	return v
}

func trendSeries(s trend.Series) TrendSeriesView {
	v := TrendSeriesView{Key: s.Key, Values: make([]*float64, len(s.Values))}
	if s.Key == trend.KeyOthers {
		v.Key, v.Others = "", true
	}
	for i, n := range s.Values {
		if !math.IsNaN(n) {
			v.Values[i] = &n
		}
	}
	return v
}
