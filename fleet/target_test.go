package fleet

import (
	"context"
	"strconv"
	"testing"
	"time"
)

// fickle is one device whose tools differ at every read.
type fickle struct {
	DeviceStore
	InventoryStore
	n int
}

func (f *fickle) Device(_ context.Context, id DeviceID) (Device, error) {
	f.n++
	return Device{ID: id, InventoryID: strconv.Itoa(f.n)}, nil
}

func (f *fickle) Inventory(_ context.Context, id string) (*Inventory, error) {
	return &Inventory{ID: id}, nil
}

func TestTargetsForgetOldInventories(t *testing.T) {
	store := new(fickle)
	targets := NewTargets(store, store)
	for range 3 * maxTargetInventories {
		targets.Forget("a085e3112233")
		got, err := targets.Get(t.Context(), "a085e3112233", time.Now())
		if err != nil || got.Inventory == nil || got.Inventory.ID != strconv.Itoa(store.n) {
			t.Fatalf("get = %+v, %v", got, err)
		}
	}
	if n := targets.inventoryOf.Len(); n > maxTargetInventories {
		t.Errorf("%d inventories are kept", n)
	}
}
