package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// logSize returns the size of all files of PostgreSQL's log.
func logSize(dir string) (size int64, err error) {
	text, err := readLogs(dir, 0)
	return int64(len(text)), err
}

// readLogs returns what the log has after a number of bytes. Its files are named by time.
func readLogs(dir string, from int64) ([]byte, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	var all bytes.Buffer
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		_, err = io.Copy(&all, f)
		f.Close()
		if err != nil {
			return nil, err
		}
	}
	return all.Bytes()[min(from, int64(all.Len())):], nil
}

// planHead is the beginning of a plan in the log, as auto_explain writes it.
var planHead = regexp.MustCompile(`duration: ([0-9.]+) ms  plan:\n`)

// Plans in the report are cut to a readable size.
const (
	maxPlanLines = 40
	maxPlanWidth = 150
)

// slowestPlan returns the time and plan of the slowest statement in the log after a number of bytes; "" if all took
// less than auto_explain.log_min_duration.
func slowestPlan(dir string, from int64) (string, error) {
	text, err := readLogs(dir, from)
	if err != nil {
		return "", err
	}
	var slowest float64
	plan := ""
	for _, at := range planHead.FindAllSubmatchIndex(text, -1) {
		took, _ := strconv.ParseFloat(string(text[at[2]:at[3]]), 64)
		if took <= slowest {
			continue
		}
		var lines []string
		query := true
		for line := range strings.Lines(string(text[at[1]:])) {
			if !strings.HasPrefix(line, "\t") { // the next entry of the log
				break
			}
			line = strings.TrimRight(line[1:], " \t\n")
			if len(line) > maxPlanWidth {
				line = strings.ToValidUTF8(line[:maxPlanWidth], "") + "..."
			}
			if query = query && !strings.Contains(line, "(cost="); query {
				continue
			}
			lines = append(lines, line)
		}
		if len(lines) == 0 || strings.HasPrefix(lines[0], "Insert") || strings.HasPrefix(lines[0], "Update") ||
			strings.HasPrefix(lines[0], "Delete") { // of work in the background
			continue
		}
		slowest = took
		if len(lines) > maxPlanLines {
			lines = append(lines[:maxPlanLines], fmt.Sprintf("... %d further lines", len(lines)-maxPlanLines))
		}
		plan = fmt.Sprintf("%.1f ms\n%s", took, strings.Join(lines, "\n"))
	}
	return plan, nil
}

// report returns the report as Markdown.
func (m *scale) report() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# A year of calls\n\nWritten by `make bench-scale` (`bin/bench scale --calls %d --devices %d --output bench/SCALE.md`) on %s: %d devices, "+
		"%d calls\nof a year in monthly partitions, %d entries in the sealed record, a database of %s. fleetd serve, PostgreSQL "+
		"with\nfleetd's settings and the client share %d processors. A time is that of a whole request over loopback, median of 5\n"+
		"after a first one. The limits are 100 ms, and 50 ms for what concerns one device.\n\n", m.c.Calls, m.c.Devices,
		m.now.UTC().Format(time.DateOnly), m.c.Devices, m.c.Calls, m.entries, m.size, runtime.NumCPU())
	for _, line := range m.lines {
		fmt.Fprintf(&b, "- %s\n", line)
	}
	missed := 0
	for _, p := range m.pages {
		if p.took > p.limit {
			missed++
		}
	}
	fmt.Fprintf(&b, "\n%d of %d pages take longer than their limit.\n\n| | ms | limit | |\n|---|---:|---:|---|\n", missed, len(m.pages))
	for _, p := range m.pages {
		verdict := ""
		if p.took > p.limit {
			verdict = "**missed**"
		}
		fmt.Fprintf(&b, "| %s | %.1f | %.0f | %s |\n", strings.ReplaceAll(p.name, "|", "\\|"), ms(p.took), ms(p.limit), verdict)
	}
	b.WriteString("\n## Plans\n\nThe slowest statement of each page as PostgreSQL executed it (`auto_explain` with `log_analyze`, which " +
		"slows\nstatements down), slowest page first. Pages whose statements all took less than 2 ms are left out.\n")
	slowest := slices.SortedStableFunc(slices.Values(m.pages), func(x, y *scalePage) int {
		return cmp.Compare(y.took, x.took)
	})
	for _, p := range slowest {
		if p.plan != "" {
			fmt.Fprintf(&b, "\n### %s\n\n```\n%s\n```\n", p.name, p.plan)
		}
	}
	return b.String()
}
