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
		return fleet.Refuse(fleet.ErrInvalid, "invalid_"+lastPart(r.field)+".range", "field", r.field, "value", *n,
			"least", r.least, "most", r.most).At(r.field)
	}
	return nil
}

// lastPart of "waves[0].percent" is "percent".
func lastPart(field string) string { return field[strings.LastIndexByte(field, '.')+1:] }

func checkPercent(field string, percent float64) error {
	if percent >= 0 && percent <= 100 && !math.IsNaN(percent) {
		return nil
	}
	return fleet.Refuse(fleet.ErrInvalid, "invalid_"+lastPart(field)+".range", "field", field, "value", percent,
		"least", 0, "most", 100).At(field)
}

func checkSpan(field string, d, least, most time.Duration) error {
	if d >= least && d <= most {
		return nil
	}
	return fleet.Refuse(fleet.ErrInvalid, "invalid_"+lastPart(field)+".span", "field", field, "given_ms", d,
		"least_ms", least, "most_ms", most).At(field)
}

func (p *Plan) normalizeIdentity() error {
	name, err := fleet.CleanLine("name", p.Name, maxPlanName)
	if err != nil {
		return err
	}
	if name == "" {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_name.campaign", "limit", maxPlanName).At("name")
	}
	p.Name, p.Query = name, strings.TrimSpace(p.Query)
	if _, err := fleet.ParseQuery(p.Query); err != nil {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_query.cause", "cause", fleet.CauseOf(err)).At("q")
	}
	return nil
}

func (p *Plan) normalizeDevices() error {
	if len(p.Devices) > maxPlanDevices {
		return fleet.Refuse(fleet.ErrInvalid, "too_many_devices.plan", "n", len(p.Devices),
			"max", maxPlanDevices).At("devices")
	}
	for i, id := range p.Devices {
		parsed, err := fleet.ParseDeviceID(string(id))
		if err != nil {
			return fleet.Refuse(fleet.ErrInvalid, "invalid_device_id.cause",
				"cause", fleet.CauseOf(err)).At(fmt.Sprintf("devices[%d]", i))
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
		return fleet.Refuse(fleet.ErrInvalid, "invalid_mode.campaign",
			"value", fleet.CleanText(string(p.Mode), 40)).At("mode")
	}
	if p.PullNow && p.Mode == firmware.ModePush {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_pull_now").At("pull_now")
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
