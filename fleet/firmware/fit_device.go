package firmware

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"fleetd/fleet"
)

// FitDevice returns the image of the release that a device gets, or why it gets no image: a
// stable reason, and a code of [Reasons] that explains it. It changes nothing and depends only
// on its arguments; the caller adds other campaigns, quarantines and tool inventories.
//
// Permanent reasons come before temporary ones: a device that can never accept the image is not
// shown as temporarily skipped.
func FitDevice(d fleet.Device, r Release, o FitOptions, now time.Time) (Image, SkipReason, fleet.Reason) {
	if reason, detail := inService(d); reason != SkipNone {
		return Image{}, reason, detail
	}
	img, ok := r.ImageFor(d.Board, d.Chip)
	if !ok {
		return Image{}, SkipNoImage, fleet.Because(FitRelease, "version", r.Version, "board", boardOf(d), "chip", d.Chip)
	}
	reason, detail := fitImage(d, img, o, now)
	return img, reason, detail
}

// FitImage is [FitDevice] for one image chosen by an operator.
func FitImage(d fleet.Device, img Image, o FitOptions, now time.Time) (SkipReason, fleet.Reason) {
	if reason, detail := inService(d); reason != SkipNone {
		return reason, detail
	}
	if img.Board != "" && img.Board != d.Board {
		return SkipNoImage, fleet.Because(FitBoard, "board", img.Board, "other", boardOf(d))
	}
	return fitImage(d, img, o, now)
}

// boardOf returns the name of the device's board, or a reason if the board has no name.
func boardOf(d fleet.Device) any {
	if d.Board == "" {
		return fleet.Because(FitUnnamedBoard)
	}
	return d.Board
}

func inService(d fleet.Device) (SkipReason, fleet.Reason) {
	switch {
	case d.RetiredAt != nil:
		return SkipRetired, fleet.Reason{}
	case !d.IsBoard():
		return SkipProgram, fleet.Reason{}
	case d.Enrolment != fleet.EnrolmentEnrolled:
		return SkipNotEnrolled, fleet.Reason{}
	case d.Chip == "" || d.Layout == nil:
		return SkipUnknown, fleet.Because(FitUnknown)
	}
	return SkipNone, fleet.Reason{}
}

// fitImage checks an image for a device in service that has reported its facts.
func fitImage(d fleet.Device, img Image, o FitOptions, now time.Time) (SkipReason, fleet.Reason) {
	for _, rule := range []func(fleet.Device, Image) (SkipReason, fleet.Reason){fitChip, fitBuild, fitFlash, fitPartitions,
		fitRevoked} {
		if reason, detail := rule(d, img); reason != SkipNone {
			return reason, detail
		}
	}
	if reason, detail := fitLimits(d, img, o.Limits); reason != SkipNone {
		return reason, detail
	}
	if reason, detail := fitVersion(d, img, o); reason != SkipNone {
		return reason, detail
	}
	if d.Hold.Active(now) {
		return SkipHeld, fleet.Because(FitHeld, "name", d.Hold.By.Name, "detail", d.Hold.Reason)
	}
	return SkipNone, fleet.Reason{}
}

func fitChip(d fleet.Device, img Image) (SkipReason, fleet.Reason) {
	const anyRevision = 65535
	rev := d.Layout.ChipRev
	switch {
	case img.Chip != d.Chip:
		return SkipChip, fleet.Because(FitChip, "chip", img.Chip, "other", d.Chip)
	case rev != 0 && rev < int(img.MinChipRev):
		return SkipChipRevision, fleet.Because(FitRevisionMin, "revision", revision(rev), "least",
			revision(int(img.MinChipRev)))
	case rev != 0 && img.MaxChipRev < anyRevision && rev > int(img.MaxChipRev):
		return SkipChipRevision, fleet.Because(FitRevisionMax, "revision", revision(rev), "highest",
			revision(int(img.MaxChipRev)))
	}
	return SkipNone, fleet.Reason{}
}

func revision(n int) string { return fmt.Sprintf("v%d.%d", n/100, n%100) }

func fitBuild(d fleet.Device, img Image) (SkipReason, fleet.Reason) {
	if img.ELFSHA256 != "" && img.ELFSHA256 == d.ELFSHA256 {
		return SkipInstalled, fleet.Because(FitRuns, "version", d.Version)
	}
	return SkipNone, fleet.Reason{}
}

func fitFlash(d fleet.Device, img Image) (SkipReason, fleet.Reason) {
	slot := d.Layout.SlotSize
	switch {
	case slot <= 0:
		return SkipNoSlot, fleet.Because(FitNoSlot)
	case img.Size > slot:
		return SkipTooLarge, fleet.Because(FitSlot, "slot_kib", slot/1024, "image_kib", (img.Size+1023)/1024)
	}
	return SkipNone, fleet.Reason{}
}

// fitPartitions keeps stock firmware 2.x off flash that was laid out for 1.x:
// an upgrade over the air moves no partitions, and 2.x looks for its fonts and
// sounds in a partition that 1.x lacks (protocol 7.2). A device that runs 2.x without it
// was built to.
func fitPartitions(d fleet.Device, img Image) (SkipReason, fleet.Reason) {
	const project, assets = "xiaozhi", "assets"
	labels := d.Layout.Labels
	if img.Project != project || major(img.Version) < 2 || major(d.Version) >= 2 || len(labels) == 0 ||
		slices.Contains(labels, assets) {
		return SkipNone, fleet.Reason{}
	}
	return SkipPartitions, fleet.Because(FitPartition, "version", img.Version, "name", assets, "labels",
		strings.Join(labels, ", "))
}

// major returns the first number of a version, -1 if it has no number.
func major(version string) int64 {
	if key := fleet.VersionKey(version); key != nil {
		return key[0]
	}
	return -1
}

func fitRevoked(_ fleet.Device, img Image) (SkipReason, fleet.Reason) {
	if img.RevokedAt != nil {
		return SkipRevoked, fleet.Because(FitRevoked, "detail", img.RevokeReason)
	}
	return SkipNone, fleet.Reason{}
}

// fitLimits rejects images that may not be used now, and images below the minimum version of
// the device's board.
func fitLimits(d fleet.Device, img Image, l Limits) (SkipReason, fleet.Reason) {
	if why := l.Withheld[img.SHA256]; !why.Is("") {
		return SkipWithheld, fleet.Because(FitWithheld, "cause", why)
	}
	for _, board := range []string{img.Board, d.Board} {
		if why := l.belowFloor(board, img.Version); !why.Is("") {
			return SkipFloor, fleet.Because(FitFloor, "version", img.Version, "board", board,
				"least", l.Floors[board])
		}
	}
	return SkipNone, fleet.Reason{}
}

// fitVersion compares versions: a device does not compare them on a push, but does for the
// offer of a boot poll. If the versions cannot be compared, it is unknown which is older.
func fitVersion(d fleet.Device, img Image, o FitOptions) (SkipReason, fleet.Reason) {
	if o.Mode == ModePull {
		for _, v := range []string{img.Version, d.Version} {
			if !fleet.ComparableVersion(v) {
				return SkipVersion, fleet.Because(FitIncomparable, "version", v)
			}
		}
	}
	has, gets := fleet.VersionKey(d.Version), fleet.VersionKey(img.Version)
	if o.AllowDowngrade || has == nil || gets == nil {
		return SkipNone, fleet.Reason{}
	}
	switch c := slices.Compare(has, gets); {
	case c > 0:
		return SkipNewer, fleet.Because(FitNewer, "version", d.Version, "other", img.Version)
	case c == 0:
		return SkipNewer, fleet.Because(FitOtherBuild, "version", d.Version)
	}
	return SkipNone, fleet.Reason{}
}

// DispatchMode is the way a device is notified of its new firmware.
type DispatchMode string

const (
	ModeAuto DispatchMode = "auto" // push if the device is online and offers the tool, else pull
	ModePush DispatchMode = "push" // tools/call self.upgrade_firmware
	ModePull DispatchMode = "pull" // an offer in the answer to its next boot poll
)

// FitOptions are the parts of a plan that decide which devices fit.
type FitOptions struct {
	Mode           DispatchMode
	AllowDowngrade bool
	Limits         Limits // zero: every image may be used
}
