package ui

import (
	"context"
	"slices"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/call"
)

// The strip of a day shows the worst moment of each of its bars, ends with the counts above it, and
// leaves the time empty in which nothing was counted.
func TestPresenceStrip(t *testing.T) {
	now := time.Date(2026, 11, 24, 15, 40, 30, 0, time.UTC)
	at := func(ago time.Duration, online, unresponsive, offline int) fleet.PresenceSample {
		return fleet.PresenceSample{At: now.Add(-ago), Online: online, Unresponsive: unresponsive, Offline: offline}
	}
	v := Overview{Now: PresenceNow{Online: 5028}, From: now.Add(-24 * time.Hour), To: now}
	v.Presence = []fleet.PresenceSample{
		at(24*time.Hour, 5028, 0, 0), at(6*time.Hour+2*time.Minute, 5000, 0, 28), at(6*time.Hour+time.Minute, 28, 0, 5000),
		at(6*time.Hour+time.Second, 5027, 0, 1), at(time.Minute, 4028, 0, 1000)}
	c := v.presenceStack(context.Background())
	if len(c.times) != 3 {
		t.Fatalf("bars at %v, want three: one for each time with samples, and now", c.times)
	}
	if len(c.layers) != 2 || c.layers[0].class != "fill-soft" || c.layers[1].class != "fill-off" {
		t.Fatalf("layers %+v, want online and offline alone", c.layers)
	}
	if got := c.layers[0].counts; !slices.Equal(got, []int{5028, 28, 5028}) {
		t.Errorf("online %v, want the outage and the counts of now", got)
	}
	if got := c.layers[1].counts; !slices.Equal(got, []int{0, 5000, 0}) {
		t.Errorf("offline %v", got)
	}
}

func TestSharesOfABar(t *testing.T) {
	tests := []struct {
		name   string
		counts []int
		want   []barPart
	}{
		{"all", []int{5028, 0, 0}, []barPart{{"a", "0", "1000"}}},
		{"one of many is visible", []int{99999, 0, 1}, []barPart{{"a", "0", "994"}, {"c", "996", "4"}}},
		{"halves", []int{1, 1}, []barPart{{"a", "0", "499"}, {"b", "501", "499"}}},
		{"none", []int{0, 0}, nil},
	}
	for _, tt := range tests {
		if got := barParts(tt.counts, []string{"a", "b", "c"}); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// A share is rounded down: 100 % means all.
func TestShareOnline(t *testing.T) {
	for _, tt := range []struct {
		online, offline int
		want            string
	}{{5028, 0, "100%"}, {5027, 1, "99.9%"}, {99999, 1, "99.9%"}, {0, 3, "0%"}, {1, 2, "33.3%"}} {
		if got := (PresenceNow{Online: tt.online, Offline: tt.offline}).share(context.Background()); got != tt.want {
			t.Errorf("%d online, %d offline: %s, want %s", tt.online, tt.offline, got, tt.want)
		}
	}
}

func TestCallChartEndsNow(t *testing.T) {
	now := time.Date(2026, 11, 24, 15, 32, 0, 0, time.UTC)
	v := Overview{From: now.Add(-24 * time.Hour), To: now, Step: 30 * time.Minute, Calls: []call.Bucket{
		{At: now.Add(-32 * time.Minute), Succeeded: 2},
		{At: now.Add(-2 * time.Minute), Succeeded: 1, Failed: 3, ToolErrors: 2}}}
	c := v.callStack(context.Background())
	if c.span.to != now || c.step != 30*time.Minute || len(c.times) != 2 {
		t.Errorf("chart to %v with bars at %v", c.span.to, c.times)
	}
	var labels []string
	for _, l := range c.layers {
		labels = append(labels, l.label)
	}
	if want := []string{"Succeeded", "Not executed", "Tool error"}; !slices.Equal(labels, want) {
		t.Errorf("outcomes %v, want %v", labels, want)
	}
}
