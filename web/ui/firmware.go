package ui

import (
	"context"
	"net/url"
	"strconv"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

// The addresses of images and releases.
const (
	PathFirmware   = "/firmware"              // GET releases: state, limit, cursor
	PathImages     = "/firmware/images"       // GET images: chip, board, limit, cursor; POST file (repeated), board, notes
	PathReleases   = "/firmware/releases"     // POST image (repeated), version, notes, to
	PathReleaseNew = "/firmware/releases/new" // GET with image (repeated)
)

// ImagePath is the page of an image, or one of its acts: "edit", "revoke", "delete".
func ImagePath(sha256 string, parts ...string) string { return firmwarePath(PathImages, sha256, parts) }

// ReleasePath is the page of a release, or one of its parts: "edit", "state", "revoke".
func ReleasePath(id string, parts ...string) string { return firmwarePath(PathReleases, id, parts) }

func firmwarePath(path, id string, parts []string) string {
	path += "/" + url.PathEscape(id)
	for _, p := range parts {
		path += "/" + url.PathEscape(p)
	}
	return path
}

// NewReleasePath returns the form for a release of the images.
func NewReleasePath(sha256 ...string) string {
	return PathReleaseNew + "?" + url.Values{"image": sha256}.Encode()
}

// campaignURL returns the wizard with the release chosen.
func campaignURL(release string) string {
	return PathCampaignNew + "?" + url.Values{"release": {release}}.Encode()
}

// Running counts the devices of the fleet that run something.
type Running struct{ Count, Fleet int }

// width returns the share as the width of a bar of 100.
func (r Running) width() string {
	if r.Count == 0 || r.Fleet <= 0 {
		return "0"
	}
	return strconv.FormatFloat(max(1.5, 100*float64(min(r.Count, r.Fleet))/float64(r.Fleet)), 'f', 1, 64)
}

// A ReleasesPage lists releases: GET [PathFirmware].
type ReleasesPage struct {
	List   ListURL // with state
	Rows   []ReleaseRow
	Next   string
	Empty  bool // there is neither a release nor an image yet
	Upload UploadBox
	CanAct bool
}

// A ReleaseRow is one release in a list. A live stream sends it as a patch.
type ReleaseRow struct {
	ID        string
	Version   string
	Notes     string
	State     firmware.ReleaseState
	Images    []ImageRef
	Running   Running
	Campaigns int
	CreatedAt time.Time
	By        fleet.Principal
}

// An ImageRef identifies an image by the hardware that it is for.
type ImageRef struct {
	SHA256, Chip string
	Board        string // "" fits any board with the chip
	Version      string
	Size         int64
	Signed       Signed
	Revoked      bool
}

// Ref returns the reference of an image.
func Ref(i firmware.Image) ImageRef {
	return ImageRef{SHA256: i.SHA256, Chip: i.Chip, Board: i.Board, Version: i.Version, Size: i.Size,
		Signed: signedOf(i), Revoked: i.RevokedAt != nil}
}

// NewReleaseRow returns a release as a row.
func NewReleaseRow(r firmware.Release, running Running, campaigns int) ReleaseRow {
	row := ReleaseRow{ID: r.ID.String(), Version: r.Version, Notes: r.Notes, State: r.State, Running: running,
		Campaigns: campaigns, CreatedAt: r.CreatedAt, By: r.CreatedBy}
	for _, img := range r.Images {
		row.Images = append(row.Images, Ref(img))
	}
	return row
}

// shownRefs is the maximum number of images in a row; the others are counted.
const shownRefs = 3

func (r ReleaseRow) refs() []ImageRef { return r.Images[:min(len(r.Images), shownRefs)] }

// An ImagesPage lists images: GET [PathImages].
type ImagesPage struct {
	List   ListURL // with chip, board
	Rows   []ImageRow
	Next   string
	Chips  []string // filters on offer
	Empty  bool
	Upload UploadBox
	CanAct bool
}

// An ImageRow is one image in a list. A live stream sends it as a patch.
type ImageRow struct {
	ImageRef
	Project   string
	FileName  string
	ELFSHA256 string
	Running   Running
	CreatedAt time.Time
	CanAct    bool
	Withheld  string // why no device would get it today; "" if devices may
}

// NewImageRow returns an image as a row.
func NewImageRow(i firmware.Image, running Running, canAct bool) ImageRow {
	return ImageRow{ImageRef: Ref(i), Project: i.Project, FileName: i.FileName, ELFSHA256: i.ELFSHA256,
		Running: running, CreatedAt: i.CreatedAt, CanAct: canAct}
}

// Signed is the state of an image's signatures.
type Signed string

// From the least known to the most.
const (
	Unsigned      Signed = "unsigned"
	SignedBroken  Signed = "broken"  // a block whose own checks fail
	SignedUnknown Signed = "signed"  // by a key unknown to fleetd
	SignedTrusted Signed = "trusted" // by a key that fleetd was given
)

func signedOf(i firmware.Image) Signed {
	best := Unsigned
	for _, s := range i.Signatures {
		switch {
		case s.Valid && s.Trusted:
			return SignedTrusted
		case s.Valid:
			best = SignedUnknown
		case best == Unsigned:
			best = SignedBroken
		}
	}
	return best
}

var signedTones = map[Signed]tone{SignedTrusted: toneGood, SignedUnknown: toneBusy, SignedBroken: toneBad,
	Unsigned: toneNone}

var releaseTones = map[firmware.ReleaseState]tone{
	firmware.ReleaseDraft: toneNone, firmware.ReleaseReleased: toneGood, firmware.ReleaseDeprecated: toneWarn,
	firmware.ReleaseRevoked: toneBad,
}

// filters returns the states that a link selects.
func (v ReleasesPage) filters(ctx context.Context) []filterChip {
	chips := []filterChip{{Text: t(ctx, "firmware.all"), URL: v.List.With("state", ""), On: v.List.Get("state") == ""}}
	for _, s := range firmware.ReleaseStates {
		chips = append(chips, filterChip{Text: t(ctx, "firmware.release."+string(s)), URL: v.List.With("state", string(s)),
			On: v.List.Get("state") == string(s)})
	}
	return chips
}

func (v ImagesPage) filters(ctx context.Context) []filterChip {
	chips := []filterChip{{Text: t(ctx, "firmware.all"), URL: v.List.With("chip", ""), On: v.List.Get("chip") == ""}}
	for _, c := range v.Chips {
		chips = append(chips, filterChip{Text: c, URL: v.List.With("chip", c), On: v.List.Get("chip") == c})
	}
	return chips
}

// boardText returns the hardware that an image is for.
func (r ImageRef) boardText(ctx context.Context) string {
	if r.Board == "" {
		return t(ctx, "firmware.any_board", "chip", r.Chip)
	}
	return r.Board
}

// runningURL returns the list of the devices that run the build.
func runningURL(elf string) string { return QueryPath(Term("elf", elf)) }
