package firmware

import (
	"fleetd/fleet"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// FitDevice says which image of the release a device gets, or why it gets
// none: a stable reason, and a sentence for people. It changes nothing and
// looks at nothing but its arguments; what other campaigns, quarantines and
// tool inventories say comes on top.
//
// Reasons that stay come before those that pass, so that a device which can
// never take the image is not shown as held.
func FitDevice(d fleet.Device, r Release, o FitOptions, now time.Time) (Image, SkipReason, string) {
	if reason, detail := inService(d); reason != SkipNone {
		return Image{}, reason, detail
	}
	img, ok := r.ImageFor(d.Board, d.Chip)
	if !ok {
		return Image{}, SkipNoImage, fmt.Sprintf("release %s has no image for %s with %s", r.Version, orUnnamed(d.Board),
			d.Chip)
	}
	reason, detail := fitImage(d, img, o, now)
	return img, reason, detail
}

// FitImage is [FitDevice] for one image that was chosen by hand.
func FitImage(d fleet.Device, img Image, o FitOptions, now time.Time) (SkipReason, string) {
	if reason, detail := inService(d); reason != SkipNone {
		return reason, detail
	}
	if img.Board != "" && img.Board != d.Board {
		return SkipNoImage, fmt.Sprintf("the image is for %s, the device is a %s", img.Board, orUnnamed(d.Board))
	}
	return fitImage(d, img, o, now)
}

func orUnnamed(board string) string {
	if board == "" {
		return "a board without a name"
	}
	return board
}

func inService(d fleet.Device) (SkipReason, string) {
	switch {
	case d.RetiredAt != nil:
		return SkipRetired, ""
	case d.Enrolment != fleet.EnrolmentEnrolled:
		return SkipNotEnrolled, ""
	case d.Chip == "" || d.Layout == nil:
		return SkipUnknown, "no boot poll told its chip and partitions"
	}
	return SkipNone, ""
}

// fitImage judges an image for a device in service that is known.
func fitImage(d fleet.Device, img Image, o FitOptions, now time.Time) (SkipReason, string) {
	for _, rule := range []func(fleet.Device, Image) (SkipReason, string){fitChip, fitBuild, fitFlash, fitPartitions,
		fitRevoked} {
		if reason, detail := rule(d, img); reason != SkipNone {
			return reason, detail
		}
	}
	if reason, detail := fitVersion(d, img, o); reason != SkipNone {
		return reason, detail
	}
	if d.Hold.Active(now) {
		return SkipHeld, "held by " + d.Hold.By.Name + ": " + d.Hold.Reason
	}
	return SkipNone, ""
}

func fitChip(d fleet.Device, img Image) (SkipReason, string) {
	const anyRevision = 65535
	rev := d.Layout.ChipRev
	switch {
	case img.Chip != d.Chip:
		return SkipChip, fmt.Sprintf("the image is for %s, the device has %s", img.Chip, d.Chip)
	case rev != 0 && rev < int(img.MinChipRev):
		return SkipChipRevision, fmt.Sprintf("chip revision %s, the image needs %s", revision(rev),
			revision(int(img.MinChipRev)))
	case rev != 0 && img.MaxChipRev < anyRevision && rev > int(img.MaxChipRev):
		return SkipChipRevision, fmt.Sprintf("chip revision %s, the image takes up to %s", revision(rev),
			revision(int(img.MaxChipRev)))
	}
	return SkipNone, ""
}

func revision(n int) string { return fmt.Sprintf("v%d.%d", n/100, n%100) }

func fitBuild(d fleet.Device, img Image) (SkipReason, string) {
	if img.ELFSHA256 != "" && img.ELFSHA256 == d.ELFSHA256 {
		return SkipInstalled, "runs " + d.Version
	}
	return SkipNone, ""
}

func fitFlash(d fleet.Device, img Image) (SkipReason, string) {
	slot := d.Layout.SlotSize
	switch {
	case slot <= 0:
		return SkipNoSlot, "its flash has no OTA slot"
	case img.Size > slot:
		return SkipTooLarge, fmt.Sprintf("slot of %s KiB, image of %s KiB", thousands(slot/1024),
			thousands((img.Size+1023)/1024))
	}
	return SkipNone, ""
}

func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// fitPartitions keeps stock firmware 2.x off flash that was laid out for 1.x:
// an upgrade over the air moves no partitions, and 2.x looks for its fonts and
// sounds in one of its own (protocol 7.2). A device that runs 2.x without it
// was built to.
func fitPartitions(d fleet.Device, img Image) (SkipReason, string) {
	const project, assets = "xiaozhi", "assets"
	labels := d.Layout.Labels
	if img.Project != project || major(img.Version) < 2 || major(d.Version) >= 2 || len(labels) == 0 ||
		slices.Contains(labels, assets) {
		return SkipNone, ""
	}
	return SkipPartitions, fmt.Sprintf("%s needs a partition named %s; the device has %s", img.Version, assets,
		strings.Join(labels, ", "))
}

// major is the first number of a version, -1 if it has none.
func major(version string) int64 {
	if key := fleet.VersionKey(version); key != nil {
		return key[0]
	}
	return -1
}

func fitRevoked(_ fleet.Device, img Image) (SkipReason, string) {
	if img.RevokedAt != nil {
		return SkipRevoked, img.RevokeReason
	}
	return SkipNone, ""
}

// fitVersion: a push compares nothing on the device, a boot poll's offer does.
// Where the versions cannot be compared, nobody knows which is older.
func fitVersion(d fleet.Device, img Image, o FitOptions) (SkipReason, string) {
	if o.Mode == ModePull {
		for _, v := range []string{img.Version, d.Version} {
			if !fleet.ComparableVersion(v) {
				return SkipVersion, fmt.Sprintf("comparing the version %.40q at boot would crash the device", v)
			}
		}
	}
	has, gets := fleet.VersionKey(d.Version), fleet.VersionKey(img.Version)
	if o.AllowDowngrade || has == nil || gets == nil {
		return SkipNone, ""
	}
	switch c := slices.Compare(has, gets); {
	case c > 0:
		return SkipNewer, fmt.Sprintf("runs %s, newer than %s", d.Version, img.Version)
	case c == 0:
		return SkipNewer, fmt.Sprintf("runs another build of %s", d.Version)
	}
	return SkipNone, ""
}

// DispatchMode says how a device is told of its new firmware.
type DispatchMode string

const (
	ModeAuto DispatchMode = "auto" // push if the device is online and offers the tool, else pull
	ModePush DispatchMode = "push" // tools/call self.upgrade_firmware
	ModePull DispatchMode = "pull" // an offer in the answer to its next boot poll
)

// FitOptions are the parts of a plan that decide who fits.
type FitOptions struct {
	Mode           DispatchMode
	AllowDowngrade bool
}
