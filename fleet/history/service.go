package history

import (
	"context"
	"slices"
	"sync"
	"time"

	"fleetd/fleet"
)

// ahead is how far clocks may differ before a moment is refused as one of the future.
const ahead = time.Minute

// beginAge is how long the beginning of the history is remembered: it changes once an hour.
const beginAge = time.Minute

// A Service answers questions about the past.
type Service struct {
	store Store
	now   func() time.Time

	mu      sync.Mutex // guards the fields below
	begin   Begin
	beginAt time.Time
}

// New returns a service. now is usually time.Now.
func New(store Store, now func() time.Time) *Service { return &Service{store: store, now: now} }

// Begin returns how far the history goes back.
func (s *Service) Begin(ctx context.Context) (Begin, error) {
	s.mu.Lock()
	begin, age := s.begin, s.now().Sub(s.beginAt)
	s.mu.Unlock()
	if !begin.States.IsZero() && age >= 0 && age < beginAge {
		return begin, nil
	}
	begin, err := s.store.HistoryBegin(fleet.WithoutScope(ctx))
	if err != nil {
		return Begin{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin, s.beginAt = begin, s.now()
	return begin, nil
}

// moment checks a moment. The database keeps microseconds.
func (s *Service) moment(at, begin time.Time, field string) (time.Time, error) {
	at = at.UTC().Truncate(time.Microsecond)
	now := s.now().UTC()
	switch {
	case at.After(now.Add(ahead)):
		return at, fleet.Refuse(fleet.ErrInvalid, "future_moment", "at", at).At(field)
	case at.Before(begin):
		return at, fleet.Refuse(fleet.ErrInvalid, "before_history", "at", at, "begins_at", begin).At(field)
	}
	return at, nil
}

func (s *Service) check(ctx context.Context, at *time.Time, q fleet.Query) error {
	if err := CheckQuery(q); err != nil {
		return err
	}
	begin, err := s.Begin(ctx)
	if err != nil {
		return err
	}
	if at.IsZero() {
		*at = s.now()
	}
	*at, err = s.moment(*at, begin.States, "as_of")
	return err
}

// complete gives a period its ends, if they are zero: now, and a time before or the beginning of the history.
func (s *Service) complete(from, to *time.Time, before time.Duration, begin time.Time) {
	if to.IsZero() {
		*to = s.now()
	}
	if from.IsZero() {
		if *from = to.Add(before); from.Before(begin) {
			*from = begin
		}
	}
}

// Devices lists the devices of a moment, by name.
func (s *Service) Devices(ctx context.Context, f Filter) (fleet.Page[Device], error) {
	if err := s.check(ctx, &f.At, f.Query); err != nil {
		return fleet.Page[Device]{}, err
	}
	return s.store.PastDevices(ctx, f)
}

// Counts breaks the devices of a moment down.
func (s *Service) Counts(ctx context.Context, at time.Time, q fleet.Query) (Counts, error) {
	if err := s.check(ctx, &at, q); err != nil {
		return Counts{}, err
	}
	return s.store.PastCounts(ctx, at, q)
}

// Count returns how many devices there were at a moment.
func (s *Service) Count(ctx context.Context, at time.Time, q fleet.Query) (int, error) {
	if err := s.check(ctx, &at, q); err != nil {
		return 0, err
	}
	return s.store.CountPast(ctx, at, q)
}

// period checks two moments.
func (s *Service) period(from, to *time.Time, begin time.Time) (err error) {
	if *from, err = s.moment(*from, begin, "from"); err != nil {
		return err
	}
	if *to, err = s.moment(*to, begin, "to"); err != nil {
		return err
	}
	if !from.Before(*to) {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_history_period").At("to")
	}
	return nil
}

// Diff compares two moments. The zero To is now; the zero From is a day before To, or the beginning of the history if
// that is later.
func (s *Service) Diff(ctx context.Context, f DiffFilter) (Diff, error) {
	if f.Field != "" && !slices.Contains(Fields, f.Field) {
		return Diff{}, fleet.Refuse(fleet.ErrInvalid, "invalid_field", "value", string(f.Field)).At("field")
	}
	if err := CheckQuery(f.Query); err != nil {
		return Diff{}, err
	}
	begin, err := s.Begin(ctx)
	if err != nil {
		return Diff{}, err
	}
	s.complete(&f.From, &f.To, -24*time.Hour, begin.States)
	if err := s.period(&f.From, &f.To, begin.States); err != nil {
		return Diff{}, err
	}
	return s.store.DiffStates(ctx, f)
}

// States lists what a device was, newest first; the first one is what it is now. The history of a device has at most
// limit states.
func (s *Service) States(ctx context.Context, id fleet.DeviceID, limit int) ([]Device, error) {
	begin, err := s.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return s.store.DeviceStates(ctx, id, begin.States, fleet.ClampLimit(limit))
}
