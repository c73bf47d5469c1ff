package fleet_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/web/i18n"
)

func TestQueryMatch(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	seen := now.Add(-time.Hour)
	d := fleet.Device{
		ID: "a085e3112233", Name: "Front Door", Board: "bread-compact-wifi", Chip: "esp32s3", Version: "2.4.10",
		Presence: fleet.PresenceOnline, Enrolment: fleet.EnrolmentEnrolled, Tags: []string{"lab", "floor-2", "site-1/room-2"},
		LastSeen: &seen, CrashedAt: &seen, Hold: &fleet.Hold{Reason: "bench"},
	}
	offers := func(_ fleet.Device, tool string) bool { return tool == "self.reboot" }
	tests := []struct {
		query string
		out   string // the term that excludes the device; "" for a match
	}{
		{"", ""},
		{"board:bread-compact-wifi tag:lab presence:online hold", ""},
		{"-hold", "-hold"},
		{"version<2.4", "version<2.4"},
		{"version>=2.4.9", ""},
		{"version>2.4.10", "version>2.4.10"},
		{"version<2.4.10.0", ""}, // more parts is newer
		{"version:2.4.*", ""},
		{"board:esp-box-3,BREAD-*", ""},
		{`name:"front door"`, ""},
		{"door", ""},
		{"window", "window"},
		{"-window", ""},
		{"A0:85:E3:11:22:33", ""},
		{"a0:85:e3:11:22:34", "a0:85:e3:11:22:34"},
		{"a0:85", ""},
		{"85:E3:1", ""},
		{"22:33", ""},
		{"34:", "34:"},
		{"-22:33", "-22:33"},
		{"tag:floor-*", ""},
		{"-tag:lab", "-tag:lab"},
		{"tool:self.reboot", ""},
		{"tool:self.upgrade_firmware", "tool:self.upgrade_firmware"},
		{"seen<2h", ""},
		{"crashed<2h", ""},
		{"crashed>2h", "crashed>2h"},
		{"tag:site-1/*", ""},
		{"tag:site/*", "tag:site/*"},
		{"seen>2h", "seen>2h"},
		{"retired", "retired"},
	}
	for _, tt := range tests {
		t.Run(tt.query, func(t *testing.T) {
			q, err := fleet.ParseQuery(tt.query)
			if err != nil {
				t.Fatal(err)
			}
			term, ok := q.Match(d, offers, now)
			if ok != (tt.out == "") || term != tt.out {
				t.Errorf("Match = %q, %v; want kept out by %q", term, ok, tt.out)
			}
		})
	}
}

func TestQueryHidesRetired(t *testing.T) {
	at := time.Now()
	d := fleet.Device{ID: "a085e3112233", RetiredAt: &at}
	for query, want := range map[string]bool{"": false, "retired": true, "-retired": false} {
		q, err := fleet.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := q.Match(d, nil, at); ok != want {
			t.Errorf("%q matches a retired device: %v, want %v", query, ok, want)
		}
	}
}

func TestParseQueryErrors(t *testing.T) {
	tests := map[string]string{
		"colour:red":              `unknown field "colour"`,
		"board:":                  "board:bread-compact-wifi",
		"version<latest":          "version<2.4",
		"seen:2d":                 "seen>2d",
		"seen<99999999d":          "seen>2d",
		"board<x":                 "cannot be compared",
		`name:"open`:              "closing",
		"hold:yes":                "-hold",
		"a\x00b":                  "control character",
		strings.Repeat("a ", 600): "the limit is 1,024",
		strings.Repeat("a ", 40):  "40 terms",
	}
	for query, want := range tests {
		_, err := fleet.ParseQuery(query)
		refusal, _ := errors.AsType[*fleet.Error](err)
		if !errors.Is(err, fleet.ErrInvalid) || !strings.Contains(i18n.ErrorDetail(refusal), want) {
			t.Errorf("ParseQuery(%.40q) = %v, want %q", query, err, want)
		}
	}
}

func FuzzParseQuery(f *testing.F) {
	f.Add(`board:a,b -hold version<2.4 "x y" seen>2d`)
	f.Fuzz(func(t *testing.T, s string) {
		if q, err := fleet.ParseQuery(s); err == nil {
			q.Match(fleet.Device{ID: "a085e3112233", Version: s}, nil, time.Now())
		}
	})
}

func TestVersionsCompareByTheirKeys(t *testing.T) {
	versions := []string{"", "2", "2.4", "2.4.0", "2.4.1", "2.10", "2.4-beta", "x", "2.x", "2.", "99999999999", "2..1", "0"}
	for _, v := range versions {
		for _, w := range versions {
			key, other := fleet.VersionKey(v), fleet.VersionKey(w)
			q, err := fleet.ParseQuery("version<" + w)
			if other == nil || err != nil {
				continue
			}
			_, older := q.Match(fleet.Device{Version: v}, nil, time.Time{})
			if want := key != nil && slices.Compare(key, other) < 0; older != want {
				t.Errorf("%q < %q is %t, want %t", v, w, older, want)
			}
		}
	}
}
