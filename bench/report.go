package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

// A target is one row of the table: the wanted value, and how to read it from a
// round.
type target struct {
	name  string
	want  string // "<=" or ">="
	limit float64
	value func(round) float64
}

var targets = []target{
	{"one call at a time, p50, fleetd serve / Mosquitto echo", "<=", 8,
		func(r round) float64 { return r.at(served, 1).P50 / r.at(echo, 1).P50 }},
	{"p50 at 64 in flight, in process / Mosquitto echo", "<=", 2.5,
		func(r round) float64 { return r.at(processed, 64).P50 / r.at(echo, 64).P50 }},
	{"p50 at 64 in flight, fleetd serve / Mosquitto echo", "<=", 4,
		func(r round) float64 { return r.at(served, 64).P50 / r.at(echo, 64).P50 }},
	{"p99 at 64 in flight / p50, in process", "<=", 4,
		func(r round) float64 { return r.at(processed, 64).P99 / r.at(processed, 64).P50 }},
	{"p99 at 64 in flight / p50, fleetd serve", "<=", 4,
		func(r round) float64 { return r.at(served, 64).P99 / r.at(served, 64).P50 }},
	{"calls/s at 64 in flight, in process / Mosquitto", ">=", 0.42,
		func(r round) float64 { return r.at(processed, 64).PerSecond / r.at(echo, 64).PerSecond }},
	{"calls/s at 64 in flight, in process / best single-row commits", ">=", 1,
		func(r round) float64 { return r.at(processed, 64).PerSecond / r.bestCommits() }},
	{"calls/s at 64 in flight, fleetd serve / Mosquitto", ">=", 0.27,
		func(r round) float64 { return r.at(served, 64).PerSecond / r.at(echo, 64).PerSecond }},
	{"p50 at 64 in flight, through MCP / through REST", "<=", 1.5,
		func(r round) float64 { return r.at(servedMCP, 64).P50 / r.at(servedFew, 64).P50 }},
	{"p50 at 64 in flight, through MCP with a session / through REST", "<=", 1.2,
		func(r round) float64 { return r.at(servedSDK, 64).P50 / r.at(servedFew, 64).P50 }},
	{"calls/s at 512 in flight / at 64, in process", ">=", 1,
		func(r round) float64 { return r.at(processed, 512).PerSecond / r.at(processed, 64).PerSecond }},
	{"calls/s at 512 in flight / at 64, fleetd serve", ">=", 1,
		func(r round) float64 { return r.at(served, 512).PerSecond / r.at(served, 64).PerSecond }},
	{"p99 at 512 in flight / p50, in process", "<=", 6,
		func(r round) float64 { return r.at(processed, 512).P99 / r.at(processed, 512).P50 }},
	{"p99 at 512 in flight / p50, fleetd serve", "<=", 6,
		func(r round) float64 { return r.at(served, 512).P99 / r.at(served, 512).P50 }},
	{"fan-out, audited / Mosquitto's unaudited", "<=", 2.2, func(r round) float64 { return r.FanOut / r.EchoFanOut }},
	{"memory per idle connected device, KiB", "<=", 44, func(r round) float64 { return r.IdleKiB }},
	{"memory per device after three storms, KiB", "<=", 60, func(r round) float64 { return r.AfterStormsKiB }},
	{"reconnect storm, connects/s / bare mochi", ">=", 0.5,
		func(r round) float64 { return r.MochiStorm.Seconds / r.Storm.Seconds }},
	{"reconnect storm, p99 of CONNECT to CONNACK, ms", "<=", 250, func(r round) float64 { return r.Storm.P99 }},
	{"boot polls/s, a connection each", ">=", 3000, func(r round) float64 { return r.Polls.PerSecond }},
}

// voiceTargets are the targets of conversations.
var voiceTargets = []target{
	{"conversations, p50 of a frame and its echo, ms more than plain UDP", "<=", 2,
		func(r round) float64 { return r.Voice.addedP50() }},
	{"conversations, p99 of a frame and its echo, ms more than plain UDP", "<=", 15, func(r round) float64 { return r.Voice.addedP99() }},
	{"conversations, frames that came back, %", ">=", 100, func(r round) float64 { return r.Voice.Relayed.Back }},
	{"conversations, fleetd, % of a core", "<=", 30, func(r round) float64 { return r.Voice.Relayed.CPU }},
	{"heap and stacks per open conversation, KiB", "<=", 64, func(r round) float64 { return r.Voice.KiB }},
}

// A quantity is a figure without a target.
type quantity struct {
	name  string
	value func(round) float64
}

var quantities = []quantity{
	{"single-row commits/s, best of 1, 16 and 32 connections", round.bestCommits},
	{"rows/s at 64 in flight, in process / best single-row commits", // a call writes two rows
		func(r round) float64 { return 2 * r.at(processed, 64).PerSecond / r.bestCommits() }},
	{"fan-out, Mosquitto, unaudited, s", func(r round) float64 { return r.EchoFanOut }},
	{"fan-out, fleetd, audited, s", func(r round) float64 { return r.FanOut }},
	{"storm, bare mochi, s", func(r round) float64 { return r.MochiStorm.Seconds }},
	{"storm, fleetd, s", func(r round) float64 { return r.Storm.Seconds }},
	{"boot poll p99, ms", func(r round) float64 { return r.Polls.P99 }},
}

func (t target) line(rounds []round) string {
	m := medianOf(rounds, t.value)
	verdict := "**missed**"
	if t.met(m) {
		verdict = "met"
	}
	return fmt.Sprintf("| %s | %s %g | %s | %s |", t.name, t.want, t.limit, number(m), verdict)
}

// met returns false for 0 and for a value that is not a number: then nothing was
// measured.
func (t target) met(v float64) bool {
	return v > 0 && (t.want == "<=" && v <= t.limit || t.want == ">=" && v >= t.limit)
}

func number(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

const targetsHead = "\n| Quantity | Target | Median | |\n|---|---|---|---|\n"

func report(w io.Writer, rounds []round, costs []namedCost, top string, s *suite, command string) {
	fmt.Fprintf(w, "# Measurements\n\nMade by `%s` on %s.\n\n", command, time.Now().UTC().Format("2006-01-02 15:04 MST"))
	fmt.Fprintf(w, "%s\n\n", machine())
	fmt.Fprintf(w, "%d rounds; each measures Mosquitto, a bare net/http, single-row commits, fleetd and a bare mochi one after the other,\n"+
		"%v per measurement, with the load on the same cores. A figure is the median of the rounds' ratios. Unless a row names\n"+
		"another number, %d devices are connected; they run in a separate process. \"fleetd serve\" is the program with default\n"+
		"flags, called through REST over a kept connection for each call in flight; \"in process\" is the same without HTTP, in the\n"+
		"process of the load. \"Durable\" means that fsync returned.\n\n", len(rounds), s.duration, s.devices)
	fmt.Fprint(w, "## Against the targets\n"+targetsHead)
	for _, t := range targets {
		fmt.Fprintln(w, t.line(rounds))
	}
	fmt.Fprintln(w, "\n"+readingHint)
	fmt.Fprint(w, "\n## Medians\n\n"+
		"Processor time is per call, in µs: of the server, of PostgreSQL, and of the load with the devices. Other work is the\n"+
		"share of the machine that other processes used, in %. Commits at 64 in flight share 32 connections.\n\n")
	flightTable(w, rounds, echo, bare, commits, processed, served, servedFew, servedMCP, servedSDK)
	fmt.Fprintf(w, "\n| Quantity | Median |\n|---|---|\n")
	for _, q := range quantities {
		fmt.Fprintf(w, "| %s | %s |\n", q.name, number(medianOf(rounds, q.value)))
	}
	fmt.Fprint(w, "\n## Small machines\n\n")
	flightTable(w, rounds, servedFew, servedSmall, servedTCP)
	fmt.Fprintln(w, "\n## The least that a call takes\n\n"+
		"A call in process is a round trip to the device and two durable rows: an echo and two single-row commits, one after\n"+
		"the other. Through REST, add a bare net/http exchange. The table adds the times of the medians above; for rates, it adds\n"+
		"1/s.\n\n"+
		"| In flight | | least p50 ms | p50 ms | × | most /s | /s | × |\n|---|---|---|---|---|---|---|---|")
	for _, n := range []int{1, 64} {
		for _, name := range []string{processed, served} {
			of := func(value func(round) float64) string { return number(medianOf(rounds, value)) }
			fmt.Fprintf(w, "| %d | %s | %s | %s | %s | %s | %s | %s |\n", n, name,
				of(func(r round) float64 { return r.leastP50(name, n) }),
				of(func(r round) float64 { return r.at(name, n).P50 }),
				of(func(r round) float64 { return r.at(name, n).P50 / r.leastP50(name, n) }),
				of(func(r round) float64 { return r.mostRate(name, n) }),
				of(func(r round) float64 { return r.at(name, n).PerSecond }),
				of(func(r round) float64 { return r.at(name, n).PerSecond / r.mostRate(name, n) }))
		}
	}
	fmt.Fprintln(w)
	voiceSection(w, rounds, "")
	if len(costs) == 0 {
		return
	}
	fmt.Fprintf(w, "\n## One call costs\n\n"+
		"%d devices. Threads put to sleep are voluntary context switches. Of system calls, the kernel counts read and write, but\n"+
		"not recv and send, which PostgreSQL uses towards its clients. Index entries are computed: inserted rows, plus updated\n"+
		"rows that are not HOT, times the indexes of the table.\n\n", fewDevices)
	writeCosts(w, costs)
	fmt.Fprintf(w, "\nProfile of fleetd's processor time, %s:\n\n```\n%s```\n", costs[len(costs)-1].name, top)
}

// leastP50 returns the p50, in ms, of the parts of a call together.
func (r round) leastP50(name string, n int) float64 {
	least := r.at(echo, n).P50 + 2*r.at(commits, n).P50
	if name == served {
		least += r.at(bare, n).P50
	}
	return least
}

// mostRate returns the rate of the parts of a call if they ran one after the
// other.
func (r round) mostRate(name string, n int) float64 {
	time := 1/r.at(echo, n).PerSecond + 2/r.at(commits, n).PerSecond
	if name == served {
		time += 1 / r.at(bare, n).PerSecond
	}
	return 1 / time
}

// flightColumns are the columns about one reading.
var flightColumns = []struct {
	name  string
	value func(reading) float64
}{
	{"/s", func(r reading) float64 { return r.PerSecond }},
	{"p50 ms", func(r reading) float64 { return r.P50 }},
	{"p99 ms", func(r reading) float64 { return r.P99 }},
	{"server µs", func(r reading) float64 { return r.Each[ofFleetd].cpu() + r.Each[ofBroker].cpu() + r.Each[ofHTTP].cpu() }},
	{"PostgreSQL µs", func(r reading) float64 { return r.Each[ofPostgres].cpu() }},
	{"load µs", func(r reading) float64 { return r.Each[ofLoad].cpu() + r.Each[ofDevices].cpu() }},
	{"failed", func(r reading) float64 { return float64(r.Failed) }},
	{"other work %", func(r reading) float64 { return 100 * r.Foreign }},
}

// flightTable writes the readings at several numbers of calls in flight.
func flightTable(w io.Writer, rounds []round, names ...string) {
	fmt.Fprint(w, "| | In flight")
	for _, c := range flightColumns {
		fmt.Fprint(w, " | "+c.name)
	}
	fmt.Fprintln(w, " |\n|---|---|"+strings.Repeat("---|", len(flightColumns)))
	for _, name := range names {
		for _, n := range slices.Sorted(maps.Keys(rounds[0].Flights[name])) {
			fmt.Fprintf(w, "| %s | %d", name, n)
			for _, c := range flightColumns {
				fmt.Fprint(w, " | "+number(medianOf(rounds, func(r round) float64 { return c.value(r.at(name, n)) })))
			}
			fmt.Fprintln(w, " |")
		}
	}
}

const voiceHint = "A frame of 60 ms goes each way in each of 500 conversations at once: by UDP to fleetd serve, by WebSocket to a voice\n" +
	"server that sends it back, and back to the board. The plain UDP echo gets the same packets from the same sockets, a few\n" +
	"seconds before. Boards and voice server are separate processes on the same cores. Before that, 2,000 conversations are\n" +
	"open and silent. Last, four callers make calls one after the other while all boards talk, without and with a flood of\n" +
	"datagrams of unknown conversations."

// voiceQuantities are the rows of the table of conversations.
var voiceQuantities = []quantity{
	{"plain UDP echo, p50, ms", func(r round) float64 { return r.Voice.Echo.P50 }},
	{"plain UDP echo, p99, ms", func(r round) float64 { return r.Voice.Echo.P99 }},
	{"through fleetd, p50, ms", func(r round) float64 { return r.Voice.Relayed.P50 }},
	{"through fleetd, p99, ms", func(r round) float64 { return r.Voice.Relayed.P99 }},
	{"through fleetd, the longest, ms", func(r round) float64 { return r.Voice.Relayed.Max }},
	{"fleetd, processor, for a frame each way, µs", func(r round) float64 { return r.Voice.Relayed.CPUPerFrameMicros }},
	{"boards and voice server, % of a core", func(r round) float64 { return r.Voice.Relayed.LoadCPU }},
	{"other work meanwhile, % of the machine", func(r round) float64 { return r.Voice.Relayed.Foreign }},
	{"until all conversations are open, s", func(r round) float64 { return r.Voice.OpenSeconds }},
	{"calls through REST while all talk, p50, ms", func(r round) float64 { return r.Voice.Calls.P50 }},
	{"calls through REST while all talk, p99, ms", func(r round) float64 { return r.Voice.Calls.P99 }},
	{"the same with a flood at the UDP port, p50, ms", func(r round) float64 { return r.Voice.FloodedCalls.P50 }},
	{"the same with a flood at the UDP port, p99, ms", func(r round) float64 { return r.Voice.FloodedCalls.P99 }},
	{"datagrams a second of the flood", func(r round) float64 { return r.Voice.Flood }},
	{"frames that came back during the flood, %", func(r round) float64 { return r.Voice.Flooded.Back }},
	{"all conversations open and nothing said, fleetd, % of a core", func(r round) float64 { return r.Voice.IdleCPU }},
}

// voiceHeading begins the section of conversations.
const voiceHeading = "## Conversations\n"

// voiceSection writes the section of conversations. made describes how and when
// it was measured, if not with all the rest.
func voiceSection(w io.Writer, rounds []round, made string) {
	fmt.Fprint(w, voiceHeading+"\n"+made+voiceHint+"\n"+targetsHead)
	for _, t := range voiceTargets {
		fmt.Fprintln(w, t.line(rounds))
	}
	fmt.Fprint(w, "\n| Quantity | Median |\n|---|---|\n")
	for _, q := range voiceQuantities {
		fmt.Fprintf(w, "| %s | %s |\n", q.name, number(medianOf(rounds, q.value)))
	}
}

func medianOf(rounds []round, value func(round) float64) float64 {
	var values []float64
	for _, r := range rounds {
		values = append(values, value(r))
	}
	return median(values)
}

// machine describes the machine of the measurement.
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

// readingHint is printed below the table and explains missed targets.
const readingHint = "Every call of fleetd is two durable rows, the intent before a byte leaves and the outcome before the caller gets it, with\n" +
	"a round trip to the device between them. Compared with single-row commits, and with a Mosquitto that keeps no record, it\n" +
	"therefore does best if the processor is the limit and the disk is slow. If fsync returns in some 50 µs, as on the machine\n" +
	"of the committed figures, those two ratios are at their worst."
