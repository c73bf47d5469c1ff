package trend

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"fleetd/fleet"
)

// A fakeStore has the same rows for every group that is known.
type fakeStore struct {
	rows  []Row
	asked Group
	hours int
}

func (s *fakeStore) TrendRows(_ context.Context, g Group, span Span, _ []Metric) ([]Row, time.Time, error) {
	s.asked = g
	return s.rows, span.From, nil
}

func (s *fakeStore) TrendHours(_ context.Context, span Span, _ time.Time) ([]int, error) {
	return slices.Repeat([]int{s.hours}, len(span.Times())), nil
}

func (s *fakeStore) TrendGroups(context.Context, GroupKind) ([]string, error) { return nil, nil }

func (s *fakeStore) TrendEvents(_ context.Context, _ Span, kinds []EventKind) (all []Event, err error) {
	for _, k := range kinds {
		all = append(all, Event{Kind: k})
	}
	return all, nil
}

func (s *fakeStore) Filters(context.Context) ([]fleet.Filter, error) { return nil, nil }

func (s *fakeStore) FilterByName(_ context.Context, name string) (fleet.Filter, error) {
	if name != "lab" {
		return fleet.Filter{}, fleet.Refuse(fleet.ErrNotFound, "unknown_filter", "name", name)
	}
	return fleet.Filter{Name: name, Query: " tag:lab "}, nil
}

// In the night after this one, clocks in Europe are set back.
var noon = time.Date(2026, 10, 24, 12, 34, 0, 0, time.UTC)

func newTest(rows ...Row) (*Service, *fakeStore) {
	store := &fakeStore{rows: rows, hours: 1}
	return New(store, store, func() time.Time { return noon }), store
}

func at(text string) time.Time {
	t, err := time.Parse("2006-01-02T15:04Z07:00", text)
	if err != nil {
		panic(err)
	}
	return t
}

func TestSpan(t *testing.T) {
	tests := []struct {
		name     string
		q        Question
		from, to string
		step     time.Duration
	}{
		{"default", Question{}, "2026-10-17T12:00Z", "2026-10-24T12:00Z", 3 * time.Hour},
		{"a day", Question{Range: "24h"}, "2026-10-23T12:00Z", "2026-10-24T12:00Z", time.Hour},
		{"a month", Question{Range: "30d"}, "2026-09-24T00:00Z", "2026-10-25T00:00Z", day},
		{"a year begins on a Monday", Question{Range: "1y"}, "2025-10-20T00:00Z", "2026-10-26T00:00Z", 7 * day},
		{"of an own choice", Question{From: at("2026-10-01T10:20Z"), To: at("2026-10-01T12:00Z")}, "2026-10-01T10:00Z",
			"2026-10-01T12:00Z", time.Hour},
		{"in a zone with a half hour", Question{From: at("2026-10-01T10:00+05:30"), To: at("2026-10-01T12:00+05:30")},
			"2026-10-01T04:00Z", "2026-10-01T07:00Z", time.Hour},
		{"over the change of clocks", Question{From: at("2026-03-29T00:00+01:00"), To: at("2026-03-30T00:00+02:00")},
			"2026-03-28T00:00Z", "2026-03-30T00:00Z", day}, // longer ago than hours are kept
		{"until now", Question{From: at("2026-10-24T00:00Z")}, "2026-10-24T00:00Z", "2026-10-24T13:00Z", time.Hour},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, _ := newTest()
			f, err := s.Figures(t.Context(), tt.q)
			if err != nil {
				t.Fatal(err)
			}
			if want := (Span{at(tt.from), at(tt.to), tt.step}); f.Span != want {
				t.Errorf("span %v, want %v", f.Span, want)
			}
			if n := len(f.Times()); n > 121 || n != len(f.Hours) {
				t.Errorf("%d points", n)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	tests := []struct {
		name string
		q    Question
		code string
	}{
		{"range", Question{Range: "2y"}, "invalid_trend_range"},
		{"backwards", Question{From: noon, To: noon.Add(-time.Hour)}, "invalid_history_period"},
		{"empty", Question{From: noon, To: noon}, "invalid_history_period"},
		{"no beginning", Question{To: noon}, "invalid_history_period"},
		{"future", Question{From: noon.Add(time.Hour)}, "future_moment"},
		{"future end", Question{From: noon, To: noon.Add(1000 * day)}, "future_moment"},
		{"too long", Question{From: noon.Add(-500 * day)}, "trend_range_too_long"},
		{"too long ago", Question{From: noon.Add(-900 * day), To: noon.Add(-890 * day)}, "trend_range_too_long"},
		{"year 1", Question{From: time.Time{}.Add(1), To: noon}, "trend_range_too_long"},
		{"metric", Question{Metrics: []Metric{"x'; DROP TABLE devices"}}, "invalid_metric"},
		{"group", Question{Of: "lab"}, "invalid_trend_group"},
		{"kind of group", Question{Of: "query:tag:lab"}, "invalid_trend_group"},
		{"empty group", Question{Of: "tag:"}, "invalid_trend_group"},
		{"long group", Question{Of: "tag:" + strings.Repeat("x", 300)}, "invalid_trend_group"},
		{"control characters", Question{Of: "tag:a\x00b"}, "invalid_trend_group"},
		{"filter", Question{Of: "filter:' OR true"}, "unknown_filter"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, store := newTest()
			_, err := s.Figures(t.Context(), tt.q)
			if refused, ok := errors.AsType[*fleet.Error](err); !ok || refused.Code != tt.code {
				t.Errorf("error %v, want %s", err, tt.code)
			}
			if store.asked != (Group{}) {
				t.Errorf("the store was asked for %v", store.asked)
			}
		})
	}
}

func TestFigures(t *testing.T) {
	from := at("2026-10-24T09:00Z")
	row := func(m Metric, after time.Duration, keys []string, counts ...int64) Row {
		return Row{m, from.Add(after), 1, keys, counts}
	}
	s, store := newTest(
		row(Devices, 0, []string{"online"}, 3), row(Devices, 2*time.Hour, []string{"offline", "online"}, 5, 1),
		row(Crashes, time.Hour, []string{"panic"}, 2),
		row(Signal, 0, []string{"-50", "-90", "-60"}, 6, 1, 3), row(Signal, 99*time.Hour, []string{"-10"}, 1))
	f, err := s.Figures(t.Context(), Question{Of: "filter:lab", From: from, To: from.Add(3 * time.Hour),
		Metrics: []Metric{Devices, Crashes, Signal, Tools}})
	if err != nil {
		t.Fatal(err)
	}
	if want := (Group{OfQuery, "tag:lab"}); store.asked != want {
		t.Errorf("the store was asked for %v, want %v", store.asked, want)
	}
	none := math.NaN()
	want := map[Metric][]Series{
		Devices: {{"offline", []float64{0, none, 5}}, {"online", []float64{3, none, 1}}},
		Crashes: {{"panic", []float64{0, 2, 0}}},
		Signal:  {{KeyMedian, []float64{-50, none, none}}, {KeyTenth, []float64{-90, none, none}}},
		Tools:   {},
	}
	if diff := cmp.Diff(want, f.Series, cmpopts.EquateNaNs()); diff != "" {
		t.Error(diff)
	}
}

// A state over a longer time is the average of its hours.
func TestAverage(t *testing.T) {
	from := at("2026-10-01T00:00Z")
	s, store := newTest(Row{Boards, from, 24, []string{"x"}, []int64{60}},
		Row{Crashes, from, 3, []string{"panic"}, []int64{7}})
	store.hours = 24
	f, err := s.Figures(t.Context(), Question{From: from, To: from.Add(20 * day), Metrics: []Metric{Boards, Crashes}})
	if err != nil {
		t.Fatal(err)
	}
	if b, c := f.Series[Boards][0].Values[0], f.Series[Crashes][0].Values[0]; b != 2.5 || c != 7 {
		t.Errorf("boards %v, crashes %v", b, c)
	}
}

func TestLargest(t *testing.T) {
	all := []Series{{KeyOthers, []float64{1, 1}}, {"a", []float64{5, 5}}, {"b", []float64{2, 0}}, {"c", []float64{1, 0}}}
	want := []Series{{"a", []float64{5, 5}}, {KeyOthers, []float64{4, 1}}}
	if diff := cmp.Diff(want, Largest(all, 1)); diff != "" {
		t.Error(diff)
	}
	if all[0].Values[0] != 1 {
		t.Error("Largest changed its argument")
	}
}

// A language model gets no figures about calls, and a principal with a scope only those of the scope.
func TestPrincipals(t *testing.T) {
	s, store := newTest()
	scope, err := fleet.NewTokenScope(fleet.KindModel, "tag:lab", []string{"*"})
	if err != nil {
		t.Fatal(err)
	}
	ctx := fleet.WithScope(t.Context(), fleet.Principal{Kind: fleet.KindModel, Role: fleet.RoleViewer, Scope: scope})
	f, err := s.Figures(ctx, Question{})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := f.Series[Tools]; ok || store.asked != (Group{OfQuery, "tag:lab"}) {
		t.Errorf("series %v of %v", f.Series, store.asked)
	}
	if len(f.Events) != 1 || f.Events[0].Kind != EventRelease {
		t.Errorf("with a scope the events are %v", f.Events)
	}
	if f, err = s.Figures(t.Context(), Question{}); err != nil || len(f.Events) != len(EventKinds) {
		t.Errorf("without a scope the events are %v, %v", f.Events, err)
	}
}
