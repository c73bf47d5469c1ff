package fleet

import (
	"context"
	"encoding/json"
	"slices"
	"time"
)

// Audience is the audience for which the device meant a tool.
type Audience string

const (
	AudienceModel Audience = "model" // language models and people
	AudienceUser  Audience = "user"  // people and programs they run; never a language model
)

// A Tool is a function that a device offers, as listed by tools/list. Name and description
// are foreign text, cleaned and bounded on entry.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"input_schema"`
	Audience    Audience        `json:"audience"`
}

// An Inventory is the list of a device's tools. It is stored once by its content and shared
// by all devices with the same tools.
type Inventory struct {
	ID        string // SHA-256 of the tools in canonical JSON, hex
	Tools     []Tool
	CreatedAt time.Time
}

// Tool returns the tool of that name, or false.
func (inv *Inventory) Tool(name string) (Tool, bool) {
	if inv == nil {
		return Tool{}, false
	}
	for _, t := range inv.Tools {
		if t.Name == name {
			return t, true
		}
	}
	return Tool{}, false
}

// An InventoryRecord is the time during which a device offered an inventory.
type InventoryRecord struct {
	InventoryID string
	Version     string // firmware version at the first listing
	ELFSHA256   string
	ToolsCount  int
	Partial     bool // the device could not list all its tools
	FirstSeen   time.Time
	LastSeen    time.Time
}

// A ToolListing is the result of one complete tools/list of a device.
type ToolListing struct {
	Device        DeviceID
	Inventory     Inventory
	ServerName    string // initialize: serverInfo.name
	ServerVersion string
	ELFSHA256     string // build of the device, from the boot poll
	Version       string
	Partial       bool
	At            time.Time

	// Of a plug-in or an endpoint: its tools as the server lists them, before settings of fleetd
	// hide some and restrict others to people; and a fingerprint of what fleetd starts or connects
	// to, "" for an endpoint.
	Listed     []Tool
	Definition string
}

// An InventoryDiff is the difference between two inventories.
type InventoryDiff struct {
	From, To       string
	Added, Removed []Tool
	Changed        []ToolChange
}

// A ToolChange is a tool that differs between two inventories.
type ToolChange struct {
	Before, After Tool
}

// DiffInventories compares two inventories by tool name.
func DiffInventories(before, after *Inventory) InventoryDiff {
	d := InventoryDiff{From: before.ID, To: after.ID}
	for _, t := range after.Tools {
		old, had := before.Tool(t.Name)
		switch {
		case !had:
			d.Added = append(d.Added, t)
		case !SameTool(old, t):
			d.Changed = append(d.Changed, ToolChange{old, t})
		}
	}
	for _, t := range before.Tools {
		if _, has := after.Tool(t.Name); !has {
			d.Removed = append(d.Removed, t)
		}
	}
	return d
}

// SameTool reports whether both have the same description, schema and audience.
func SameTool(a, b Tool) bool {
	return a.Description == b.Description && a.Audience == b.Audience && sameJSON(a.InputSchema, b.InputSchema)
}

// sameJSON compares values, not spellings, because the store may reorder keys.
func sameJSON(a, b json.RawMessage) bool {
	return slices.Equal(canonicalJSON(a), canonicalJSON(b))
}

func canonicalJSON(raw json.RawMessage) []byte {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return raw
	}
	out, _ := json.Marshal(v) // cannot fail for unmarshalled values; sorts keys
	return out
}

// InventoryStore stores inventories by content, and when each device had which one.
type InventoryStore interface {
	// SaveListing stores the inventory if it is new, records it for the device, and makes it
	// the device's current one.
	SaveListing(ctx context.Context, l ToolListing) error
	Inventory(ctx context.Context, id string) (*Inventory, error)
	DeviceInventories(ctx context.Context, id DeviceID) ([]InventoryRecord, error) // newest first
	// InventoriesInUse counts the devices that match a query by inventory.
	InventoriesInUse(ctx context.Context, q Query) ([]InventoryUse, error)
	// InventoryChanges counts the devices whose inventory changed although their firmware did
	// not.
	InventoryChanges(ctx context.Context) ([]InventoryChange, error)
}

// An InventoryUse counts the devices in service of one board with one inventory.
type InventoryUse struct {
	InventoryID string
	Board       string
	Devices     int
}

// An InventoryChange counts the devices that listed another inventory with the same firmware
// before. Their tools should be the same.
type InventoryChange struct {
	Before, After string // ids; After is the current one
	Devices       int
}

// ResultText returns the first text of a CallToolResult, "" if it has none.
func ResultText(result json.RawMessage) string {
	var r struct {
		Content []struct{ Type, Text string }
	}
	if json.Unmarshal(result, &r) != nil {
		return ""
	}
	for _, c := range r.Content {
		if c.Type == "text" {
			return c.Text
		}
	}
	return ""
}
