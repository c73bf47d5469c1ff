package rollout

import (
	"context"
	"errors"

	"fleetd/fleet"
)

// maxInventories bounds the cached inventories; a fleet has one per build.
const maxInventories = 256

// inventories caches inventories by hash: an inventory never changes.
type inventories map[string]*fleet.Inventory

// get returns an inventory, or nil for a device that listed no tools.
func (m *inventories) get(ctx context.Context, store fleet.InventoryStore, id string) (*fleet.Inventory, error) {
	if inv, ok := (*m)[id]; ok || id == "" {
		return inv, nil
	}
	inv, err := store.Inventory(ctx, id)
	if errors.Is(err, fleet.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if *m == nil || len(*m) >= maxInventories {
		*m = make(inventories)
	}
	(*m)[id] = inv
	return inv, nil
}
