package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// A target is one line of the table: what is wanted, and what a round showed.
type target struct {
	name  string
	want  string
	limit float64
	least bool // the value must be at least limit; otherwise at most
	value func(round) float64
}

var targets = []target{
	{"one call at a time, p50, fleetd serve / Mosquitto echo", "<= 8", 8, false,
		func(r round) float64 { return r.Serve[1].P50 / r.Echo[1].P50 }},
	{"p50 at 64 in flight, in process / Mosquitto echo", "<= 2.5", 2.5, false,
		func(r round) float64 { return r.InProcess[64].P50 / r.Echo[64].P50 }},
	{"p50 at 64 in flight, fleetd serve / Mosquitto echo", "<= 4", 4, false,
		func(r round) float64 { return r.Serve[64].P50 / r.Echo[64].P50 }},
	{"p99 at 64 in flight / p50, in process", "<= 4", 4, false,
		func(r round) float64 { return r.InProcess[64].P99 / r.InProcess[64].P50 }},
	{"p99 at 64 in flight / p50, fleetd serve", "<= 4", 4, false,
		func(r round) float64 { return r.Serve[64].P99 / r.Serve[64].P50 }},
	{"calls/s at 64 in flight, in process / Mosquitto", ">= 0.42", 0.42, true,
		func(r round) float64 { return r.InProcess[64].PerSecond / r.Echo[64].PerSecond }},
	{"calls/s at 64 in flight, in process / best single-row commits", ">= 1.0", 1, true,
		func(r round) float64 { return r.InProcess[64].PerSecond / r.bestCommits() }},
	{"calls/s at 64 in flight, fleetd serve / Mosquitto", ">= 0.27", 0.27, true,
		func(r round) float64 { return r.Serve[64].PerSecond / r.Echo[64].PerSecond }},
	{"calls/s at 512 in flight / at 64, in process", ">= 1.0", 1, true,
		func(r round) float64 { return r.InProcess[512].PerSecond / r.InProcess[64].PerSecond }},
	{"calls/s at 512 in flight / at 64, fleetd serve", ">= 1.0", 1, true,
		func(r round) float64 { return r.Serve[512].PerSecond / r.Serve[64].PerSecond }},
	{"p99 at 512 in flight / p50, in process", "<= 6", 6, false,
		func(r round) float64 { return r.InProcess[512].P99 / r.InProcess[512].P50 }},
	{"p99 at 512 in flight / p50, fleetd serve", "<= 6", 6, false,
		func(r round) float64 { return r.Serve[512].P99 / r.Serve[512].P50 }},
	{"fan-out, audited / Mosquitto's unaudited", "<= 2.2", 2.2, false,
		func(r round) float64 { return r.FanOut / r.EchoFanOut }},
	{"memory per idle connected device, KiB", "<= 44", 44, false, func(r round) float64 { return r.IdleKiB }},
	{"memory per device after three storms, KiB", "<= 60", 60, false, func(r round) float64 { return r.AfterStormsKiB }},
	{"reconnect storm, connects/s / bare mochi", ">= 0.5", 0.5, true,
		func(r round) float64 { return r.MochiStorm.Seconds / r.Storm.Seconds }},
	{"reconnect storm, p99 of CONNECT to CONNACK, ms", "<= 250", 250, false, func(r round) float64 { return r.Storm.P99 }},
	{"boot polls/s, a connection each", ">= 3000", 3000, true, func(r round) float64 { return r.Polls.PerSecond }},
}

// A quantity is a figure without a target.
type quantity struct {
	name  string
	value func(round) float64
}

var quantities = []quantity{
	{"single-row commits/s, best of 1, 16 and 48 connections", round.bestCommits},
	{"rows/s at 64 in flight, in process / best single-row commits", // a call is two rows
		func(r round) float64 { return 2 * r.InProcess[64].PerSecond / r.bestCommits() }},
	{"fan-out, Mosquitto, unaudited, s", func(r round) float64 { return r.EchoFanOut }},
	{"fan-out, fleetd, audited, s", func(r round) float64 { return r.FanOut }},
	{"storm, bare mochi, s", func(r round) float64 { return r.MochiStorm.Seconds }},
	{"storm, fleetd, s", func(r round) float64 { return r.Storm.Seconds }},
	{"boot poll p99, ms", func(r round) float64 { return r.Polls.P99 }},
}

// flights are what was measured at several numbers of calls in flight.
var flights = []struct {
	name    string
	reading func(round, int) reading
}{
	{"Mosquitto echo", func(r round, n int) reading { return r.Echo[n] }},
	{"bare net/http", func(r round, n int) reading { return r.HTTP[n] }},
	{"in process", func(r round, n int) reading { return r.InProcess[n] }},
	{"fleetd serve", func(r round, n int) reading { return r.Serve[n] }},
	{"fleetd serve, 64 devices", func(r round, n int) reading { return r.ServeFew[n] }},
}

func (t target) line(rounds []round) string {
	m := medianOf(rounds, t.value)
	verdict := "met"
	if (t.least && m < t.limit) || (!t.least && m > t.limit) || m == 0 { // 0: nothing was measured
		verdict = "**missed**"
	}
	return fmt.Sprintf("| %s | %s | %s | %s |", t.name, t.want, number(m), verdict)
}

func number(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func report(w io.Writer, rounds []round, s *suite, command string) {
	fmt.Fprintf(w, "# Measurements\n\nMade by `%s` on %s.\n\n", command, time.Now().UTC().Format("2006-01-02 15:04 MST"))
	fmt.Fprintf(w, "%s\n\n", machine())
	fmt.Fprintf(w, "%d rounds; each runs Mosquitto, a bare net/http, single-row commits, fleetd and a bare mochi one after the other, %v per measurement, "+
		"with the load on the same cores. A figure is the median of the rounds' ratios. %d devices are connected where nothing else is said; they are a process of their own. "+
		"\"fleetd serve\" is the program with default flags, called through REST over a connection kept for each call in flight; \"in process\" is the same without HTTP, in the process of the load. "+
		"\"Durable\" means that fsync returned.\n\n", len(rounds), s.duration, s.devices)
	fmt.Fprintln(w, "## Against the targets\n\n| Quantity | Target | Median | |\n|---|---|---|---|")
	for _, t := range targets {
		fmt.Fprintln(w, t.line(rounds))
	}
	fmt.Fprintln(w, "\n"+readingHint)
	fmt.Fprintln(w, "\n## Medians\n\nThe next to last columns are processor time per call in µs: of the server, of PostgreSQL, and of the load with the devices. "+
		"The last is the share of the machine that other work had, in %.\n\n"+
		"| | In flight | /s | p50 ms | p99 ms | failed | server | PostgreSQL | load | other work |\n|---|---|---|---|---|---|---|---|---|---|")
	for _, f := range flights {
		for _, n := range inFlight {
			cells := []string{f.name, fmt.Sprint(n)}
			failed := 0
			for _, r := range rounds {
				failed += f.reading(r, n).Failed
			}
			of := func(value func(reading) float64) {
				cells = append(cells, number(medianOf(rounds, func(r round) float64 { return value(f.reading(r, n)) })))
			}
			of(func(r reading) float64 { return r.PerSecond })
			of(func(r reading) float64 { return r.P50 })
			of(func(r reading) float64 { return r.P99 })
			cells = append(cells, fmt.Sprint(failed))
			of(func(r reading) float64 { return r.Each[ofFleetd].cpu() + r.Each[ofBroker].cpu() + r.Each[ofHTTP].cpu() })
			of(func(r reading) float64 { return r.Each[ofPostgres].cpu() })
			of(func(r reading) float64 { return r.Each[ofLoad].cpu() + r.Each[ofDevices].cpu() })
			of(func(r reading) float64 { return 100 * r.Foreign })
			fmt.Fprintln(w, "| "+strings.Join(cells, " | ")+" |")
		}
	}
	fmt.Fprintf(w, "\n| Quantity | Median |\n|---|---|\n")
	for _, q := range quantities {
		fmt.Fprintf(w, "| %s | %s |\n", q.name, number(medianOf(rounds, q.value)))
	}
}

// bestCommits is the best rate of single-row commits.
func (r round) bestCommits() (best float64) {
	for _, c := range r.Commits {
		best = max(best, c.PerSecond)
	}
	return best
}

func medianOf(rounds []round, value func(round) float64) float64 {
	var values []float64
	for _, r := range rounds {
		values = append(values, value(r))
	}
	return median(values)
}

// machine describes where the figures were taken.
func machine() string {
	parts := []string{fmt.Sprintf("Machine: %d cores", runtime.NumCPU()), runtime.Version()}
	if data, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(data)) {
			if name, ok := strings.CutPrefix(line, "model name"); ok {
				parts = append(parts, strings.TrimSpace(strings.TrimLeft(name, "\t: ")))
				break
			}
		}
	}
	for _, c := range [][]string{{"uname", "-sr"}, {"/usr/sbin/mosquitto", "-h"}} {
		if out, _ := exec.Command(c[0], c[1:]...).Output(); len(out) > 0 {
			parts = append(parts, strings.SplitN(strings.TrimSpace(string(out)), "\n", 2)[0])
		}
	}
	return strings.Join(parts, "; ") + ". Shared with other work, so single rounds vary."
}

// readingHint stands below the table: what a missed line depends on.
const readingHint = "Every call of fleetd is two durable rows, the intent before a byte leaves and the outcome before anybody is told, " +
	"with a round trip to the device between them. Against single-row commits, and against a Mosquitto that keeps no record, it therefore does best where the processor " +
	"is the limit and the disk slow; where fsync returns in some 50 µs, as on the machine of the committed figures, those two ratios are at their worst."
