package campaign

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Cohorts are the devices of a campaign in the order of their first dispatch, reduced to the
// input of abort rules: the number of devices, and the positions of the failures in that order.
// The first n devices of the order are a cohort.
//
// Failures and successes take different times: a device that refuses its image reports that within
// a second, and one that accepts it counts as a success only after its soak. While a wave goes out,
// the failures' share of the verdicts is therefore too high. Instead a rule counts the failures of
// a cohort and treats a device without a verdict as not failed. This share can only grow until the
// cohort has all of its verdicts, and never exceeds its final value. So the time and order of
// verdicts do not matter: a rule fires only if it would fire on the final outcomes of that cohort.
//
//   - A device that refuses at once counts at once, against all devices that were
//     notified before it, with or without a verdict.
//   - A silent device counts as not failed until its timers end it as failed. It
//     delays nothing.
//   - An offline device was not notified and is in no cohort. If a device could not
//     be reached when it was to be notified, it leaves the order. It joins the end of
//     the order when it is notified.
//   - A device keeps its place through further attempts, including those that an
//     operator requests, so failures cannot change their places.
//   - Skipped, canceled, expired, aborted and removed devices give no information
//     about the image, and are in no cohort.
//   - Each wave and each board has its own order of devices. Devices that join a
//     continuous campaign come last.
type Cohorts struct {
	Size     int            // devices in the campaign's order
	ByWave   map[int]int    // by wave number
	ByBoard  map[string]int // by board
	Failures []CohortFailure
}

// A CohortFailure is a failed device with its positions in the orders, from 1.
type CohortFailure struct {
	State      DeploymentState
	Wave       int // 0-based
	Board      string
	At         time.Time // when it failed
	InCampaign int
	InWave     int
	InBoard    int
}

// inCohort reports whether the device was notified and has given, or may still give,
// information about the image.
func (d *Deployment) inCohort() bool {
	return d.DispatchedAt != nil && (d.State.Verdict() || !d.State.Final())
}

// CohortsOf computes the cohorts from the deployments of one campaign.
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

// scope selects the devices of one order.
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

// minBoundFailures is the number of failures from which the bound of a share counts. For
// thresholds below about 9 % the interval of one or two failures among the first devices is too
// narrow to be checked after each verdict.
const minBoundFailures = 3

// lowerBound is the lower end of the 99 % Wilson interval of a share, in percent.
func lowerBound(failed, of int) float64 {
	lo, _ := Wilson(failed, of, z99)
	return 100 * lo
}

// Wilson returns the Wilson confidence interval of a share; z sets its width. It is also
// accurate for few devices and for shares near 0 and 1.
func Wilson(n, of int, z float64) (lo, hi float64) {
	if of == 0 {
		return 0, 1
	}
	all, p := float64(of), float64(n)/float64(of)
	middle := (p + z*z/(2*all)) / (1 + z*z/all)
	half := z / (1 + z*z/all) * math.Sqrt(p*(1-p)/all+z*z/(4*all*all))
	return max(0, middle-half), min(1, middle+half)
}
