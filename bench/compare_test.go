package main

import (
	"math"
	"path/filepath"
	"strings"
	"testing"
)

func TestCompare(t *testing.T) {
	file := filepath.Join(t.TempDir(), "run.json")
	if err := writeRun(file, []figure{{"rate", 200}, {"slower", 2}, {"same", 0.5}, {"failed", 0}, {"nothing", 0}, {"gone", 7}}, 3); err != nil {
		t.Fatal(err)
	}
	old, err := readRun(file)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	compare(&text, old, []figure{{"rate", 250}, {"slower", 1}, {"same", 0.5}, {"failed", 3}, {"nothing", 0}, {"added", 4}})
	_, table, _ := strings.Cut(text.String(), "|---|---|---|---|\n")
	want := `| rate | 200 | 250 | +25.0 % |
| slower | 2.00 | 1.00 | -50.0 % |
| same | 0.50 | 0.50 | +0.0 % |
| failed | 0.00 | 3.00 | |
| added | | 4.00 | |
| gone | 7.00 | | |
`
	if table != want {
		t.Errorf("compare wrote\n%s\nwant\n%s", table, want)
	}
	if !strings.HasPrefix(text.String(), "Compared with 3 rounds of ") {
		t.Errorf("it does not say what it compares with: %s", text.String())
	}
}

// No two figures may have the same name: compare would mix them up.
func TestFigures(t *testing.T) {
	r := round{Flights: map[string]map[int]reading{}}
	for _, name := range flightNames {
		r.Flights[name] = map[int]reading{1: {PerSecond: 2}, 64: {PerSecond: 100}}
	}
	all := figures([]round{r}, []namedCost{{name: "in process, 1 in flight"}, {name: "fleetd serve, 1 in flight"}})
	seen := make(map[string]float64)
	for _, f := range all {
		if _, twice := seen[f.name]; twice {
			t.Errorf("two figures are named %q", f.name)
		}
		seen[f.name] = f.value
	}
	if got := seen["Mosquitto echo, 64 in flight, /s"]; got != 100 {
		t.Errorf("the rate of Mosquitto is %v, want 100", got)
	}
	if got, ok := seen["fan-out, audited / Mosquitto's unaudited"]; ok {
		t.Errorf("the fan-out, which was not measured, is %v", got)
	}
	if got := seen["calls/s at 64 in flight, fleetd serve / Mosquitto"]; got != 1 {
		t.Errorf("the ratio to Mosquitto is %v, want 1", got)
	}
}

func TestTarget(t *testing.T) {
	most, least := target{want: "<=", limit: 2}, target{want: ">=", limit: 0.5}
	tests := []struct {
		name   string
		target target
		value  float64
		met    bool
	}{
		{"at most, reached", most, 2, true},
		{"at most, exceeded", most, 2.01, false},
		{"at most, not measured", most, 0, false},
		{"at most, divided by nothing", most, math.NaN(), false},
		{"at least, reached", least, 0.5, true},
		{"at least, below", least, 0.49, false},
		{"at least, divided by nothing", least, math.NaN(), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.target.met(tt.value); got != tt.met {
				t.Errorf("met(%v) = %v", tt.value, got)
			}
		})
	}
}
