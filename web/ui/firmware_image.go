package ui

import (
	"context"
	"strconv"

	"fleetd/fleet/firmware"
	"fleetd/web/i18n"
)

// A FirmwareImagePage is one image: GET [ImagePath]. Its forms post to its
// "edit" with board and notes, "revoke" with reason and confirm = its version,
// and "delete".
type FirmwareImagePage struct {
	Withheld  string // why no device would get it today; "" if devices may
	Image     firmware.Image
	Releases  []ReleaseRef
	Adoption  Adoption
	Boards    []string // of devices with the image's chip: suggestions for the board
	Fit       FitView
	CanAct    bool
	CanRevoke bool
	Fault     Fault // why an edit was rejected

	ManifestFault Fault // why a manifest was rejected: POST its "manifest" with a file of that name
	Blank         LayoutCard
}

// A ReleaseRef identifies a release.
type ReleaseRef struct {
	ID, Version string
	State       firmware.ReleaseState
}

// title returns the image's version and the hardware that it is for.
func (v FirmwareImagePage) title(ctx context.Context) string {
	return t(ctx, "firmware.image_title", "version", v.Image.Version, "board", Ref(v.Image).boardText(ctx))
}

func (v FirmwareImagePage) path(parts ...string) string { return ImagePath(v.Image.SHA256, parts...) }

// chipRevision formats a chip's revision as major and minor.
func chipRevision(full uint16) string {
	return "v" + strconv.Itoa(int(full/100)) + "." + strconv.Itoa(int(full%100))
}

// noMaxRevision is the value in an image that accepts any later silicon.
const noMaxRevision = 65535

func (v FirmwareImagePage) revisions(ctx context.Context) string {
	if v.Image.MaxChipRev == noMaxRevision || v.Image.MaxChipRev == 0 {
		return t(ctx, "firmware.rev_from", "min", chipRevision(v.Image.MinChipRev))
	}
	return t(ctx, "firmware.rev_range", "min", chipRevision(v.Image.MinChipRev), "max", chipRevision(v.Image.MaxChipRev))
}

// exactBytes formats a size to the byte.
func exactBytes(ctx context.Context, n int64) string {
	return t(ctx, "firmware.bytes", "n", n)
}

func percentText(ctx context.Context, share float64) string {
	return i18n.Percent(page(ctx).Lang, share)
}
