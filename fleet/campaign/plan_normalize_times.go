package campaign

import (
	"fmt"
	"slices"
	"strings"
	"time"
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
		return planError("invalid_end_behavior", "end_behavior", "%.40q is not an end behaviour; write one of %v",
			string(p.EndBehavior), endBehaviors)
	}
	start, end := p.span(now)
	switch horizon := now.Add(maxPlanHorizon); {
	case start.After(horizon):
		return planError("start_too_far", "start_at", "the campaign would start at %s; plan at most 400 days ahead",
			start.Format(time.RFC3339))
	case p.EndAt != nil && !end.After(now):
		return planError("end_in_past", "end_at", "the campaign would end at %s, which has passed", end.Format(time.RFC3339))
	case !end.After(start):
		return planError("end_before_start", "end_at", "the campaign would end at %s, before it starts at %s",
			end.Format(time.RFC3339), start.Format(time.RFC3339))
	case end.After(horizon.Add(planLife)):
		return planError("end_too_far", "end_at", "the campaign would end at %s; plan at most 400 days ahead",
			end.Format(time.RFC3339))
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
			return planError("invalid_max_devices", "max_devices",
				"max_devices bounds a continuous campaign; this one takes the devices that match at its start")
		}
		return nil
	}
	if p.EndAt == nil {
		return planError("end_required", "end_at", "a continuous campaign takes in devices until it ends; say when")
	}
	if p.MaxDevices < 1 || p.MaxDevices > maxPlanDevices {
		return planError("max_devices_required", "max_devices", "a continuous campaign needs a cap: max_devices from 1 to %d",
			maxPlanDevices)
	}
	return nil
}

func (p *Plan) normalizeWindows() error {
	if len(p.Windows) > maxWindows {
		return planError("too_many_windows", "windows", "the plan has %d windows, at most %d are taken", len(p.Windows),
			maxWindows)
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
		return planError("invalid_cron", field+".cron",
			"%.100q is not a time table; write five fields, such as \"0 2 * * *\" for two at night", w.Cron)
	}
	if _, err := parseCron(w.Cron); err != nil {
		return planError("invalid_cron", field+".cron", "%.100q is not a time table: %v", w.Cron, err)
	}
	if w.TimeZone == "" {
		w.TimeZone = DeviceZone
	}
	if w.TimeZone != DeviceZone {
		if _, err := loadZone(w.TimeZone); err != nil {
			return planError("unknown_time_zone", field+".time_zone", "%s", err)
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
	hint := ""
	if p.EndAt == nil {
		hint = "; without end_at a campaign ends after a week"
	}
	return planError("window_never_opens", "windows", "no window opens between %s and %s%s", start.Format(time.RFC3339),
		end.Format(time.RFC3339), hint)
}
