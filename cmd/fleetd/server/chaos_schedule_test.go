package server

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// A chaosSchedule is the sequence of faults of one seed. It depends only on the seed and
// the size: a seed has the same schedule on every machine, which skips the faults that it
// cannot cause.
type chaosSchedule struct {
	seed     uint64
	size     chaosSize
	embedded bool // fleetd runs its own PostgreSQL; else the test runs one for it
	cluster  bool // two cores and two edges
	steps    []chaosStep
}

// A chaosStep is one fault under load, and the work that begins shortly before it.
type chaosStep struct {
	fault    string
	lead     time.Duration // from the start of a fan-out to the fault
	campaign bool          // a campaign starts with the fan-out
	lasts    time.Duration
	share    float64       // share of the devices' connections that a network fault affects
	clock    time.Duration // offset of a clock step
}

// edge returns the index of the edge that a fault of one edge affects.
func (s chaosStep) edge() int {
	if s.share == 1 {
		return 1
	}
	return 0
}

// A chaosSize is the size of a run.
type chaosSize struct {
	devices, workers int
	steps            int
	longest          time.Duration // upper limit of every fault's duration
	slack            int           // factor for the limits of invariants
	cluster          bool
}

var (
	chaosFull       = chaosSize{devices: 500, workers: 12, steps: 2, longest: 40 * time.Second, slack: 1}
	chaosCluster100 = chaosSize{devices: 100, workers: 8, steps: 3, longest: 20 * time.Second, slack: 1, cluster: true}
	// Other tests may use the processor at the same time.
	chaosShort = chaosSize{devices: 40, workers: 4, steps: 2, longest: 3 * time.Second, slack: 4}

	chaosShortCluster = chaosSize{devices: 20, workers: 2, steps: 2, longest: 3 * time.Second, slack: 4, cluster: true}
)

// clockSteps are changes that people and time servers may make to a clock. They are below
// one hour, the time within which fleetd looks for open calls when it starts.
var clockSteps = []time.Duration{-45 * time.Minute, -90 * time.Second, -5 * time.Second,
	5 * time.Second, 90 * time.Second, 45 * time.Minute}

func newChaosSchedule(seed uint64, size chaosSize) chaosSchedule {
	random := rand.New(rand.NewPCG(seed, 1))
	s := chaosSchedule{seed: seed, size: size, embedded: random.IntN(2) == 0, cluster: size.cluster}
	if s.cluster {
		s.embedded = false
	}
	upgrades := random.IntN(size.steps) // the step at which a campaign starts
	for i, fault := range drawFaults(random, s.embedded, s.cluster, size.steps) {
		s.steps = append(s.steps, chaosStep{
			fault:    fault.name,
			lead:     between(random, 300*time.Millisecond, 1500*time.Millisecond),
			campaign: i == upgrades,
			lasts:    min(fault.drawLength(random), size.longest),
			share:    []float64{0.3, 1}[random.IntN(2)],
			clock:    clockSteps[random.IntN(len(clockSteps))],
		})
	}
	if s.has("clock-step") {
		// If the clock is set back, a campaign may mistake a boot poll from before its
		// order for one after it: its conclusion is not checked in this case.
		for i := range s.steps {
			s.steps[i].campaign = false
		}
	}
	return s
}

// drawFaults picks n different faults by their weights.
func drawFaults(random *rand.Rand, embedded, cluster bool, n int) []chaosFault {
	var candidates []chaosFault
	for _, f := range chaosFaults {
		if f.external && embedded || f.single && cluster || f.nodes && !cluster {
			continue
		}
		candidates = append(candidates, f)
	}
	var drawn []chaosFault
	for range n {
		total := 0
		for _, f := range candidates {
			total += f.weight
		}
		at := random.IntN(total)
		for i, f := range candidates {
			if at -= f.weight; at < 0 {
				drawn = append(drawn, f)
				candidates = append(candidates[:i:i], candidates[i+1:]...)
				break
			}
		}
	}
	return drawn
}

// drawLength returns a mostly short duration; one in eight is up to the longest of the
// fault.
func (f chaosFault) drawLength(random *rand.Rand) time.Duration {
	usual := min(f.longest, max(f.shortest, 8*time.Second))
	if random.IntN(8) == 0 {
		return between(random, usual, f.longest)
	}
	return between(random, f.shortest, usual)
}

func between(random *rand.Rand, low, high time.Duration) time.Duration {
	return (low + time.Duration(random.Int64N(int64(high-low)+1))).Round(10 * time.Millisecond)
}

func (s chaosSchedule) String() string {
	database := "a PostgreSQL of the test"
	if s.embedded {
		database = "fleetd's own PostgreSQL"
	}
	if s.cluster {
		database = "two cores, two edges, " + database
	}
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %d devices, %s", s.seed, s.size.devices, database)
	for _, step := range s.steps {
		fmt.Fprintf(&b, "\n  fan-out")
		if step.campaign {
			b.WriteString(" and campaign")
		}
		fmt.Fprintf(&b, ", %v later %s for %v", step.lead, step.fault, step.lasts)
		switch {
		case strings.HasPrefix(step.fault, "edge-"), strings.HasPrefix(step.fault, "link-"):
			fmt.Fprintf(&b, " of edge-%d", step.edge()+1)
		case strings.HasPrefix(step.fault, "net-"):
			fmt.Fprintf(&b, " on %.0f %% of the connections", 100*step.share)
		case step.fault == "clock-step":
			fmt.Fprintf(&b, " by %v", step.clock)
		}
	}
	return b.String()
}
