package ui

import (
	"strings"

	"fleetd/fleet"
	"fleetd/fleet/telemetry"
)

// DeviceCrashes are the core dumps that a device left. A live stream replaces
// them whole.
type DeviceCrashes struct {
	Device fleet.DeviceID
	Dumps  []Crash // newest first
	Offers bool    // the device can be asked for one
	Waits  bool    // the device reports that it holds one
	CanAct bool
}

// A Crash is one core dump.
type Crash struct {
	telemetry.CoreDump
	Image  *ImageRef // of the build that crashed; nil if fleetd has none
	CanAct bool
}

// CoreDumpPath is a core dump: GET its "content", POST "delete".
func CoreDumpPath(id string, parts ...string) string {
	return strings.Join(append([]string{"/core-dumps", id}, parts...), "/")
}

func (v Crash) path(part string) string { return CoreDumpPath(v.ID.String(), part) }

// decode is the command that reads the core dump.
func (v Crash) decode() string {
	return "esp-coredump info_corefile --core " + v.FileName() + " --core-format raw app.elf"
}

// wholeBuild reports whether more than the beginning of the build's hash is known.
func (v Crash) wholeBuild() bool { return len(v.ELFSHA256) == 64 }
