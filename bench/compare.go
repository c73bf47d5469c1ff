package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"time"
)

// A storedRun is the content of the file of --json and --compare: each figure, by
// name.
type storedRun struct {
	Made    time.Time
	Machine string
	Rounds  int
	Figures map[string]float64
}

// A figure is one number of the tables.
type figure struct {
	name  string
	value float64
}

// figures returns all numbers of the tables, in their order. It leaves out
// numbers that were not measured.
func figures(rounds []round, costs []namedCost) (all []figure) {
	for _, t := range targets {
		all = append(all, figure{t.name, medianOf(rounds, t.value)})
	}
	for _, name := range flightNames {
		for _, n := range slices.Sorted(maps.Keys(rounds[0].Flights[name])) {
			for _, c := range flightColumns {
				all = append(all, figure{fmt.Sprintf("%s, %d in flight, %s", name, n, c.name),
					medianOf(rounds, func(r round) float64 { return c.value(r.at(name, n)) })})
			}
		}
	}
	for _, q := range quantities {
		all = append(all, figure{q.name, medianOf(rounds, q.value)})
	}
	all = append(all, voiceFigures(rounds)...)
	for _, c := range costs {
		for _, row := range costRows() {
			all = append(all, figure{"per call, " + c.name + ": " + row.name, row.value(c.cost)})
		}
	}
	return measured(all)
}

// voiceFigures returns the figures of conversations.
func voiceFigures(rounds []round) (all []figure) {
	for _, t := range voiceTargets {
		all = append(all, figure{t.name, medianOf(rounds, t.value)})
	}
	for _, q := range voiceQuantities {
		all = append(all, figure{q.name, medianOf(rounds, q.value)})
	}
	return measured(all)
}

func measured(all []figure) []figure {
	return slices.DeleteFunc(all, func(f figure) bool { return math.IsNaN(f.value) || math.IsInf(f.value, 0) })
}

func readRun(file string) (run storedRun, err error) {
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &run)
	}
	if err == nil && len(run.Figures) == 0 {
		err = fmt.Errorf("%s has no figures: it is not a file of --json", file)
	}
	return run, err
}

func writeRun(file string, figures []figure, rounds int) error {
	run := storedRun{Made: time.Now().UTC(), Machine: machine(), Rounds: rounds, Figures: make(map[string]float64)}
	for _, f := range figures {
		run.Figures[f.name] = f.value
	}
	data, err := json.MarshalIndent(run, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(data, '\n'), 0o644)
}

// compare writes the change of each figure since an earlier run. It lists a
// figure of only one run without a change.
func compare(w io.Writer, old storedRun, now []figure) {
	fmt.Fprintf(w, "Compared with %d rounds of %s.\n\n| Quantity | old | new | change |\n|---|---|---|---|\n", old.Rounds,
		old.Made.Format("2006-01-02 15:04 MST"))
	gone := maps.Clone(old.Figures)
	for _, f := range now {
		before, ok := old.Figures[f.name]
		delete(gone, f.name)
		switch {
		case !ok:
			fmt.Fprintf(w, "| %s | | %s | |\n", f.name, number(f.value))
		case before == 0 && f.value == 0:
		case before == 0: // a change relative to 0 is undefined
			fmt.Fprintf(w, "| %s | %s | %s | |\n", f.name, number(before), number(f.value))
		default:
			fmt.Fprintf(w, "| %s | %s | %s | %+.1f %% |\n", f.name, number(before), number(f.value),
				100*(f.value-before)/before)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(gone)) {
		fmt.Fprintf(w, "| %s | %s | | |\n", name, number(gone[name]))
	}
}
