package campaign

import (
	"fleetd/fleet"
	"fmt"
	"slices"
	"time"
)

const (
	maxWaves    = 20
	maxWaveName = 60 // bytes
	maxSoak     = 7 * 24 * time.Hour
)

// DefaultWaves are those of a plan that names none.
func DefaultWaves() []WavePlan {
	return []WavePlan{
		{Name: "canary", Percent: 1, Soak: 10 * time.Minute},
		{Name: "early", Percent: 10, Soak: 2 * time.Minute},
		{Name: "rest", Percent: 100, Soak: 2 * time.Minute},
	}
}

// normalizeWaves leaves a soak of zero: a device may be done as soon as its
// checks are.
func (p *Plan) normalizeWaves() error {
	if len(p.Waves) == 0 {
		p.Waves = DefaultWaves()
	}
	if len(p.Waves) > maxWaves {
		return fleet.Refuse(fleet.ErrInvalid, "too_many_waves", "n", len(p.Waves), "max", maxWaves).At("waves")
	}
	for i := range p.Waves {
		if err := p.Waves[i].normalize(i); err != nil {
			return err
		}
	}
	if err := p.checkNamedOnce(); err != nil {
		return err
	}
	return p.checkCover()
}

func (w *WavePlan) normalize(number int) error {
	field := fmt.Sprintf("waves[%d]", number)
	name, err := fleet.CleanLine("name", w.Name, maxWaveName)
	if err != nil {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_name.cause", "cause", fleet.CauseOf(err)).At(field + ".name")
	}
	if w.Name = name; name == "" {
		w.Name = fmt.Sprintf("wave %d", number+1)
	}
	if w.SuccessPercent == 0 {
		w.SuccessPercent = 90
	}
	if w.Gate == "" {
		w.Gate = GateAuto
	}
	if w.Gate != GateAuto && w.Gate != GateManual {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_gate",
			"value", fleet.CleanText(string(w.Gate), 40)).At(field + ".gate")
	}
	if err := w.normalizeSize(field); err != nil {
		return err
	}
	if err := checkPercent(field+".success_percent", w.SuccessPercent); err != nil {
		return err
	}
	if err := (allowed{field + ".min_sample", 1, maxPlanDevices, 1}).check(&w.MinSample); err != nil {
		return err
	}
	return checkSpan(field+".soak_ms", w.Soak, 0, maxSoak)
}

// normalizeSize wants exactly one way to say how large the wave is.
func (w *WavePlan) normalizeSize(field string) error {
	ways := 0
	for _, used := range []bool{w.Percent != 0, w.Count != 0, len(w.Devices) > 0} {
		if used {
			ways++
		}
	}
	if ways != 1 {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_wave_size", "field", field).At(field)
	}
	if err := checkPercent(field+".percent", w.Percent); err != nil {
		return err
	}
	if err := (allowed{field + ".count", 0, maxPlanDevices, 0}).check(&w.Count); err != nil {
		return err
	}
	if len(w.Devices) > maxPlanDevices {
		return fleet.Refuse(fleet.ErrInvalid, "too_many_devices.wave", "field", field, "n", len(w.Devices),
			"max", maxPlanDevices).At(field + ".devices")
	}
	for i, id := range w.Devices {
		parsed, err := fleet.ParseDeviceID(string(id))
		if err != nil {
			return fleet.Refuse(fleet.ErrInvalid, "invalid_device_id.cause",
				"cause", fleet.CauseOf(err)).At(fmt.Sprintf("%s.devices[%d]", field, i))
		}
		w.Devices[i] = parsed
	}
	return nil
}

func (p *Plan) checkNamedOnce() error {
	seen := make(map[fleet.DeviceID]int)
	for number, w := range p.Waves {
		for _, id := range w.Devices {
			if other, twice := seen[id]; twice {
				return fleet.Refuse(fleet.ErrInvalid, "device_in_two_waves", "device", id, "wave", other+1,
					"again", number+1).At(fmt.Sprintf("waves[%d].devices", number))
			}
			seen[id] = number
		}
	}
	return nil
}

// checkCover wants ascending percents, and sees that waves which only count in
// percent end at all of the audience. Whether counts suffice shows when the
// audience is known.
func (p *Plan) checkCover() error {
	last, percents := 0.0, 0
	for i, w := range p.Waves {
		if w.Percent == 0 {
			continue
		}
		percents++
		if w.Percent <= last {
			return fleet.Refuse(fleet.ErrInvalid, "invalid_waves.reached", "wave", i+1, "percent", w.Percent,
				"last", last).At(fmt.Sprintf("waves[%d].percent", i))
		}
		last = w.Percent
	}
	counts := slices.ContainsFunc(p.Waves, func(w WavePlan) bool { return w.Count > 0 })
	if percents > 0 && last < 100 && !counts {
		return fleet.Refuse(fleet.ErrInvalid, "waves_do_not_cover.percent", "percent", last).At("waves")
	}
	return nil
}
