package campaign

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"fleetd/fleet"
)

const (
	maxWindows  = 20
	maxCronText = 100 // bytes
	minWindow   = 5 * time.Minute
	maxWindow   = 7 * 24 * time.Hour
	// widestZone is how far a device's clock can be from UTC, either way.
	widestZone = 14 * time.Hour
)

func (p *Plan) normalizeTimes(now time.Time) error {
	p.StartAt, p.EndAt = inUTC(p.StartAt), inUTC(p.EndAt)
	p.EndBehavior = EndBehavior(orElse(string(p.EndBehavior), string(EndStopRollout)))
	if !slices.Contains(endBehaviors, p.EndBehavior) {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_end_behavior", "value", fleet.CleanText(string(p.EndBehavior), 40),
			"choices", endBehaviors).At("end_behavior")
	}
	start, end := p.span(now)
	switch horizon := now.Add(maxPlanHorizon); {
	case start.After(horizon):
		return fleet.Refuse(fleet.ErrInvalid, "start_too_far", "start_at", start).At("start_at")
	case p.EndAt != nil && !end.After(now):
		return fleet.Refuse(fleet.ErrInvalid, "end_in_past", "end_at", end).At("end_at")
	case !end.After(start):
		return fleet.Refuse(fleet.ErrInvalid, "end_before_start", "end_at", end, "start_at", start).At("end_at")
	case end.After(horizon.Add(planLife)):
		return fleet.Refuse(fleet.ErrInvalid, "end_too_far", "end_at", end).At("end_at")
	}
	return nil
}

// endBehaviors are ordered from the most patient to the least.
var endBehaviors = []EndBehavior{EndStopRollout, EndCancelQueued, EndAbortInFlight}

// span is when the campaign can dispatch.
func (p *Plan) span(now time.Time) (start, end time.Time) {
	start = now
	if p.StartAt != nil && p.StartAt.After(now) {
		start = *p.StartAt
	}
	if p.EndAt != nil {
		return start, *p.EndAt
	}
	return start, start.Add(planLife)
}

func (p *Plan) normalizeContinuous() error {
	if !p.Continuous {
		if p.MaxDevices != 0 {
			return fleet.Refuse(fleet.ErrInvalid, "invalid_max_devices.fixed").At("max_devices")
		}
		return nil
	}
	if p.EndAt == nil {
		return fleet.Refuse(fleet.ErrInvalid, "end_required").At("end_at")
	}
	if p.MaxDevices < 1 || p.MaxDevices > maxPlanDevices {
		return fleet.Refuse(fleet.ErrInvalid, "max_devices_required", "max", maxPlanDevices).At("max_devices")
	}
	return nil
}

func (p *Plan) normalizeWindows() error {
	if len(p.Windows) > maxWindows {
		return fleet.Refuse(fleet.ErrInvalid, "too_many_windows", "n", len(p.Windows), "max", maxWindows).At("windows")
	}
	for i := range p.Windows {
		if err := p.Windows[i].normalize(fmt.Sprintf("windows[%d]", i)); err != nil {
			return err
		}
	}
	return nil
}

func (w *Window) normalize(field string) error {
	w.Cron = strings.Join(strings.Fields(w.Cron), " ")
	if len(w.Cron) > maxCronText || len(strings.Fields(w.Cron)) != 5 {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_cron.fields",
			"value", fleet.CleanText(w.Cron, 100)).At(field + ".cron")
	}
	if _, err := parseCron(w.Cron); err != nil {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_cron.syntax", "value", fleet.CleanText(w.Cron, 100),
			"detail", fleet.CleanText(err.Error(), 300)).At(field + ".cron")
	}
	if w.TimeZone == "" {
		w.TimeZone = DeviceZone
	}
	if w.TimeZone != DeviceZone {
		if _, err := loadZone(w.TimeZone); err != nil {
			return fleet.Refuse(fleet.ErrInvalid, "unknown_time_zone.cause", "cause", fleet.CauseOf(err)).At(field + ".time_zone")
		}
	}
	return checkSpan(field+".duration_ms", w.Duration, minWindow, maxWindow)
}

// checkOpening refuses windows that all stay shut while the campaign runs.
// Devices may be in any zone: theirs get the benefit of the doubt.
func (p *Plan) checkOpening(now time.Time) error {
	start, end := p.span(now)
	for _, w := range p.Windows {
		from, to := start, end
		if w.TimeZone == DeviceZone {
			from, to = from.Add(-widestZone), to.Add(widestZone)
		}
		if at, ok := NextWindow([]Window{w}, time.UTC, from, 0); ok && at.Before(to) {
			return nil
		}
	}
	if len(p.Windows) == 0 {
		return nil
	}
	if p.EndAt == nil {
		return fleet.Refuse(fleet.ErrInvalid, "window_never_opens.week", "start_at", start, "end_at", end).At("windows")
	}
	return fleet.Refuse(fleet.ErrInvalid, "window_never_opens.end", "start_at", start, "end_at", end).At("windows")
}
