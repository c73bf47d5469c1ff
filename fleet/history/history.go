// Package history answers what the fleet was at a past moment: which devices there were, what each of them ran and
// was called, how many there were of a kind, what changed between two moments, and how a version spread.
//
// It knows the states that are kept while devices change, and asks a [Store] for them. It writes nothing. A moment
// before the beginning of the history is refused, not guessed. Which devices exist for a principal depends on what
// they are now: a tag that a device had earlier gives no access to it.
//
// Times are UTC. It has no goroutine, and one lock for the beginning of the history, which it remembers for a minute.
package history

import (
	"context"
	"slices"
	"time"

	"fleetd/fleet"
)

// A Begin is how far the history goes back.
type Begin struct {
	States   time.Time // of all that a [Device] has
	Versions time.Time // of the versions that devices ran; never after States
}

// A Device is what a device was at a moment.
type Device struct {
	ID         fleet.DeviceID
	Kind       fleet.DeviceKind
	Name       string
	Board      string
	Chip       string
	Version    string
	Tags       []string
	Enrolment  fleet.Enrolment
	Retired    bool
	HoldSince  *time.Time // nil: not on hold at that moment
	HoldUntil  *time.Time // nil: until it is released
	HoldReason string
	Inventory  string // id of the tools that it offered; "" before it listed any
	ToolsCount int
	Presence   fleet.Presence
	Since      time.Time // from when on all of this but the presence was so
}

// Title returns what a person called the device.
func (d Device) Title() string { return fleet.Device{ID: d.ID, Name: d.Name}.Title() }

// A Filter selects the devices of a moment.
type Filter struct {
	At     time.Time // zero: now
	Query  fleet.Query
	Limit  int
	Cursor string
}

// Counts are the devices of a moment, broken down; each part has the largest first, and at most MaxCounts values.
type Counts struct {
	Total                            int
	Versions, Boards, Tags, Presence []fleet.DeviceCount
	Held                             int
}

// MaxCounts is the number of values of a breakdown.
const MaxCounts = 1000

// A Field is a part of a device that may differ between two moments.
type Field string

const (
	FieldName      Field = "name"
	FieldBoard     Field = "board"
	FieldVersion   Field = "version"
	FieldTags      Field = "tags"
	FieldHold      Field = "hold"
	FieldTools     Field = "tools"
	FieldEnrolment Field = "enrolment"
	FieldPresence  Field = "presence"
	FieldAdded     Field = "added"   // in service at the second moment only
	FieldRemoved   Field = "removed" // in service at the first moment only
)

// Fields lists the fields, in the order in which they are shown.
var Fields = []Field{FieldAdded, FieldRemoved, FieldVersion, FieldTools, FieldBoard, FieldName, FieldTags, FieldHold,
	FieldEnrolment, FieldPresence}

// A Change is a device that differs between two moments. Of a device that was added Before is nil, of one that was
// removed After is.
type Change struct {
	Device        fleet.DeviceID
	Fields        []Field
	Before, After *Device
	// ToolsAdded and ToolsRemoved are the names, if the tools differ.
	ToolsAdded, ToolsRemoved []string
}

// Title returns what a person calls the device.
func (c Change) Title() string {
	if c.After != nil {
		return c.After.Title()
	}
	return c.Before.Title()
}

// A DiffFilter selects the changes between two moments.
type DiffFilter struct {
	From, To time.Time
	Query    fleet.Query // the devices that match it at either moment
	Field    Field       // only changes of this field; "" for all
	Limit    int
	Cursor   string
}

// A Diff is what changed between two moments: a page of the devices, and how many there are.
type Diff struct {
	Page    fleet.Page[Change]
	Devices int // that differ, in whatever field
	Counts  map[Field]int
}

// An AdoptionFilter selects a series.
type AdoptionFilter struct {
	From, To time.Time
	Points   int         // number of moments, with both ends; 0: [DefaultPoints]
	Query    fleet.Query // the devices that match it now
	Version  string      // only this version and the sum of the others; "" for all
}

// Limits of a series.
const (
	DefaultPoints  = 60
	MaxPoints      = 500
	adoptionSeries = 12 // versions with a series of their own
)

// An Adoption is how many devices in service ran which version at equal distances of time.
type Adoption struct {
	Times  []time.Time
	Series []Series // those with the most devices at any moment, the greatest version first
	Others []int    // devices with another version; nil if there are none
}

// A Series is the number of devices with a version at each moment.
type Series struct {
	Version string // "": unknown
	Counts  []int
}

// A Store reads states. It leaves out the devices that do not exist for the principal of the context. Moments are
// not before the beginning of the history.
type Store interface {
	HistoryBegin(ctx context.Context) (Begin, error)
	// PastDevices lists the devices of a moment by name.
	PastDevices(ctx context.Context, f Filter) (fleet.Page[Device], error)
	PastCounts(ctx context.Context, at time.Time, q fleet.Query) (Counts, error)
	CountPast(ctx context.Context, at time.Time, q fleet.Query) (int, error)
	// DiffStates lists the devices that differ between two moments by id, and counts them.
	DiffStates(ctx context.Context, f DiffFilter) (Diff, error)
	// VersionSeries counts the devices in service that have joined and run firmware at the moments, which are in order.
	VersionSeries(ctx context.Context, moments []time.Time, q fleet.Query) ([]Series, error)
	// DeviceStates lists the states of a device that ended after since, and the present one, newest first.
	DeviceStates(ctx context.Context, id fleet.DeviceID, since time.Time, limit int) ([]Device, error)
}

// keptFields are the fields of queries that can be answered for a past moment.
var keptFields = []string{"", "id", "name", "board", "chip", "kind", "version", "presence", "tag", "tool", "enrolment",
	"hold", "retired"}

// CheckQuery refuses a query about what is not kept.
func CheckQuery(q fleet.Query) error {
	for _, t := range q.Terms {
		if !slices.Contains(keptFields, t.Field) {
			return fleet.Refuse(fleet.ErrInvalid, "no_history_of_field", "field", t.Field).At("q")
		}
	}
	return nil
}
