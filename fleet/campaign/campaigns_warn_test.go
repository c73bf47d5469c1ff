package campaign

import (
	"slices"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

// If a device's own version cannot be compared, no image counts as newer.
func TestWarnNotComparable(t *testing.T) {
	for _, tt := range []struct {
		mode     firmware.DispatchMode
		versions []string
		want     string // detail; "" for no warning
	}{
		{firmware.ModeAuto, []string{"2.4.2", "2.3"}, ""},
		{firmware.ModeAuto, []string{"2.4.2", "v1.0", "2025-11-02", ""}, "3"},
		{firmware.ModePush, []string{"v1.0"}, ""},
	} {
		a := newPlanner(new(Service), [16]byte{}, Plan{Mode: tt.mode}, time.Now())
		for _, v := range tt.versions {
			a.target(new(Deployment), fleet.Device{Version: v}, firmware.Image{Version: "2.5.0"})
		}
		all := a.warnings(firmware.Release{})
		i := slices.IndexFunc(all, func(w PlanWarning) bool { return w.Code == WarnNotComparable })
		if got := i >= 0; got != (tt.want != "") || got && all[i].Detail != tt.want {
			t.Errorf("%s %v: %+v", tt.mode, tt.versions, all)
		}
	}
}
