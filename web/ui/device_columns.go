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
var DefaultColumns = Columns{"board", "version", "signal", "uptime", "crash", "campaign", "tags", "seen"}

// ColumnsDefault is the columns parameter that ends a viewer's choice.
const ColumnsDefault = "default"

// sparse are the default columns that are shown only if a device of the list has a value: stock
// firmware reports neither signal nor crashes.
var sparse = []string{"signal", "uptime", "crash", "campaign"}

// Filled returns the default columns without those that would be empty.
func Filled(rows []DeviceRow) Columns {
	return slices.DeleteFunc(slices.Clone(DefaultColumns), func(name string) bool {
		return slices.Contains(sparse, name) && !slices.ContainsFunc(rows, func(d DeviceRow) bool { return d.has(name) })
	})
}

// has reports whether the device has a value in a sparse column.
func (d DeviceRow) has(name string) bool {
	switch name {
	case "signal":
		return d.Vitals != nil && d.Vitals.RSSI != nil
	case "uptime":
		return d.Vitals != nil && d.Vitals.Uptime > 0
	case "crash":
		return d.LastCrash != nil
	}
	return d.Campaign.ID != ""
}

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
	{"signal", column{"", "devices.col.signal", "col-more"}},
	{"heap", column{"", "devices.col.heap", "col-more"}},
	{"uptime", column{"", "devices.col.uptime", "col-more"}},
	{"crash", column{"", "devices.col.crash", "col-more"}},
	{"campaign", column{"", "devices.col.campaign", "col-more"}},
	{"tags", column{"", "devices.col.tags", "col-tags"}},
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
	Campaign  CampaignRef       // the campaign in which it waits or works; zero: none
	Picture   *Snapshot         // its latest snapshot; nil: none is stored
}

// A CampaignRef names a campaign.
type CampaignRef struct{ ID, Name string }

// booted returns when the device started, as far as it is known.
func (d DeviceRow) booted() time.Time { return d.Vitals.At.Add(-d.Vitals.Uptime) }

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
