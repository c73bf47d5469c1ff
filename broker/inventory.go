package broker

import (
	"time"

	"fleetd/fleet"
	"fleetd/internal/bounded"
)

// maxInventories is how many different inventories are cached to be shared. A fleet has one per
// firmware build.
const maxInventories = 256

// inventories shares the memory of equal tool lists: ten thousand devices with the same firmware
// use one copy of the list.
type inventories struct {
	known *bounded.Cache[string, fleet.Inventory]
}

func (all *inventories) of(tools []fleet.Tool) fleet.Inventory {
	id := fleet.InventoryID(tools)
	inv := fleet.Inventory{ID: id, Tools: tools, CreatedAt: time.Now().UTC()}
	if first, known, _ := all.known.PeekOrAdd(id, inv); known {
		all.known.Get(id) // it is in use
		return first
	}
	return inv
}
