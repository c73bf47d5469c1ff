package trend

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"fleetd/fleet"
)

// ahead is how far clocks may differ before a moment is refused as one of the future.
const ahead = time.Minute

// A Service answers questions about figures over time.
type Service struct {
	store   Store
	filters Filters
	now     func() time.Time
}

// New returns a service. now is usually time.Now.
func New(store Store, filters Filters, now func() time.Time) *Service {
	return &Service{store: store, filters: filters, now: now}
}

// span returns the time that a question is about.
func (s *Service) span(q Question) (Span, error) {
	now := s.now().UTC()
	if q.From.IsZero() && q.To.IsZero() {
		name := cmp.Or(q.Range, DefaultRange)
		i := slices.IndexFunc(Ranges, func(r Range) bool { return r.Name == name })
		if i < 0 {
			return Span{}, fleet.Refuse(fleet.ErrInvalid, "invalid_trend_range", "value", fleet.CleanText(name, 40)).At("range")
		}
		if Ranges[i].Long <= maxHourly {
			now = now.Truncate(time.Hour) // of the present hour there are no figures
		}
		return newSpan(now.Add(-Ranges[i].Long), now), nil
	}
	from, to := q.From.UTC(), q.To.UTC()
	if q.To.IsZero() {
		to = now
	}
	switch {
	case q.From.IsZero():
		return Span{}, fleet.Refuse(fleet.ErrInvalid, "invalid_history_period").At("from")
	case from.After(now.Add(ahead)):
		return Span{}, fleet.Refuse(fleet.ErrInvalid, "future_moment", "at", from).At("from")
	case !from.Before(to):
		return Span{}, fleet.Refuse(fleet.ErrInvalid, "invalid_history_period").At("to")
	case to.After(now.Add(day)):
		return Span{}, fleet.Refuse(fleet.ErrInvalid, "future_moment", "at", to).At("to")
	case to.Sub(from) > DaysKept || from.Before(now.Add(-DaysKept-day)):
		return Span{}, fleet.Refuse(fleet.ErrInvalid, "trend_range_too_long", "kept_ms", DaysKept).At("from")
	}
	span := newSpan(from, to)
	if !span.Daily() && span.From.Before(now.Add(-HoursKept)) { // only days are left of that time
		span = Span{from.Truncate(day), to.Truncate(day).Add(day), day}
	}
	return span, nil
}

// group returns the group that a question is about. What is outside of the principal's scope does not exist.
func (s *Service) group(ctx context.Context, of string) (Group, error) {
	scope, narrow := fleet.ScopeOf(ctx)
	if name, ok := strings.CutPrefix(of, "filter:"); ok {
		f, err := s.filters.FilterByName(ctx, name)
		if err != nil {
			return Group{}, err
		}
		q, err := fleet.ParseQuery(f.Query)
		return Group{OfQuery, q.Text}, err
	}
	g, err := parseGroup(of)
	switch {
	case err != nil:
		return g, err
	case narrow && of != "":
		return g, fleet.Refuse(fleet.ErrForbidden, "trend_outside_scope").At("of")
	case narrow:
		return Group{OfQuery, scope.Text}, nil
	}
	return g, nil
}

// Figures returns the figures of a group.
func (s *Service) Figures(ctx context.Context, q Question) (Figures, error) {
	span, err := s.span(q)
	if err != nil {
		return Figures{}, err
	}
	metrics := q.Metrics
	if len(metrics) == 0 {
		metrics = Metrics
	}
	for _, m := range metrics {
		if !slices.Contains(Metrics, m) {
			return Figures{}, fleet.Refuse(fleet.ErrInvalid, "invalid_metric", "value", fleet.CleanText(string(m), 40)).At("metric")
		}
	}
	if fleet.ToolScopeOf(ctx) != nil { // figures do not separate the tools that a principal may see from others
		metrics = slices.DeleteFunc(slices.Clone(metrics), Metric.ofCalls)
	}
	g, err := s.group(ctx, q.Of)
	if err != nil {
		return Figures{}, err
	}
	rows, since, err := s.store.TrendRows(ctx, g, span, metrics)
	if err != nil {
		return Figures{}, err
	}
	f := Figures{Span: span, Since: since, Series: map[Metric][]Series{}, Hours: make([]int, len(span.Times()))}
	if since.IsZero() {
		return f, nil
	}
	if f.Hours, err = s.store.TrendHours(ctx, span, since); err != nil {
		return Figures{}, err
	}
	for _, m := range metrics {
		own := slices.Collect(func(yield func(Row) bool) {
			for _, r := range rows {
				if r.Metric == m && !yield(r) {
					return
				}
			}
		})
		f.Series[m] = f.series(m, own)
	}
	f.Events, err = s.store.TrendEvents(ctx, span, eventKinds(ctx))
	return f, err
}

// series adds the rows of a metric up to steps.
func (f Figures) series(m Metric, rows []Row) []Series {
	steps := len(f.Hours)
	sums, hours := map[string][]int64{}, make([]int, steps)
	for _, r := range rows {
		i := int(r.At.Sub(f.From) / f.Step)
		if i < 0 || i >= steps {
			continue
		}
		hours[i] += r.Hours
		for k, key := range r.Keys {
			if sums[key] == nil {
				sums[key] = make([]int64, steps)
			}
			sums[key][i] += r.Counts[k]
		}
	}
	if m == Signal {
		return signalSeries(sums, steps)
	}
	all := make([]Series, 0, len(sums))
	total := map[string]float64{}
	for key, counts := range sums {
		s := Series{key, make([]float64, steps)}
		for i, n := range counts {
			switch {
			case m.OfState() && hours[i] == 0, f.Hours[i] == 0:
				s.Values[i] = math.NaN()
				continue
			case m.OfState():
				s.Values[i] = math.Round(10*float64(n)/float64(hours[i])) / 10
			default:
				s.Values[i] = float64(n)
			}
			total[key] += s.Values[i]
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b Series) int {
		return cmp.Or(cmp.Compare(total[b.Key], total[a.Key]), cmp.Compare(a.Key, b.Key))
	})
	return all
}

// signalSeries makes the median and the weakest tenth of the numbers of devices with each strength.
func signalSeries(sums map[string][]int64, steps int) []Series {
	if len(sums) == 0 {
		return nil
	}
	strengths := map[int][]int64{}
	for key, counts := range sums {
		if dbm, err := strconv.Atoi(key); err == nil {
			strengths[dbm] = counts
		}
	}
	order := make([]int, 0, len(strengths))
	for dbm := range strengths {
		order = append(order, dbm)
	}
	slices.Sort(order)
	all := []Series{{KeyMedian, make([]float64, steps)}, {KeyTenth, make([]float64, steps)}}
	for i := range steps {
		var devices int64
		for _, dbm := range order {
			devices += strengths[dbm][i]
		}
		all[0].Values[i] = quantile(order, strengths, i, (devices+1)/2)
		all[1].Values[i] = quantile(order, strengths, i, (devices+9)/10)
	}
	return all
}

// quantile returns the strength of the device at a place in the order of strength; the first has place 1.
func quantile(order []int, strengths map[int][]int64, i int, place int64) float64 {
	for _, dbm := range order {
		if place -= strengths[dbm][i]; place <= 0 && strengths[dbm][i] > 0 {
			return float64(dbm)
		}
	}
	return math.NaN()
}

// Choices are the groups that a principal may ask for, next to the fleet or its scope.
type Choices struct {
	Boards, Versions, Tags []string // the largest first; none with a scope
	Filters                []fleet.Filter
}

// Choices lists the groups.
func (s *Service) Choices(ctx context.Context) (c Choices, err error) {
	if c.Filters, err = s.filters.Filters(ctx); err != nil {
		return c, err
	}
	if _, narrow := fleet.ScopeOf(ctx); narrow {
		return c, nil
	}
	for kind, list := range map[GroupKind]*[]string{OfBoard: &c.Boards, OfVersion: &c.Versions, OfTag: &c.Tags} {
		if *list, err = s.store.TrendGroups(ctx, kind); err != nil {
			return c, err
		}
	}
	return c, nil
}
