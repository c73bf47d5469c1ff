package ui

import (
	"slices"
	"strings"
	"time"

	"fleetd/fleet/telemetry"
)

// Columns are the names of the columns of a device list that its reader chose, in the
// order in which they are shown. Presence and name are always shown, before them.
type Columns []string

// DefaultColumns are those of a reader who chose none.
var DefaultColumns = Columns{"board", "version", "tags", "seen"}

// A deviceColumn is a column that can be chosen. The list is sorted by those whose
// values are columns of the devices' table.
type deviceColumn struct {
	name string
	column
}

var deviceColumns = []deviceColumn{
	{"picture", column{"", "devices.col.picture", "col-picture"}},
	{"board", column{"board", "devices.col.board", "col-board"}},
	{"chip", column{"", "device.chip", "col-more"}},
	{"version", column{"version", "devices.col.version", "col-version"}},
	{"slot", column{"", "device.slot", "col-more"}},
	{"tags", column{"", "devices.col.tags", "col-tags"}},
	{"signal", column{"", "devices.col.signal", "col-more"}},
	{"heap", column{"", "devices.col.heap", "col-more"}},
	{"crash", column{"", "devices.col.crash", "col-more"}},
	{"ip", column{"", "device.address", "col-more"}},
	{"transport", column{"", "device.transport", "col-more"}},
	{"created", column{"created", "device.first_seen", "col-more"}},
	{"seen", column{"last_seen", "devices.col.last_seen", "col-seen"}},
}

// figures reports whether the column's digits are to line up.
func (c deviceColumn) figures() bool { return c.name == "version" || c.name == "seen" }

var (
	presenceColumn = column{"presence", "devices.col.presence", "col-presence"}
	nameColumn     = column{"name", "devices.col.name", "col-name"}
)

// ReadColumns reads names that are separated by commas. Unknown ones are left out.
func ReadColumns(names string) Columns {
	asked := strings.Split(names, ",")
	chosen := Columns{}
	for _, c := range deviceColumns {
		if slices.Contains(asked, c.name) {
			chosen = append(chosen, c.name)
		}
	}
	return chosen
}

// String is what [ReadColumns] reads.
func (c Columns) String() string { return strings.Join(c, ",") }

// Has reports whether one of the columns is chosen.
func (c Columns) Has(names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return slices.Contains(c, name) })
}

func (c Columns) chosen() []deviceColumn {
	if c == nil {
		c = DefaultColumns
	}
	var chosen []deviceColumn
	for _, d := range deviceColumns {
		if slices.Contains(c, d.name) {
			chosen = append(chosen, d)
		}
	}
	return chosen
}

// DeviceDetails is what a list shows of a device that is not kept with it.
type DeviceDetails struct {
	Vitals    *telemetry.Vitals // nil: it reported none, or no column shows any
	LastCrash *time.Time        // nil: none is known
	Picture   *Snapshot         // its latest; nil: none is kept
}

// address is the device's in its network, or else the one that it connects from.
func (d DeviceRow) address() string {
	if d.Vitals != nil && d.Vitals.IP != "" {
		return d.Vitals.IP
	}
	return d.RemoteAddr
}

// pictureKind says what the latest picture shows.
func (d DeviceRow) pictureKind() string {
	if d.Picture.Camera {
		return "devices.picture.camera"
	}
	return "devices.picture.screen"
}
