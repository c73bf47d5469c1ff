package server

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// A chaosFault is one row of the table of faults. The fault lasts from start to
// stop; a fault without stop ends at once.
type chaosFault struct {
	name              string
	weight            int
	shortest, longest time.Duration
	external          bool // only with a PostgreSQL of the test
	single, nodes     bool // only without, only with a cluster
	cutsDevices       bool // in a cluster: devices may lose their connections
	fleetdEnds        func(*chaosWorld) bool
	needs             func(*chaosWorld) string // why this machine cannot do it; "" if it can
	start, stop       func(*chaosWorld, chaosStep) error
}

var chaosFaults = []chaosFault{
	// PostgreSQL.
	{name: "pg-restart", weight: 4, shortest: 200 * time.Millisecond, longest: 6 * time.Second, external: true,
		start: stopPostgres, stop: bringBackPostgres},
	{name: "pg-kill", single: true, weight: 3, shortest: 200 * time.Millisecond, longest: 6 * time.Second, fleetdEnds: ownsPostgres,
		start: killPostmaster, stop: bringBackPostgres},
	{name: "pg-kill-backend", weight: 3, start: killBackend},
	{name: "pg-freeze", weight: 4, shortest: 3 * time.Second, longest: 40 * time.Second,
		start: freezePostgres, stop: thawPostgres},
	{name: "pg-connections", weight: 3, shortest: time.Second, longest: 10 * time.Second,
		start: takeConnections, stop: giveConnections},
	{name: "pg-full", weight: 3, shortest: 2 * time.Second, longest: 8 * time.Second, external: true, needs: ownFileSystem,
		start: fillDisk, stop: freeDisk},

	// fleetd.
	{name: "fleetd-kill", single: true, weight: 4, shortest: 0, longest: 3 * time.Second, fleetdEnds: always,
		start: killFleetd, stop: releaseFleetd},
	{name: "fleetd-term", single: true, weight: 4, shortest: 0, longest: 3 * time.Second, fleetdEnds: always,
		start: terminateFleetd, stop: releaseFleetd},

	// The network between devices and fleetd.
	{name: "net-cut", cutsDevices: true, weight: 2, shortest: time.Second, longest: 15 * time.Second,
		start: network(proxyRule{stallUp: true, stallDown: true}), stop: resetNetwork},
	{name: "net-stall-up", cutsDevices: true, weight: 2, shortest: time.Second, longest: 15 * time.Second,
		start: network(proxyRule{stallUp: true}), stop: healNetwork},
	{name: "net-stall-down", cutsDevices: true, weight: 2, shortest: time.Second, longest: 15 * time.Second,
		start: network(proxyRule{stallDown: true}), stop: healNetwork},
	{name: "net-delay", cutsDevices: true, weight: 1, shortest: 2 * time.Second, longest: 8 * time.Second,
		start: network(proxyRule{delay: 400 * time.Millisecond}), stop: healNetwork},
	{name: "net-loss", cutsDevices: true, weight: 2, shortest: 2 * time.Second, longest: 8 * time.Second,
		start: network(proxyRule{loss: 0.15}), stop: healNetwork},
	{name: "net-reset", cutsDevices: true, weight: 2, start: resetNetwork},

	// The wall clock of fleetd.
	{name: "clock-step", cutsDevices: true, weight: 3, shortest: 2 * time.Second, longest: 10 * time.Second, needs: canSetClock,
		start: setClock, stop: rightClock},

	// The directory of firmware images and pictures.
	{name: "blobs-away", weight: 1, shortest: time.Second, longest: 6 * time.Second,
		start: hideBlobs, stop: showBlobs},
	{name: "blobs-readonly", weight: 2, shortest: time.Second, longest: 6 * time.Second, needs: canMountReadOnly,
		start: lockBlobs, stop: unlockBlobs},

	// The nodes of a cluster.
	{name: "core-kill", nodes: true, weight: 4, shortest: 0, longest: 6 * time.Second,
		start: onLeader(endNode(syscall.SIGKILL)), stop: releaseNodes},
	{name: "core-term", nodes: true, weight: 3, shortest: 0, longest: 3 * time.Second,
		start: onLeader(endNode(syscall.SIGTERM)), stop: releaseNodes},
	{name: "core-freeze", nodes: true, weight: 4, shortest: time.Second, longest: 20 * time.Second,
		start: onLeader(freezeNode), stop: releaseNodes},
	{name: "standby-kill", nodes: true, weight: 1, shortest: 0, longest: 3 * time.Second,
		start: onStandby(endNode(syscall.SIGKILL)), stop: releaseNodes},
	{name: "cores-kill", nodes: true, weight: 2, shortest: 0, longest: 5 * time.Second,
		start: onCores(endNode(syscall.SIGKILL)), stop: releaseNodes},
	{name: "edge-kill", nodes: true, cutsDevices: true, weight: 3, shortest: 0, longest: 8 * time.Second,
		start: onEdge(endNode(syscall.SIGKILL)), stop: releaseNodes},
	{name: "edge-freeze", nodes: true, cutsDevices: true, weight: 3, shortest: time.Second, longest: 15 * time.Second,
		start: onEdge(freezeNode), stop: releaseNodes},

	// The network between them.
	{name: "link-cut", nodes: true, weight: 4, shortest: time.Second, longest: 20 * time.Second,
		start: onLinks(linksOfEdge, proxyRule{stallUp: true, stallDown: true}), stop: healLinks},
	{name: "link-one-way", nodes: true, weight: 2, shortest: time.Second, longest: 20 * time.Second,
		start: onLinks(linksOfEdge, proxyRule{stallUp: true}), stop: healLinks},
	{name: "bus-cut", nodes: true, weight: 3, shortest: time.Second, longest: 15 * time.Second,
		start: onLinks(linksOfBus, proxyRule{stallUp: true, stallDown: true}), stop: healLinks},
	{name: "link-slow", nodes: true, weight: 3, shortest: 2 * time.Second, longest: 15 * time.Second,
		start: onLinks(linksOfAll, proxyRule{delay: 200 * time.Millisecond, loss: 0.05}), stop: healLinks},
	{name: "link-reset", nodes: true, weight: 2, start: resetLinks},
	{name: "route-cut", nodes: true, weight: 2, shortest: time.Second, longest: 20 * time.Second,
		start: onLinks(linksOfRoutes, proxyRule{stallUp: true, stallDown: true}), stop: healLinks},
	{name: "db-cut", nodes: true, weight: 4, shortest: time.Second, longest: 20 * time.Second,
		start: cutDatabase, stop: healLinks},
}

func chaosFaultNamed(name string) chaosFault {
	for _, f := range chaosFaults {
		if f.name == name {
			return f
		}
	}
	panic("no fault " + name)
}

func always(*chaosWorld) bool { return true }

// ownsPostgres reports whether fleetd runs its own PostgreSQL: both end and
// start together.
func ownsPostgres(w *chaosWorld) bool { return w.schedule.embedded }

func stopPostgres(w *chaosWorld, _ chaosStep) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return w.postgres().Stop(ctx)
}

func killPostmaster(w *chaosWorld, _ chaosStep) error {
	pid, err := w.postmaster()
	if err != nil {
		return err
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}

// bringBackPostgres starts the test's database; fleetd's own starts with
// fleetd.
func bringBackPostgres(w *chaosWorld, _ chaosStep) error {
	if w.schedule.embedded {
		return nil
	}
	return w.restartPostgres()
}

// restartPostgres starts a database that has ended, or is ending.
func (w *chaosWorld) restartPostgres() error {
	if err := stopPostgres(w, chaosStep{}); err != nil { // releases its directory
		return err
	}
	return w.startPostgres()
}

func killBackend(w *chaosWorld, _ chaosStep) error {
	return w.asSuperuser(func(ctx context.Context, db *pgx.Conn) error {
		var pid int
		err := db.QueryRow(ctx, `SELECT pid FROM pg_stat_activity WHERE usename = 'fleetd' AND backend_type = 'client backend'
			ORDER BY (state = 'active') DESC, backend_start LIMIT 1`).Scan(&pid)
		if err != nil {
			return err
		}
		return syscall.Kill(pid, syscall.SIGKILL)
	})
}

// freezePostgres stops all processes of the database with SIGSTOP.
func freezePostgres(w *chaosWorld, _ chaosStep) error {
	pid, err := w.postmaster()
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	for _, child := range childrenOf(pid) {
		_ = syscall.Kill(child, syscall.SIGSTOP) // it may have ended
	}
	return nil
}

func thawPostgres(w *chaosWorld, _ chaosStep) error {
	w.thaw()
	return nil
}

// thaw resumes a frozen database; it has no effect on a running one.
func (w *chaosWorld) thaw() {
	pid, err := w.postmaster()
	if err != nil {
		return
	}
	for _, child := range childrenOf(pid) {
		_ = syscall.Kill(child, syscall.SIGCONT)
	}
	_ = syscall.Kill(pid, syscall.SIGCONT)
}

func childrenOf(parent int) []int {
	var children []int
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		// "pid (name) state ppid ...", and a name may contain anything.
		_, rest, _ := strings.Cut(string(text[strings.LastIndexByte(string(text), ')')+1:]), " ")
		fields := strings.Fields(rest)
		if len(fields) < 2 || fields[1] != strconv.Itoa(parent) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			children = append(children, pid)
		}
	}
	return children
}

// takeConnections ends fleetd's connections to the database, and revokes its
// right to open others.
func takeConnections(w *chaosWorld, _ chaosStep) error {
	return w.asSuperuser(func(ctx context.Context, db *pgx.Conn) error {
		if _, err := db.Exec(ctx, `ALTER ROLE fleetd CONNECTION LIMIT 0`); err != nil {
			return err
		}
		_, err := db.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'fleetd'`)
		return err
	})
}

func giveConnections(w *chaosWorld, _ chaosStep) error {
	return w.asSuperuser(func(ctx context.Context, db *pgx.Conn) error {
		_, err := db.Exec(ctx, `ALTER ROLE fleetd CONNECTION LIMIT -1`)
		return err
	})
}

func (w *chaosWorld) asSuperuser(do func(context.Context, *pgx.Conn) error) error {
	return w.asSuperuserOf("postgres", do)
}

func (w *chaosWorld) asSuperuserOf(database string, do func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	db, err := pgx.Connect(ctx, "user=postgres dbname="+database+" sslmode=disable port=5432 host="+w.pgData())
	if err != nil {
		return err
	}
	defer db.Close(context.WithoutCancel(ctx))
	return do(ctx, db)
}

func ownFileSystem(w *chaosWorld) string {
	if !w.mounted {
		return "a separate file system for the database, which only root can mount"
	}
	return ""
}

// fillDisk writes until nothing more fits.
func fillDisk(w *chaosWorld, _ chaosStep) error {
	file, err := os.Create(w.ballast())
	if err != nil {
		return err
	}
	defer file.Close()
	for size := 1 << 20; size >= 1<<12; {
		if _, err := file.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	return nil
}

// freeDisk makes room. It restarts a PostgreSQL that ended because of the full
// disk, as its operator would.
func freeDisk(w *chaosWorld, _ chaosStep) error {
	if err := os.Remove(w.ballast()); err != nil {
		return err
	}
	select {
	case <-w.postgres().Done():
		w.journal.notef("PostgreSQL ended on the full disk")
		return w.restartPostgres()
	case <-time.After(500 * time.Millisecond):
		return nil
	}
}

func (w *chaosWorld) ballast() string { return filepath.Join(w.pgDir, "ballast") }

func killFleetd(w *chaosWorld, _ chaosStep) error {
	w.nodes[0].setHeld(true)
	w.nodes[0].signal(syscall.SIGKILL)
	return nil
}

func terminateFleetd(w *chaosWorld, _ chaosStep) error {
	w.nodes[0].setHeld(true)
	w.nodes[0].signal(syscall.SIGTERM)
	return nil
}

func releaseFleetd(w *chaosWorld, _ chaosStep) error {
	w.nodes[0].setHeld(false)
	return nil
}

func network(rule proxyRule) func(*chaosWorld, chaosStep) error {
	return func(w *chaosWorld, step chaosStep) error {
		rule := rule
		rule.share = step.share
		w.http.set(rule)
		w.mqtt.set(rule)
		return nil
	}
}

func healNetwork(w *chaosWorld, _ chaosStep) error {
	w.http.set(proxyRule{})
	w.mqtt.set(proxyRule{})
	return nil
}

// resetNetwork breaks the connections. Connections that were cut for some time
// end in the same way.
func resetNetwork(w *chaosWorld, step chaosStep) error {
	w.http.resetShare(step.share)
	w.mqtt.resetShare(step.share)
	return healNetwork(w, step)
}

func hideBlobs(w *chaosWorld, _ chaosStep) error {
	return os.Rename(filepath.Join(w.dataDir, "blobs"), filepath.Join(w.dataDir, "blobs.away"))
}

func showBlobs(w *chaosWorld, _ chaosStep) error {
	if err := os.RemoveAll(filepath.Join(w.dataDir, "blobs")); err != nil { // created meanwhile
		return err
	}
	return os.Rename(filepath.Join(w.dataDir, "blobs.away"), filepath.Join(w.dataDir, "blobs"))
}

// carryOut causes the step's fault, unless this machine cannot.
func (w *chaosWorld) carryOut(step chaosStep) error {
	fault := chaosFaultNamed(step.fault)
	if fault.needs != nil {
		if lacking := fault.needs(w); lacking != "" {
			w.journal.notef("%s left out: it needs %s", fault.name, lacking)
			return nil
		}
	}
	if fault.fleetdEnds != nil && fault.fleetdEnds(w) {
		p := w.nodes[0]
		p.setExcused(true)
		before := p.processes()
		defer func() {
			_ = w.await(time.Minute, "", func() bool { return p.wasReady() && p.processes() > before })
			p.setExcused(false) // its recovery is checked later
		}()
	}
	if w.cluster != nil {
		defer w.cluster.disturb(fault)()
	}
	w.journal.notef("%s begins", fault.name)
	if err := fault.start(w, step); err != nil {
		return fmt.Errorf("%s: %w", fault.name, err)
	}
	time.Sleep(step.lasts)
	if fault.stop != nil {
		if err := fault.stop(w, step); err != nil {
			return fmt.Errorf("end of %s: %w", fault.name, err)
		}
	}
	w.journal.notef("%s ends", fault.name)
	return nil
}
