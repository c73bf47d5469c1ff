package firmware_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetd/fleet/espimage"
	"fleetd/fleet/firmware"
)

func TestVersionWarnings(t *testing.T) {
	type ws = []firmware.VersionWarning
	for _, tt := range []struct {
		version string
		want    ws
	}{
		{"2.4.3", nil},
		{"0", nil},
		{"2.4.2.0", nil},
		{"1.2.3.4.5.6", nil},
		{"v1.0", ws{{firmware.VersionNoNumber, "v1", ""}}},
		{"latest", ws{{firmware.VersionNoNumber, "latest", ""}}},
		{"", ws{{firmware.VersionNoNumber, "", ""}}},
		{"2..4", ws{{firmware.VersionNoNumber, "", ""}}},
		{"2.4.", ws{{firmware.VersionNoNumber, "", ""}}},
		{"2.-4", ws{{firmware.VersionNoNumber, "-4", ""}}},
		{"2. 4", ws{{firmware.VersionNoNumber, " 4", ""}}},
		{"2.4.3-rc1", ws{{firmware.VersionSuffixIgnored, "3-rc1", "3"}}},
		{"2.4.3-rc.1", ws{{firmware.VersionSuffixIgnored, "3-rc", "3"}}},
		{"2.4.3+g1a2b", ws{{firmware.VersionSuffixIgnored, "3+g1a2b", "3"}}},
		{"2025-11-02", ws{{firmware.VersionSuffixIgnored, "2025-11-02", "2025"}, {firmware.VersionIsDate, "2025-11-02",
			"2025"}}},
		{"2025.11.02", ws{{firmware.VersionIsDate, "2025", "2025"}}},
		{"20251102", ws{{firmware.VersionIsDate, "20251102", "20251102"}}},
		{"20260808120000", ws{{firmware.VersionNumberTooLarge, "20260808120000", ""}}},
		{"1.99999999999999999999", ws{{firmware.VersionNumberTooLarge, "99999999999999999999", ""}}},
		{"1.2.3.4.5.6.7", ws{{firmware.VersionTooManyParts, "", ""}}},
		{"2.2026.1", nil},
		{"1234.5", nil},
	} {
		got := firmware.VersionWarnings(tt.version)
		if diff := cmp.Diff(ws(tt.want), got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tt.version, diff)
		}
	}
}

// If an image cannot be offered at a boot poll, a warning says why.
func FuzzVersionWarnings(f *testing.F) {
	for _, v := range []string{"2.4.3", "v1", "2..4", "1234567890", "0000000001", "1.2.3.4.5.6.7", "2.4.3-rc1"} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, version string) {
		if espimage.LintVersion(version) != nil && len(firmware.VersionWarnings(version)) == 0 {
			t.Errorf("nothing is said of %q", version)
		}
	})
}
