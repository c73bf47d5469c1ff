package ui

import (
	"cmp"
	"context"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/telemetry"
)

// A DevicesPage is the list of devices: GET [PathDevices].
type DevicesPage struct {
	Query    string // as written
	BadQuery string // why the query is invalid; "" if it is valid
	List     ListURL
	Rows     []DeviceRow
	Prev     string // cursors; "" at the ends
	Next     string
	Total    int                // devices that match the query
	Fleet    int                // devices in service; 0 shows how to add the first
	Boards   []string           // most frequent first: filters on offer
	Kinds    []fleet.DeviceKind // of the fleet; filters on offer if there are several
	Saved    SavedFilters
	CanAct   bool

	CanRetire bool
	Setup     Setup
	First     bool // no device has joined yet: the page shows Setup

	Columns    Columns
	Wall       bool // the latest picture of each device, instead of the table
	Unpictured int  // matching devices without a picture, which are not on the wall
}

// ViewWall is the view parameter of a device list with pictures.
const ViewWall = "wall"

// SavedFilters are the device queries with a name: POST [PathFilters] saves the query of the list.
type SavedFilters struct {
	Filters []fleet.Filter
	Counts  []int // of the viewer's devices, in the order of Filters
	CanSave bool
	Change  uuid.UUID // the filter whose change was refused; zero for a new one
	Name    string    // as typed before
	Title   string
	Problem string // why it was refused
}

// refused reports whether the form of the filter was refused.
func (s SavedFilters) refused(filter uuid.UUID) bool { return s.Problem != "" && s.Change == filter }

// fields returns the values of a filter's form; a zero filter is a new one.
func (s SavedFilters) fields(f fleet.Filter) (name, title string) {
	if s.refused(f.ID) {
		return s.Name, s.Title
	}
	return f.Name, f.Title
}

// A DeviceRow is one device in a list. A live stream sends it as a patch.
type DeviceRow struct {
	ID       fleet.DeviceID
	Kind     fleet.DeviceKind
	MAC      string // "" for a device whose id is not its MAC address
	Name     string // "" if unnamed
	Board    string
	Version  string
	Presence fleet.Presence
	Since    time.Time
	Talking  string // id of its present conversation; "" without one
	LastSeen *time.Time
	Tags     []string
	Conflict bool // two units seem to use its id
	Claimed  bool // its reported board or chip is not the pinned one
	OnHold   bool
	Hold     string // reason
	Waiting  bool   // not enrolled yet
	Retired  bool
	Unsteady *telemetry.Vitals // in safe mode, or crashed recently; nil if not
	CanAct   bool

	Chip, Slot, Transport string
	RemoteAddr            string
	CreatedAt             time.Time
	DeviceDetails
	Columns Columns // nil: the default ones
}

// NewDeviceRow returns a device as a row.
func NewDeviceRow(d fleet.Device, now time.Time, canAct bool) DeviceRow {
	row := DeviceRow{
		ID: d.ID, Kind: d.Kind, MAC: d.ID.MAC(), Name: d.Name, Board: d.Board, Version: d.Version,
		Presence: shownPresence(d), Since: d.PresenceSince, LastSeen: d.LastSeen, Tags: d.Tags,
		OnHold: d.Hold.Active(now), Conflict: d.RetiredAt == nil && d.Conflict.Active(now),
		Claimed: d.RetiredAt == nil && d.Claimed != nil,
		Waiting: d.Enrolment == fleet.EnrolmentWaiting,
		Retired: d.RetiredAt != nil, CanAct: canAct,
		Chip: d.Chip, Slot: d.Slot, Transport: d.Transport, RemoteAddr: d.RemoteAddr, CreatedAt: d.CreatedAt,
	}
	if row.OnHold {
		row.Hold = d.Hold.Reason
	}
	return row
}

// unusual reports whether the presence has to be named: a dot is enough for an online device, and
// for one that is between conversations.
func (d DeviceRow) unusual() bool {
	return d.Presence != fleet.PresenceOnline && d.Presence != fleet.CountedBetween
}

// Title returns the device's name, or its id if it has none.
func (d DeviceRow) Title() string { return deviceTitle(d.ID, d.Name) }

func deviceTitle(id fleet.DeviceID, name string) string {
	return fleet.Device{ID: id, Name: name}.Title()
}

func showID(id fleet.DeviceID) string {
	if mac := id.MAC(); mac != "" {
		return mac
	}
	return string(id)
}

// quickFilters are the terms that a link adds to the query or removes.
var quickFilters = []struct{ term, key string }{
	{"presence:online", "state.online"},
	{"presence:unresponsive", "state.unresponsive"},
	{"presence:offline", "state.offline"},
	{"presence:pending", "presence.pending"},
	{"hold", "device.on_hold"},
	{"conflict", "conflict.mark"},
	{"enrolment:waiting", "state.waiting"},
}

type filterChip struct {
	Text, URL string
	On        bool
}

func (v DevicesPage) filters(ctx context.Context) []filterChip {
	var chips []filterChip
	for _, f := range quickFilters {
		chips = append(chips, v.filter(t(ctx, f.key), f.term))
	}
	if len(v.Kinds) > 1 {
		for _, k := range v.Kinds {
			chips = append(chips, v.filter(t(ctx, "kinds."+string(k)), Term("kind", string(k))))
		}
	}
	for _, b := range v.Boards {
		chips = append(chips, v.filter(b, Term("board", b)))
	}
	return chips
}

func (v DevicesPage) filter(text, term string) filterChip {
	query, on := ToggleTerm(v.Query, term)
	return filterChip{Text: text, URL: v.List.With("q", query), On: on}
}

// ToggleTerm removes a term from a query, or adds it instead of any other term on the same field.
// on reports whether the query contained it.
func ToggleTerm(query, term string) (toggled string, on bool) {
	field, _, _ := strings.Cut(term, ":")
	var kept []string
	for _, word := range splitQuery(query) {
		switch {
		case word == term:
			on = true
		case strings.Contains(term, ":") && strings.HasPrefix(word, field+":"):
		default:
			kept = append(kept, word)
		}
	}
	if !on {
		kept = append(kept, term)
	}
	return strings.Join(kept, " "), on
}

// splitQuery splits a query at blanks outside of double quotes.
func splitQuery(query string) []string {
	quoted := false
	return strings.FieldsFunc(query, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return !quoted && (r == ' ' || r == '\t')
	})
}

// saveURL returns the page that saves the list's query.
func (v DevicesPage) saveURL() string {
	return PathFilters + "?" + url.Values{"q": {v.Query}}.Encode()
}

func filterTitle(f fleet.Filter) string { return cmp.Or(f.Title, f.Name) }

// takePicturesURL returns the plan of a snapshot by each listed device that is online and can take
// one.
func (v DevicesPage) takePicturesURL() string {
	q := strings.TrimSpace(v.Query + " presence:online tool:" + fleet.ToolSnapshot)
	return PathFanOutNew + "?" + url.Values{"q": {q}, "tool": {fleet.ToolSnapshot}}.Encode()
}

// exportURL returns the file of the matching devices.
func (v DevicesPage) exportURL() string {
	if v.Query == "" {
		return PathExport
	}
	return PathExport + "?" + url.Values{"q": {v.Query}}.Encode()
}

// allKey returns the message for the choice of all matching devices.
func (v DevicesPage) allKey() string {
	if v.Query == "" {
		return "bulk.all"
	}
	return "bulk.all_matching"
}

type column struct{ sort, key, class string }

// sorted returns the column's aria-sort.
func (l ListURL) sorted(column, first string) string {
	by := l.Get("sort")
	if by == "" {
		by = first
	}
	switch {
	case by != column:
		return "none"
	case l.Get("desc") != "":
		return "descending"
	}
	return "ascending"
}

// sortURL sorts by the column, or reverses the order if it is sorted already.
func (l ListURL) sortURL(column, first string) string {
	next := ListURL{l.Path, url.Values{}}
	for k, v := range l.Values {
		next.Values[k] = v
	}
	if l.sorted(column, first) == "ascending" {
		next.Values.Set("desc", "1")
	} else {
		next.Values.Del("desc")
	}
	return next.With("sort", column)
}

// historyURL returns the devices of a past moment, for the filter of the list.
func (v DevicesPage) historyURL() string {
	return ListURL{Path: PathHistory}.With("q", v.Query)
}
