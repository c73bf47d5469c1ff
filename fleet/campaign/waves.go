package campaign

import (
	"cmp"
	"math"
	"slices"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// PlanWaves splits an audience into the sizes of its waves. Percents are cumulative, ascending,
// and end at 100. Shares are rounded up, and while devices are left every wave gets one: a
// small audience keeps its canary.
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

// share returns the number of devices covered at a percentage. The small difference keeps 10 %
// of 200 at 20 although 0.1 is no binary fraction.
func share(audience int, percent float64) int {
	return int(math.Ceil(float64(audience)*percent/100 - 1e-9))
}

// A WaveCandidate is a device to assign to one of a campaign's waves.
type WaveCandidate struct {
	ID      fleet.DeviceID
	Board   string
	Version string
}

// AssignWaves assigns each device a wave: first the devices that a wave names, then canaries
// from as many boards and versions as fit into the first wave, then the rest in an order that
// differs between campaigns. The same input always gives the same waves.
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

// A waveAssignment is the state of one call of [AssignWaves].
type waveAssignment struct {
	campaign uuid.UUID
	waves    []WavePlan
	devices  []WaveCandidate
	wave     []int // of each device; -1 while it has none
	size     []int // of each wave
	planned  int   // devices in waves up to the one being filled
	free     []int // devices without a wave, in stable order
}

func newWaveAssignment(campaign uuid.UUID, waves []WavePlan, devices []WaveCandidate) *waveAssignment {
	a := &waveAssignment{campaign: campaign, waves: waves, devices: devices,
		wave: make([]int, len(devices)), size: make([]int, len(waves))}
	for i := range a.wave {
		a.wave[i] = -1
	}
	return a
}

// takeNamed assigns the devices that waves name, and orders the rest. It skips a name that is
// not, or no longer, in the audience.
func (a *waveAssignment) takeNamed() {
	named := make(map[fleet.DeviceID]int)
	for number, w := range a.waves {
		for _, id := range w.Devices {
			named[id] = number
		}
	}
	order := make([]uint64, len(a.devices))
	for i, d := range a.devices {
		if number, ok := named[d.ID]; ok {
			a.put(i, number)
			continue
		}
		order[i] = stableHash(a.campaign, d.ID)
		a.free = append(a.free, i)
	}
	slices.SortFunc(a.free, func(x, y int) int {
		return cmp.Or(cmp.Compare(order[x], order[y]), cmp.Compare(a.devices[x].ID, a.devices[y].ID))
	})
}

func (a *waveAssignment) put(device, number int) {
	a.wave[device] = number
	a.size[number]++
}

// fill adds as many free devices to a wave as its plan requires.
func (a *waveAssignment) fill(number int) {
	take := a.room(number)
	if number == 0 && take < len(a.free) {
		a.free = a.byDiversity(a.free, take)
	}
	for _, i := range a.free[:take] {
		a.put(i, number)
	}
	a.free = a.free[take:]
	a.planned += a.size[number]
}

func (a *waveAssignment) room(number int) int {
	w, want := a.waves[number], 0
	switch {
	case w.Percent > 0:
		want = max(1, share(len(a.devices), w.Percent)-a.planned)
	case w.Count > 0:
		want = w.Count
	}
	return max(0, min(len(a.free), want))
}

// A variety is the devices of one board that run one version.
type variety struct {
	board, version string
	rank           int // among the varieties of its board, the largest first
	devices        []int
}

// byDiversity moves the canaries to the front: one device of every variety in turn, beginning
// with the most common variety of each board.
func (a *waveAssignment) byDiversity(free []int, take int) []int {
	turns := a.varieties(free)
	taken := make(map[int]bool, take)
	front := make([]int, 0, len(free))
	for round := 0; len(front) < take; round++ {
		for _, v := range turns {
			if round < len(v.devices) && len(front) < take {
				front = append(front, v.devices[round])
				taken[v.devices[round]] = true
			}
		}
	}
	for _, i := range free {
		if !taken[i] {
			front = append(front, i)
		}
	}
	return front
}

// varieties groups devices and sorts the groups by their turn.
func (a *waveAssignment) varieties(free []int) []*variety {
	type key struct{ board, version string }
	groups := make(map[key]*variety)
	var all []*variety
	for _, i := range free {
		k := key{a.devices[i].Board, a.devices[i].Version}
		if groups[k] == nil {
			groups[k] = &variety{board: k.board, version: k.version}
			all = append(all, groups[k])
		}
		groups[k].devices = append(groups[k].devices, i)
	}
	bySize := func(x, y *variety) int {
		return cmp.Or(cmp.Compare(len(y.devices), len(x.devices)), cmp.Compare(x.board, y.board), cmp.Compare(x.version,
			y.version))
	}
	slices.SortFunc(all, bySize)
	ranks := make(map[string]int)
	for _, v := range all {
		v.rank = ranks[v.board]
		ranks[v.board]++
	}
	slices.SortStableFunc(all, func(x, y *variety) int { return cmp.Compare(x.rank, y.rank) })
	return all
}
