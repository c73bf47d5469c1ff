package fleet_test

import (
	"strings"
	"testing"

	"fleetd/fleet"
)

func TestParseDeviceID(t *testing.T) {
	tests := []struct{ in, want string }{
		{"A0:85:e3:11:22:33", "a085e3112233"},
		{"a0-85-E3-11-22-33", "a085e3112233"},
		{" a085e3112233 ", "a085e3112233"},
		{"bench_1.left", "bench_1.left"},
		{strings.Repeat("a", 64), strings.Repeat("a", 64)},
		{strings.Repeat("a", 65), ""},
		{"", ""},
		{".", ""}, // has no page: a browser opens the list
		{"..", ""},
		{".hidden", ""},
		{"--help", ""}, // a flag, on the command line
		{"a/b", ""},
		{"ä", ""},
		{"a\x00", ""},
	}
	for _, tt := range tests {
		id, err := fleet.ParseDeviceID(tt.in)
		if string(id) != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("ParseDeviceID(%q) = %q, %v; want %q", tt.in, id, err, tt.want)
		}
	}
}

// A board cannot claim the id of a plug-in or an endpoint.
func TestParseBoardID(t *testing.T) {
	for _, s := range []string{"plugin.weather", "Plugin.weather", " endpoint.pc "} {
		if id, err := fleet.ParseBoardID(s); err == nil {
			t.Errorf("%q: accepted as %q", s, id)
		}
		if _, err := fleet.ParseDeviceID(s); err != nil {
			t.Errorf("%q: %v", s, err)
		}
	}
	if id, err := fleet.ParseBoardID("A0-85-E3-11-22-33"); id != "a085e3112233" || err != nil {
		t.Errorf("MAC address: %q, %v", id, err)
	}
}
