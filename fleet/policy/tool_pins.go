package policy

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/internal/table"
)

// MaxToolPins is the maximum number of pins in a fleet.
const MaxToolPins = 1000

// A ToolPin fixes the digest of a tool. Principals of kind model and voice may not call the
// tool on a device that lists it with another digest.
type ToolPin struct {
	Tool     string
	Digest   fleet.ToolDigest
	PinnedBy string
	PinnedAt time.Time
}

// ToolPinStore stores pins. It audits each change.
type ToolPinStore interface {
	ToolPins(ctx context.Context) ([]ToolPin, error) // by tool
	// SaveToolPin stores a pin and replaces the tool's previous one.
	SaveToolPin(ctx context.Context, by fleet.Principal, p ToolPin, device fleet.DeviceID) error
	DeleteToolPin(ctx context.Context, by fleet.Principal, tool string) error
}

// ToolPins manages pins and caches them in memory, so the gate reads no database. A nil
// *ToolPins has no pins.
type ToolPins struct {
	store   ToolPinStore
	targets *fleet.Targets
	pins    *table.Table[map[string]ToolPin]
	digests *fleet.ToolDigests          // of pinned tools
	saved   func(context.Context) error // a pin ends quarantines; may be nil
}

// NewToolPins returns the service. Call Load before the first call.
func NewToolPins(store ToolPinStore, targets *fleet.Targets, log *slog.Logger) *ToolPins {
	s := &ToolPins{store: store, targets: targets, digests: fleet.NewToolDigests()}
	s.pins = table.New(table.Options[map[string]ToolPin]{Read: s.read, Every: pinsRefresh, What: "tool pins", Log: log})
	return s
}

// pinsRefresh is how long a change by another process can go unnoticed.
const pinsRefresh = 5 * time.Second

// Load reads the pins.
func (s *ToolPins) Load(ctx context.Context) error { return s.pins.Load(ctx) }

// Run reloads the pins periodically until ctx ends, since another process may change them.
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

// Pinned reports whether the tool is pinned.
func (s *ToolPins) Pinned(tool string) bool {
	_, pinned := s.Pin(tool)
	return pinned
}

// Save pins the tool as the device lists it. It requires an administrator of the whole fleet.
func (s *ToolPins) Save(ctx context.Context, by fleet.Principal, device fleet.DeviceID, tool string) (ToolPin, error) {
	if err := by.May(fleet.RoleAdmin, "pin_tool"); err != nil {
		return ToolPin{}, err
	}
	now := time.Now().UTC()
	s.targets.Forget(device) // pin the current listing, not the cached one
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
	if err == nil && s.saved != nil {
		err = s.saved(ctx)
	}
	if err != nil {
		return ToolPin{}, err
	}
	return p, nil
}

// Delete removes the pin of a tool. It requires an administrator of the whole fleet.
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

// Differs reports whether the tool is pinned to a digest other than that in the inventory.
func (s *ToolPins) Differs(inventory string, tool fleet.Tool) bool {
	p, pinned := s.Pin(tool.Name)
	if !pinned {
		return false
	}
	return s.digests.Of(inventory, tool) != p.Digest
}
