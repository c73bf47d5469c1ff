package fleet

import (
	"context"
	"time"
)

// DeviceSort is a column by which a device list can be sorted.
type DeviceSort string

const (
	SortName     DeviceSort = "name"
	SortBoard    DeviceSort = "board"
	SortVersion  DeviceSort = "version"
	SortPresence DeviceSort = "presence"
	SortLastSeen DeviceSort = "last_seen"
	SortCreated  DeviceSort = "created"
)

// A DeviceFilter selects and sorts the devices of a list.
type DeviceFilter struct {
	Query  Query
	Sort   DeviceSort // default SortName
	Desc   bool
	Limit  int
	Cursor string
	// Pictured selects only devices with a stored picture.
	Pictured bool
}

// A DeviceCount is one bar of a breakdown: the number of devices that share a value.
type DeviceCount struct {
	Value string
	Count int
}

// DeviceStore stores devices. It finds retired devices by id, and by queries with the flag
// retired.
type DeviceStore interface {
	Device(ctx context.Context, id DeviceID) (Device, error)
	Devices(ctx context.Context, f DeviceFilter) (Page[Device], error)
	CountDevices(ctx context.Context, q Query) (int, error)
	// DeviceIDs streams the ids of all matching devices in id order.
	DeviceIDs(ctx context.Context, q Query) ([]DeviceID, error)
	// DevicesByID returns the existing devices among ids, in no particular order.
	DevicesByID(ctx context.Context, ids []DeviceID) ([]Device, error)
	// CountBy breaks matching devices down by "board", "version", "presence" or "chip", largest first.
	CountBy(ctx context.Context, q Query, fields ...string) ([][]DeviceCount, error)
	// CountEach counts the devices that match each of the queries, in one pass.
	CountEach(ctx context.Context, queries []Query) ([]int, error)
	// CountPictured counts the matching devices that have a stored picture.
	CountPictured(ctx context.Context, q Query) (int, error)
	// CountValues breaks matching devices down by a field of the query language, largest
	// first, and returns the values that contain the text. It returns nothing for a field
	// whose values are not counted.
	CountValues(ctx context.Context, q Query, field, text string, limit int) ([]DeviceCount, error)
	Facts(ctx context.Context, id DeviceID) (Facts, error)
	FirmwareHistory(ctx context.Context, id DeviceID) ([]FirmwareRecord, error) // newest first

	UpdateDevice(ctx context.Context, by Principal, id DeviceID, p DevicePatch) error
	SetHold(ctx context.Context, by Principal, id DeviceID, h *Hold) error // nil releases
	RetireDevice(ctx context.Context, by Principal, id DeviceID, at time.Time) error
	// ReplaceDevice retires old and gives its name, tags, notes and hold to its successor.
	ReplaceDevice(ctx context.Context, by Principal, old, successor DeviceID, at time.Time) error
}
