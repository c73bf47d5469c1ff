package fleet_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetd/fleet"
	"fleetd/fleet/espimage"
)

func TestVersionWarnings(t *testing.T) {
	type ws = []fleet.VersionWarning
	for _, tt := range []struct {
		version string
		want    ws
	}{
		{"2.4.3", nil},
		{"0", nil},
		{"2.4.2.0", nil},
		{"1.2.3.4.5.6", nil},
		{"v1.0", ws{{fleet.VersionNoNumber, "v1", ""}}},
		{"latest", ws{{fleet.VersionNoNumber, "latest", ""}}},
		{"", ws{{fleet.VersionNoNumber, "", ""}}},
		{"2..4", ws{{fleet.VersionNoNumber, "", ""}}},
		{"2.4.", ws{{fleet.VersionNoNumber, "", ""}}},
		{"2.-4", ws{{fleet.VersionNoNumber, "-4", ""}}},
		{"2. 4", ws{{fleet.VersionNoNumber, " 4", ""}}},
		{"2.4.3-rc1", ws{{fleet.VersionSuffixIgnored, "3-rc1", "3"}}},
		{"2.4.3-rc.1", ws{{fleet.VersionSuffixIgnored, "3-rc", "3"}}},
		{"2.4.3+g1a2b", ws{{fleet.VersionSuffixIgnored, "3+g1a2b", "3"}}},
		{"2025-11-02", ws{{fleet.VersionSuffixIgnored, "2025-11-02", "2025"}, {fleet.VersionIsDate, "2025-11-02", "2025"}}},
		{"2025.11.02", ws{{fleet.VersionIsDate, "2025", "2025"}}},
		{"20251102", ws{{fleet.VersionIsDate, "20251102", "20251102"}}},
		{"20260808120000", ws{{fleet.VersionNumberTooLarge, "20260808120000", ""}}},
		{"1.99999999999999999999", ws{{fleet.VersionNumberTooLarge, "99999999999999999999", ""}}},
		{"1.2.3.4.5.6.7", ws{{fleet.VersionTooManyParts, "", ""}}},
		{"2.2026.1", nil},
		{"1234.5", nil},
	} {
		got := fleet.VersionWarnings(tt.version)
		if diff := cmp.Diff(ws(tt.want), got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tt.version, diff)
		}
	}
}

// What cannot be offered at a boot poll has a warning that says why.
func FuzzVersionWarnings(f *testing.F) {
	for _, v := range []string{"2.4.3", "v1", "2..4", "1234567890", "0000000001", "1.2.3.4.5.6.7", "2.4.3-rc1"} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, version string) {
		if espimage.LintVersion(version) != nil && len(fleet.VersionWarnings(version)) == 0 {
			t.Errorf("nothing is said of %q", version)
		}
	})
}
