package ui

import (
	"strings"

	"fleetd/fleet"
	"fleetd/fleet/telemetry"
)

// DeviceCrashes are the core dumps of a device. A live stream replaces them as a whole.
type DeviceCrashes struct {
	Device fleet.DeviceID
	Dumps  []Crash // newest first
	Offers bool    // fleetd can request one from the device
	Waits  bool    // the device reports that it has one
	CanAct bool
}

// A Crash is one core dump.
type Crash struct {
	telemetry.CoreDump
	Image  *ImageRef // of the build that crashed; nil if fleetd does not have it
	CanAct bool
}

// CoreDumpPath is a core dump: GET its "content", POST "delete".
func CoreDumpPath(id string, parts ...string) string {
	return strings.Join(append([]string{"/core-dumps", id}, parts...), "/")
}

func (v Crash) path(part string) string { return CoreDumpPath(v.ID.String(), part) }

// decode returns the command that decodes the core dump.
func (v Crash) decode() string {
	return "esp-coredump info_corefile --core " + v.FileName() + " --core-format raw app.elf"
}

// wholeBuild reports whether the whole hash of the build is known.
func (v Crash) wholeBuild() bool { return len(v.ELFSHA256) == 64 }
