package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// A cost is the average cost of one call, in addition to a reading.
type cost struct {
	reading
	Allocations, AllocatedBytes                        float64 // of fleetd
	WALBytes, WALRecords, WALImages, WALWrites, Fsyncs float64
	Tables                                             []tableCost
}

// A tableCost is the number of rows that one call writes to a table.
type tableCost struct {
	Name                   string
	Inserted, Updated, HOT float64 // rows; a HOT update writes no index
	Indexes                float64
}

func (t tableCost) indexEntries() float64 { return (t.Inserted + t.Updated - t.HOT) * t.Indexes }

func (c cost) indexEntries() (sum float64) {
	for _, t := range c.Tables {
		sum += t.indexEntries()
	}
	return sum
}

// statsDelay is the time after which PostgreSQL's idle processes have reported
// their statistics: PGSTAT_IDLE_INTERVAL is 10 s.
const statsDelay = 11 * time.Second

// cost measures a variant with all counters of fleetd and PostgreSQL.
func (r *rig) cost(ctx context.Context, v variant, n int, d time.Duration) (c cost, err error) {
	closedLoop(n, time.Second, v.do)
	time.Sleep(statsDelay)
	before, err := r.counters(ctx)
	if err != nil {
		return c, err
	}
	allocations, bytes, err := r.allocated()
	if err != nil {
		return c, err
	}
	c.reading = v.measure(n, d)
	allocationsAfter, bytesAfter, err := r.allocated()
	if err != nil {
		return c, err
	}
	time.Sleep(statsDelay)
	after, err := r.counters(ctx)
	if err != nil {
		return c, err
	}
	each := func(before, after float64) float64 { return (after - before) / max(1, c.Calls) }
	c.Allocations, c.AllocatedBytes = each(allocations, allocationsAfter), each(bytes, bytesAfter)
	c.WALBytes, c.WALRecords = each(before.WALBytes, after.WALBytes), each(before.WALRecords, after.WALRecords)
	c.WALImages, c.WALWrites = each(before.WALImages, after.WALImages), each(before.WALWrites, after.WALWrites)
	c.Fsyncs = each(before.Fsyncs, after.Fsyncs)
	for _, t := range after.Tables {
		var b tableCost // zero for a table that was created meanwhile
		if i := slices.IndexFunc(before.Tables, func(b tableCost) bool { return b.Name == t.Name }); i >= 0 {
			b = before.Tables[i]
		}
		t.Inserted, t.Updated, t.HOT = each(b.Inserted, t.Inserted), each(b.Updated, t.Updated), each(b.HOT, t.HOT)
		if t.Inserted+t.Updated >= 0.01 {
			c.Tables = append(c.Tables, t)
		}
	}
	return c, c.Error
}

// counters returns PostgreSQL's counters since the cluster was created.
func (r *rig) counters(ctx context.Context) (c cost, err error) {
	// PostgreSQL 18 moved the counters of writes to pg_stat_io.
	writes := `SELECT wal_write, wal_sync FROM pg_stat_wal`
	var version int
	if err := r.db.QueryRow(ctx, `SELECT current_setting('server_version_num')::int`).Scan(&version); err != nil {
		return c, err
	}
	if version >= 180000 {
		writes = `SELECT sum(writes), sum(fsyncs) FROM pg_stat_io WHERE object = 'wal'`
	}
	err = r.db.QueryRow(ctx, `
		SELECT (pg_current_wal_insert_lsn() - '0/0')::float8, w.wal_records::float8, w.wal_fpi::float8,
			io.writes::float8, io.fsyncs::float8
		FROM pg_stat_wal w, (`+writes+`) io (writes, fsyncs)`).
		Scan(&c.WALBytes, &c.WALRecords, &c.WALImages, &c.WALWrites, &c.Fsyncs)
	if err != nil {
		return c, err
	}
	rows, _ := r.db.Query(ctx, `
		SELECT relname, n_tup_ins::float8, n_tup_upd::float8, n_tup_hot_upd::float8,
			(SELECT count(*)::float8 FROM pg_index WHERE indrelid = relid)
		FROM pg_stat_user_tables
		ORDER BY relname`)
	c.Tables, err = pgx.CollectRows(rows, pgx.RowToStructByPos[tableCost])
	return c, err
}

// allocated returns what fleetd has allocated since it started, according to
// /metrics.
func (r *rig) allocated() (objects, bytes float64, err error) {
	resp, err := http.Get("http://" + r.admin + "/metrics")
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(text)) {
		_, _ = fmt.Sscanf(line, "go_memstats_mallocs_total %g", &objects)
		_, _ = fmt.Sscanf(line, "go_memstats_alloc_bytes_total %g", &bytes)
	}
	if objects == 0 || bytes == 0 {
		err = errors.New("/metrics has no go_memstats_mallocs_total or go_memstats_alloc_bytes_total")
	}
	return objects, bytes, err
}

// cpuProfile writes fleetd's CPU profile under load to a file, and returns the
// 15 functions that use the most time.
func (r *rig) cpuProfile(v variant, n int, d time.Duration, file string) (top string, err error) {
	load := make(chan reading)
	go func() { load <- closedLoop(n, d+time.Second, v.do) }()
	defer func() { <-load }()
	resp, err := http.Get(fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%.0f", r.admin, max(1, d.Seconds())))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	out, err := os.Create(file)
	if err != nil {
		return "", err
	}
	defer out.Close()
	if _, err := io.Copy(out, resp.Body); err != nil {
		return "", err
	}
	text, err := exec.Command("go", "tool", "pprof", "-top", "-nodecount=15", file).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go tool pprof: %w: %s", err, text)
	}
	_, lines, _ := strings.Cut(string(text), "Duration:") // the description comes before
	return "Duration:" + lines, nil
}

// A costRow is one line of a table of costs.
type costRow struct {
	name  string
	value func(cost) float64
}

// costRows returns the rows about resources of processes, then those about
// writes.
func costRows() (rows []costRow) {
	add := func(name string, value func(cost) float64) { rows = append(rows, costRow{name, value}) }
	add("calls/s", func(c cost) float64 { return c.PerSecond })
	add("p50, ms", func(c cost) float64 { return c.P50 })
	for _, p := range []string{ofFleetd, ofPostgres, ofLoad, ofDevices} {
		add(p+", processor, µs", func(c cost) float64 { return c.Each[p].cpu() })
		add(p+", of this in the kernel, µs", func(c cost) float64 { return c.Each[p].System })
	}
	for _, p := range []string{ofFleetd, ofPostgres} {
		add(p+", threads put to sleep", func(c cost) float64 { return c.Each[p].Switches })
		add(p+", system calls that read", func(c cost) float64 { return c.Each[p].Reads })
		add(p+", system calls that write", func(c cost) float64 { return c.Each[p].Writes })
	}
	add("fleetd, objects allocated", func(c cost) float64 { return c.Allocations })
	add("fleetd, KiB allocated", func(c cost) float64 { return c.AllocatedBytes / 1024 })
	add("WAL, bytes", func(c cost) float64 { return c.WALBytes })
	add("WAL, records", func(c cost) float64 { return c.WALRecords })
	add("WAL, full-page images", func(c cost) float64 { return c.WALImages })
	add("WAL, writes", func(c cost) float64 { return c.WALWrites })
	add("WAL, fsyncs", func(c cost) float64 { return c.Fsyncs })
	add("index entries", cost.indexEntries)
	return rows
}

// A namedCost is a column of the table.
type namedCost struct {
	name string
	cost
}

// writeCosts writes the table of costs, and the rows that the last variant
// writes to tables.
func writeCosts(w io.Writer, costs []namedCost) {
	fmt.Fprint(w, "| Per call")
	for _, c := range costs {
		fmt.Fprint(w, " | "+c.name)
	}
	fmt.Fprintln(w, " |\n|---|"+strings.Repeat("---|", len(costs)))
	for _, row := range costRows() {
		fmt.Fprint(w, "| "+row.name)
		for _, c := range costs {
			fmt.Fprint(w, " | "+number(row.value(c.cost)))
		}
		fmt.Fprintln(w, " |")
	}
	last := costs[len(costs)-1]
	fmt.Fprintf(w, "\n| Rows per call, %s | inserted | updated | of these HOT | indexes | index entries |\n|---|---|---|---|---|---|\n",
		last.name)
	for _, t := range last.Tables {
		fmt.Fprintf(w, "| %s | %s | %s | %s | %.0f | %s |\n", t.Name, number(t.Inserted), number(t.Updated), number(t.HOT),
			t.Indexes, number(t.indexEntries()))
	}
}

// profile measures the cost of a call in both variants, with one call and with
// 64 in flight, and finds the functions that use most of fleetd serve's time.
func (s *suite) profile(ctx context.Context) (costs []namedCost, top string, err error) {
	for _, name := range []string{processed, served} {
		var some []namedCost
		if some, top, err = s.profileOf(ctx, name); err != nil {
			return nil, "", err
		}
		costs = append(costs, some...)
	}
	return costs, top, nil
}

func (s *suite) profileOf(ctx context.Context, name string) (costs []namedCost, top string, err error) {
	dir, err := os.MkdirTemp(s.dir, "profile")
	if err != nil {
		return nil, "", err
	}
	defer os.RemoveAll(dir)
	start := startServer
	if name == served {
		start = func(ctx context.Context, dir string) (*rig, error) { return startServe(ctx, dir, s.serving) }
	}
	rig, err := start(ctx, filepath.Join(dir, "fleetd"))
	if err != nil {
		return nil, "", err
	}
	defer rig.stop()
	if _, err := rig.populate(ctx, fewDevices, s.child); err != nil {
		return nil, "", err
	}
	v := rig.variant(rig.call, s.child)
	if name == served {
		load := rig.rest(64)
		defer load.close()
		v.do = load.do
	}
	for _, n := range []int{1, 64} {
		c, err := rig.cost(ctx, v, n, s.duration)
		if err != nil {
			return nil, "", err
		}
		costs = append(costs, namedCost{fmt.Sprintf("%s, %d in flight", name, n), c})
	}
	top, err = rig.cpuProfile(v, 64, 3*s.duration, filepath.Join(dir, "cpu.pprof"))
	return costs, top, err
}
