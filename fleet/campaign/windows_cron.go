package campaign

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/robfig/cron/v3"
)

var (
	cronParser  = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)
	parsedCrons sync.Map // text -> cron.Schedule
	loadedZones sync.Map // name -> *time.Location
)

// widestShift is more than clocks are ever set forward or back by.
const widestShift = 3 * time.Hour

// parseCron reads the five fields of a window. The schedule is one of wall
// clocks: it is only ever asked in UTC.
func parseCron(text string) (cron.Schedule, error) {
	if s, ok := parsedCrons.Load(text); ok {
		return s.(cron.Schedule), nil
	}
	if strings.Contains(text, "=") { // "TZ=Europe/Berlin 0 2 * * *"
		return nil, fmt.Errorf("the time zone has a field of its own")
	}
	s, err := cronParser.Parse("TZ=UTC " + text)
	if err != nil {
		return nil, err
	}
	parsedCrons.Store(text, s)
	return s, nil
}

// loadZone is [time.LoadLocation] for the names that a window may have; it
// keeps what it read from disk.
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
// The schedule names wall clock times. One that is skipped when clocks go
// forward opens the window at that moment, so that no night is left out; one
// that comes twice when they go back opens it the first time only.
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

// asWall returns what the clock shows at t, as if it were UTC.
func asWall(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.UTC)
}

// fromWall returns when clocks in the zone show, or first pass, the given time.
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
