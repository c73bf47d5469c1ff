package ui_test

import (
	"fleetd/fleet/compare"
	"fleetd/web/ui"
)

// comparison has a difference of each fact.
func comparison(well string) ui.Comparison {
	c := ui.Comparison{Well: well, Result: compare.Result{Failed: 118, Well: 2941}}
	values := map[compare.Fact]string{compare.Signal: "-80", compare.Uptime: "86400", compare.Network: "192.168.117.0/24",
		compare.Place: "berlin/hall-1/a-desk-with-a-name-of-forty", compare.Version: "2.3.0-rc.1+a-very-long-suffix-of-a-build",
		compare.Board: "bread-compact-wifi", compare.Chip: "esp32s3", compare.Transport: "<b>mqtt</b>"}
	for i, f := range compare.Facts {
		c.Differences = append(c.Differences, compare.Difference{Count: compare.Count{Fact: f, Value: values[f],
			Failed: 118 - 10*i, Well: 12}, FailedOf: 118, WellOf: 2941})
	}
	return c
}
