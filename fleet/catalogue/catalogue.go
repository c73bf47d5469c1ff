// Package catalogue knows every tool that devices have ever listed: each definition of it, where it is
// offered, how often it is called, how often calls fail and how long answers take. It also keeps
// language models from definitions that wait for a person.
//
// It makes no calls and judges none: the gate of fleet/call asks through fleet/policy whether a
// definition waits. Counts of calls come from a rollup in the database, see [Store.RollUpUsage];
// nothing here reads the records of calls for a page. Names, descriptions and schemas are text of
// devices. Times are UTC. [Service.Run] is its goroutine.
package catalogue

import (
	"context"
	"encoding/json"
	"time"

	"fleetd/fleet"
)

// Bounds of the catalogue. A hostile device may list new tools without end: what is beyond them is
// left out of the catalogue, and waits for ever while definitions wait for a person.
const (
	MaxDefinitions       = 20_000
	MaxDefinitionsDevice = 1_000 // that one device listed first
	MaxInventoriesDevice = 300   // of one device whose tools are catalogued
	MaxRelease           = 500   // definitions that one request releases
)

// Window is the time over which lists count calls: whole days of UTC, today included.
const Window = 7 * 24 * time.Hour

// Waits is which definitions language models may not call until a person releases them.
type Waits string

const (
	WaitsOff           Waits = "off"
	WaitsNew           Waits = "new"             // tools of which no definition is released
	WaitsNewAndChanged Waits = "new_and_changed" // every definition that appears
)

// Valid reports whether w is one of the constants above.
func (w Waits) Valid() bool { return w == WaitsOff || w == WaitsNew || w == WaitsNewAndChanged }

// Waiting is why a definition waits for a person; "" if it does not.
type Waiting string

const (
	NotWaiting     Waiting = ""
	WaitingNew     Waiting = "new"     // no definition of the tool was released before
	WaitingChanged Waiting = "changed" // another definition of the tool was
)

// holds reports whether models may not call a definition in this state.
func (w Waits) holds(state Waiting) bool {
	return state != NotWaiting && (w == WaitsNewAndChanged || w == WaitsNew && state == WaitingNew)
}

// A Definition is one content of a tool: description and input schema. Devices that list a tool with
// the same definition share it.
type Definition struct {
	Tool        string
	Digest      fleet.ToolDigest
	Description string
	InputSchema json.RawMessage
	Audience    fleet.Audience // user: every device lists it for people only
	FirstSeen   time.Time
	LastSeen    time.Time // latest listing, to the hour; now, while a device offers it
	Waiting     Waiting
	ReleasedBy  string // "" if no person released it
	ReleasedAt  *time.Time
	Devices     int // that offer it now
	Places      []Place
}

// A Place is where a definition is offered. Devices is 0 if devices only offered it in the past.
type Place struct {
	Board, Version string
	Devices        int
}

// An Entry is a tool in the list of the catalogue.
type Entry struct {
	Name                      string
	Audience                  fleet.Audience // model if one of its definitions is for models
	Definitions               int
	Waiting                   int // definitions that wait for a person
	Boards, Versions, Devices int // that offer it now
	Usage                     Usage
}

// A Usage counts calls.
type Usage struct {
	Succeeded, ToolErrors, TimedOut, Unknown int64
	NotSent                                  int64     // refused, invalid, offline or canceled
	Latency                                  Histogram // of calls that the device answered
}

// Sent counts the calls that reached a device, as far as known.
func (u *Usage) Sent() int64 { return u.Succeeded + u.Failed() }

// Failed counts the sent calls that did not succeed.
func (u *Usage) Failed() int64 { return u.ToolErrors + u.TimedOut + u.Unknown }

// ErrorRate is the share of sent calls that did not succeed, 0 to 1.
func (u *Usage) ErrorRate() float64 {
	if u.Sent() == 0 {
		return 0
	}
	return float64(u.Failed()) / float64(u.Sent())
}

// Add adds the counts of another usage.
func (u *Usage) Add(o *Usage) {
	u.Succeeded += o.Succeeded
	u.ToolErrors += o.ToolErrors
	u.TimedOut += o.TimedOut
	u.Unknown += o.Unknown
	u.NotSent += o.NotSent
	u.Latency.Add(&o.Latency)
}

// A VersionUsage is the usage of a tool on devices with one firmware version; "" if the version was not
// known.
type VersionUsage struct {
	Version string
	Usage
	Days []DayUsage // oldest first
}

// A DayUsage counts the calls of one day of UTC.
type DayUsage struct {
	Day          time.Time
	Sent, Failed int64
}

// A Tool is everything that the catalogue knows about one name.
type Tool struct {
	Name        string
	Definitions []Definition // newest first
	Usage       []VersionUsage
	// NoUsage is set if the scope of the reader has more than [MaxScopeDevices] devices: their calls
	// are not counted apart.
	NoUsage bool
}

// Definition returns the definition with the digest, or false.
func (t *Tool) Definition(digest fleet.ToolDigest) (Definition, bool) {
	for _, d := range t.Definitions {
		if d.Digest == digest {
			return d, true
		}
	}
	return Definition{}, false
}

// Total returns the usage on all versions.
func (t *Tool) Total() (u Usage) {
	for i := range t.Usage {
		u.Add(&t.Usage[i].Usage)
	}
	return u
}

// MaxScopeDevices is the largest scope for which the calls of its devices are counted.
const MaxScopeDevices = 2_000

// A Filter selects tools of the catalogue.
type Filter struct {
	Name           string // part of the name, in any case of letters
	Board, Version string // of a device that offers it
	Audience       fleet.Audience
	Waiting        bool // only tools with a definition that waits for a person
	Cursor         string
	Limit          int
}

// A Page is a page of the list, by name.
type Page struct {
	fleet.Page[Entry]
	NoUsage bool // see [Tool]
}

// A State is the state of definitions by which calls are judged.
type State struct {
	Version int64
	Waits   Waits
	// Waiting has all definitions of the catalogue; it is nil while Waits is off.
	Waiting map[Key]Waiting
}

// A Key identifies a definition.
type Key struct {
	Tool   string
	Digest fleet.ToolDigest
}

// Store stores the catalogue. It audits each change. The scope of the context narrows reads.
type Store interface {
	Catalogue(ctx context.Context, f Filter, now time.Time) (Page, error)
	// CatalogueTool returns one tool, or [fleet.ErrNotFound].
	CatalogueTool(ctx context.Context, name string, since, now time.Time) (Tool, error)
	// WaitingDefinitions returns the first definitions that wait, by tool, and how many there are.
	WaitingDefinitions(ctx context.Context, limit int) ([]Definition, int, error)
	// VersionUsage returns the usage of a tool on one firmware version.
	VersionUsage(ctx context.Context, tool, version string, since time.Time) (Usage, error)
	// CatalogueState reads the state; before is the state in memory, nil at the first read.
	CatalogueState(ctx context.Context, before *State) (*State, error)
	// CatalogueInventories adds the tools of inventories that are not in the catalogue yet.
	CatalogueInventories(ctx context.Context) (int, error)
	SetWaits(ctx context.Context, by fleet.Principal, w Waits) error
	// ReleaseDefinitions releases definitions, and ends quarantines of tools with the same digest. It
	// returns those that it released; those that do not wait are left out. It returns
	// [fleet.ErrNotFound] if one is unknown, and then releases none.
	ReleaseDefinitions(ctx context.Context, by fleet.Principal, keys []Key) ([]Key, error)
}
