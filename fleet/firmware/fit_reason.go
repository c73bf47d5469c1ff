package firmware

// SkipReason is the stable code of why a device does not fit.
type SkipReason string

const (
	SkipNone             SkipReason = ""
	SkipInstalled        SkipReason = "already_installed" // runs this very build
	SkipNoImage          SkipReason = "no_image"          // the release has none for its board and chip
	SkipChip             SkipReason = "wrong_chip"        // an operator chose an image for another chip
	SkipChipRevision     SkipReason = "wrong_chip_rev"    // outside the image's range of chip revisions
	SkipNoSlot           SkipReason = "no_ota_slot"       // 4 MB boards with a single app
	SkipTooLarge         SkipReason = "too_large"         // for its smallest OTA slot
	SkipPartitions       SkipReason = "partitions_differ" // a 2.x image on a 1.x flash layout
	SkipHeld             SkipReason = "held"
	SkipNotEnrolled      SkipReason = "not_enrolled"
	SkipRetired          SkipReason = "retired"
	SkipProgram          SkipReason = "not_a_board"        // it asks no boot poll
	SkipBusy             SkipReason = "busy"               // belongs to another campaign
	SkipVersion          SkipReason = "unparsable_version" // pull only: its own or the image's version would crash it
	SkipNewer            SkipReason = "newer_installed"    // and the plan allows no downgrade
	SkipUnknown          SkipReason = "no_facts"           // never reported its facts
	SkipQuarantined      SkipReason = "quarantined"        // failed too often recently
	SkipNoTool           SkipReason = "no_upgrade_tool"    // push only: offers no self.upgrade_firmware
	SkipNoEarlier        SkipReason = "no_earlier_image"   // rollback: its earlier build is not stored here
	SkipUnhealthy        SkipReason = "unhealthy_before"   // failed the health checks before the upgrade
	SkipRevoked          SkipReason = "image_revoked"
	SkipWithheld         SkipReason = "image_withheld"   // it may not be used now: see [Checker]
	SkipFloor            SkipReason = "below_floor"      // older than the minimum version of its board
	SkipUnapproved       SkipReason = "not_approved"     // the plan that was approved does not name its image
	SkipSecureVersion    SkipReason = "secure_version"   // older than its anti-rollback fuse allows
	SkipSuperseded       SkipReason = "superseded"       // the device moved to another campaign
	SkipAudienceTooLarge SkipReason = "over_max_devices" // continuous: the cap was reached
	SkipOutOfScope       SkipReason = "out_of_scope"     // the creator of the campaign may not update it now
)

// SkipReasons lists every reason, in the order they are shown.
var SkipReasons = []SkipReason{SkipInstalled, SkipNoImage, SkipChip, SkipChipRevision, SkipNoSlot, SkipTooLarge,
	SkipPartitions,
	SkipHeld, SkipNotEnrolled, SkipRetired, SkipProgram, SkipBusy, SkipVersion, SkipNewer, SkipUnknown, SkipQuarantined,
	SkipNoTool,
	SkipNoEarlier, SkipUnhealthy, SkipRevoked, SkipWithheld, SkipFloor, SkipUnapproved, SkipSecureVersion,
	SkipSuperseded, SkipAudienceTooLarge, SkipOutOfScope}

// Passes reports whether the reason is temporary: the image would fit the device as it is.
func (r SkipReason) Passes() bool {
	switch r {
	case SkipHeld, SkipBusy, SkipQuarantined, SkipUnhealthy, SkipSuperseded, SkipAudienceTooLarge, SkipOutOfScope:
		return true
	}
	return false
}
