package fleet

import (
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"

	"github.com/robfig/cron/v3"
)

// DeviceZone as the zone of a [Window] means each device's own zone.
const DeviceZone = "device"

// A Window is a recurring period in which devices may be dispatched or a rule applies.
type Window struct {
	Cron     string        `json:"cron"`        // five fields; when it opens: "0 2 * * *"
	Duration time.Duration `json:"duration_ns"` // how long it stays open
	TimeZone string        `json:"time_zone"`   // IANA name, or [DeviceZone]
}

// Limits of a window.
const (
	maxCronText = 100 // bytes
	MinWindow   = 5 * time.Minute
	MaxWindow   = 7 * 24 * time.Hour
)

// CheckTimes normalises the schedule and the zone of a window for storage, and refuses
// invalid ones. field names the window in errors. The caller checks the duration.
func (w *Window) CheckTimes(field string) error {
	w.Cron = strings.Join(strings.Fields(w.Cron), " ")
	if len(w.Cron) > maxCronText || len(strings.Fields(w.Cron)) != 5 {
		return Refuse(ErrInvalid, "invalid_cron.fields", "value", w.Cron).At(field + ".cron")
	}
	if _, err := parseCron(w.Cron); err != nil {
		return Refuse(ErrInvalid, "invalid_cron.syntax", "value", w.Cron,
			"detail", err.Error()).At(field + ".cron")
	}
	if w.TimeZone == DeviceZone {
		return nil
	}
	if _, err := loadZone(w.TimeZone); err != nil {
		return Refuse(ErrInvalid, "unknown_time_zone.cause", "cause", CauseOf(err)).At(field + ".time_zone")
	}
	return nil
}

// WindowHorizon is how far ahead the search for a window goes. It is long enough for a window
// that opens once a year.
const WindowHorizon = 400 * 24 * time.Hour

// WindowOpen reports whether the given time falls into a window that stays open for at least
// need. zone is the device's zone, for windows in [DeviceZone]. An empty list is always open.
func WindowOpen(ws []Window, zone *time.Location, now time.Time, need time.Duration) bool {
	if len(ws) == 0 {
		return true
	}
	for _, w := range ws {
		if w.open(zone, now, need) {
			return true
		}
	}
	return false
}

// NextWindow returns the next time at which [WindowOpen] is true: now, or when a window
// opens. It returns false if no window is long enough or none opens within 400 days.
func NextWindow(ws []Window, zone *time.Location, now time.Time, need time.Duration) (time.Time, bool) {
	if WindowOpen(ws, zone, now, need) {
		return now, true
	}
	next := now.Add(WindowHorizon)
	found := false
	for _, w := range ws {
		if need > w.Duration {
			continue
		}
		if at, ok := w.firstOpening(zone, now); ok && at.Before(next) {
			next, found = at, true
		}
	}
	return next, found
}

// open reports whether an opening of the window contains both now and now+need.
func (w Window) open(zone *time.Location, now time.Time, need time.Duration) bool {
	if need > w.Duration {
		return false
	}
	at, ok := w.firstOpening(zone, now.Add(need-w.Duration))
	return ok && !at.After(now)
}

var (
	cronParser  = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)
	parsedCrons sync.Map // text -> cron.Schedule
	loadedZones sync.Map // name -> *time.Location
)

// widestShift is more than any change of clocks.
const widestShift = 3 * time.Hour

// parseCron parses the five fields of a window. The schedule is in wall clock time, so
// callers always evaluate it in UTC.
func parseCron(text string) (cron.Schedule, error) {
	if s, ok := parsedCrons.Load(text); ok {
		return s.(cron.Schedule), nil
	}
	if strings.Contains(text, "=") { // "TZ=Europe/Berlin 0 2 * * *"
		return nil, fmt.Errorf("the time zone belongs in its own field, not in the cron text")
	}
	s, err := cronParser.Parse("TZ=UTC " + text)
	if err != nil {
		return nil, err
	}
	parsedCrons.Store(text, s)
	return s, nil
}

// loadZone is [time.LoadLocation] for the zone names that a window may have; it caches what
// it read from disk.
func loadZone(name string) (*time.Location, error) {
	if z, ok := loadedZones.Load(name); ok {
		return z.(*time.Location), nil
	}
	if name == "" || name == "Local" {
		return nil, fmt.Errorf("%q is not a time zone; write an IANA name such as Europe/Berlin, or %q", name, DeviceZone)
	}
	z, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("%.60q is not a known time zone; write an IANA name such as Europe/Berlin, or %q", name,
			DeviceZone)
	}
	loadedZones.Store(name, z)
	return z, nil
}

func (w Window) zone(device *time.Location) *time.Location {
	if w.TimeZone == DeviceZone {
		if device == nil {
			return time.UTC
		}
		return device
	}
	if z, err := loadZone(w.TimeZone); err == nil {
		return z
	}
	return time.UTC
}

// firstOpening returns the first opening at or after from.
//
// The schedule gives wall clock times. A time that is skipped when clocks go forward opens
// the window at that moment, so that no night is left out. A time that occurs twice when
// clocks go back opens it only the first time.
func (w Window) firstOpening(device *time.Location, from time.Time) (time.Time, bool) {
	schedule, err := parseCron(w.Cron)
	if err != nil {
		return time.Time{}, false
	}
	zone := w.zone(device)
	wall := asWall(from.In(zone)).Add(-widestShift)
	for {
		if wall = schedule.Next(wall); wall.IsZero() {
			return time.Time{}, false
		}
		if at := fromWall(wall, zone); !at.Before(from) {
			return at, true
		}
	}
}

// Openings returns the openings after the given time, in their order. Wall clock times that lead to
// the same moment, such as those of an hour that is skipped, are one opening.
func (w Window) Openings(after time.Time) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		schedule, err := parseCron(w.Cron)
		if err != nil {
			return
		}
		zone, last := w.zone(nil), after
		for wall := asWall(after.In(zone)).Add(-widestShift); ; {
			if wall = schedule.Next(wall); wall.IsZero() {
				return
			}
			at := fromWall(wall, zone)
			if !at.After(last) {
				continue
			}
			if last = at; !yield(at) {
				return
			}
		}
	}
}

// asWall returns the wall clock time at t, as if it were UTC.
func asWall(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.UTC)
}

// fromWall returns the moment when clocks in the zone show, or first pass, the given time.
func fromWall(wall time.Time, zone *time.Location) time.Time {
	t := time.Date(wall.Year(), wall.Month(), wall.Day(), wall.Hour(), wall.Minute(), 0, 0, zone)
	start, end := t.ZoneBounds()
	switch shown := asWall(t); {
	case shown.Before(wall): // skipped: t lies before the jump
		return end
	case shown.After(wall): // skipped: t lies behind it
		return start
	case start.IsZero():
		return t
	}
	_, offset := t.Zone()
	_, before := start.Add(-1).Zone()
	if earlier := t.Add(time.Duration(offset-before) * time.Second); earlier.Before(start) && before > offset {
		return earlier
	}
	return t
}

// Phase reports whether the window is open at the given time, for windows with a named zone,
// and the range of times for which that certainly stays so.
func (w Window) Phase(now time.Time) (open bool, from, until time.Time) {
	at, ok := w.firstOpening(nil, now.Add(-w.Duration))
	switch {
	case !ok:
		return false, now, now.Add(24 * time.Hour)
	case at.After(now):
		return false, now, at
	}
	return true, at, at.Add(w.Duration)
}
