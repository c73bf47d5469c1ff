package server

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestChaosShort runs the first seeds of `make chaos` with a small fleet and short
// faults.
func TestChaosShort(t *testing.T) {
	if testing.Short() {
		t.Skip("starts PostgreSQL clusters")
	}
	t.Parallel()
	template := chaosTemplateFor(t)
	for _, seed := range []uint64{1, 2} {
		runChaos(t, newChaosSchedule(seed, chaosShort), template)
	}
	runChaos(t, newChaosSchedule(1, chaosShortCluster), template)
}

// longestSeed is the longest time that a failing seed may need: no seed begins with less
// than that left of the time for make chaos.
const longestSeed = 4 * time.Minute

// TestChaos is `make chaos`. FLEETD_CHAOS_SEEDS names the seeds (7, or 1-50),
// FLEETD_CHAOS_MINUTES bounds the time, FLEETD_CHAOS_DEVICES changes the size of
// the fleet, and FLEETD_TEST_LOG shows the journal of seeds that pass, too.
func TestChaos(t *testing.T) {
	seeds := os.Getenv("FLEETD_CHAOS_SEEDS")
	if seeds == "" {
		t.Skip("runs as make chaos")
	}
	first, last, err := parseSeeds(seeds)
	if err != nil {
		t.Fatal(err)
	}
	minutes, err := strconv.ParseFloat(os.Getenv("FLEETD_CHAOS_MINUTES"), 64)
	if err != nil || minutes <= 0 || minutes > 20 {
		t.Fatalf("FLEETD_CHAOS_MINUTES=%q: write a number of minutes, at most 20", os.Getenv("FLEETD_CHAOS_MINUTES"))
	}
	size := chaosFull
	if os.Getenv("FLEETD_CHAOS_CLUSTER") != "" {
		size = chaosCluster100
	}
	if n, err := strconv.Atoi(os.Getenv("FLEETD_CHAOS_DEVICES")); err == nil {
		size.devices = n
	}
	template := chaosTemplateFor(t)
	end := time.Now().Add(time.Duration(minutes*float64(time.Minute)) - longestSeed)
	passed, failed := 0, []uint64{}
	for seed := first; seed <= last && (seed == first || time.Now().Before(end)); seed++ {
		if runChaos(t, newChaosSchedule(seed, size), template) {
			passed++
		} else {
			failed = append(failed, seed)
		}
	}
	fmt.Printf("chaos: of %d seeds %d passed; failed: %v\n", passed+len(failed), passed, failed)
}

// parseSeeds reads one seed, or the first and the last of several.
func parseSeeds(text string) (first, last uint64, err error) {
	from, to, several := strings.Cut(text, "-")
	if !several {
		to = from
	}
	if first, err = strconv.ParseUint(from, 10, 64); err == nil {
		last, err = strconv.ParseUint(to, 10, 64)
	}
	if err != nil || last < first {
		return 0, 0, fmt.Errorf("seeds %q: write one, such as 7, or several, such as 1-50", text)
	}
	return first, last, nil
}

func chaosTemplateFor(t *testing.T) chaosTemplate {
	t.Helper()
	template, err := makeChaosTemplate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return template
}

// runChaos runs the schedule and reports whether all invariants held.
func runChaos(t *testing.T, schedule chaosSchedule, template chaosTemplate) bool {
	t.Helper()
	// Not the test's own directory: logs must survive a failure, and the path of a socket
	// must be short.
	dir, err := os.MkdirTemp("", fmt.Sprintf("chaos-%d-", schedule.seed))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	w, err := newChaosWorld(schedule, template, dir)
	if err == nil {
		err = w.run(template.release)
	}
	if err != nil {
		w.breachf("the seed could not be done: %v", err)
	}
	w.stop()
	if len(w.breaches) == 0 {
		if os.Getenv("FLEETD_TEST_LOG") != "" {
			t.Logf("%v\n\n%s", schedule, w.journal)
		}
		w.removeData()
		_ = os.RemoveAll(dir)
		took := time.Since(began).Round(time.Second)
		fmt.Printf("chaos: seed %d passed in %v: %s\n", schedule.seed, took, schedule.faults())
		return true
	}
	w.keepLogs()
	t.Errorf("%v\n\n%s\n\n%s\n\nlogs: %s\nagain: make chaos %sSEED=%d", schedule, strings.Join(w.breaches, "\n"),
		w.journal, dir, map[bool]string{true: "CLUSTER=1 "}[schedule.cluster], schedule.seed)
	return false
}

func (s chaosSchedule) faults() string {
	var names []string
	for _, step := range s.steps {
		names = append(names, step.fault)
	}
	return strings.Join(names, ", ")
}

// run executes the steps under load, and then checks the result.
func (w *chaosWorld) run(release string) (err error) {
	if w.atStart, err = w.resources(); err != nil {
		return err
	}
	l := w.startLoad()
	for i, step := range w.schedule.steps {
		if step.campaign {
			l.startCampaign(release)
		}
		l.startFanOut()
		if err = w.join(i); err != nil {
			break
		}
		time.Sleep(step.lead)
		if err = w.carryOut(step); err != nil {
			break
		}
		w.check(l, fmt.Sprintf("after %s (%d)", step.fault, i+1), afterFault)
	}
	l.end()
	w.check(l, "at the end", atTheEnd)
	return err
}

// A seed always has the same schedule, and the seeds cover every fault.
func TestChaosSchedule(t *testing.T) {
	times := map[string]int{}
	for n := range uint64(600) {
		seed, size := n/2, []chaosSize{chaosFull, chaosCluster100}[n%2]
		s := newChaosSchedule(seed, size)
		if again := newChaosSchedule(seed, size); s.String() != again.String() {
			t.Errorf("two schedules of seed %d: %v and %v", seed, s, again)
		}
		for _, step := range s.steps {
			times[step.fault]++
			f := chaosFaultNamed(step.fault)
			misplaced := f.external && s.embedded || f.nodes && !s.cluster || f.single && s.cluster
			if misplaced || step.lasts < f.shortest || step.lasts > f.longest {
				t.Errorf("seed %d: %s for %v", seed, step.fault, step.lasts)
			}
		}
	}
	if os.Getenv("FLEETD_TEST_LOG") != "" {
		for seed := range uint64(60) {
			fmt.Println(newChaosSchedule(seed, chaosFull))
		}
	}
	for _, f := range chaosFaults {
		if times[f.name] < 10 {
			t.Errorf("%s happens in %d of 300 seeds", f.name, times[f.name])
		}
	}
}
