package ui

import (
	"strings"
	"testing"
	"time"

	"fleetd/fleet/telemetry"
)

// A line begins when the device was first seen, not at the beginning of that step.
func TestTrendsBeginWithTheDevice(t *testing.T) {
	step := 6 * time.Hour
	begin := time.Date(2026, 11, 22, 6, 0, 0, 0, time.UTC)
	first := begin.Add(5 * time.Hour)
	v := HealthTrends{First: first, To: begin.Add(24 * time.Hour),
		Range:  HealthRange{Span: 24 * time.Hour, Step: step},
		Points: []telemetry.VitalsPoint{{At: begin, HeapFree: 1 << 20}, {At: begin.Add(step), HeapFree: 1 << 20}}}
	for i, want := range []time.Time{first, begin.Add(step)} {
		got := v.memory(t.Context()).readings[i]
		if !got.at.Equal(want) || !strings.Contains(got.text, want.Format("15:04")) {
			t.Errorf("point %d is drawn at %v and says %q, want %v", i, got.at, got.text, want)
		}
	}
}

// A restart is marked at its time, not at the beginning of its point's step.
func TestRestartsAreMarkedWhereTheyWere(t *testing.T) {
	step := 5 * time.Minute
	begin := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	v := HealthTrends{To: begin.Add(17 * time.Minute), Range: HealthRange{Step: step}, Points: []telemetry.VitalsPoint{
		{At: begin, Uptime: time.Hour},
		{At: begin.Add(step), Uptime: 30 * time.Second, Restarted: true},
		{At: begin.Add(2 * step), Uptime: 7 * time.Minute, Restarted: true},
		{At: begin.Add(16 * time.Minute), Uptime: time.Minute, Restarted: true},
	}}
	want := []time.Duration{9*time.Minute + 30*time.Second, 8 * time.Minute, 15 * time.Minute}
	for i, at := range v.restarts() {
		if got := at.Sub(begin); got != want[i] {
			t.Errorf("restart %d is marked after %v, want %v", i+1, got, want[i])
		}
	}
}
