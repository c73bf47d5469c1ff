package schedule

import (
	"iter"
	"math/rand/v2"
	"time"

	"fleetd/fleet"
)

// instants returns the instants of the schedule after the given time, in their order.
func (s *Schedule) instants(after time.Time) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		if s.StartAt != nil && after.Before(*s.StartAt) {
			after = s.StartAt.Add(-1)
		}
		for at := range s.window().Openings(after) {
			if s.EndAt != nil && !at.Before(*s.EndAt) || !yield(at.UTC()) {
				return
			}
		}
	}
}

// Instants returns up to n instants after the given time.
func (s *Schedule) Instants(after time.Time, n int) []time.Time {
	list := make([]time.Time, 0, n)
	for at := range s.instants(after) {
		if len(list) == n {
			break
		}
		list = append(list, at)
	}
	return list
}

// nextAfter returns the first instant after the given time, nil if no instant is left. Its jitter ends
// before the instant that follows, so that instants start in their order.
func (s *Schedule) nextAfter(after time.Time, random func(time.Duration) time.Duration) *Instant {
	list := s.Instants(after, 2)
	if len(list) == 0 {
		return nil
	}
	most := s.Jitter
	if len(list) == 2 {
		most = min(most, list[1].Sub(list[0]))
	}
	return &Instant{PlannedAt: list[0], DueAt: list[0].Add(random(most).Truncate(time.Millisecond))}
}

// randomWithin returns a random duration that is less than most, and 0 if most is.
func randomWithin(most time.Duration) time.Duration {
	if most <= 0 {
		return 0
	}
	return rand.N(most)
}

// checkTimes refuses a schedule that never runs after the given time, or whose jitter reaches the next
// instant.
func (s *Schedule) checkTimes(now time.Time) error {
	w := s.window()
	if err := w.CheckTimes("schedule"); err != nil {
		return refusedTimes(err, s.TimeZone)
	}
	if w.TimeZone == fleet.DeviceZone {
		return unknownZone(s.TimeZone)
	}
	s.Cron = w.Cron
	switch {
	case s.StartAt != nil && s.EndAt != nil && !s.EndAt.After(*s.StartAt):
		return fleet.Refuse(fleet.ErrInvalid, "invalid_schedule_end.before_start").At("end_at")
	case s.EndAt != nil && !s.EndAt.After(now):
		return fleet.Refuse(fleet.ErrInvalid, "invalid_schedule_end.past").At("end_at")
	case s.Jitter < 0 || s.Jitter > MaxJitter:
		return fleet.Refuse(fleet.ErrInvalid, "invalid_jitter.range", "limit_ms", MaxJitter).At("jitter_ms")
	}
	list := s.Instants(now, gapInstants)
	if len(list) == 0 {
		ever := Schedule{Cron: s.Cron, TimeZone: s.TimeZone}
		if len(ever.Instants(now, 1)) == 0 {
			return fleet.Refuse(fleet.ErrInvalid, "schedule_never_runs.cron", "value", s.Cron).At("cron")
		}
		return fleet.Refuse(fleet.ErrInvalid, "schedule_never_runs.period", "value", s.Cron).At("end_at")
	}
	for i := 1; i < len(list); i++ {
		if gap := list[i].Sub(list[i-1]); s.Jitter > gap {
			return fleet.Refuse(fleet.ErrInvalid, "invalid_jitter.gap", "gap_ms", gap).At("jitter_ms")
		}
	}
	return nil
}
