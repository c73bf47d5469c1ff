package campaign_test

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"fleetd/fleet/campaign"
)

const (
	modelDevices = 1000
	modelSoak    = 10 * time.Minute
)

// A modelRun is one simulated campaign: devices in the order of dispatch, with the
// times of their dispatch and of their verdicts.
type modelRun struct {
	dispatched, judged [modelDevices]time.Duration
	failed             [modelDevices]campaign.DeploymentState // "" succeeded
	devices            int
	slots              []time.Duration // when each place in flight is free again
	byTime             []int
}

// simulate keeps inFlight devices between dispatch and boot, as the engine does. A device boots
// after one to three minutes, and then soaks. It fails with the probability rate: half of the
// failures are immediate, a quarter come during the soak, and a quarter of the devices fall
// silent until a timer ends them.
func (m *modelRun) simulate(r *rand.Rand, rate float64, devices, inFlight int) {
	m.devices, m.slots = devices, append(m.slots[:0], make([]time.Duration, inFlight)...)
	between := func(a, b time.Duration) time.Duration { return a + time.Duration(r.Int64N(int64(b-a))) }
	for i := range devices {
		now := m.slots[0]
		free := now + between(time.Minute, 3*time.Minute)
		m.dispatched[i], m.judged[i], m.failed[i] = now, free+modelSoak, ""
		if r.Float64() < rate {
			switch r.IntN(4) {
			case 0:
				m.judged[i], m.failed[i] = free+between(0, modelSoak), campaign.DeploymentUnhealthy
			case 1:
				free = now + between(10*time.Minute, 30*time.Minute)
				m.judged[i], m.failed[i] = free, campaign.DeploymentTimedOut
			default:
				free = now + between(0, time.Second)
				m.judged[i], m.failed[i] = free, campaign.DeploymentRejected
			}
		}
		m.occupy(free)
	}
	m.byTime = m.byTime[:0]
	for i, s := range m.failed[:devices] {
		if s != "" {
			m.byTime = append(m.byTime, i)
		}
	}
	slices.SortFunc(m.byTime, func(a, b int) int { return int(m.judged[a] - m.judged[b]) })
}

// occupy gives the place that became free first, the root of the heap, its next time.
func (m *modelRun) occupy(until time.Duration) {
	h, i := m.slots, 0
	for {
		least := 2*i + 1
		if least >= len(h) {
			break
		}
		if least+1 < len(h) && h[least+1] < h[least] {
			least++
		}
		if h[least] >= until {
			break
		}
		h[i] = h[least]
		i = least
	}
	h[i] = until
}

// stop returns the time at which the rule stops the campaign, and the cohort that decides; 0 if
// the rule does not.
func (m *modelRun) stop(rule campaign.AbortRule) (at time.Duration, cohort int) {
	var e campaign.AbortEvidence
	for _, i := range m.byTime {
		at := m.judged[i]
		e.Cohorts.Size, _ = slices.BinarySearch(m.dispatched[:m.devices], at+1)
		place, _ := slices.BinarySearchFunc(e.Cohorts.Failures, i+1, func(f campaign.CohortFailure, n int) int {
			return f.InCampaign - n
		})
		e.Cohorts.Failures = slices.Insert(e.Cohorts.Failures, place,
			campaign.CohortFailure{State: m.failed[i], InCampaign: i + 1})
		if f := campaign.JudgeAbort([]campaign.AbortRule{rule}, e); f != nil {
			return at, f.Of
		}
	}
	return 0, 0
}

// stopByVerdicts judges as earlier versions did: by the share of the devices that have a verdict.
func (m *modelRun) stopByVerdicts(rule campaign.AbortRule) bool {
	verdicts := slices.Sorted(slices.Values(m.judged[:m.devices]))
	for n, i := range m.byTime {
		of, _ := slices.BinarySearch(verdicts, m.judged[i]+1)
		if of >= rule.MinExecuted && float64(n+1)*100 >= rule.Percent*float64(of) {
			return true
		}
	}
	return false
}

// lastOf returns the time when the first n devices all have their verdicts.
func (m *modelRun) lastOf(n int) time.Duration { return slices.Max(m.judged[:n]) }

// A rule stops a campaign whose devices fail three times as often as it allows, by the first 60
// devices if that many failures prove anything. It does not stop a campaign whose devices fail a
// third as often. Both hold whatever the pace, the soak and the times of the failures.
func TestAbortRuleIsFair(t *testing.T) {
	tests := []struct {
		percent   float64
		within    int // devices by which 97 % of the bad campaigns are stopped
		campaigns int
	}{
		{10, 60, 10_000}, {15, 60, 1000}, {20, 60, 1000}, {30, 60, 1000},
		// Too few of 60 devices fail to prove anything. It takes about 630 devices divided by the
		// threshold in percent.
		{5, 130, 1000}, {2, 320, 1000}, {1, 640, 1000},
	}
	for _, tt := range tests {
		rule := campaign.AbortRule{Class: campaign.ClassAny, MinExecuted: 5, Percent: tt.percent,
			Scope: campaign.ScopeCampaign, Action: campaign.AbortPause}
		t.Run(percentName(tt.percent), func(t *testing.T) {
			t.Parallel()
			if raceEnabled {
				tt.campaigns /= 10
			}
			r := rand.New(rand.NewPCG(uint64(tt.percent), 23))
			var m modelRun
			good, bad, byVerdicts := 0, 0, 0
			for i := range tt.campaigns {
				inFlight := []int{1, 10, 300}[i%3]
				m.simulate(r, tt.percent/300, modelDevices, inFlight)
				if at, _ := m.stop(rule); at > 0 {
					good++
				}
				if i%10 < 3 && m.stopByVerdicts(rule) { // each pace
					byVerdicts++
				}
				m.simulate(r, 3*tt.percent/100, tt.within+300, inFlight)
				if at, _ := m.stop(rule); at > 0 && at <= m.lastOf(tt.within) {
					bad++
				}
			}
			t.Logf("a third: %d of %d stopped, by the share of verdicts %d of %d; three times: %d by the first %d devices",
				good, tt.campaigns, byVerdicts, tt.campaigns*3/10, bad, tt.within)
			if share(good, tt.campaigns, -1) >= 0.005 {
				t.Errorf("%d of %d good campaigns were stopped, want less than 0.5 %%", good, tt.campaigns)
			}
			if share(bad, tt.campaigns, 1) <= 0.97 {
				t.Errorf("%d of %d bad campaigns were stopped by the first %d devices, want more than 97 %%", bad,
					tt.campaigns, tt.within)
			}
			if byVerdicts*10 < tt.campaigns*3/10 {
				t.Errorf("the share of verdicts stopped only %d good campaigns: the model does not show its bias", byVerdicts)
			}
		})
	}
}

// share returns a share of campaigns: the share itself for 10,000 of them; for fewer, which vary
// more by chance, the end of its interval on the given side.
func share(n, of, side int) float64 {
	lo, hi := campaign.Wilson(n, of, 2.5758)
	switch {
	case of >= 10_000:
		return float64(n) / float64(of)
	case side < 0:
		return lo
	}
	return hi
}

func percentName(p float64) string { return strconv.FormatFloat(p, 'f', -1, 64) + " %" }
