package ui

import (
	"slices"

	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

// A FirmwareReleasePage is one release: GET [ReleasePath]. Its forms post to
// "state" with to and reason, and to "revoke" with reason and confirm = the version.
type FirmwareReleasePage struct {
	Release   firmware.Release
	Running   map[string]int      // devices by the build they run
	Campaigns []campaign.Campaign // that used it, newest first
	Spread    AdoptionChart       // of its version in the last 30 days
	Adoption  Adoption
	Fit       FitView
	CanAct    bool
	CanRevoke bool
}

func (v FirmwareReleasePage) id() string { return v.Release.ID.String() }

func (v FirmwareReleasePage) path(parts ...string) string { return ReleasePath(v.id(), parts...) }

// open reports whether the release can still be withdrawn.
func (v FirmwareReleasePage) open() bool { return v.Release.State != firmware.ReleaseRevoked }

// A ReleaseFormPage creates a release, or changes a draft: GET [PathReleaseNew] with image
// (repeated), POST [PathReleases]; GET and POST ReleasePath(id, "edit"). Fields: image (repeated),
// version, notes, to ("draft", "released").
type ReleaseFormPage struct {
	ID      string     // of the draft; "" for a new one
	Images  []ImageRow // choices, newest first
	Chosen  []string   // SHA-256
	Version string
	Notes   string
	Fault   Fault // why it was rejected
	More    bool  // there are older images
}

func (v ReleaseFormPage) chosen(sha256 string) bool { return slices.Contains(v.Chosen, sha256) }

func (v ReleaseFormPage) action() string {
	if v.ID == "" {
		return PathReleases
	}
	return ReleasePath(v.ID, "edit")
}

// versions returns the versions of the images on offer, newest image first.
func (v ReleaseFormPage) versions() (all []string) {
	for _, i := range v.Images {
		if !slices.Contains(all, i.Version) {
			all = append(all, i.Version)
		}
	}
	return all
}

func (v ReleaseFormPage) of(version string) (rows []ImageRow) {
	for _, i := range v.Images {
		if i.Version == version {
			rows = append(rows, i)
		}
	}
	return rows
}

// oddVersions returns images of the release whose version boards read differently, one for each
// version.
func (v FirmwareReleasePage) oddVersions() (odd []firmware.Image) {
	for _, i := range v.Release.Images {
		known := slices.ContainsFunc(odd, func(o firmware.Image) bool { return o.Version == i.Version })
		if !known && len(i.VersionWarnings()) > 0 {
			odd = append(odd, i)
		}
	}
	return odd
}
