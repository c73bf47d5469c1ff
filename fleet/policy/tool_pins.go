package policy

import (
	"context"
	"errors"
	"fleetd/fleet"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
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
	log     *slog.Logger

	changing sync.Mutex // one change, or one reading, of the table at a time
	current  atomic.Pointer[map[string]ToolPin]
	digests  fleet.ToolDigests // of pinned tools
}

// NewToolPins makes the service. Load it before the first call.
func NewToolPins(store ToolPinStore, targets *fleet.Targets, log *slog.Logger) *ToolPins {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &ToolPins{store: store, targets: targets, log: log}
}

// Load reads the pins.
func (s *ToolPins) Load(ctx context.Context) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	return s.load(ctx)
}

func (s *ToolPins) load(ctx context.Context) error {
	all, err := s.store.ToolPins(ctx)
	if err != nil {
		return err
	}
	pins := make(map[string]ToolPin, len(all))
	for _, p := range all {
		pins[p.Tool] = p
	}
	s.current.Store(&pins)
	return nil
}

// pinsRefresh is how long a change by another process goes unnoticed.
const pinsRefresh = 5 * time.Second

// Run reads the pins again and again, until ctx ends: another process may change them.
func (s *ToolPins) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pinsRefresh):
		}
		if err := s.Load(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("tool pins not read; going on with those that are known", "err", err)
		}
	}
}

// ToolPins returns all pins, by tool.
func (s *ToolPins) ToolPins(ctx context.Context) ([]ToolPin, error) { return s.store.ToolPins(ctx) }

// Pin returns the pin of a tool.
func (s *ToolPins) Pin(tool string) (ToolPin, bool) {
	if s == nil {
		return ToolPin{}, false
	}
	pins := s.current.Load()
	if pins == nil {
		return ToolPin{}, false
	}
	p, ok := (*pins)[tool]
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
		return ToolPin{}, fleet.Refuse(fleet.ErrInvalid, "tool_not_listed", "device", t.Device.Title(), "tool", fleet.CleanText(tool, 80)).
			At("tool")
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	all, err := s.store.ToolPins(ctx)
	if err != nil {
		return ToolPin{}, err
	}
	if _, pinned := s.Pin(tool); !pinned && len(all) >= MaxToolPins {
		return ToolPin{}, fleet.Refuse(fleet.ErrConflict, "too_many_tool_pins", "limit", MaxToolPins)
	}
	p := ToolPin{Tool: tool, Digest: listed.Digest(), PinnedBy: by.Name, PinnedAt: now.Truncate(time.Microsecond)}
	if err := s.store.SaveToolPin(ctx, by, p, device); err != nil {
		return ToolPin{}, err
	}
	return p, s.load(ctx)
}

// Delete removes the pin of a tool. It takes an administrator of the whole fleet.
func (s *ToolPins) Delete(ctx context.Context, by fleet.Principal, tool string) error {
	if err := by.May(fleet.RoleAdmin, "pin_tool"); err != nil {
		return err
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	err := s.store.DeleteToolPin(ctx, by, tool)
	if errors.Is(err, fleet.ErrNotFound) {
		return fleet.Refuse(fleet.ErrNotFound, "unknown_tool_pin", "tool", fleet.CleanText(tool, 80))
	}
	if err != nil {
		return err
	}
	return s.load(ctx)
}

// Differs reports whether the tool is pinned to another digest than an inventory has.
func (s *ToolPins) Differs(inventory string, tool fleet.Tool) bool {
	p, pinned := s.Pin(tool.Name)
	if !pinned {
		return false
	}
	return s.digests.Of(inventory, tool) != p.Digest
}
