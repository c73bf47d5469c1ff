package campaign

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Cohorts are the devices of a campaign in the order in which they were first
// dispatched, reduced to what abort rules need: how many there are, and where in
// the order the failures stand. The first n devices of that order are a cohort.
//
// Failures and successes take different times: a device that refuses its image
// says so within a second, one that accepts it counts as a success only after
// its soak. A share of the devices with a verdict is therefore too high while a
// wave goes out. A rule asks instead how many of a cohort failed, and counts a
// device without a verdict as not failed: such a share can only grow until the
// cohort has all of its verdicts, and never exceeds what it will be then. So it
// does not matter when verdicts come, or in which order, and a rule fires at
// any time only if it would fire on the final outcomes of that cohort.
//
//   - A device that refuses at once counts at once, against all that were
//     notified before it, whether they have a verdict or not.
//   - A silent device counts as not failed until its timers call it failed. It
//     holds nothing up.
//   - A device that is offline was not notified and is in no cohort. One that
//     was to be notified and could not be reached leaves the order, and comes
//     to its end when it is notified.
//   - A device keeps its place through further attempts, those that an operator
//     asks for included: failures do not choose their places.
//   - Skipped, canceled, expired, aborted and removed devices say nothing about
//     the image, and are in no cohort.
//   - Waves and boards each have an order of their own devices. Devices that
//     join a continuous campaign come last.
type Cohorts struct {
	Size     int            // devices in the campaign's order
	ByWave   map[int]int    // by wave number
	ByBoard  map[string]int // by board
	Failures []CohortFailure
}

// A CohortFailure is a device that failed, with its places in the orders, from 1.
type CohortFailure struct {
	State      DeploymentState
	Wave       int // 0-based
	Board      string
	At         time.Time // when it failed
	InCampaign int
	InWave     int
	InBoard    int
}

// inCohort reports whether the device was notified, and says or may still say
// something about the image.
func (d *Deployment) inCohort() bool {
	return d.DispatchedAt != nil && (d.State.Verdict() || !d.State.Final())
}

// CohortsOf orders deployments of one campaign.
func CohortsOf(all []Deployment) Cohorts {
	order := slices.DeleteFunc(slices.Clone(all), func(d Deployment) bool { return !d.inCohort() })
	slices.SortFunc(order, func(a, b Deployment) int {
		return cmp.Or(a.DispatchedAt.Compare(*b.DispatchedAt), slices.Compare(a.ID[:], b.ID[:]))
	})
	c := Cohorts{Size: len(order), ByWave: map[int]int{}, ByBoard: map[string]int{}}
	for i, d := range order {
		c.ByWave[d.Wave]++
		c.ByBoard[d.Board]++
		if d.State.Failed() {
			c.Failures = append(c.Failures, CohortFailure{State: d.State, Wave: d.Wave, Board: d.Board, At: *d.FinishedAt,
				InCampaign: i + 1, InWave: c.ByWave[d.Wave], InBoard: c.ByBoard[d.Board]})
		}
	}
	return c
}

// A cohortScope is the order of the devices that one abort rule counts.
type cohortScope struct {
	size     int
	failures []placedFailure
}

type placedFailure struct {
	state DeploymentState
	at    time.Time
	place int
}

// scope picks the devices of one order.
func (c Cohorts) scope(size int, of func(CohortFailure) (place int, in bool)) cohortScope {
	s := cohortScope{size: size}
	for _, f := range c.Failures {
		if place, in := of(f); in {
			s.failures = append(s.failures, placedFailure{f.State, f.At, place})
		}
	}
	return s
}

// z99 is the quantile of the normal distribution for an interval of 99 %.
const z99 = 2.5758293

// minBoundFailures is how many devices have to fail before the bound of a share
// counts. Below thresholds of some 9 % the interval of one or two failures among
// the first devices is too narrow for a look after each verdict.
const minBoundFailures = 3

// lowerBound is the lower end of the 99 % Wilson interval of a share, in percent.
func lowerBound(failed, of int) float64 {
	lo, _ := Wilson(failed, of, z99)
	return 100 * lo
}

// Wilson is the confidence interval of a share whose width z gives, which is
// honest for few devices and for shares near 0 and 1, too.
func Wilson(n, of int, z float64) (lo, hi float64) {
	if of == 0 {
		return 0, 1
	}
	all, p := float64(of), float64(n)/float64(of)
	middle := (p + z*z/(2*all)) / (1 + z*z/all)
	half := z / (1 + z*z/all) * math.Sqrt(p*(1-p)/all+z*z/(4*all*all))
	return max(0, middle-half), min(1, middle+half)
}
