package campaign

import (
	"fleetd/fleet"
	"math"

	"github.com/google/uuid"
)

// PlanWaves splits an audience into the sizes of its waves. Percents are
// cumulative, ascending, and end at 100. Shares are rounded up, and every wave
// has a device as long as there are any: a small audience keeps its canary.
func PlanWaves(audience int, percents ...float64) ([]int, error) {
	if audience < 0 {
		return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_audience", "devices", audience)
	}
	if err := checkPercents(percents); err != nil {
		return nil, err
	}
	sizes := make([]int, len(percents))
	planned := 0
	for i, p := range percents {
		sizes[i] = min(audience-planned, max(1, share(audience, p)-planned))
		planned += sizes[i]
	}
	return sizes, nil
}

func checkPercents(percents []float64) error {
	last := 0.0
	for i, p := range percents {
		if !(p > last && p <= 100) {
			return fleet.Refuse(fleet.ErrInvalid, "invalid_waves.order", "wave", i+1, "percent", p, "last", last)
		}
		last = p
	}
	if last != 100 {
		return fleet.Refuse(fleet.ErrInvalid, "waves_do_not_cover.percent", "percent", last)
	}
	return nil
}

// share is the number of devices that have had their turn at a percentage. The
// small difference keeps 10 % of 200 at 20 although 0.1 is no binary fraction.
func share(audience int, percent float64) int {
	return int(math.Ceil(float64(audience)*percent/100 - 1e-9))
}

// A WaveCandidate is a device that is to be in one of a campaign's waves.
type WaveCandidate struct {
	ID      fleet.DeviceID
	Board   string
	Version string
}

// AssignWaves gives each device its wave: first those that a wave names, then
// canaries from as many boards and versions as the first wave has room for,
// then the rest in an order that differs between campaigns. The same input
// always gives the same waves.
func AssignWaves(campaign uuid.UUID, waves []WavePlan, devices []WaveCandidate) (wave []int, err error) {
	a := newWaveAssignment(campaign, waves, devices)
	a.takeNamed()
	for number := range waves {
		a.fill(number)
	}
	if left := len(a.free); left > 0 {
		return nil, fleet.Refuse(fleet.ErrInvalid, "waves_do_not_cover.devices", "covered", len(devices)-left,
			"devices", len(devices), "left", left)
	}
	return a.wave, nil
}
