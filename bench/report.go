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
	{"tools/call p50 at 64 in flight, in process / Mosquitto echo", "<= 4", 4, false,
		func(r round) float64 { return r.InProcess[64].P50 / r.Mosquitto[64].P50 }},
	{"tools/call p50 at 64 in flight, REST / Mosquitto echo", "<= 6", 6, false,
		func(r round) float64 { return r.REST[64].P50 / r.Mosquitto[64].P50 }},
	{"calls/s at 64 in flight, in process / Mosquitto", ">= 0.26", 0.26, true,
		func(r round) float64 { return r.InProcess[64].PerSecond / r.Mosquitto[64].PerSecond }},
	{"calls/s at 64 in flight, in process / best single-row commits", ">= 1.2", 1.2, true,
		func(r round) float64 { return r.InProcess[64].PerSecond / r.Commits.PerSecond }},
	{"calls/s at 64 in flight, REST / Mosquitto", ">= 0.18", 0.18, true,
		func(r round) float64 { return r.REST[64].PerSecond / r.Mosquitto[64].PerSecond }},
	{"fan-out, audited / Mosquitto's unaudited", "<= 2.5", 2.5, false,
		func(r round) float64 { return r.FanOut / r.MosquittoFanOut }},
	{"memory per idle connected device, KiB", "<= 44", 44, false, func(r round) float64 { return r.IdleKiB }},
	{"memory per device after three storms, KiB", "<= 60", 60, false, func(r round) float64 { return r.AfterStormsKiB }},
	{"reconnect storm, connects/s / bare mochi", ">= 0.5", 0.5, true,
		func(r round) float64 { return r.MochiStorm.Seconds / r.Storm.Seconds }},
	{"reconnect storm, p99 of CONNECT to CONNACK, ms", "<= 250", 250, false, func(r round) float64 { return r.Storm.P99 }},
	{"boot polls/s, a connection each", ">= 3000", 3000, true, func(r round) float64 { return r.Polls.PerSecond }},
}

func (t target) line(rounds []round) string {
	var values []float64
	for _, r := range rounds {
		values = append(values, t.value(r))
	}
	m := median(values)
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
	fmt.Fprintf(w, "%d rounds; each runs Mosquitto, single-row commits, fleetd and a bare mochi one after the other, %v per measurement, "+
		"with the load on the same cores. A figure is the median of the rounds' ratios. Devices (%d in fan-outs and storms) run in a process of their own. "+
		"\"Durable\" means that fsync returned.\n\n", len(rounds), s.duration, s.devices)
	fmt.Fprintln(w, "## Against the targets\n\n| Quantity | Target | Median | |\n|---|---|---|---|")
	for _, t := range targets {
		fmt.Fprintln(w, t.line(rounds))
	}
	fmt.Fprintln(w, "\n"+readingHint)
	fmt.Fprintln(w, "\n## Medians\n\n| In flight | Mosquitto echo/s | p50 ms | p99 ms | in process/s | p50 ms | p99 ms | REST/s | p50 ms | p99 ms | failed |\n|---|---|---|---|---|---|---|---|---|---|---|")
	for _, n := range inFlight {
		fmt.Fprintln(w, flightLine(rounds, n))
	}
	fmt.Fprintf(w, "\n| Quantity | Median |\n|---|---|\n")
	plain := []struct {
		name  string
		value func(round) float64
	}{
		{"single-row commits/s, best of 1, 16 and 48 connections", func(r round) float64 { return r.Commits.PerSecond }},
		{"fan-out, Mosquitto, unaudited, s", func(r round) float64 { return r.MosquittoFanOut }},
		{"fan-out, fleetd, audited, s", func(r round) float64 { return r.FanOut }},
		{"storm, bare mochi, s", func(r round) float64 { return r.MochiStorm.Seconds }},
		{"storm, fleetd, s", func(r round) float64 { return r.Storm.Seconds }},
		{"boot poll p99, ms", func(r round) float64 { return r.Polls.P99 }},
	}
	for _, p := range plain {
		fmt.Fprintf(w, "| %s | %s |\n", p.name, number(medianOf(rounds, p.value)))
	}
}

func flightLine(rounds []round, n int) string {
	cells := []string{fmt.Sprint(n)}
	failed := 0.0
	for _, pick := range []func(round) reading{
		func(r round) reading { return r.Mosquitto[n] },
		func(r round) reading { return r.InProcess[n] },
		func(r round) reading { return r.REST[n] },
	} {
		cells = append(cells, number(medianOf(rounds, func(r round) float64 { return pick(r).PerSecond })),
			number(medianOf(rounds, func(r round) float64 { return pick(r).P50 })),
			number(medianOf(rounds, func(r round) float64 { return pick(r).P99 })))
		for _, r := range rounds {
			failed += float64(pick(r).Failed)
		}
	}
	return "| " + strings.Join(append(cells, fmt.Sprint(failed)), " | ") + " |"
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
