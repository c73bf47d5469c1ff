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
	Withheld  string // why no device would get it today; "" if they may
	Image     firmware.Image
	Releases  []ReleaseRef
	Adoption  Adoption
	Boards    []string // of devices with the image's chip, offered for the board
	Fit       FitView
	CanAct    bool
	CanRevoke bool
	Fault     Fault // why an edit was not accepted

	ManifestFault Fault // why a manifest was not accepted: POST its "manifest" with a file of that name
	Blank         LayoutCard
}

// A ReleaseRef names a release.
type ReleaseRef struct {
	ID, Version string
	State       firmware.ReleaseState
}

// title is what the image is called: its version and what it is for.
func (v FirmwareImagePage) title(ctx context.Context) string {
	return t(ctx, "firmware.image_title", "version", v.Image.Version, "board", Ref(v.Image).boardText(ctx))
}

func (v FirmwareImagePage) path(parts ...string) string { return ImagePath(v.Image.SHA256, parts...) }

// A chip's revision is written as major and minor.
func chipRevision(full uint16) string {
	return "v" + strconv.Itoa(int(full/100)) + "." + strconv.Itoa(int(full%100))
}

// noMaxRevision is what an image says that takes any later silicon.
const noMaxRevision = 65535

func (v FirmwareImagePage) revisions(ctx context.Context) string {
	if v.Image.MaxChipRev == noMaxRevision || v.Image.MaxChipRev == 0 {
		return t(ctx, "firmware.rev_from", "min", chipRevision(v.Image.MinChipRev))
	}
	return t(ctx, "firmware.rev_range", "min", chipRevision(v.Image.MinChipRev), "max", chipRevision(v.Image.MaxChipRev))
}

// exactBytes is a size to the byte.
func exactBytes(ctx context.Context, n int64) string {
	return t(ctx, "firmware.bytes", "n", n)
}

func percentText(ctx context.Context, share float64) string {
	return i18n.Percent(page(ctx).Lang, share)
}
