package history

import (
	"cmp"
	"context"
	"slices"
	"time"

	"fleetd/fleet"
)

// adoptionSpan is the usual length of a series.
const adoptionSpan = 30 * 24 * time.Hour

// Adoption returns how versions spread. The zero From is 30 days before To, or the beginning of the history if that
// is later; the zero To is now.
func (s *Service) Adoption(ctx context.Context, f AdoptionFilter) (Adoption, error) {
	begin, err := s.Begin(ctx)
	if err != nil {
		return Adoption{}, err
	}
	s.complete(&f.From, &f.To, -adoptionSpan, begin.Versions)
	if f.Points == 0 {
		f.Points = DefaultPoints
	}
	if f.Points < 2 || f.Points > MaxPoints {
		return Adoption{}, fleet.Refuse(fleet.ErrInvalid, "invalid_points", "limit", MaxPoints).At("points")
	}
	if err := s.period(&f.From, &f.To, begin.Versions); err != nil {
		return Adoption{}, err
	}
	step := f.To.Sub(f.From) / time.Duration(f.Points-1)
	if step < time.Microsecond {
		return Adoption{}, fleet.Refuse(fleet.ErrInvalid, "invalid_history_period").At("to")
	}
	a := Adoption{Times: make([]time.Time, f.Points)}
	for i := range a.Times {
		a.Times[i] = f.From.Add(time.Duration(i) * step).Truncate(time.Microsecond)
	}
	a.Times[f.Points-1] = f.To
	found, err := s.store.VersionSeries(ctx, a.Times, f.Query)
	if err != nil {
		return Adoption{}, err
	}
	a.add(found, f.Version)
	return a, nil
}

// add chooses which versions have a series of their own.
func (a *Adoption) add(found []Series, only string) {
	peak := map[string]int{}
	found = slices.DeleteFunc(found, func(v Series) bool {
		peak[v.Version] = slices.Max(v.Counts)
		return peak[v.Version] == 0
	})
	slices.SortFunc(found, func(x, y Series) int {
		return cmp.Or(cmp.Compare(peak[y.Version], peak[x.Version]), cmp.Compare(x.Version, y.Version))
	})
	for _, v := range found {
		own := v.Version == only
		if only == "" {
			own = len(a.Series) < adoptionSeries
		}
		if own {
			a.Series = append(a.Series, v)
			continue
		}
		if a.Others == nil {
			a.Others = make([]int, len(a.Times))
		}
		for i, n := range v.Counts {
			a.Others[i] += n
		}
	}
	if only != "" && len(a.Series) == 0 {
		a.Series = []Series{{only, make([]int, len(a.Times))}}
	}
	slices.SortStableFunc(a.Series, func(x, y Series) int { return compareVersions(y.Version, x.Version) })
}

// compareVersions orders versions as firmware does; those that it cannot compare come first.
func compareVersions(a, b string) int {
	return cmp.Or(slices.Compare(fleet.VersionKey(a), fleet.VersionKey(b)), cmp.Compare(a, b))
}
