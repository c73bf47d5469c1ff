package ui

import (
	"context"
	"slices"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/call"
)

func TestPresenceChartKeepsTheColourOfAnOutage(t *testing.T) {
	now := time.Date(2026, 11, 24, 15, 40, 30, 0, time.UTC)
	at := func(ago time.Duration, online, unresponsive, offline int) fleet.PresenceSample {
		return fleet.PresenceSample{At: now.Add(-ago), Online: online, Unresponsive: unresponsive, Offline: offline}
	}
	tests := []struct {
		name            string
		samples         []fleet.PresenceSample
		silent, offline tone
	}{
		{"never one", []fleet.PresenceSample{at(time.Hour, 5028, 0, 0)}, toneNone, toneNone},
		{"a few", []fleet.PresenceSample{at(time.Hour, 4900, 28, 100)}, toneNone, toneNone},
		{"all, an hour ago", []fleet.PresenceSample{at(time.Hour, 28, 0, 5000), at(time.Minute, 5028, 0, 0)}, toneNone, toneBad},
		{"a fifth did not answer", []fleet.PresenceSample{at(time.Hour, 4000, 1028, 0)}, toneWarn, toneNone},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := Overview{Now: PresenceNow{Online: 5028}, Presence: tt.samples, From: now.Add(-24 * time.Hour), To: now}
			c := v.presenceChart(context.Background())
			if c.Series[1].Tone != tt.silent || c.Series[2].Tone != tt.offline {
				t.Errorf("unresponsive is %s, offline %s; want %s, %s", c.Series[1].Tone, c.Series[2].Tone, tt.silent, tt.offline)
			}
			last := len(c.X) - 1
			if c.X[last] != now.Unix() || c.Series[0].Values[last] != 5028 || c.Series[2].Values[last] != 0 {
				t.Errorf("it ends at %d with %d online, %d offline; the tiles say 5028 and 0", c.X[last], c.Series[0].Values[last],
					c.Series[2].Values[last])
			}
		})
	}
}

func TestCallChartEndsNow(t *testing.T) {
	now := time.Date(2026, 11, 24, 15, 32, 0, 0, time.UTC)
	v := Overview{From: now.Add(-24 * time.Hour), To: now, Step: 30 * time.Minute, Calls: []call.Bucket{
		{At: now.Add(-32 * time.Minute), Succeeded: 2}, {At: now.Add(-2 * time.Minute), Succeeded: 1}}}
	c := v.callChart(context.Background())
	if c.To != now.Unix() || c.Step != 1800 || !slices.Equal(c.X, []int64{now.Unix() - 1920, now.Unix() - 120}) {
		t.Errorf("chart to %d with bars at %v", c.To, c.X)
	}
}
