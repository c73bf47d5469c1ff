package server

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"fleetd/fleet/fleettest"
	"fleetd/fleet/postgres/pgtest"
)

// previousVersion is the commit of the version whose nodes must work together with this one's.
//
//go:embed testdata/previous-version
var previousVersion string

// buildPrevious builds the previous version's program.
func buildPrevious(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	commit := strings.TrimSpace(previousVersion)
	run := func(name string, args ...string) (string, error) {
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := run("git", "-C", root, "cat-file", "-e", commit+"^{commit}"); err != nil {
		t.Skipf("the previous version, commit %s, is not here: clone with the history", commit)
	}
	for _, args := range [][]string{{"git", "-C", root, "archive", "-o", filepath.Join(dir, "previous.tar"), commit},
		{"tar", "-xf", "previous.tar"}, {"go", "build", "-o", "fleetd", "./cmd/fleetd"}} {
		if out, err := run(args[0], args[1:]...); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	return filepath.Join(dir, "fleetd")
}

// TestRollingUpgrade replaces the nodes of the previous version one after the other, as docs/cluster.md says: first
// the core that stands by, then the one that leads, then an edge. Devices stay at an edge of the previous version,
// and callers use it.
func TestRollingUpgrade(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds the previous version")
	}
	previous := buildPrevious(t)
	w := prepareClusterAt(t, pgtest.Empty(t), nil, "--enrolment", "open")
	nodes := []*leaseProcess{w.cores[0], w.cores[1], w.edges[0], w.edges[1]}
	for _, p := range nodes {
		p.program = previous
	}
	w.start()
	w.populate(w.edges[0])
	load := w.startLoad(w.edges[0])
	calls := func(what string) {
		t.Helper()
		before := load.succeeded()
		fleettest.EventuallyWithin(t, time.Minute, "calls "+what, func() bool { return load.succeeded() >= before+20 })
	}
	calls("in the previous version")
	connects, since := w.connects(), time.Now()
	upgrade := func(p *leaseProcess) {
		t.Helper()
		p.signal(syscall.SIGTERM)
		p.awaitEnd(time.Minute)
		p.program = os.Args[0]
		p.start()
	}
	upgrade(w.cores[1])
	w.cores[1].awaitStandby("core-1")
	calls("while a core of this version stands by")
	stopped := time.Now()
	w.cores[0].signal(syscall.SIGTERM)
	w.cores[1].awaitReady()
	handed := time.Since(stopped)
	w.cores[0].awaitEnd(time.Minute)
	calls("with a core of this version that leads edges of the previous one")
	w.cores[0].program = os.Args[0]
	w.cores[0].start()
	w.cores[0].awaitStandby("core-2")
	upgrade(w.edges[1])
	w.edges[1].awaitReady()
	calls("with edges of both versions")
	time.Sleep(2 * attachTime)
	w.quiet(connects, since)
	w.awaitNodes("core-2 leads, core-1 stands_by, edge-1 attached 30, edge-2 attached 0", 2, "released")
	load.end()
	load.check()
	if n := w.count(`SELECT count(*) FROM calls WHERE state NOT IN ('succeeded')`); n != 0 {
		t.Errorf("%d calls did not succeed", n)
	}
	t.Logf("the core of this version leads %v after the previous one was stopped", handed)
}
