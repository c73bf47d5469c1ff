package ui

import (
	"context"

	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

// A manifestState says whose word stands behind an image's manifest.
type manifestState string

const (
	manifestNone      manifestState = "none"
	manifestUnchecked manifestState = "unchecked" // this server has no key to hold it against
	manifestChecked   manifestState = "checked"   // with a key that the server was given
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

// reasonText says why a deployment failed or what it waits for. The device's
// own sentence is marked as such.
func reasonText(ctx context.Context, reason string) string {
	if words, ok := campaign.DeviceWords(reason); ok {
		return t(ctx, "campaign.device_says", "words", words)
	}
	return said(ctx, reason)
}
