package campaign

import (
	"fmt"
	"time"

	"fleetd/fleet/firmware"
)

// The codes of a [PlanWarning].
const (
	WarnDraftRelease  = "release_is_draft"
	WarnBoardUnstated = "board_not_stated" // the image is for every board with its chip
	WarnUnsigned      = "unsigned"         // while keys are loaded
	WarnWithheld      = "image_withheld"   // it may not be used now: see [firmware.Checker]
	WarnSingleWave    = "single_wave"
	WarnOffline       = "mostly_offline"
	WarnNoWindow      = "no_window" // no window opens between start and end
	WarnPushOnly      = "push_only" // a boot poll may not offer this version
	// WarnNotComparable counts devices whose own version cannot be compared: they never regard
	// the image as newer, so no boot poll may offer it.
	WarnNotComparable = "device_version_not_comparable"
	// WarnRolledBack counts devices that installed the build before but did not keep it: the
	// campaign tries it on them again.
	WarnRolledBack = "rolled_back_before"
)

// singleWaveFrom is the audience size from which a single wave causes a warning.
const singleWaveFrom = 20

func (a *planner) warnings(r firmware.Release) []PlanWarning {
	var all []PlanWarning
	warn := func(code, format string, args ...any) {
		all = append(all, PlanWarning{code, fmt.Sprintf(format, args...)})
	}
	if r.State == firmware.ReleaseDraft {
		warn(WarnDraftRelease, "%s", r.Version)
	}
	for _, use := range sortedByCount(a.images, func(i *PlannedImage) int { return i.Count }) {
		img := use.Image
		if img.Board == "" {
			warn(WarnBoardUnstated, "%s", img.Chip)
		}
		if a.s.o.Signed && len(img.Signatures) == 0 {
			warn(WarnUnsigned, "%.12s", img.SHA256)
		}
		if img.NotOfferable != "" && a.plan.Mode == firmware.ModeAuto {
			warn(WarnPushOnly, "%s", img.NotOfferable)
		}
	}
	for _, img := range r.Images {
		if !a.limits.Why(img, "").Is("") {
			warn(WarnWithheld, "%.12s", img.SHA256)
		}
	}
	if a.incomparable > 0 && a.plan.Mode == firmware.ModeAuto {
		warn(WarnNotComparable, "%d", a.incomparable)
	}
	if a.rolledBack > 0 {
		warn(WarnRolledBack, "%d", a.rolledBack)
	}
	if n := len(a.targets); n >= singleWaveFrom && len(a.plan.Waves) == 1 {
		warn(WarnSingleWave, "%d", n)
	}
	if n := len(a.targets); n > 0 && 2*a.offline > n {
		warn(WarnOffline, "%d/%d", a.offline, n)
	}
	if a.firstDispatch() == nil {
		warn(WarnNoWindow, "")
	}
	return all
}

// firstDispatch returns when the first device could be notified, in the fleet's zone.
func (a *planner) firstDispatch() *time.Time {
	from := a.now
	if start := a.plan.StartAt; start != nil && start.After(from) {
		from = *start
	}
	if len(a.plan.Windows) > 0 {
		next, ok := NextWindow(a.plan.Windows, a.s.o.Zone, from, a.longestDownload())
		if !ok {
			return nil
		}
		from = next
	}
	if a.plan.EndAt != nil && !from.Before(*a.plan.EndAt) {
		return nil
	}
	return &from
}

func (a *planner) longestDownload() time.Duration {
	var size int64
	for _, use := range a.images {
		size = max(size, use.Image.Size)
	}
	return ExpectedDuration(size)
}

// expectedMinimumSpeed is the lowest download speed of stock boards in the field, in bytes per second.
const expectedMinimumSpeed = 32 << 10

// ExpectedDuration returns how long an upgrade takes on a device in the field: a download at
// the lowest expected speed, and the time for two restarts.
func ExpectedDuration(size int64) time.Duration {
	return time.Duration(size)*time.Second/expectedMinimumSpeed + 40*time.Second
}

// estimate adds up what the waves take when nothing goes wrong.
func (a *planner) estimate(waves []Wave) time.Duration {
	if len(a.targets) == 0 {
		return 0
	}
	var total time.Duration
	each := a.longestDownload()
	for _, w := range waves {
		rounds := (w.Size + a.plan.MaxInFlight - 1) / a.plan.MaxInFlight
		took := time.Duration(rounds) * each
		if a.plan.MaxPerMinute > 0 {
			took = max(took, time.Duration(w.Size)*time.Minute/time.Duration(a.plan.MaxPerMinute))
		}
		total += took + w.Plan.Soak
	}
	return total.Round(time.Second)
}
