package ui

import (
	"slices"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/call"
)

func TestProgressParts(t *testing.T) {
	p := FanOutProgress{Counts: call.FanOutProgress{ByState: map[fleet.CallState]int{
		fleet.CallSucceeded: 5, fleet.CallToolError: 2, fleet.CallTimedOut: 1, fleet.CallOffline: 3, fleet.CallSent: 4,
		fleet.CallPending: 9,
	}}}
	want := []part{{toneGood, 0, 5}, {toneNone, 5, 3}, {toneBad, 8, 3}}
	if got := p.parts(); !slices.Equal(got, want) {
		t.Errorf("parts() = %v, want %v: calls that have ended, by meaning", got, want)
	}
}
