package campaign_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/web/i18n"
)

func TestPlanWaves(t *testing.T) {
	tests := []struct {
		name     string
		audience int
		percents []float64
		want     []int
		code     string
	}{
		{"canary, tenth, rest", 200, []float64{1, 10, 100}, []int{2, 18, 180}, ""},
		{"small audience keeps its canary", 3, []float64{1, 50, 100}, []int{1, 1, 1}, ""},
		{"shares are rounded up", 101, []float64{1, 10, 100}, []int{2, 9, 90}, ""},
		{"more waves than devices", 2, []float64{1, 10, 100}, []int{1, 1, 0}, ""},
		{"nobody", 0, []float64{1, 100}, []int{0, 0}, ""},
		{"one wave", 7, []float64{100}, []int{7}, ""},
		{"fractions", 100_000, []float64{0.01, 0.1, 100}, []int{10, 90, 99_900}, ""},
		{"ends early", 10, []float64{1, 10}, nil, "waves_do_not_cover"},
		{"no waves", 10, nil, nil, "waves_do_not_cover"},
		{"descending", 10, []float64{10, 5, 100}, nil, "invalid_waves"},
		{"twice the same", 10, []float64{10, 10, 100}, nil, "invalid_waves"},
		{"above all", 10, []float64{10, 101}, nil, "invalid_waves"},
		{"nothing", 10, []float64{0, 100}, nil, "invalid_waves"},
		{"negative audience", -1, []float64{100}, nil, "invalid_audience"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := campaign.PlanWaves(tt.audience, tt.percents...)
			if !slices.Equal(got, tt.want) || codeOf(err) != tt.code {
				t.Errorf("PlanWaves(%d, %v) = %v, %v, want %v, %q", tt.audience, tt.percents, got, err, tt.want, tt.code)
			}
		})
	}
}

// english returns the text of a refusal for programs.
func english(err error) string {
	e, ok := errors.AsType[*fleet.Error](err)
	if !ok {
		return ""
	}
	return i18n.ErrorDetail(e)
}

// codeOf returns the stable code of an error, which must be a fleet.ErrInvalid.
func codeOf(err error) string {
	var e *fleet.Error
	switch {
	case err == nil:
		return ""
	case !errors.As(err, &e), e.Kind != fleet.ErrInvalid && e.Kind != fleet.ErrConflict, i18n.ErrorDetail(e) == e.Code:
		return fmt.Sprintf("not an Error: %v", err)
	}
	return e.Code
}

// fleetOf makes the given number of devices of each board and version.
func fleetOf(counts map[[2]string]int) []campaign.WaveCandidate {
	var all []campaign.WaveCandidate
	for variety, n := range counts {
		for range n {
			all = append(all, campaign.WaveCandidate{Board: variety[0], Version: variety[1]})
		}
	}
	slices.SortFunc(all, func(a, b campaign.WaveCandidate) int {
		return slices.Compare([]string{a.Board, a.Version}, []string{b.Board, b.Version})
	})
	for i := range all {
		all[i].ID = fleet.DeviceID(fmt.Sprintf("%012x", i))
	}
	return all
}

func sizes(wave []int, waves int) []int {
	n := make([]int, waves)
	for _, w := range wave {
		n[w]++
	}
	return n
}

func TestAssignWavesSizes(t *testing.T) {
	devices := fleetOf(map[[2]string]int{{"a", "1"}: 60, {"b", "1"}: 39, {"c", "2"}: 1})
	named := []fleet.DeviceID{devices[0].ID, devices[50].ID, "ffffffffffff"}
	tests := []struct {
		name  string
		waves []campaign.WavePlan
		want  []int
		code  string
	}{
		{"percent", []campaign.WavePlan{{Percent: 1}, {Percent: 10}, {Percent: 100}}, []int{1, 9, 90}, ""},
		{"count", []campaign.WavePlan{{Count: 5}, {Count: 95}}, []int{5, 95}, ""},
		{"more than enough", []campaign.WavePlan{{Count: 5}, {Count: 500}}, []int{5, 95}, ""},
		{"count, then percent", []campaign.WavePlan{{Count: 5}, {Percent: 50}, {Percent: 100}}, []int{5, 45, 50}, ""},
		{"named", []campaign.WavePlan{{Devices: named}, {Percent: 10}, {Percent: 100}}, []int{2, 8, 90}, ""},
		{"named last", []campaign.WavePlan{{Percent: 10}, {Percent: 98}, {Devices: named}}, []int{10, 88, 2}, ""},
		{"too few", []campaign.WavePlan{{Count: 5}, {Count: 90}}, nil, "waves_do_not_cover"},
		{"too few percent", []campaign.WavePlan{{Percent: 5}, {Percent: 90}}, nil, "waves_do_not_cover"},
		{"only the named", []campaign.WavePlan{{Devices: named}}, nil, "waves_do_not_cover"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := campaign.AssignWaves(uuid.Max, tt.waves, devices)
			if codeOf(err) != tt.code || err == nil && !slices.Equal(sizes(got, len(tt.waves)), tt.want) {
				t.Errorf("sizes %v, %v, want %v, %q", sizes(got, len(tt.waves)), err, tt.want, tt.code)
			}
		})
	}
	_, err := campaign.AssignWaves(uuid.Max, []campaign.WavePlan{{Count: 5}, {Count: 90}}, devices)
	if want := "the waves cover 95 of the 100 devices in the audience; 5 would never have their turn; let the last wave end at 100 %"; english(err) != want {
		t.Errorf("error %v, want %q", err, want)
	}
}

// TestAssignWavesDiversity: the canaries have as many boards and versions as fit; every board
// comes before any board's second version.
func TestAssignWavesDiversity(t *testing.T) {
	devices := fleetOf(map[[2]string]int{{"common", "2.0"}: 900, {"common", "1.9"}: 50, {"rare", "2.0"}: 40,
		{"odd", "1.0"}: 10})
	tests := []struct {
		canaries int
		want     map[[2]string]int
	}{
		{1, map[[2]string]int{{"common", "2.0"}: 1}},
		{3, map[[2]string]int{{"common", "2.0"}: 1, {"rare", "2.0"}: 1, {"odd", "1.0"}: 1}},
		{4, map[[2]string]int{{"common", "2.0"}: 1, {"rare", "2.0"}: 1, {"odd", "1.0"}: 1, {"common", "1.9"}: 1}},
		{8, map[[2]string]int{{"common", "2.0"}: 2, {"rare", "2.0"}: 2, {"odd", "1.0"}: 2, {"common", "1.9"}: 2}},
		{60, map[[2]string]int{{"common", "2.0"}: 17, {"rare", "2.0"}: 17, {"odd", "1.0"}: 10, {"common", "1.9"}: 16}},
	}
	for _, tt := range tests {
		got, err := campaign.AssignWaves(uuid.Max, []campaign.WavePlan{{Count: tt.canaries}, {Percent: 100}}, devices)
		if err != nil {
			t.Fatal(err)
		}
		canaries := make(map[[2]string]int)
		for i, d := range devices {
			if got[i] == 0 {
				canaries[[2]string{d.Board, d.Version}]++
			}
		}
		if fmt.Sprint(canaries) != fmt.Sprint(tt.want) {
			t.Errorf("%d canaries: %v, want %v", tt.canaries, canaries, tt.want)
		}
	}
}

// TestAssignWavesStable: the waves depend on the campaign, not on the order of the audience.
func TestAssignWavesStable(t *testing.T) {
	waves := []campaign.WavePlan{{Percent: 10}, {Percent: 100}}
	devices := fleetOf(map[[2]string]int{{"a", "1"}: 200})
	inWave0 := func(campaignID uuid.UUID, devices []campaign.WaveCandidate) (ids []fleet.DeviceID) {
		got, err := campaign.AssignWaves(campaignID, waves, devices)
		if err != nil {
			t.Fatal(err)
		}
		for i, d := range devices {
			if got[i] == 0 {
				ids = append(ids, d.ID)
			}
		}
		slices.Sort(ids)
		return ids
	}
	first := inWave0(uuid.Max, devices)
	turned := slices.Clone(devices)
	slices.Reverse(turned)
	if !slices.Equal(first, inWave0(uuid.Max, turned)) {
		t.Error("the order of the audience changes the waves")
	}
	if slices.Equal(first, inWave0(uuid.Nil, devices)) {
		t.Error("every campaign has the same canaries")
	}
}

// TestAssignWavesLikePlanWaves: percentages give the sizes that PlanWaves shows.
func TestAssignWavesLikePlanWaves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		percents := rapid.SliceOfNDistinct(rapid.Float64Range(0.1, 99), 0, 5, rapid.ID).Draw(t, "percents")
		slices.Sort(percents)
		percents = append(percents, 100)
		waves := make([]campaign.WavePlan, len(percents))
		for i, p := range percents {
			waves[i].Percent = p
		}
		devices := fleetOf(map[[2]string]int{{"a", "1"}: rapid.IntRange(0, 50).Draw(t, "a"), {"b", "1"}: rapid.IntRange(0,
			9).Draw(t, "b")})
		want, err := campaign.PlanWaves(len(devices), percents...)
		if err != nil {
			t.Fatal(err)
		}
		got, err := campaign.AssignWaves(uuid.Max, waves, devices)
		if err != nil || !slices.Equal(sizes(got, len(waves)), want) {
			t.Fatalf("%v, %v, want %v", sizes(got, len(waves)), err, want)
		}
	})
}

// BenchmarkAssignWaves assigns the waves of a campaign over a large, varied fleet.
func BenchmarkAssignWaves(b *testing.B) {
	counts := make(map[[2]string]int)
	for board := range 50 {
		for version := range 20 {
			counts[[2]string{fmt.Sprint(board), fmt.Sprint(version)}] = 50
		}
	}
	devices := fleetOf(counts)
	for b.Loop() {
		if _, err := campaign.AssignWaves(uuid.Max, []campaign.WavePlan{{Percent: 50}, {Percent: 100}}, devices); err != nil {
			b.Fatal(err)
		}
	}
}
