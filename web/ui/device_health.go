package ui

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/telemetry"
	"fleetd/web/i18n"
)

// A HealthPage is the health of a device as the included firmware reports it: GET DevicePath(id,
// "health") with range = "1h", "24h", "7d" or "30d".
type HealthPage struct {
	Head   DeviceHead
	Vitals DeviceVitals
	Trends HealthTrends
	Jobs   DeviceJobs
}

// DeviceVitals is the latest report of a device; a live stream sends it as a patch.
type DeviceVitals struct {
	Device    fleet.DeviceID
	Vitals    *telemetry.Vitals // nil if it never sent any
	Reports   bool              // its firmware sends reports
	Online    bool
	Collected bool          // the reported core dump has been fetched since
	Muted     bool          // its configuration turns heartbeats off
	Heartbeat time.Duration // interval of heartbeats
}

// overdue reports whether an online device has been silent for three heartbeats.
func (v DeviceVitals) overdue(ctx context.Context) bool {
	return v.Online && !v.Muted && page(ctx).Now.Sub(v.Vitals.At) > 3*max(v.Heartbeat, 10*time.Second)
}

// started returns when the device last started, according to its report.
func (v DeviceVitals) started() time.Time { return v.Vitals.At.Add(-v.Vitals.Uptime) }

// uptime grows while the device is online, because a restart would end its connection. A device
// that has just started has an uptime of one second.
func (v DeviceVitals) uptime(ctx context.Context) time.Duration {
	up := v.Vitals.Uptime
	if v.Online {
		up += max(0, page(ctx).Now.Sub(v.Vitals.At))
	}
	return max(up, time.Second)
}

func (v DeviceVitals) path(parts ...string) string { return DevicePath(v.Device, parts...) }

// known returns the text of a word of the firmware; ok is false for words of newer firmware, which
// are shown unchanged.
func known(ctx context.Context, key string) (text string, ok bool) {
	if !i18n.Has(key) {
		return "", false
	}
	return t(ctx, key), true
}

// signal returns a word for the quality of a device's reception.
func signal(rssi int) (key string, tn tone) {
	switch {
	case rssi >= -60:
		return "health.signal.good", toneGood
	case rssi >= -70:
		return "health.signal.fair", toneGood
	case rssi >= -80:
		return "health.signal.weak", toneWarn
	}
	return "health.signal.bad", toneBad
}

func dBm(ctx context.Context, rssi int) string { return i18n.DecibelMilliwatts(page(ctx).Lang, rssi) }

func celsius(ctx context.Context, degrees float64) string {
	return i18n.Celsius(page(ctx).Lang, degrees)
}

func count(ctx context.Context, n int64) string { return i18n.Number(page(ctx).Lang, n) }

// A stack is the part of a task's stack that was never used since the device's start.
type stack struct {
	task   string
	unused int64 // bytes
}

// scarce reports whether one more frame could overflow it: ESP-IDF recommends a reserve of a few
// hundred bytes.
func (s stack) scarce() bool { return s.unused < 512 }

// stacks returns the device's tasks, the one closest to overflow first.
func (v DeviceVitals) stacks() []stack {
	var all []stack
	for _, task := range slices.Sorted(maps.Keys(v.Vitals.Stacks)) {
		all = append(all, stack{shorten(task, 20), v.Vitals.Stacks[task]})
	}
	slices.SortStableFunc(all, func(a, b stack) int { return cmp.Compare(a.unused, b.unused) })
	return all
}
