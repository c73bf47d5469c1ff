package policy

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/internal/table"
)

// MaxToolPins bounds the pins of a fleet.
const MaxToolPins = 1000

// A ToolPin says how a tool is to be described. Principals of kind model and voice
// may not call it on a device that describes it otherwise.
type ToolPin struct {
	Tool     string
	Digest   fleet.ToolDigest
	PinnedBy string
	PinnedAt time.Time
}

// ToolPinStore keeps pins. Changes are audited.
type ToolPinStore interface {
	ToolPins(ctx context.Context) ([]ToolPin, error) // by tool
	// SaveToolPin stores a pin, in place of one that the tool has.
	SaveToolPin(ctx context.Context, by fleet.Principal, p ToolPin, device fleet.DeviceID) error
	DeleteToolPin(ctx context.Context, by fleet.Principal, tool string) error
}

// ToolPins manages pins, and keeps them in memory: the gate reads nothing. A nil
// *ToolPins has none.
type ToolPins struct {
	store   ToolPinStore
	targets *fleet.Targets
	pins    *table.Table[map[string]ToolPin]
	digests *fleet.ToolDigests // of pinned tools
}

// NewToolPins makes the service. Load it before the first call.
func NewToolPins(store ToolPinStore, targets *fleet.Targets, log *slog.Logger) *ToolPins {
	s := &ToolPins{store: store, targets: targets, digests: fleet.NewToolDigests()}
	s.pins = table.New(table.Options[map[string]ToolPin]{Read: s.read, Every: pinsRefresh, What: "tool pins", Log: log})
	return s
}

// pinsRefresh is how long a change by another process goes unnoticed.
const pinsRefresh = 5 * time.Second

// Load reads the pins.
func (s *ToolPins) Load(ctx context.Context) error { return s.pins.Load(ctx) }

// Run reads the pins again and again, until ctx ends: another process may change them.
func (s *ToolPins) Run(ctx context.Context) error { return s.pins.Run(ctx) }

func (s *ToolPins) read(ctx context.Context, _ *map[string]ToolPin) (*map[string]ToolPin, error) {
	all, err := s.store.ToolPins(ctx)
	if err != nil {
		return nil, err
	}
	pins := make(map[string]ToolPin, len(all))
	for _, p := range all {
		pins[p.Tool] = p
	}
	return &pins, nil
}

// ToolPins returns all pins, by tool.
func (s *ToolPins) ToolPins(ctx context.Context) ([]ToolPin, error) { return s.store.ToolPins(ctx) }

// Pin returns the pin of a tool.
func (s *ToolPins) Pin(tool string) (ToolPin, bool) {
	if s == nil {
		return ToolPin{}, false
	}
	p, ok := (*s.pins.State())[tool]
	return p, ok
}

// Save pins the tool as the device lists it. It takes an administrator of the whole fleet.
func (s *ToolPins) Save(ctx context.Context, by fleet.Principal, device fleet.DeviceID, tool string) (ToolPin, error) {
	if err := by.May(fleet.RoleAdmin, "pin_tool"); err != nil {
		return ToolPin{}, err
	}
	now := time.Now().UTC()
	s.targets.Forget(device) // what it lists now is to be pinned
	t, err := s.targets.Get(ctx, device, now)
	if errors.Is(err, fleet.ErrNotFound) {
		return ToolPin{}, fleet.Refuse(fleet.ErrInvalid, "unknown_device", "device", device).At("device")
	}
	if err != nil {
		return ToolPin{}, err
	}
	listed, ok := t.Inventory.Tool(tool)
	if !ok {
		return ToolPin{}, fleet.Refuse(fleet.ErrInvalid, "tool_not_listed", "device", t.Device.Title(), "tool", tool).
			At("tool")
	}
	p := ToolPin{Tool: tool, Digest: listed.Digest(), PinnedBy: by.Name, PinnedAt: now.Truncate(time.Microsecond)}
	err = s.pins.Change(ctx, 0, func(*map[string]ToolPin) error {
		all, err := s.store.ToolPins(ctx)
		if err != nil {
			return err
		}
		if _, pinned := s.Pin(tool); !pinned && len(all) >= MaxToolPins {
			return fleet.Refuse(fleet.ErrConflict, "too_many_tool_pins", "limit", MaxToolPins)
		}
		return s.store.SaveToolPin(ctx, by, p, device)
	})
	if err != nil {
		return ToolPin{}, err
	}
	return p, nil
}

// Delete removes the pin of a tool. It takes an administrator of the whole fleet.
func (s *ToolPins) Delete(ctx context.Context, by fleet.Principal, tool string) error {
	if err := by.May(fleet.RoleAdmin, "pin_tool"); err != nil {
		return err
	}
	return s.pins.Change(ctx, 0, func(*map[string]ToolPin) error {
		err := s.store.DeleteToolPin(ctx, by, tool)
		if errors.Is(err, fleet.ErrNotFound) {
			return fleet.Refuse(fleet.ErrNotFound, "unknown_tool_pin", "tool", tool)
		}
		return err
	})
}

// Differs reports whether the tool is pinned to another digest than an inventory has.
func (s *ToolPins) Differs(inventory string, tool fleet.Tool) bool {
	p, pinned := s.Pin(tool.Name)
	if !pinned {
		return false
	}
	return s.digests.Of(inventory, tool) != p.Digest
}
