package ui

import "fleetd/fleet/system"

// PathSystem is the page about this fleetd, for admins: GET.
const PathSystem = "/settings/system"

// A SystemPage shows how this fleetd runs, and what it is made of.
type SystemPage struct{ Report system.Report }

// freePercent is how much of a disk is free.
func freePercent(d system.Disk) int {
	if d.Total <= 0 {
		return 0
	}
	return int(d.Free * 100 / d.Total)
}

// diskTone marks a disk that is nearly full, as the alert about it does.
func diskTone(d system.Disk) tone {
	switch p := freePercent(d); {
	case p < 5:
		return toneBad
	case p < 10:
		return toneWarn
	}
	return toneGood
}
