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
	n    int
	read func() // is called during a read
}

func (f *fickle) Device(_ context.Context, id DeviceID) (Device, error) {
	f.n++
	d := Device{ID: id, InventoryID: strconv.Itoa(f.n)}
	if f.read != nil {
		f.read()
	}
	return d, nil
}

func (f *fickle) Inventory(_ context.Context, id string) (*Inventory, error) {
	return &Inventory{ID: id}, nil
}

// A device that changes while it is read is read again by the next call.
func TestTargetsChangeDuringRead(t *testing.T) {
	const id DeviceID = "a085e3112233"
	for name, change := range map[string]func(*Targets){
		"of the device":      func(all *Targets) { all.Forget(id) },
		"of another device":  func(all *Targets) { all.Forget("a085e3112244") },
		"of unknown devices": func(all *Targets) { all.forgetAll() },
	} {
		store := new(fickle)
		targets := NewTargets(store, store)
		store.read = func() { change(targets) }
		get := func() string {
			got, err := targets.Get(t.Context(), id, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			return got.Inventory.ID
		}
		first := get()
		store.read = nil
		want := "2"
		if name == "of another device" {
			want = "1"
		}
		if second, third := get(), get(); first != "1" || second != want || third != want {
			t.Errorf("change %s: read %s, then %s and %s, want 1, %s and %s", name, first, second, third, want, want)
		}
		if len(targets.changed) > 0 || targets.reads != 0 {
			t.Errorf("change %s: %d reads, changes %v after all", name, targets.reads, targets.changed)
		}
	}
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
