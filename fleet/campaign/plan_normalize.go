package campaign

import (
	"fleetd/fleet"
	"fleetd/fleet/firmware"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Limits of a [Plan].
const (
	maxPlanName      = 120 // bytes
	maxPlanInFlight  = 2000
	maxPlanPerMinute = 60_000
	maxPlanDevices   = 100_000
	maxPlanJitter    = 24 * time.Hour
	maxPlanAttempts  = 10
	maxPlanFlaps     = 100
	maxPlanForbidden = 100
	maxToolName      = 128
	maxPlanHorizon   = windowHorizon
	planLife         = 7 * 24 * time.Hour // of a plan that names no end
)

// Normalize fills in the defaults of a plan and refuses what makes no sense,
// as an [fleet.Error] of kind [fleet.ErrInvalid] that names the field. It does nothing to
// a plan that it has seen before.
func (p *Plan) Normalize(now time.Time) error {
	for _, step := range []func() error{
		p.normalizeIdentity, p.normalizeDevices, p.normalizeMode, p.normalizePace, p.normalizeWaves, p.normalizeRules,
		p.normalizeHealth, func() error { return p.normalizeTimes(now) }, p.normalizeContinuous,
		p.normalizeWindows, func() error { return p.checkOpening(now) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// planError refuses a field of a plan.
func planError(code, field, format string, args ...any) error {
	return &fleet.Error{Kind: fleet.ErrInvalid, Code: code, Field: field, Message: fmt.Sprintf(format, args...)}
}

// An allowed range of a number, with the default that stands for zero.
type allowed struct {
	field            string
	least, most, def int
}

func (r allowed) check(n *int) error {
	if *n == 0 {
		*n = r.def
	}
	if *n < r.least || *n > r.most {
		return planError("invalid_"+lastPart(r.field), r.field, "%s is %d; it must be from %d to %d", r.field, *n, r.least,
			r.most)
	}
	return nil
}

// lastPart of "waves[0].percent" is "percent".
func lastPart(field string) string { return field[strings.LastIndexByte(field, '.')+1:] }

func checkPercent(field string, percent float64) error {
	if percent >= 0 && percent <= 100 && !math.IsNaN(percent) {
		return nil
	}
	return planError("invalid_"+lastPart(field), field, "%s is %g; it must be from 0 to 100", field, percent)
}

func checkSpan(field string, d, least, most time.Duration) error {
	if d >= least && d <= most {
		return nil
	}
	return planError("invalid_"+lastPart(field), field, "%s is %v; it must be from %v to %v", field, d, least, most)
}

func (p *Plan) normalizeIdentity() error {
	name, err := fleet.CleanLine("name", p.Name, maxPlanName)
	if err != nil {
		return err
	}
	if name == "" {
		return planError("invalid_name", "name", "a campaign needs a name of 1 to %d bytes", maxPlanName)
	}
	p.Name, p.Query = name, strings.TrimSpace(p.Query)
	if _, err := fleet.ParseQuery(p.Query); err != nil {
		return planError("invalid_query", "q", "%s", err)
	}
	return nil
}

func (p *Plan) normalizeDevices() error {
	if len(p.Devices) > maxPlanDevices {
		return planError("too_many_devices", "devices", "the plan names %d devices, at most %d are taken; use a query",
			len(p.Devices), maxPlanDevices)
	}
	for i, id := range p.Devices {
		parsed, err := fleet.ParseDeviceID(string(id))
		if err != nil {
			return planError("invalid_device_id", fmt.Sprintf("devices[%d]", i), "%s", err)
		}
		p.Devices[i] = parsed
	}
	return nil
}

func (p *Plan) normalizeMode() error {
	if p.Mode == "" {
		p.Mode = firmware.ModeAuto
	}
	if !slices.Contains([]firmware.DispatchMode{firmware.ModeAuto, firmware.ModePush, firmware.ModePull}, p.Mode) {
		return planError("invalid_mode", "mode", "%.40q is not a mode; write auto, push or pull", string(p.Mode))
	}
	if p.PullNow && p.Mode == firmware.ModePush {
		return planError("invalid_pull_now", "pull_now",
			"pull now restarts devices so that they poll; it needs mode pull or auto")
	}
	return nil
}

func (p *Plan) normalizePace() error {
	if err := (allowed{"max_in_flight", 1, maxPlanInFlight, 10}).check(&p.MaxInFlight); err != nil {
		return err
	}
	if err := (allowed{"max_per_minute", 0, maxPlanPerMinute, 0}).check(&p.MaxPerMinute); err != nil {
		return err
	}
	if err := (allowed{"max_attempts", 1, maxPlanAttempts, 3}).check(&p.MaxAttempts); err != nil {
		return err
	}
	return checkSpan("jitter_ms", p.Jitter, 0, maxPlanJitter)
}
