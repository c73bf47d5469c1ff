package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"text/tabwriter"
	"time"
)

// clusterCommand measures a cluster on this machine: it connects devices over all edges, kills the core
// that leads while calls are made, and then an edge. It checks each call at the caller, on record and at
// the device.
type clusterCommand struct {
	Fleetd      string        `help:"The program fleetd." default:"bin/fleetd"`
	Devices     int           `help:"Simulated devices." default:"10000"`
	Edges       int           `help:"Edges. Each holds at most about 19,000 connections where a process may open 20,000 files." default:"3"`
	PerProcess  int           `name:"per-process" help:"Devices in a process." default:"18000"`
	ConnectRate float64       `help:"Devices switched on in a second." default:"1000"`
	Booting     int           `help:"Devices that boot at once, at most." default:"128"`
	Keepalive   time.Duration `help:"MQTT keepalive of the devices, in place of the 60 s that fleetd sends; they ping twice as often."`
	Rate        float64       `help:"Calls a second." default:"500"`
	Width       int           `help:"Calls under way at once, at most." default:"512"`
	For         time.Duration `help:"How long calls are made before and after each failure." default:"20s"`
	Nice        bool          `help:"Start edges and devices with nice 5 and 10, so that cores and database have the processors first, as on machines of their own."`
	From        string        `help:"Start with this program, an earlier version, and upgrade the cores and an edge to --fleetd while a campaign upgrades all devices, in place of the failures." placeholder:"FLEETD"`
	Dir         string        `help:"Directory for data and logs; it is kept. Default: a temporary one." placeholder:"DIR"`
}

// A clusterRun is the state of one measurement.
type clusterRun struct {
	clusterCommand
	rig   *clusterRig
	fleet *clusterFleet
	ids   []string
	table *tabwriter.Writer
	wrong []string // what must not happen
}

// Run measures and prints a table. It returns an error if a promise was broken.
func (c *clusterCommand) Run(ctx context.Context) error {
	dir := c.Dir
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "fleetd-bench"); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
	}
	rig, err := newClusterRig(ctx, cmp.Or(c.From, c.Fleetd), dir, c.Edges, c.Nice)
	if err != nil {
		return err
	}
	defer rig.stop()
	r := &clusterRun{clusterCommand: *c, rig: rig, table: tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)}
	if r.fleet, err = startClusterFleet(rig, c); r.fleet != nil {
		defer r.fleet.stop()
	}
	steps := []func(context.Context) error{r.connect, r.killCore, r.killEdge}
	if c.From != "" {
		steps = []func(context.Context) error{r.connect, r.rollCores, r.replaceEdge}
	}
	for _, step := range steps {
		if err != nil {
			break
		}
		err = step(ctx)
	}
	if flushed := r.table.Flush(); err == nil {
		err = flushed
	}
	for _, w := range r.wrong {
		err = errors.Join(err, errors.New(w))
	}
	return err
}

func (r *clusterRun) row(what, format string, values ...any) {
	text := fmt.Sprintf(format, values...)
	fmt.Fprintf(r.table, "%s\t%s\n", what, text)
	fmt.Fprintf(os.Stderr, "%s  %s: %s\n", time.Now().Format("15:04:05"), what, text)
}

// must adds to what is wrong.
func (r *clusterRun) must(holds bool, format string, values ...any) {
	if !holds {
		r.wrong = append(r.wrong, fmt.Sprintf(format, values...))
	}
}

// await waits until the condition holds, and returns how long that took.
func (r *clusterRun) await(ctx context.Context, limit time.Duration, what string, holds func() bool) (time.Duration,
	error) {
	begun := time.Now()
	for !holds() {
		if time.Since(begun) > limit {
			return limit, fmt.Errorf("%s took more than %v", what, limit)
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	return time.Since(begun), nil
}

// connect waits until all devices are connected and the cluster has settled.
func (r *clusterRun) connect(ctx context.Context) error {
	used := busy()
	limit := time.Minute + time.Duration(r.Devices)*20*time.Millisecond
	said := time.Now()
	took, err := r.await(ctx, limit, "connecting all devices", func() bool {
		time.Sleep(time.Second)
		n := r.rig.online()
		if time.Since(said) > 30*time.Second {
			said = time.Now()
			fmt.Fprintf(os.Stderr, "%s  %d of %d devices are online\n", said.Format("15:04:05"), n, r.Devices)
		}
		return n == r.Devices
	})
	if err != nil {
		sum, _ := r.fleet.ask(false)
		return fmt.Errorf("%w: %d of %d are online, %+v", err, r.rig.online(), r.Devices, sum.Stats)
	}
	r.row("devices", "%d on %d edges, in %.0f s, %.2f ms of processor time each", r.Devices, r.Edges, took.Seconds(),
		(busy()-used)/1000/float64(r.Devices))
	if _, err := r.await(ctx, 10*time.Minute, "listing the tools of all devices", func() bool {
		time.Sleep(time.Second)
		var n int
		err := r.rig.db.QueryRow(ctx, `SELECT count(*) FROM devices WHERE tools_count > 0`).Scan(&n)
		return err == nil && n == r.Devices
	}); err != nil {
		return err
	}
	r.idle(30 * time.Second)
	r.memory()
	if err := r.database(ctx); err != nil {
		return err
	}
	sum, err := r.fleet.ask(true)
	r.ids = sum.IDs
	return err
}

// idle measures what connected devices cost that only ping.
func (r *clusterRun) idle(d time.Duration) {
	parts := []struct {
		name string
		pids []int
	}{{"edges", nil}, {"cores", nil}, {"simulated devices", r.fleet.pids()}}
	for _, n := range r.rig.edges {
		parts[0].pids = append(parts[0].pids, n.process.Pid)
	}
	for _, n := range r.rig.cores {
		parts[1].pids = append(parts[1].pids, n.process.Pid)
	}
	used := func() (all []float64) {
		for _, p := range parts {
			sum := 0.0
			for _, pid := range p.pids {
				sum += process{pid: pid}.usage().cpu()
			}
			all = append(all, sum)
		}
		return append(all, busy())
	}
	begun, before := time.Now(), used()
	time.Sleep(d)
	after := used()
	each := func(i int) float64 {
		return (after[i] - before[i]) / time.Since(begun).Seconds() / float64(r.Devices)
	}
	for i, p := range parts {
		r.row("processor time of the "+p.name+" while devices only ping", "%.1f µs a second for each device", each(i))
	}
	r.row("processor time of everything meanwhile", "%.1f µs a second for each device", each(len(parts)))
}

func (r *clusterRun) memory() {
	var edges []int
	for _, e := range r.rig.edges {
		edges = append(edges, e.process.Pid)
	}
	n := float64(r.Devices)
	each := memoryOf(edges...)
	r.row("memory of the edges", "%.0f MiB, %.1f KiB a connection", each, each*1024/n)
	if leader := r.rig.leader(); leader != nil {
		core := memoryOf(leader.process.Pid)
		r.row("memory of the leading core", "%.0f MiB, %.1f KiB a device", core, core*1024/n)
	}
	devices := memoryOf(r.fleet.pids()...)
	r.row("memory of the simulated devices", "%.0f MiB, %.1f KiB each", devices, devices*1024/n)
}

// database prints the size of the database, and of a call on record once there are some.
func (r *clusterRun) database(ctx context.Context) error {
	var size, calls, rows float64
	err := r.rig.db.QueryRow(ctx, `SELECT pg_database_size(current_database()), (SELECT count(*) FROM calls),
		(SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree('calls') WHERE isleaf)`).Scan(&size, &rows, &calls)
	if err != nil {
		return err
	}
	if rows == 0 {
		r.row("database", "%.0f MiB, %.1f KiB a device", size/(1<<20), size/1024/float64(r.Devices))
	} else {
		r.row("calls on record, with their indexes", "%.0f, %.0f bytes each", rows, calls/rows)
	}
	return nil
}

// killCore kills the leading core while calls are made.
func (r *clusterRun) killCore(ctx context.Context) error {
	before, err := r.fleet.ask(false)
	if err != nil {
		return err
	}
	changes, err := r.changes(ctx)
	if err != nil {
		return err
	}
	load := startClusterLoad(r.rig, r.ids, 0, r.Rate, r.Width, nil)
	begun := time.Now()
	time.Sleep(r.For)
	r.row("calls before", "%.0f a second", load.rateSince(begun))
	old := r.rig.leader()
	if old == nil {
		return errors.New("no core leads")
	}
	old.end(syscall.SIGKILL)
	killed := time.Now()
	leads, err := r.await(ctx, time.Minute, "a new leader", func() bool { return r.rig.leader() != nil })
	if err != nil {
		load.end()
		return err
	}
	r.row("leader killed; the other core leads after", "%.2f s", leads.Seconds())
	_, err = r.await(ctx, time.Minute, "a call after the kill", func() bool { return !load.firstSince(killed).IsZero() })
	if err != nil {
		load.end()
		return err
	}
	again := load.firstSince(killed).Sub(killed)
	r.row("calls succeed again after", "%.2f s", again.Seconds())
	r.must(again <= 10*time.Second, "calls succeeded again after %v, more than 10 s", again)
	_, err = r.await(ctx, 2*time.Minute, "attaching all devices", func() bool { return r.rig.online() == r.Devices })
	if err != nil {
		load.end()
		return err
	}
	r.row("all connections are attached after", "%.2f s", time.Since(killed).Seconds())
	settled := time.Now()
	time.Sleep(r.For)
	r.row("calls after", "%.0f a second", load.rateSince(settled))
	load.end()
	after, err := r.fleet.ask(true)
	if err != nil {
		return err
	}
	now, err := r.changes(ctx)
	if err != nil {
		return err
	}
	r.row("devices disconnected, changes of presence", "%d, %d", after.Connects-before.Connects, now-changes)
	r.must(after.Connects == before.Connects, "%d devices connected again", after.Connects-before.Connects)
	r.must(now == changes, "presence changed %d times", now-changes)
	if err := r.check(ctx, load, after); err != nil {
		return err
	}
	if err := r.database(ctx); err != nil {
		return err
	}
	return r.rig.start(ctx, old)
}

// changes returns how many changes to another presence than online are on record.
func (r *clusterRun) changes(ctx context.Context) (n int, err error) {
	err = r.rig.db.QueryRow(ctx, `SELECT count(*) FROM presence_changes WHERE presence <> 'online'`).Scan(&n)
	return n, err
}

// check compares what callers were given with the record and the devices.
func (r *clusterRun) check(ctx context.Context, load *clusterLoad, devices clusterReport) error {
	outcomes := map[string]int{}
	var acknowledged []string
	lost, twice := 0, 0
	var slowest time.Duration
	for _, c := range load.finished(time.Time{}) {
		outcomes[c.outcome]++
		n := devices.Executed[c.device]
		if c.outcome == succeeded {
			acknowledged = append(acknowledged, c.id)
			slowest = max(slowest, c.ended.Sub(c.began))
			if n < 1 {
				lost++
			}
		}
		if n > 1 {
			twice++
		}
	}
	var onRecord int
	err := r.rig.db.QueryRow(ctx, `SELECT count(DISTINCT id) FROM calls WHERE id = ANY($1::uuid[]) AND state = 'succeeded'`,
		acknowledged).Scan(&onRecord)
	if err != nil {
		return err
	}
	r.row("outcomes", "%v; slowest success %.1f s", outcomes, slowest.Seconds())
	r.row("acknowledged calls: all, on record, not executed, executed twice", "%d, %d, %d, %d", len(acknowledged), onRecord,
		lost, twice)
	r.must(onRecord == len(acknowledged), "%d acknowledged calls are not on record", len(acknowledged)-onRecord)
	r.must(lost == 0, "%d acknowledged calls were not executed", lost)
	r.must(twice == 0, "%d calls were executed twice", twice)
	return nil
}

// killEdge kills an edge while calls are made through the others.
func (r *clusterRun) killEdge(ctx context.Context) error {
	before, err := r.fleet.ask(true)
	if err != nil {
		return err
	}
	last := r.Edges - 1
	victim := r.rig.edges[last]
	held, err := r.rig.connections(victim)
	if err != nil {
		return err
	}
	load := startClusterLoad(r.rig, r.ids, 0, r.Rate, r.Width, map[int]bool{last: true})
	time.Sleep(r.For / 2)
	victim.end(syscall.SIGKILL)
	killed := time.Now()
	off, err := r.await(ctx, time.Minute, "devices of the edge to be offline", func() bool {
		return r.rig.online() <= r.Devices-held*95/100
	})
	if err != nil {
		load.end()
		return err
	}
	r.row("edge killed; its devices", "%d, offline after %.2f s", held, off.Seconds())
	r.must(off <= 5*time.Second+500*time.Millisecond, "devices of the edge were offline after %v, more than 5 s", off)
	back, err := r.await(ctx, 5*time.Minute+time.Duration(held)*40*time.Millisecond, "devices to connect to other edges",
		func() bool { return r.rig.online() == r.Devices })
	load.end()
	if err != nil {
		return err
	}
	r.row("all of them are connected to other edges after", "%.1f s", (back + off).Seconds())
	r.row("calls meanwhile", "%.0f a second", load.rateSince(killed))
	after, err := r.fleet.ask(true)
	if err != nil {
		return err
	}
	others := after.Connects - before.Connects - int64(held)
	r.row("connections made again by devices of other edges, connects that failed", "%d, %d", others,
		after.ConnectFailures-before.ConnectFailures)
	r.must(others == 0, "%d devices of other edges connected again", others)
	r.rig.edges = slices.Delete(r.rig.edges, last, last+1)
	for i := range after.Executed {
		after.Executed[i] -= before.Executed[i]
	}
	return r.check(ctx, load, after)
}
