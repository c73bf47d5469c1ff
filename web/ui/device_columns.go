package ui

import (
	"slices"
	"strings"
	"time"

	"fleetd/fleet/telemetry"
)

// Columns are the names of the columns that the viewer chose for a device list, in their order.
// Presence and name are always shown, before them.
type Columns []string

// DefaultColumns are the columns of a viewer who chose none.
var DefaultColumns = Columns{"board", "version", "tags", "seen"}

// A deviceColumn is a column that can be chosen. Lists can be sorted by columns whose values are
// columns of the devices' table.
type deviceColumn struct {
	name string
	column
}

var deviceColumns = []deviceColumn{
	{"picture", column{"", "devices.col.picture", "col-picture"}},
	{"board", column{"board", "devices.col.board", "col-board"}},
	{"kind", column{"", "devices.col.kind", "col-more"}},
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

// figures reports whether the column's digits are aligned.
func (c deviceColumn) figures() bool { return c.name == "version" || c.name == "seen" }

var (
	presenceColumn = column{"presence", "devices.col.presence", "col-presence"}
	nameColumn     = column{"name", "devices.col.name", "col-name"}
)

// ReadColumns reads names separated by commas. It ignores unknown ones.
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

// String returns the format that [ReadColumns] reads.
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

// DeviceDetails are the facts in a list that are stored outside of the devices' table.
type DeviceDetails struct {
	Vitals    *telemetry.Vitals // nil: it reported none, or no column shows any
	LastCrash *time.Time        // nil: no crash is known
	Picture   *Snapshot         // its latest snapshot; nil: none is stored
}

// address returns the device's address in its network, or else the address that it connects from.
func (d DeviceRow) address() string {
	if d.Vitals != nil && d.Vitals.IP != "" {
		return d.Vitals.IP
	}
	return d.RemoteAddr
}

// pictureKind returns the kind of the latest picture.
func (d DeviceRow) pictureKind() string {
	if d.Picture.Camera {
		return "devices.picture.camera"
	}
	return "devices.picture.screen"
}
