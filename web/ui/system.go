package ui

import "fleetd/fleet/system"

// PathSystem is the page about this fleetd, for admins: GET.
const PathSystem = "/settings/system"

// A SystemPage shows the state of this fleetd, and its components.
type SystemPage struct{ Report system.Report }

// freePercent returns the free part of a disk, in percent.
func freePercent(d system.Disk) int {
	if d.Total <= 0 {
		return 0
	}
	return int(d.Free * 100 / d.Total)
}

// diskTone marks a nearly full disk, with the same limit as the alert.
func diskTone(d system.Disk) tone {
	switch p := freePercent(d); {
	case p < 5:
		return toneBad
	case p < 10:
		return toneWarn
	}
	return toneGood
}
