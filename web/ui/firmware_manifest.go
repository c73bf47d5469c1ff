package ui

import "fleetd/fleet/firmware"

// A manifestState is whether an image has a manifest, and whether its signature was checked.
type manifestState string

const (
	manifestNone      manifestState = "none"
	manifestUnchecked manifestState = "unchecked" // this server has no key to check it with
	manifestChecked   manifestState = "checked"   // with a key of the server
)

func manifestOf(i firmware.Image) manifestState {
	switch {
	case i.Manifest == "":
		return manifestNone
	case i.ManifestChecked:
		return manifestChecked
	}
	return manifestUnchecked
}

var manifestTones = map[manifestState]tone{manifestNone: toneNone, manifestUnchecked: toneBusy,
	manifestChecked: toneGood}
